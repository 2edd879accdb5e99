// SPDX-License-Identifier: Apache-2.0
// From proofs of stages for all sizes to the verdict about all plans of a family
// (docs/soundness.md, "Any size"). As ProofChain is for one plan: what is counted are stages that
// cut() has cut, at each member's size, and proofs of these.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chain/conditions.h"
#include "chain/proof_chain.h"
#include "family/family_proof.h"
#include "family/stage_family.h"
#include "shardproof/graph.h"

namespace shardproof {

struct FamilyMember {
  std::int64_t size = 0;
  std::unique_ptr<Problem> problem;
};

// Stages of one entry, or of several, that are the same at each size but for names.
using KindId = Id<struct KindTag>;

class FamilyChain {
 public:
  // Throws InputError where plans cannot be read as one family: other entries, other outputs. At
  // least StageFamily::kLeastMembers members, of different sizes, which are multiples of `unit`:
  // the family has the multiples of it.
  FamilyChain(std::vector<FamilyMember> members, std::int64_t unit);
  ~FamilyChain();

  // Sizes are multiples of it.
  std::int64_t unit() const { return unit_; }
  const Problem& problem() const { return *members_[0].problem; }
  // The model's tensor that the entry is about.
  std::string tensorName(EntryId entry) const;
  // Why nothing can be proved of the family; empty: nothing is in the way.
  const std::string& obstacle() const { return obstacle_; }
  // Entries that are claims, each after those that it may assume.
  const std::vector<EntryId>& order() const { return chains_[0]->order(); }

  // Cuts the entry's stage at all sizes. `collapse`: CutChoice.
  void cut(EntryId entry, bool collapse, const Budget* budget);
  // None: it could not be cut, and why.
  KindId kindOf(EntryId entry) const { return entries_[entry].kind; }
  const std::string& failure(EntryId entry) const { return entries_[entry].failure; }
  std::size_t kinds() const { return kinds_.size(); }

  // The stages of the kind. Throws Unsupported as StageFamily does.
  StageFamily family(KindId kind) const;
  // The one stage that it is at all sizes; null: it depends on the size.
  const std::string* onlyForm(KindId kind) const;

  // std::logic_error: a proof of other stages.
  void prove(KindId kind, const FamilyProof& proof);
  // Of a kind that does not depend on the size.
  void prove(KindId kind, const Proof& proof);
  bool holds(KindId kind) const { return kinds_[kind.index()].least > 0; }

  // By entry: proved down to the inputs, for all sizes from some on.
  std::vector<char> proved() const;
  std::size_t outputsProved() const { return chains_[0]->outputsProved(proved()); }

  struct Result {
    Verdict verdict;
    std::int64_t least, most;  // of the sizes
    std::vector<UnmetCondition> conditions;
  };
  // Nothing where not all is proved.
  std::optional<Result> result(const VerifyOptions& options) const;

  // Whether the plan of another size is the one that the family has there: empty, or what differs,
  // or a condition that is not met. With result(), it is then proved as well.
  std::string differs(const FamilyMember& other, const VerifyOptions& options) const;

 private:
  struct Entry {
    KindId kind;
    std::vector<EntryId> used;
    bool collapse = true;
    std::string failure;
  };
  struct Kind {
    std::vector<std::string> forms;  // by member
    std::int64_t least = 0;          // proved from this size on, in units; 0: not proved
  };
  // What is known of the model's tensors (ModelFacts) must be so at all sizes. Throws Unsupported.
  void expectModelsAlike() const;

  std::vector<FamilyMember> members_;  // by size
  const std::int64_t unit_;
  std::vector<std::int64_t> sizes_;  // in units
  std::vector<std::unique_ptr<PlanIndex>> indices_;
  std::vector<std::unique_ptr<ProofChain>> chains_;
  std::vector<Entry> entries_;
  std::vector<Kind> kinds_;
  std::string obstacle_;
  std::map<std::string, KindId> kindOfKey_;
};

}  // namespace shardproof
