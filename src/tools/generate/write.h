// SPDX-License-Identifier: Apache-2.0
// Turns a generated problem into the two files of docs/format.md.
#pragma once

#include <string>

#include "generate/graph.h"
#include "generate/options.h"

namespace shardproof::generate {

std::string modelText(const Generated& generated, const Options& options);
std::string planText(const Generated& generated, const Options& options,
                     const std::string& modelFile);

}  // namespace shardproof::generate
