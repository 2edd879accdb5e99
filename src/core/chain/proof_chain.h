// SPDX-License-Identifier: Apache-2.0
// From proofs of stages to the verdict "proved". Each lineage entry that is a claim has a stage; a
// stage assumes entries that come before its own. An entry holds when its stage is proved and all
// that the stage assumes hold, down to the lineage of inputs. The plan is proved when every output
// of the model has `output` entries that hold, and all entries of that role do
// (docs/soundness.md, "Lemma order").
//
// A caller chooses which lemmas a stage may assume, and what is tried to prove it. Whatever it
// chooses, what is counted here are stages that cut() has cut and proofs of their very forms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/plan_index.h"
#include "prover/model_facts.h"
#include "prover/proof.h"
#include "shardproof/verify.h"
#include "stages/cutter.h"
#include "stages/stage.h"

namespace shardproof {

// Which lemmas a stage may not assume, and how it is cut.
struct CutChoice {
  const std::vector<char>* excluded = nullptr;  // by entry; nullptr: none
  std::vector<EntryId> deepened;                // more of them
  bool collapse = true;                         // CutOptions::collapse
  std::size_t maxNodes = CutOptions().maxNodes;
  const Budget* budget = nullptr;  // CutOptions::budget
};

class ProofChain;

// The stage of one entry, and its canonical form.
class CutStage {
 public:
  const Stage& stage() const { return *stage_; }
  std::unique_ptr<Stage> takeStage() { return std::move(stage_); }
  double secondsForForm() const { return secondsForForm_; }

 private:
  friend class ProofChain;
  CutStage() = default;
  const ProofChain* owner_ = nullptr;  // until it is entered
  EntryId entry_;
  std::unique_ptr<Stage> stage_;
  std::string form_;
  std::vector<EntryId> used_;
  double secondsForForm_ = 0;
};

class ProofChain {
 public:
  // The index has no defects.
  explicit ProofChain(const PlanIndex& planIndex);

  // All entries that are claims, each after those that its stage may assume.
  const std::vector<EntryId>& order() const { return order_; }

  // Throws Unsupported when the stage would exceed maxNodes, CyclicWait. May run in several
  // threads.
  CutStage cut(EntryId entry, const CutChoice& choice) const;

  // Takes the stage as that of its entry from now on. Stages of equal form are one class, if
  // `shared`. Returns the class, and whether it is new. Throws std::logic_error for one that
  // another chain cut, or that was entered before.
  std::pair<std::int32_t, bool> enter(CutStage& cut, bool shared);
  // The entry has no stage from now on.
  void withdraw(EntryId entry);
  std::int32_t classOf(EntryId entry) const { return claims_[entry].classId; }  // -1: no stage
  const std::vector<EntryId>& assumed(EntryId entry) const { return claims_[entry].used; }
  const std::string& form(std::int32_t classId) const {
    return classes_[static_cast<std::size_t>(classId)]->form;
  }

  // Throws std::logic_error where the proof is one of another stage.
  void prove(std::int32_t classId, const Proof& proof);
  // Whether the entry's own stage is proved.
  bool holds(EntryId entry) const;
  // By entry: proved down to the inputs.
  std::vector<char> proved() const;
  // How many outputs of the model have an `output` entry, and all of theirs in `proved`.
  std::size_t outputsProved(const std::vector<char>& proved) const;
  // All that the verdict needs.
  bool allProved(const std::vector<char>& proved) const;
  // Whether the arguments of functions of which nothing is known are proved to be the model's: only
  // then are their results the same on both sides, and a difference of values one that counts.
  bool argumentsProved(const std::vector<char>& proved) const;

  // kEquivalent, or kConditional; nothing where not all is proved.
  std::optional<Verdict> verdict(const VerifyOptions& options) const;

 private:
  struct Claim {
    std::int32_t classId = -1;
    std::vector<EntryId> used;
  };

 public:
  // The stages and classes of all entries, to go back to.
  class Snapshot {
    friend class ProofChain;
    const ProofChain* owner_ = nullptr;
    std::vector<Claim> claims_;
  };
  Snapshot snapshot() const;
  // Throws std::logic_error for the snapshot of another chain.
  void restore(Snapshot snapshot);

 private:
  struct Class {
    std::string form;
    bool proved = false;
  };
  std::pair<std::int64_t, EntryId> key(EntryId e) const { return {planIndex_.entryKey(e), e}; }

  const PlanIndex& planIndex_;
  const Problem& problem_;
  const Plan& plan_;
  ModelFacts facts_;
  std::vector<EntryId> order_;
  std::vector<Claim> claims_;  // by entry
  std::vector<std::unique_ptr<Class>> classes_;
  std::unordered_map<std::string_view, std::int32_t> classOfForm_;  // of those that are shared
};

}  // namespace shardproof
