// SPDX-License-Identifier: Apache-2.0
// Local tensors that are parts of a sum: added up over axes of the mesh (and microbatches) they are
// a box of a tensor of the model.
//
// A fingerprint of each such tensor is kept, not the tensor. It is linear in the elements, so that
// the fingerprint of a sum over ranks is the sum of fingerprints.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "correspondence/correspondence.h"
#include "executor/setup.h"
#include "infer/model_table.h"
#include "infer/relations.h"

namespace shardproof::infer {

// Elements by which a partial sum is looked up: the largest of so many, evenly apart. Most rows of
// a table's gradient are zero.
constexpr std::size_t kPivots = 16;

template <class Real>
struct Fingerprint {
  Shape shape;
  std::int64_t size = 0;  // of its elements
  Real all = 0, largest = 0;
  std::array<Real, kPivots> pivots{};
};

template <class Real>
class PartialSums {
 public:
  // All of these outlive it. `scales`: by which a sum may be multiplied, besides 1.
  PartialSums(const executor::Setup& setup, const Correspondence& correspondence,
              const ModelTable<Real>& table, const std::vector<Rational>& scales);

  // The fingerprint of a local tensor, by slot of all ranks. Nothing where it has infinities.
  void take(std::int64_t slot, const executor::Value<Real>& value);

  // Over the smallest set of axes that gives boxes at all of the program's ranks. Of programs that
  // fix one of these axes, the first has the relation of all.
  std::optional<Relation> relation(ProgramId p, TensorId t, const std::vector<Rank>& ranks) const;

 private:
  std::optional<Relation> relation(ProgramId p, TensorId t, const std::vector<Rank>& ranks,
                                   const Arrangement& arrangement) const;
  std::vector<BoxPosition> places(ProgramId p, TensorId t, Rank rank, std::int32_t microbatch,
                                  const std::vector<std::int32_t>& axes, Real scale) const;
  std::vector<Rank> ranksAlong(Rank rank, const std::vector<std::int32_t>& axes) const;
  bool equalAlongOne(const std::vector<std::int32_t>& axes, const std::vector<Real>& all,
                     Real tolerance) const;

  const executor::Setup& setup_;
  const Problem& problem_;
  const Correspondence& correspondence_;
  const ModelTable<Real>& table_;
  const std::vector<Rational>& scales_;
  std::deque<Fingerprint<Real>> fingerprints_;
  std::vector<std::int32_t> fingerprintOf_;  // by slot: its index; -1: none
};

}  // namespace shardproof::infer
