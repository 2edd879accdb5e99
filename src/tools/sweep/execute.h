// SPDX-License-Identifier: Apache-2.0
// One configuration, from options or files to its result.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shardproof/infer.h"
#include "shardproof/verify.h"
#include "sweep/config.h"
#include "sweep/result.h"

namespace shardproof::sweep {

struct ExecuteOptions {
  VerifyOptions verify;  // without a store: each process opens the cache itself
  Infer infer = Infer::kAuto;
  std::string cache;   // file
  std::string prefix;  // files that are made are called PREFIX.model.json, PREFIX.plan.json
  bool keep = false;   // they stay, and PREFIX.report.json with them
};

struct Executed {
  Result result;
  std::vector<std::string> warnings;  // about the cache
};

// Never throws for what is wrong with the configuration, its files or its proofs: the result says
// so.
Executed execute(const Configuration& configuration, const ExecuteOptions& options);

// The same in a process of its own. `signal`: see child.h.
Executed executeApart(const Configuration& configuration, const ExecuteOptions& options,
                      const std::function<int()>& signal);

}  // namespace shardproof::sweep
