// SPDX-License-Identifier: Apache-2.0
// The plan that is looked at with numbers: the plan itself, or where that is too large a smaller
// one (src/explanation/shrink/shrink.h), and what its ranks, programs and entries are in the full
// plan.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "correspondence/correspondence.h"
#include "diagnose/excerpt.h"
#include "plan/plan_index.h"
#include "shardproof/graph.h"
#include "shrink/shrink.h"

namespace shardproof::diagnose {

class Image {
 public:
  // The plan itself.
  explicit Image(const Problem& full);
  // A smaller one, where that takes long to execute. Throws Unsupported where none can be made.
  Image(const Problem& full, double seconds);
  // Of the part that an entry's claim is computed by (excerpt.h), smaller where that takes long.
  // Throws Unsupported as well.
  Image(const Problem& full, EntryId entry, double seconds);

  const Problem& full() const { return full_; }
  const Problem& problem() const { return shrunk_.problem ? *shrunk_.problem : full_; }
  bool isFull() const { return shrunk_.problem == nullptr; }
  // An entry of the full plan's lineage; -1: it has none here.
  std::int32_t entryHere(std::int32_t fullEntry) const;
  ProgramId fullProgram(ProgramId program) const {
    return isFull() ? program : shrunk_.programOf[program];
  }
  // Of a program, or of the model (program -1). Of microbatches that went the image has no nodes.
  NodeRef fullNode(NodeRef here) const;
  // Of all tensors, on all ranks; 0: of the plan itself.
  double elements() const { return shrunk_.problem ? shrunk_.elements : 0; }
  // Whether no file has the node: it cannot be fixed.
  bool isAdded(NodeRef here) const {
    const NodeRef ref = fullNode(here);
    return full_.plan.programs[ref.program].graph.nodes[ref.node].added >= 0;
  }
  // Ranks of the full plan that these ones stand for: where along an axis all that stayed are among
  // them, all that went are too.
  std::vector<Rank> fullRanks(const std::vector<Rank>& here) const;
  std::int64_t fullMicrobatch(std::int64_t here) const;
  // Of these, ascending, those that they stand for, as fullRanks().
  std::vector<std::int64_t> fullMicrobatches(const std::set<std::int64_t>& here) const;
  // Lineage entries in the order in which one may rely on another.
  bool before(EntryId entry, std::int32_t other) const { return order_[entry] < order_[other]; }

 private:
  void inferHere();
  void takeOrder();

  const Problem& full_;
  Shrunk shrunk_;                                      // of the plan, or of the part
  std::optional<Excerpt> excerpt_;                     // its problem: none where it was shrunk
  std::map<std::int32_t, std::int32_t> inferredHere_;  // by entry of the full plan
  std::vector<std::pair<std::int64_t, std::int32_t>> order_;
};

}  // namespace shardproof::diagnose
