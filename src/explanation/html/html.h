// SPDX-License-Identifier: Apache-2.0
// The report as one page for a browser: no other file, no network.
#pragma once

#include <string>

#include "shardproof/graph.h"
#include "shardproof/report.h"

namespace shardproof {

// `report` is about `problem`. Whatever names the files have, the page shows them as text.
std::string htmlText(const Report& report, const Problem& problem, int exitCode);

}  // namespace shardproof
