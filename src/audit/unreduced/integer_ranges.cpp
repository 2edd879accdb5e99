// SPDX-License-Identifier: Apache-2.0
#include "unreduced/integer_ranges.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "ops/attributes.h"
#include "ops/registry.h"

namespace shardproof::unreduced {

namespace {

struct Lookup {
  std::size_t operand;
  std::int64_t bound;
};

// What the operator looks up in which of its operands, if anything.
std::vector<Lookup> lookupsOf(const Stage& stage, const StageNode& node) {
  std::string_view name = ops::Registry::instance().at(node.op).name;
  constexpr std::string_view kBackward = "_backward";
  const std::size_t first =
      name.ends_with(kBackward) ? 1 : 0;  // of those with one result, gradients come first
  if (first == 1) name.remove_suffix(kBackward.size());
  const Attributes& a = *node.attributes;
  const auto shape = [&](std::size_t k) -> const Shape& {
    return stage.tensors[node.in.at(first + k)].info.shape;
  };
  if (name == "embedding")
    return {{first, ops::has(a, "stop") ? ops::integer(a, "stop") : shape(1)[0]}};
  if (name == "one_hot") return {{first, ops::integer(a, "stop")}};
  if (name == "cross_entropy") return {{first + 1, shape(0).back()}};
  if (name == "moe_experts") return {{first + 1, ops::integer(a, "n_routed_experts")}};
  if (name == "dropout") return {{first + 1, 2}};
  if (name == "where") return {{first, 2}};
  return {};
}

}  // namespace

std::vector<std::int64_t> integerBounds(const Stage& stage) {
  std::vector<std::int64_t> bounds(stage.tensors.size(), 0);
  const auto raise = [&](StageTensorId t, std::int64_t bound) {
    if (t >= 0 && stage.tensors[t].info.element == ElementKind::kInteger)
      bounds[t] = std::max(bounds[t], bound);
  };
  for (const StageNode& node : stage.nodes) {
    if (node.communication != Communication::kNone) continue;
    for (const Lookup& l : lookupsOf(stage, node)) {
      if (l.operand < node.in.size()) raise(node.in[l.operand], l.bound);
    }
  }
  // Back to where the integers come from, and across lineage from side to side.
  for (;;) {
    const std::vector<std::int64_t> before = bounds;
    for (std::size_t i = stage.nodes.size(); i-- > 0;) {
      for (const StageTensorId out : stage.nodes[i].out) {
        if (out < 0 || bounds[out] == 0) continue;
        for (const StageTensorId in : stage.nodes[i].in) raise(in, bounds[out]);
      }
    }
    for (const Equation& e : stage.assumptions) {
      for (const auto& part : e.parts) {
        raise(e.logical, bounds[part.first]);
        raise(part.first, bounds[e.logical]);
      }
    }
    if (bounds == before) return bounds;
  }
}

std::vector<std::int64_t> integersBelow(std::int64_t bound) {
  constexpr std::int64_t kFew = 24;
  std::vector<std::int64_t> values;
  if (bound <= kFew) {
    for (std::int64_t v = 0; v < std::max<std::int64_t>(bound, 4); ++v) values.push_back(v);
    return values;
  }
  // Both ends, and one somewhere in each of as many stretches.
  for (std::int64_t k = 0; k < kFew; ++k) {
    const std::int64_t low = k * (bound / kFew), width = bound / kFew;
    values.push_back(k == 0 ? 0 : k + 1 == kFew ? bound - 1 : low + (k * 0x9E3779B9) % width);
  }
  return values;
}

}  // namespace shardproof::unreduced
