// SPDX-License-Identifier: Apache-2.0
// What the page shows, as JSON: the report, and of the problem what stages are drawn from.
#pragma once

#include <nlohmann/json.hpp>

#include "shardproof/graph.h"
#include "shardproof/report.h"

namespace shardproof::html {

// Tables are lists of lists, as there may be tens of thousands of rows; page/data.js names their
// columns.
nlohmann::ordered_json pageData(const Report& report, const Problem& problem, int exitCode);

}  // namespace shardproof::html
