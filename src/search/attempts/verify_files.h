// SPDX-License-Identifier: Apache-2.0
// From two files to a report.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reader/hlo/documents.h"
#include "shardproof/budget.h"
#include "shardproof/graph.h"
#include "shardproof/infer.h"
#include "shardproof/report.h"
#include "shardproof/verify.h"

namespace shardproof {

struct VerifiedFiles {
  std::unique_ptr<Problem> problem;  // what was read, with what was inferred
  Report report;
  Budget budget;  // of the run, which began when reading ended
};

// Reads and verifies; `model` may be empty, for the model that the plan names. Reading is one of
// the report's phases. Throws InputError. A run that is cancelled before anything was proved has a
// report that says so. `hloOptions`: how HLO programs are read, if the files are such.
VerifiedFiles verifyFiles(const std::string& model, const std::string& plan,
                          const VerifyOptions& options, const hlo::Options& hloOptions = {},
                          Infer infer = Infer::kAuto);

}  // namespace shardproof
