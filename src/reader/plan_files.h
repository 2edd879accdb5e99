// Which files of a directory are plans.
#pragma once

#include <string>
#include <vector>

namespace shardproof::reader {

// All *.plan.json and *.plan.json.gz, in the order of their names; none where the directory cannot
// be listed.
std::vector<std::string> plansIn(const std::string& directory);

}  // namespace shardproof::reader
