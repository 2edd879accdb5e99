// SPDX-License-Identifier: Apache-2.0
// Drawings by the program `dot` of graphviz, where it is installed.
#pragma once

#include <string>

namespace shardproof {

// The drawing of a graph in the language of `dot`, as SVG. Throws std::runtime_error where `dot` is
// not found or fails.
std::string svgOf(const std::string& graph);

}  // namespace shardproof
