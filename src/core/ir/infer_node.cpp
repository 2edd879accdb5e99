// SPDX-License-Identifier: Apache-2.0
#include "ir/infer_node.h"

#include "ops/registry.h"

namespace shardproof::ir {

std::vector<ops::TensorInfo> inferNode(const AttributeTable& attributes, const Graph& graph,
                                       const Node& node) {
  return inferNode(attributes, graph, node, node.attributes);
}

std::vector<ops::TensorInfo> inferNode(const AttributeTable& attributes, const Graph& graph,
                                       const Node& node, AttributesId of) {
  const auto in = graph.in(node);
  std::vector<ops::TensorInfo> infos(in.size());
  std::vector<const ops::TensorInfo*> operands(in.size(), nullptr);
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (!in[i].present()) continue;
    const Tensor& t = graph.tensors[in[i].tensor];
    infos[i] = {t.shape, t.element};
    operands[i] = &infos[i];
  }
  return ops::Registry::instance().at(node.op).infer({attributes.at(of), operands, node.outCount});
}

}  // namespace shardproof::ir
