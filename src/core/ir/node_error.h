// SPDX-License-Identifier: Apache-2.0
// Errors about a node say where its author wrote it, too: the file that is read may be made by a
// program, and `loc` leads to what people wrote.
#pragma once

#include <string>

#include "shardproof/error.h"
#include "shardproof/graph.h"

namespace shardproof::ir {

[[noreturn]] inline void failAtNode(const std::string& file, const std::string& pointer,
                                    const Names& names, const Node& node, std::string message) {
  if (node.location.valid()) message += " (" + names.text(node.location) + ")";
  throw InputError(file, pointer, message);
}

}  // namespace shardproof::ir
