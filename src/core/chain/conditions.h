// SPDX-License-Identifier: Apache-2.0
// Under which conditions a proof is about the program that was recorded. A proved plan is
// conditional while an assumption of class `risk` is not accepted, or something is neither compared
// nor allowed not to be.
#pragma once

#include <string>
#include <vector>

#include "shardproof/capture.h"
#include "shardproof/verify.h"

namespace shardproof {

// The assumptions of the capture, with those marked that the user accepts by name.
std::vector<Assumption> judgedAssumptions(const Capture& capture,
                                          const std::vector<std::string>& accepted);
// What is not compared, with what is marked that one of the glob patterns allows.
std::vector<NotCompared> judgedNotCompared(const Capture& capture,
                                           const std::vector<std::string>& allowed);
// Whether a pattern is about this. A name with brackets is also a pattern that matches itself.
bool allows(const std::string& pattern, const std::string& what);

// What keeps a proved plan from being equivalent: risks that are not accepted, each name once, and
// what is neither compared nor allowed.
struct UnmetCondition {
  std::string text;      // one sentence
  std::string name;      // of the assumption, or what is not compared
  bool compare = false;  // of something that is not compared
  std::string pointer;   // in the plan's file
};
std::vector<UnmetCondition> unmetConditions(const std::vector<Assumption>& assumptions,
                                            const std::vector<NotCompared>& notCompared);
// Of a capture, judged by what the options accept and allow.
std::vector<UnmetCondition> unmetConditions(const Capture& capture, const VerifyOptions& options);

}  // namespace shardproof
