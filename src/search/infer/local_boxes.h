// SPDX-License-Identifier: Apache-2.0
// Where each local tensor of a run is found in the model: as a box of one of its tensors, or in
// pieces that are boxes (a zigzag sequence, a fused projection).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "correspondence/correspondence.h"
#include "executor/setup.h"
#include "infer/model_table.h"
#include "infer/relations.h"

namespace shardproof::infer {

template <class Real>
class LocalBoxes {
 public:
  using Value = executor::Value<Real>;

  // All of these outlive it.
  LocalBoxes(const executor::Setup& setup, const Correspondence& correspondence,
             const ModelTable<Real>& table, InferParts parts, const std::vector<Rational>& scales);

  // A local tensor as soon as it has its value. Whether it may be part of a sum: it is real, and no
  // box (or uninformative).
  bool take(Rank rank, std::int32_t slot, const Value& value);

  // The places of each of the tensor's slots; none where one of them has no place.
  std::optional<Relation> relation(ProgramId p, TensorId t, const std::vector<Rank>& ranks) const;
  // A relation for each piece of the first arrangement that all ranks have.
  std::vector<Relation> pieces(ProgramId p, TensorId t, const std::vector<Rank>& ranks) const;
  // Whether all elements are equal, or zero, on all ranks and for all microbatches.
  bool isUninformative(ProgramId p, TensorId t, const std::vector<Rank>& ranks) const;

  // Two tokens that were drawn equal look like one: further draws separate them.
  std::size_t ambiguous() const { return ambiguous_; }
  // Whether the model alone, at the draw that the table kept last, has different elements at two
  // places of one tensor. If not, no place would be dropped, and the plan need not be executed.
  bool separatesPlaces() const;
  void beginDropping() { dropped_ = ambiguous_ = 0; }
  // Drops the places at which the tensor is not at this draw. Where it is at none of them any more,
  // all stay: what rounding does differs from draw to draw.
  void dropPlaces(Rank rank, std::int32_t slot, const ResampledValue& value);
  std::size_t dropped() const { return dropped_; }

 private:
  void arrange(Rank rank, std::int32_t slot, const Value& value);
  std::size_t rarePivotOf(const std::vector<Real>& x, std::size_t dims) const;
  const std::vector<std::vector<Arrangement>>& arrangements(const Shape& shape);
  std::vector<BoxPosition> placesOfPiece(std::int64_t slot, std::size_t choice, std::size_t piece,
                                         const Arrangement& arrangement, const Shape& shape) const;
  std::int32_t slotsOf(const Tensor& tensor) const {
    return tensor.perMicrobatch ? setup_.problem.plan.microbatches : 1;
  }

  const executor::Setup& setup_;
  const Problem& problem_;
  const Correspondence& correspondence_;
  const ModelTable<Real>& table_;
  const InferParts parts_;
  const std::vector<Rational>& scales_;
  std::set<std::int64_t> extents_;
  std::vector<std::vector<BoxPosition>> found_;  // by slot of all ranks
  std::vector<char> uninformative_;              // by slot: all elements are equal, or zero
  std::map<Shape, std::vector<std::vector<Arrangement>>> arrangements_;
  // By slot: indices into arrangements_ of its shape, and the places of each piece.
  std::map<std::int64_t, std::vector<std::pair<std::size_t, std::vector<std::vector<BoxPosition>>>>>
      arranged_;
  std::size_t ambiguous_ = 0, dropped_ = 0;  // tensors at several places of one, and made fewer
};

}  // namespace shardproof::infer
