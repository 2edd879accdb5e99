// SPDX-License-Identifier: Apache-2.0
// Small members of the problem's structures.
#include "shardproof/graph.h"

#include <algorithm>
#include <stdexcept>

#include "util/json_pointer.h"

namespace shardproof {

std::string Model::tensorPointer(TensorId tensor, const Names& names) const {
  return "/tensors/" + escapePointer(names.text(graph.tensors.at(tensor).name));
}

std::int64_t Plan::ranks() const {
  std::int64_t product = 1;
  for (const MeshAxis& axis : mesh) {
    if (__builtin_mul_overflow(product, std::int64_t{axis.size}, &product))
      throw std::overflow_error("the mesh has more than 2^63 ranks");
  }
  return product;
}

bool Plan::hasApprovedDifferences() const {
  return std::any_of(lineage.begin(), lineage.end(),
                     [](const LineageEntry& e) { return e.role == Role::kAssumed; });
}

std::string Plan::nodePointer(ProgramId program, NodeId node) const {
  const Program& p = programs.at(program.index());
  const auto& nodes = p.graph.nodes;
  std::int64_t place = node.value;
  if (!p.added.empty()) {
    const auto added = static_cast<std::size_t>(nodes.at(node.index()).added);
    if (added < p.added.size()) return p.added[added];
    place -= std::count_if(nodes.begin(), nodes.begin() + node.value,
                           [](const Node& n) { return n.added >= 0; });
  }
  return "/programs/" + std::to_string((p.inFile.valid() ? p.inFile : program).value) + "/nodes/" +
         std::to_string(place);
}

bool Plan::attributesMove() const {
  return std::any_of(programs.begin(), programs.end(),
                     [](const Program& p) { return !p.steps.empty(); });
}

bool Plan::hasStretches() const {
  const auto reaches = [](const auto& of) { return !of.within.empty(); };
  return std::any_of(programs.begin(), programs.end(), reaches) ||
         std::any_of(lineage.begin(), lineage.end(), [&](const LineageEntry& entry) {
           return std::any_of(entry.shards.begin(), entry.shards.end(), [&](const Shard& shard) {
             return std::any_of(shard.parts.begin(), shard.parts.end(), reaches);
           });
         });
}

NodeId Plan::nodeAt(ProgramId program, std::int64_t place) const {
  const auto& nodes = programs.at(program.index()).graph.nodes;
  for (const NodeId n : firstIds<NodeId>(nodes.size()))
    if (nodes[n].added < 0 && place-- == 0) return n;
  return {};
}

}  // namespace shardproof
