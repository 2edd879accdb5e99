// SPDX-License-Identifier: Apache-2.0
// What a comparison found of one tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare/elements.h"
#include "compare/layout.h"
#include "compare/trace.h"

namespace shardproof::compare {

enum class Status : std::uint8_t {
  kAgrees,
  kDiffers,     // beyond its tolerance, or shape, gaps, replicas
  kMissing,     // one side has none
  kUncertain,   // its tolerance is above the bound
  kUnplaced,    // no layout fits: decides nothing
  kNotCompared  // the reference's own layout is not known, or calls do not correspond
};
const char* toString(Status status);

struct ReplicaFinding {
  std::int64_t first = 0, rank = 0;
  double error = 0;  // relative to the reference's norm
};

// Where the ranks' parts are in the whole tensor. By shape: a guess, with which the parts fill it.
struct Placed {
  Replaced by = Replaced::kDeclared;
  std::vector<Choice> choices;
  double scale = 1;       // the whole tensor is so many times what the parts make
  std::size_t calls = 1;  // that are parts, too
};

struct TensorReport {
  std::string name;  // with "#CALL" where a module is called several times
  std::string base;  // without
  std::optional<std::int64_t> call;
  std::string module;  // at whose boundary it is, or nothing
  // Of an isolated run: with what all ranks continued.
  Replaced replaced = Replaced::kNot;
  std::optional<Placed> placed;
  std::optional<double> ratio;  // the candidate's is so many times the reference's
  Kind kind = Kind::kResult;
  Dtype dtype = Dtype::kF32;  // of the reference
  std::vector<std::int64_t> shape;
  std::int64_t order = 0;
  bool decides = true;
  Status status = Status::kAgrees;
  // Frobenius norms of the differences, relative to that of the reference (absolute where that is
  // 0): of the candidate, of the perturbed reference (the largest), and the tolerance.
  double error = 0, perturbed = 0, tolerance = 0;
  std::string layout;                    // that was found by numbers
  std::string message;                   // what is wrong, or why it is not compared
  std::vector<ReplicaFinding> replicas;  // beyond the tolerance
  std::size_t replicasWithin = 0;        // that differ, but not beyond it

  bool isCompared() const {
    return status == Status::kAgrees || status == Status::kDiffers || status == Status::kUncertain;
  }
};

}  // namespace shardproof::compare
