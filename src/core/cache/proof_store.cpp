// SPDX-License-Identifier: Apache-2.0
#include "cache/proof_store.h"

#include <algorithm>
#include <stdexcept>

namespace shardproof {

bool isProof(Method method, Checker checker) {
  return checker == Checker::kZ3 ? method == Method::kSolver : proves(method);
}

StoredProof storedProof(const Stage& stage, Method method,
                        const std::vector<ReducedShape>& shapes) {
  StoredProof stored;
  stored.method = method;
  const auto shown = shownTensors(stage);
  for (std::size_t i = 0; i < std::min(shown.size(), shapes.size()); ++i)
    stored.shapes.push_back({shown[i].first, shapes[i].reduced});
  return stored;
}

std::optional<ProofStore::Recalled> ProofStore::recall(const std::string& form, Checker checker,
                                                       const Stage& stage) {
  const auto stored = find(form, checker);
  if (!stored || !isProof(stored->method, checker)) return std::nullopt;
  Recalled recalled{Proof(stored->method, std::string_view(form)), {}};
  std::map<std::int32_t, const Shape*> reduced;
  for (const auto& s : stored->shapes) reduced.emplace(s.tensor, &s.shape);
  for (auto& [t, name] : shownTensors(stage)) {
    // Where the other plan gave two tensors one name, only the first was listed.
    if (const auto it = reduced.find(t); it != reduced.end())
      recalled.reducedShapes.push_back(
          {std::move(name), stage.tensors[static_cast<std::size_t>(t)].info.shape, *it->second});
  }
  return recalled;
}

void ProofStore::remember(const std::string& form, Checker checker, const Stage& stage,
                          const Proof& proof, const std::vector<ReducedShape>& shapes) {
  if (!proof.isOf(form)) throw std::logic_error("a proof of another stage");
  if (isProof(proof.method(), checker))
    add(form, checker, storedProof(stage, proof.method(), shapes));
}

std::optional<StoredProof> MemoryStore::find(const std::string& form, Checker checker) {
  if (const auto it = proofs_.find({checker, form}); it != proofs_.end()) return it->second;
  auto proof = behind_ ? behind_->find(form, checker) : std::nullopt;
  if (proof) proofs_.emplace(std::pair(checker, form), *proof);
  return proof;
}

void MemoryStore::add(const std::string& form, Checker checker, const StoredProof& proof) {
  proofs_.insert_or_assign({checker, form}, proof);
  if (behind_) behind_->add(form, checker, proof);
}

void MemoryStore::flush() {
  if (behind_) behind_->flush();
}

}  // namespace shardproof
