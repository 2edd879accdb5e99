// SPDX-License-Identifier: Apache-2.0
// Whether the numbers of a distributed step are those of a reference, but for rounding.
//
// There is no global tolerance. The reference was run several times, each time moved by about one
// rounding (inputs, parameters, what modules return, and gradients, by up to the machine epsilon of
// their dtypes). How far a tensor moves then is how far rounding moves it in this model at this
// place; a candidate may be `factor` times as far away. This follows TTrace (Ju et al., 2025),
// which moves the model's input only.
//
// What decides: tensors whose layout is declared, by DTensor or by the step, or that have the
// layout of the parameter that they belong to. Other tensors of modules help to find the place:
// their layout is found by numbers, so that a tensor which fits none may have a layout that is not
// known here. Where rounding moves a tensor as far as a mistake would (a router that chooses
// another expert), agreement shows nothing: it is uncertain, and no verdict of agreement rests on
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compare/modules.h"
#include "compare/tensor_report.h"

namespace shardproof::compare {

struct Options {
  double factor = 4;    // times what the perturbed reference shows
  double bound = 0.25;  // a tolerance above this share of a tensor's norm shows nothing
};

// One layer of the model: the medians of its tensors' errors, in units of the epsilon of their
// dtype.
struct Growth {
  std::string layer;
  std::optional<double> forwardPerturbed, forward, backwardPerturbed, backward;
};

enum class Agreement : std::uint8_t { kAgrees, kDiffers, kUndecided };

struct Comparison {
  Agreement verdict = Agreement::kUndecided;
  std::string reason;                 // of kUndecided
  std::vector<TensorReport> tensors;  // in the order of the reference's data flow
  std::vector<Growth> growth;
  std::vector<std::string> notes;
  std::vector<Axis> mesh;                 // of the candidate
  std::optional<ModuleFindings> modules;  // of an isolated candidate
  std::size_t draws = 0;
  std::size_t bytes = 0;  // of all elements that were read
  Options options;
  std::string reference, candidate;
  // The verdict on the plan of this step, as `verify --json` has it, and the file; or nothing.
  std::string proof, proofFile;

  std::size_t count(Status status, bool decides) const;
};

// Throws InputError where a trace cannot be read, or the reference has no perturbed ones.
Comparison compareTraces(const std::string& reference, const std::string& candidate,
                         const Options& options);

}  // namespace shardproof::compare
