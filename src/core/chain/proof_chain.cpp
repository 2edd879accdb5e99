// SPDX-License-Identifier: Apache-2.0
#include "chain/proof_chain.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "chain/conditions.h"
#include "util/stopwatch.h"

namespace shardproof {

ProofChain::ProofChain(const PlanIndex& planIndex)
    : planIndex_(planIndex),
      problem_(planIndex.problem()),
      plan_(problem_.plan),
      facts_(modelFacts(problem_)),
      claims_(plan_.lineage.size()) {
  for (const EntryId e : firstIds<EntryId>(plan_.lineage.size())) {
    if (!isGiven(plan_.lineage[e].role)) order_.push_back(e);
  }
  std::sort(order_.begin(), order_.end(), [&](EntryId a, EntryId b) { return key(a) < key(b); });
}

CutStage ProofChain::cut(EntryId entry, const CutChoice& choice) const {
  CutOptions options;
  options.facts = &facts_;
  options.excluded = choice.excluded;
  options.deepened = choice.deepened;
  options.collapse = choice.collapse;
  options.maxNodes = choice.maxNodes;
  options.budget = choice.budget;
  CutStage cut;
  cut.owner_ = this;
  cut.entry_ = entry;
  cut.stage_ = std::make_unique<Stage>(cutStage(planIndex_, entry, options));
  cut.used_ = cut.stage_->usedEntries;
  const auto start = std::chrono::steady_clock::now();
  cut.form_ = canonicalForm(*cut.stage_);
  cut.secondsForForm_ = secondsSince(start);
  return cut;
}

std::pair<std::int32_t, bool> ProofChain::enter(CutStage& cut, bool shared) {
  if (cut.owner_ != this || !cut.stage_)
    throw std::logic_error("a stage that is not this chain's, or that was entered before");
  cut.owner_ = nullptr;
  // The order is strict, so that no chain of proofs runs in a cycle.
  for (const EntryId used : cut.used_) {
    if (!isGiven(plan_.lineage[used].role) && !(key(used) < key(cut.entry_)))
      throw std::logic_error("a stage assumes lineage that does not come before its own");
  }
  Claim& claim = claims_[cut.entry_];
  claim.used = std::move(cut.used_);
  if (const auto it = shared ? classOfForm_.find(cut.form_) : classOfForm_.end();
      it != classOfForm_.end()) {
    claim.classId = it->second;
    return {claim.classId, false};
  }
  claim.classId = static_cast<std::int32_t>(classes_.size());
  classes_.push_back(std::make_unique<Class>());
  classes_.back()->form = std::move(cut.form_);
  if (shared) classOfForm_.emplace(classes_.back()->form, claim.classId);
  return {claim.classId, true};
}

ProofChain::Snapshot ProofChain::snapshot() const {
  Snapshot snapshot;
  snapshot.owner_ = this;
  snapshot.claims_ = claims_;
  return snapshot;
}

void ProofChain::restore(Snapshot snapshot) {
  if (snapshot.owner_ != this) throw std::logic_error("a snapshot of another chain");
  claims_ = std::move(snapshot.claims_);
}

void ProofChain::withdraw(EntryId entry) { claims_[entry] = {}; }

void ProofChain::prove(std::int32_t classId, const Proof& proof) {
  Class& proved = *classes_[static_cast<std::size_t>(classId)];
  if (!proof.isOf(proved.form)) throw std::logic_error("a proof of another stage");
  proved.proved = true;
}

bool ProofChain::holds(EntryId entry) const {
  const std::int32_t id = claims_[entry].classId;
  return id >= 0 && classes_[static_cast<std::size_t>(id)]->proved;
}

// Assumed entries come strictly earlier in `order_`, so one pass suffices.
std::vector<char> ProofChain::proved() const {
  std::vector<char> proved(claims_.size(), 0);
  for (const EntryId e : order_) {
    const auto& used = claims_[e].used;
    proved[e] = holds(e) &&
                std::all_of(used.begin(), used.end(), [&](EntryId f) { return proved[f] != 0; });
  }
  return proved;
}

std::size_t ProofChain::outputsProved(const std::vector<char>& proved) const {
  std::vector<char> claimed(problem_.model.graph.tensors.size(), 0), failed(claimed.size(), 0);
  for (const EntryId e : firstIds<EntryId>(plan_.lineage.size())) {
    const LineageEntry& entry = plan_.lineage[e];
    if (entry.role == Role::kOutput) (proved[e] ? claimed : failed)[entry.tensor] = 1;
  }
  return static_cast<std::size_t>(
      std::count_if(problem_.model.outputs.begin(), problem_.model.outputs.end(),
                    [&](std::int32_t output) { return claimed[output] && !failed[output]; }));
}

bool ProofChain::allProved(const std::vector<char>& proved) const {
  bool all = outputsProved(proved) == problem_.model.outputs.size();
  // An `output` entry of a tensor that is not among the model's outputs is a goal all the same.
  for (const EntryId e : firstIds<EntryId>(plan_.lineage.size()))
    all = all && (plan_.lineage[e].role != Role::kOutput || proved[e]);
  // What places a dropout's mask must be true of the tensor that it places.
  for (const EntryId e : plan_.positioning)
    all = all && (isGiven(plan_.lineage[e].role) || proved[e]);
  return all;
}

bool ProofChain::argumentsProved(const std::vector<char>& proved) const {
  const auto& arguments = problem_.model.arguments;
  return arguments.empty() || std::all_of(order_.begin(), order_.end(), [&](EntryId e) {
           const LineageEntry& entry = plan_.lineage[e];
           return entry.role != Role::kOutput || proved[e] ||
                  std::find(arguments.begin(), arguments.end(), entry.tensor) == arguments.end();
         });
}

std::optional<Verdict> ProofChain::verdict(const VerifyOptions& options) const {
  // Of a model without outputs nothing is claimed, so nothing is proved.
  if (problem_.model.outputs.empty() || !planIndex_.defects().empty() || !allProved(proved()))
    return std::nullopt;
  const bool unconditional = unmetConditions(plan_.capture, options).empty();
  return unconditional ? Verdict::kEquivalent : Verdict::kConditional;
}

}  // namespace shardproof
