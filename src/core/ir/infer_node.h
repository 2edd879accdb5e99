// SPDX-License-Identifier: Apache-2.0
// What an operator's node makes of the operands as the graph has them.
#pragma once

#include <vector>

#include "ops/operator.h"
#include "shardproof/graph.h"

namespace shardproof::ir {

// Shapes and kinds of element of the node's results. Throws what OperatorInfo::infer throws:
// ShapeError, Unsupported, std::invalid_argument.
std::vector<ops::TensorInfo> inferNode(const AttributeTable& attributes, const Graph& graph,
                                       const Node& node);
// With these attributes in the place of Node::attributes.
std::vector<ops::TensorInfo> inferNode(const AttributeTable& attributes, const Graph& graph,
                                       const Node& node, AttributesId of);

}  // namespace shardproof::ir
