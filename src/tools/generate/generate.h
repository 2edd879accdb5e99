// SPDX-License-Identifier: Apache-2.0
// Makes a model and a plan of a whole training step for a real architecture. Options go in, the
// text of two files comes out; nothing here reads or writes files.
//
//   options        what was asked for, checked
//   architecture   the layers, written with the builder
//   builder        model and plan side by side
//   schedule       the order of a pipeline rank's blocks
//   graph          what the builder fills
//   write          its JSON
#pragma once

#include <string>

#include "generate/options.h"

namespace shardproof::generate {

struct Files {
  std::string model, plan;
};

// `modelFile`: the model's name as the plan mentions it. Throws OptionError.
Files generate(const Options& options, const std::string& modelFile);

}  // namespace shardproof::generate
