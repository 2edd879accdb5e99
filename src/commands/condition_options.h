// SPDX-License-Identifier: Apache-2.0
// --accept and --allow-uncompared: which conditions of a proof the user accepts.
#pragma once

#include <CLI/CLI.hpp>
#include <set>
#include <string>

#include "shardproof/report.h"
#include "shardproof/verify.h"

namespace shardproof {

void addConditionOptions(CLI::App* command, VerifyOptions& options);

// What the plans of a run have that these options may name.
struct NamedConditions {
  std::set<std::string> assumptions, notCompared;
  bool anyPlan = false;
  void add(const Report& report);
};

// A name is probably misspelt where no plan has it: says so on standard error, and changes nothing.
void noteUnusedOptions(const VerifyOptions& options, const NamedConditions& named);

}  // namespace shardproof
