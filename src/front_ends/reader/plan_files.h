// SPDX-License-Identifier: Apache-2.0
// Which files of a directory are plans.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace shardproof::reader {

// All *.plan.json and *.plan.json.gz, in the order of their names; none where the directory cannot
// be listed.
std::vector<std::string> plansIn(const std::string& directory);

// A directory stands for the plans in it; one without any for itself, an input error later on.
std::vector<std::string> expandPlans(const std::vector<std::string>& given);

// The file of the model that a plan names, read no further than that name; nothing where the plan
// ("-": standard input) is no file that can be read twice, names none, or names one that it may
// not.
std::optional<std::string> modelNamedBy(const std::string& planFile);

}  // namespace shardproof::reader
