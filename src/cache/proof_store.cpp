// SPDX-License-Identifier: Apache-2.0
#include "cache/proof_store.h"

#include <algorithm>

namespace shardproof {

bool isProof(Method method, Checker checker) {
  if (checker == Checker::kZ3) return method == Method::kSolver;
  return method == Method::kNormalForm || method == Method::kPolynomial ||
         method == Method::kSolver;
}

StoredProof storedProof(const Stage& stage, const StageOutcome& outcome) {
  StoredProof proof;
  proof.method = outcome.method;
  const auto shown = shownTensors(stage);
  for (std::size_t i = 0; i < std::min(shown.size(), outcome.reducedShapes.size()); ++i)
    proof.shapes.push_back({shown[i].first, outcome.reducedShapes[i].reduced});
  return proof;
}

StageOutcome provedOutcome(const Stage& stage, const StoredProof& proof) {
  StageOutcome outcome;
  outcome.verdict = StageVerdict::kProved;
  outcome.method = proof.method;
  std::map<std::int32_t, const Shape*> reduced;
  for (const auto& s : proof.shapes) reduced.emplace(s.tensor, &s.shape);
  for (auto& [t, name] : shownTensors(stage)) {
    // Where the other plan gave two tensors one name, only the first was listed.
    const auto it = reduced.find(t);
    if (it != reduced.end())
      outcome.reducedShapes.push_back(
          {std::move(name), stage.tensors[static_cast<std::size_t>(t)].info.shape, *it->second});
  }
  return outcome;
}

std::optional<StageOutcome> ProofStore::recall(const std::string& form, Checker checker,
                                               const Stage& stage) {
  const auto proof = find(form, checker);
  if (!proof) return std::nullopt;
  return provedOutcome(stage, *proof);
}

void ProofStore::remember(const std::string& form, Checker checker, const Stage& stage,
                          const StageOutcome& outcome) {
  if (outcome.verdict == StageVerdict::kProved && isProof(outcome.method, checker))
    add(form, checker, storedProof(stage, outcome));
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
