// SPDX-License-Identifier: Apache-2.0
// Lineage of inputs and approved differences is taken as given, so it must not relate elements of
// the model's tensors to one another: a local tensor that is said to be two different pieces would
// make the proof hold only for inputs on which those pieces agree.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::ir {

class InputSources {
 public:
  explicit InputSources(const Problem& problem);

  // Part `part` of a shard of an entry of role "input" or "assumed" names this tensor of this
  // program.
  void add(ProgramId program, TensorId tensor, std::size_t entry, std::size_t shard,
           std::size_t part);
  // Throws InputError where a local tensor has two sources.
  void check() const;

 private:
  struct Source {
    TensorId tensor;
    std::uint32_t entry, shard, part;
  };
  void checkPair(const Source& a, const Source& b) const;
  const Shard& shardOf(const Source& source) const {
    return problem_.plan.lineage[source.entry].shards[source.shard];
  }

  const Problem& problem_;
  std::vector<std::vector<Source>> sources_;  // per program
};

}  // namespace shardproof::ir
