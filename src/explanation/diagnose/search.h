// SPDX-License-Identifier: Apache-2.0
// Looks for a change of the plan with which a failing claim holds: likely ones first, each tried by
// executing what the claim is computed by (slice.h). What is found is a proposal; whether the plan
// is right with it, a proof has to say.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "diagnose/edit.h"
#include "diagnose/finder.h"
#include "diagnose/numbers.h"
#include "ir/clone.h"

namespace shardproof::diagnose {

class Search {
 public:
  Search(const Image& image, ModelValues& model, ProcessorClock::time_point end)
      : image_(image),
        cutter_(image),
        model_(model),
        end_(end),
        correspondence_(image.problem()),
        work_(cloneProblem(image.problem())) {}

  // What is wrong with the claim of an entry, executed. Nothing where it holds, or cannot be
  // executed.
  struct Failing {
    Slice slice;
    std::unique_ptr<Numbers> numbers;
    std::vector<std::size_t> claims;    // that do not hold
    std::vector<std::size_t> one;       // of these the first alone
    std::vector<NodeRef> nodes;         // nearest to the claims first; of the image
    std::vector<NodeRef> here;          // these, of the slice
    std::vector<std::size_t> distance;  // of each of these
    std::vector<NodeRef> turning;       // of these, where it may go wrong (turning.h)
  };
  std::optional<Failing> look(EntryId entry);
  // Lineage that is not to be relied on.
  void ignore(std::set<EntryId> entries) { cutter_.ignore(std::move(entries)); }
  // `found`: what the claims were found to be.
  std::optional<Edit> fix(EntryId entry, const Failing& failing, const Match& found,
                          ProcessorClock::time_point until);
  // Whether the claim of an entry holds with an edit.
  enum class Holds : std::uint8_t {
    kNot,
    kInReals,  // but not in the prime field, where not all laws of the reals hold; where a choice
               // hides a difference (clipping that does not clip) it holds in the reals only, too
    kInBoth
  };
  Holds holdsWith(EntryId entry, const Edit& edit);
  std::size_t trials() const { return trials_; }

 private:
  struct Site {
    std::vector<NodeRef> nodes;
    std::size_t distance = 0;
    std::vector<NodeRef> failing = {};  // of the nodes, those that a failing claim is computed by
    bool turning = false;               // it may go wrong here, or right before
  };
  const Problem& plan() const { return image_.problem(); }
  const Node& node(NodeRef ref) const;
  const Program& program(NodeRef ref) const;
  std::vector<Site> sites(const Failing& failing) const;
  std::vector<std::vector<std::int32_t>> axisSets(const Match& found) const;
  using Producers = std::map<std::pair<ProgramId, TensorId>, NodeRef>;
  Producers producers() const;  // of all tensors of all programs
  // The nodes of the slice, then all that what it begins with is computed by, the nearest first.
  std::vector<NodeRef> upstream(const Failing& failing) const;
  // The nodes right before `failing.turning` and before lineage that the slice begins with: where
  // it was computed or sent, and what only moves or scales it on the way.
  std::vector<NodeRef> before(const Failing& failing) const;
  // Of all nodes upstream.
  std::vector<Edit> odd(const Failing& failing) const;

  void suspicious(const Site& site, const Match& found, std::vector<Edit>& edits) const;
  void messages(const Site& site, std::vector<Edit>& edits) const;
  void collectives(const Site& site, const Match& found, std::vector<Edit>& edits) const;
  void attributes(const Site& site, bool strange, std::vector<Edit>& edits) const;
  void factors(const Site& site, const Match& found, std::vector<Edit>& edits) const;
  void terms(const Site& site, std::vector<Edit>& edits) const;
  void late(const Site& site, std::vector<Edit>& edits) const;
  std::vector<TensorId> unread(ProgramId program) const;
  void scalars(const Site& site, const Match& found, bool strange, std::vector<Edit>& edits) const;
  void skipped(const Site& site, const Match& found, std::vector<Edit>& edits) const;
  void strangers(const Site& site, const Match& found, std::vector<Edit>& edits) const;
  void microbatches(const Site& site, std::vector<Edit>& edits) const;
  void exchanges(const Site& site, std::vector<Edit>& edits) const;
  enum class Operands : std::uint8_t { kUnread, kNear, kAll };
  void operands(const Site& site, Operands which, std::vector<Edit>& edits) const;
  void insertedFactors(const Site& site, const Match& found, std::vector<Edit>& edits) const;
  void inserted(const Site& site, const Match& found, std::vector<Edit>& edits) const;
  std::vector<NodeRef> messagesOf(NameId comm) const;
  Edit on(const Site& site, Edit::Kind kind) const;

  const Image& image_;
  SliceCutter cutter_;
  ModelValues& model_;
  ProcessorClock::time_point end_;
  const Correspondence correspondence_;
  std::unique_ptr<Problem> work_;
  std::size_t trials_ = 0;
};

}  // namespace shardproof::diagnose
