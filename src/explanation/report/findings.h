// SPDX-License-Identifier: Apache-2.0
// What a report finds wrong, as a list without repetitions: what annotations and SARIF are made of.
#pragma once

#include <string>
#include <vector>

#include "shardproof/report.h"

namespace shardproof {

struct Finding {
  enum class Level : std::uint8_t { kError, kWarning };
  Level level = Level::kError;
  std::string rule;     // a kind of cause or of defect, "undecided", "wrong-lineage", "input-error"
  std::string message;  // one sentence or two
  std::string file;     // model or plan
  std::string pointer;  // into it; may be empty
  std::string location;  // the node's `loc`; may be empty
};

// Causes; defects (or suspects) that no cause explains; cut points that are wrong; reasons for
// which stages are undecided, the most frequent first; errors of the input.
std::vector<Finding> findingsOf(const PlanResult& result);

}  // namespace shardproof
