// SPDX-License-Identifier: Apache-2.0
// From what local tensors of the smaller plan are to lineage of the plan itself.
//
// A position of the smaller plan that is a bound stands for a bound of the plan. One that lies
// between bounds (shares of a dimension that has no structure of its own) stands for so many
// shares. What does not move evenly with the coordinates, or does not fit into the tensor, is left
// out.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "infer/relations.h"
#include "shrink/shrink.h"

namespace shardproof::infer {

class Lift {
 public:
  // Both outlive it. `shrunk` without a problem: what was executed is the plan itself.
  Lift(const Problem& full, const Shrunk& shrunk, const Relations& relations);

  const Problem& executed() const { return shrunk_.problem ? *shrunk_.problem : full_; }
  // A program of what was executed.
  ProgramId fullProgram(ProgramId program) const {
    return shrunk_.problem ? shrunk_.programOf[program] : program;
  }
  // The coordinates of each axis that were executed; none: all.
  const std::vector<std::vector<std::int32_t>>& executedCoordinates() const {
    return shrunk_.coordinatesOf;
  }
  // The shard that says it of the local tensor on all ranks of its program, and of which tensor of
  // the model. `covered`: the share of that tensor which the shard is about.
  struct ShardProposal {
    TensorId tensor;
    Shard shard;
    double covered = 0;
    LocalPart where = {};  // of each part's tensor
  };
  // What may be said of each tensor of the model that it is found in, tensors in their order. Where
  // it is found at several places of one (rows that are equal), the box moves as those of other
  // local tensors of its shape do in tensors of that shape, where one of these ways is among them.
  std::vector<ShardProposal> proposal(const Relation& relation) const;

 private:
  struct Axis {                             // that moves the tensor's running
    std::int32_t axis = 0;                  // of the mesh, or kMicrobatchAxis
    std::int64_t here = 1, full = 1;        // coordinates
    std::vector<std::int32_t> coordinates;  // of the full plan, by those here
  };
  struct Fit {
    BoxPosition base;
    std::vector<Shape> steps;  // by axis, in positions of what was executed
  };
  // How boxes of one shape move in tensors of one shape, and how many do.
  using Way = std::pair<Shape, std::vector<Shape>>;
  using Kind = std::tuple<Shape, Shape, std::vector<std::int32_t>>;  // model's, local, axes
  Kind kindOf(const Relation& relation, const std::vector<Axis>& axes, TensorId tensor) const;
  void collectWays(const Relations& relations);
  std::vector<Axis> axesOf(const Relation& relation) const;
  std::vector<std::int64_t> coordinatesOf(const std::vector<Axis>& axes, const Found& found) const;
  bool holds(const Relation& relation, const std::vector<std::vector<std::int64_t>>& coordinates,
             const Fit& fit, std::size_t upTo) const;
  void fit(const Relation& relation, const std::vector<Axis>& axes, const BoxPosition& base,
           std::vector<Fit>& fits) const;
  // Along one dimension: the base and the step of each axis at full size. `fixed`: coordinates that
  // the program fixes, here and in the full plan.
  std::optional<std::pair<std::int64_t, std::vector<std::int64_t>>> atFullSize(
      const Fit& fit, std::size_t d, const std::vector<Axis>& axes, std::int64_t extentHere,
      std::int64_t extent, const std::vector<std::pair<std::int64_t, std::int64_t>>& fixed) const;
  void addLeftOut(const Relation& relation, const Program& program, Shard& shard) const;
  double placesOf(const std::vector<Axis>& axes, const std::vector<Shape>& steps) const;
  std::optional<Arrangement> arrangementAtFullSize(const Arrangement& arrangement, TensorId of,
                                                   const Tensor& localHere,
                                                   const Tensor& local) const;
  std::optional<ShardProposal> lifted(const Relation& relation, const std::vector<Axis>& axes,
                                      const Fit& fit) const;

  const Problem& full_;
  const Shrunk& shrunk_;
  std::map<Kind, std::map<Way, std::size_t>> ways_;
  // By how many coordinates each axis has and how it steps. Layers, ranks and microbatches are
  // alike.
  using Moves = std::vector<std::pair<std::int64_t, Shape>>;
  mutable std::map<Moves, double> places_;
};

}  // namespace shardproof::infer
