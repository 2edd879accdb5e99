// SPDX-License-Identifier: Apache-2.0
// Which modules are wrong by themselves, from a run in which each module continued with the
// reference's numbers (python/shardproof/torch/numbers/boundaries.py).
//
// A module's own code begins with what it takes, with what the modules inside of it return, and
// with the gradients of what it returns. It ends with what it returns, with what the modules inside
// of it take, with the gradients of what it takes, and with those of its parameters. Where all
// beginnings are the reference's and an end is not, the mistake is in this code. An end that fits
// no layout may have one that is not tried: then the module is a suspect only. Where a beginning is
// not the reference's, or its layout was a guess, nothing is concluded.
#pragma once

#include <string>
#include <vector>

#include "compare/tensor_report.h"
#include "compare/trace.h"

namespace shardproof::compare {

struct ModuleFinding {
  std::string module;                // its name; of other code what it is, as "the optimizer"
  std::vector<std::string> tensors;  // ends that differ, with their kinds
};

struct ModuleFindings {
  std::vector<ModuleFinding> wrong, suspected, notJudged;
  std::size_t right = 0;
};

// `reports`: of the isolated candidate, in the order of the reference's data flow.
ModuleFindings judgeModules(const std::vector<TensorReport>& reports, const Trace& candidate);

}  // namespace shardproof::compare
