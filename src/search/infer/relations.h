// SPDX-License-Identifier: Apache-2.0
// What the local tensors of an executed plan are, by their elements alone: boxes of tensors of the
// model, and partial sums over axes of such boxes.
//
// Model and plan are executed on one draw, in floating point with the true functions: their laws
// hold (an exponential of a difference is a quotient of exponentials), as they do not in a prime
// field, and two tensors that are not the same agree in ten digits of all elements by chance
// only. Each local tensor is looked up in a table of the model's elements as soon as it has its
// value, and goes.
//
// What is found holds at one draw, of one plan, but for rounding. It is a guess, and nothing more
// is made of it.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "executor/run.h"
#include "infer/arrangements.h"
#include "shardproof/graph.h"
#include "shardproof/infer.h"

namespace shardproof::infer {

// Larger than what rounding explains.
constexpr double kDiffering = 1e-6;

// Elements [low, low + the local tensor's shape) of a tensor of the model.
struct BoxPosition {
  TensorId tensor;
  Shape low;
  friend bool operator==(const BoxPosition&, const BoxPosition&) = default;
};

// One running of a local tensor: where, and all places that its elements have.
struct Found {
  Rank rank;
  std::int32_t microbatch = -1;  // -1: of a tensor that exists once
  std::vector<BoxPosition> places;
};

// A local tensor of a program that was found on all its ranks (and for all microbatches).
struct Relation {
  ProgramId program;
  TensorId tensor;
  std::vector<std::int32_t> sum;  // axes (or kMicrobatchAxis) over which they were added up, sorted
  std::vector<Found> found;       // with `sum`, at coordinate 0 of its axes
  // What of the tensor was found: of the pieces of one there is a relation for each.
  Arrangement arrangement;
  // With `sum` over axes that programs fix: the tensors of the other programs, which the same nodes
  // make.
  std::vector<std::pair<ProgramId, TensorId>> others;
};

struct Relations {
  std::vector<Relation> relations;  // by program and tensor, ascending
  // What has no relation, as on all ranks its elements are alike or zero at this draw (the gradient
  // of rows that no token names): by program and tensor.
  std::vector<std::pair<ProgramId, TensorId>> uninformative;
  std::size_t looked = 0;          // local tensors that were looked up, of all programs
  std::vector<EntryId> differing;  // lineage entries of outputs that the ranks do not have
  std::vector<EntryId> wrong;      // those of cut points, where they have all outputs
  bool stopped = false;            // out of time: there may be more
};

// Executes the problem. Throws executor::CannotRun, TooLarge, InputError, and Stopped where it is
// cancelled. Where it is out of time, what was found until then counts.
// `quick`: in doubles, where the model has nothing that they lose.
Relations findRelations(const Problem& problem, const executor::Limits& limits, InferParts parts,
                        bool quick);

}  // namespace shardproof::infer
