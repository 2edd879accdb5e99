// From two files to a report.
#pragma once

#include <memory>
#include <string>

#include "shardproof/graph.h"
#include "shardproof/report.h"
#include "shardproof/verify.h"

namespace shardproof {

struct VerifiedFiles {
  std::unique_ptr<Problem> problem;  // what was read
  Report report;
};

// Reads and verifies; `model` may be empty, for the model that the plan names. Reading is one of
// the report's phases. Throws InputError. A run that is cancelled before anything was proved has a
// report that says so.
VerifiedFiles verifyFiles(const std::string& model, const std::string& plan,
                          const VerifyOptions& options);

}  // namespace shardproof
