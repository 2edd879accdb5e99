// SPDX-License-Identifier: Apache-2.0
// A pair of HLO programs as a model and a plan of docs/format.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shardproof/capture.h"

namespace shardproof::hlo {

struct Options {
  // Numbers of float types as the text has them, not as the simplest rational that rounds to them.
  bool exactConstants = false;
  // What the two programs' metadata and shardings suggest becomes cut points.
  bool cutPoints = true;
  // An index that is known to lie in bounds has its first value where it has none of the others, so
  // that what is 1 at each value adds up to 1. It makes proofs longer, and some possible.
  bool completeIndices = false;
  // What a lookup of the model finds out of bounds is not looked at.
  bool assumeInBounds = false;
  // Functions of which nothing is known are an error.
  bool strict = false;
  // The model is a program of the same devices as the plan, before a pass that made the plan of it
  // (stacked.h). Instructions that kept their names are cut points then.
  bool beforePass = false;
};

struct Documents {
  std::string model, plan;  // JSON texts
  // What was taken for granted of the programs; the plan's "capture" has it, too.
  std::vector<Assumption> assumptions;
};

// `modelText`: the program of one device; `planText`: the program of each device after
// spmd-partitioning, with shardings kept. File names are for messages; `modelName` is what the plan
// calls its model. Throws InputError: FILE: line L, column C: what was found, what was expected.
Documents documentsOf(std::string_view modelText, const std::string& modelFile,
                      std::string_view planText, const std::string& planFile,
                      const std::string& modelName, const Options& options);

}  // namespace shardproof::hlo
