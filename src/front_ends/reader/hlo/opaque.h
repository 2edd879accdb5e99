// SPDX-License-Identifier: Apache-2.0
// Ties the plan's calls of functions of which nothing is known to the model's.
//
// Why what is proved then holds. Let M' and P' be the two programs with the results of these calls
// as inputs, R, the same on both sides by input lineage. Of M' and P' it is proved, for all inputs
// and all R, that the arguments of tied calls, and the outputs, are equal. Let f be what the calls
// really compute. M with f is M' where R is what f makes of M's arguments; with this R the
// arguments in P' are M's, so f makes R of them, too: P' with this R is what P with f computes,
// call after call in the order in which P runs them. Nothing rests on which call is tied to which:
// a wrong tie makes a claim that is not proved. A difference is one for the results that were drawn
// as R, so it counts only where all arguments are proved (Verification::argumentsProved).
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "reader/hlo/lowering.h"
#include "reader/hlo/mesh.h"
#include "shardproof/capture.h"

namespace shardproof::hlo {

// A tensor of the model lies on devices `on`: on each the box that begins at `begin` is `local`.
struct OpaqueTie {
  std::string tensor, local;
  bool argument = false;  // else a result
  bool status = false;    // an integer for each call
  std::vector<Sizes> begin;
  std::vector<std::int64_t> on;
};

struct OpaqueTies {
  std::vector<OpaqueTie> ties;
  std::vector<std::string> arguments;  // of the model, each once
  std::vector<Assumption> assumptions;
  const OpaqueCall* first = nullptr;  // of the model's, or null
};

// `wanted`, `wantedLocally`: tensors that will stay; calls that they do not need are left alone.
// Throws InputError where the plan calls a function that the model does not, or on other pieces.
OpaqueTies tieOpaqueCalls(const Lowering& model, const std::string& modelFile,
                          const std::vector<std::shared_ptr<Lowering>>& ranks,
                          const std::string& planFile, const DeviceMesh& mesh,
                          const std::set<std::string>& wanted,
                          const std::set<std::string>& wantedLocally,
                          const std::vector<std::vector<Sizes>>& parameterBegins);

}  // namespace shardproof::hlo
