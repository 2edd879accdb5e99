// What the local tensors of an executed plan are, by their elements alone: boxes of tensors of the
// model, and partial sums over axes of such boxes.
//
// Model and plan are executed on one draw, in long doubles with the true functions: their laws hold
// (an exponential of a difference is a quotient of exponentials), as they do not in a prime field,
// and two tensors that are not the same agree in twelve digits of all elements by chance only. Each
// local tensor is looked up in a table of the model's elements as soon as it has its value, and
// goes.
//
// What is found holds at one draw, of one plan, but for rounding. It is a guess, and nothing more
// is made of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::infer {

// Elements [low, low + the local tensor's shape) of a tensor of the model.
struct Place {
  std::int32_t tensor = -1;
  Shape low;
  friend bool operator==(const Place&, const Place&) = default;
};

// One running of a local tensor: where, and all places that its elements have.
struct Found {
  std::int64_t rank = -1;
  std::int32_t microbatch = -1;  // -1: of a tensor that exists once
  std::vector<Place> places;
};

// The local tensors of one program that were found on all its ranks (and for all microbatches).
struct Relation {
  std::int32_t program = -1, tensor = -1;
  std::vector<std::int32_t> sum;  // axes (or kMicrobatchAxis) over which they were added up, sorted
  std::vector<Found> found;       // with `sum`, at coordinate 0 of its axes
};

struct Relations {
  std::vector<Relation> relations;  // by program and tensor, ascending
  std::size_t looked = 0;           // local tensors that were looked up, of all programs
};

// Executes the problem. Throws interpret::CannotRun, Stopped, TooLarge, InputError.
Relations findRelations(const Problem& problem, std::int64_t maxBytes,
                        std::chrono::steady_clock::time_point end);

}  // namespace shardproof::infer
