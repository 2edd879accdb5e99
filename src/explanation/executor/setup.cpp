// SPDX-License-Identifier: Apache-2.0
#include "executor/setup.h"

#include <algorithm>
#include <set>

#include "executor/call.h"
#include "ops/registry.h"
#include "shardproof/error.h"
#include "util/index.h"

namespace shardproof::executor {
namespace {}  // namespace

GraphView::GraphView(const Problem& problem, const Graph& graph) : added(graph.tensors.size(), 0) {
  const OperatorId dropout = ops::Registry::instance().find("dropout"),
                   backward = ops::Registry::instance().find("dropout_backward");
  for (const Node& node : graph.nodes) {
    NodeView view{graph.in(node), graph.out(node), node.attributes};
    if (node.communication < 0 && (node.op == dropout || node.op == backward)) {
      const Rational p = numberOf(problem.attributes.at(node.attributes), "p");
      const std::size_t mask = node.op == dropout ? 1 : 2;
      view.draws =
          !p.isZero() && !p.isOne() && (view.in.size() <= mask || !view.in[mask].present());
    }
    nodes.push_back(view);
  }
  for (const DrawnMask& drawn : graph.drawnMasks) {
    NodeView& view = nodes[drawn.node];
    added[view.in.back().tensor] = 1;
    view.in = view.in.first(view.in.size() - 1);
    if (graph.nodes[drawn.node].op == backward) view.out = view.out.first(view.out.size() - 1);
    view.attributes = drawn.attributes;
    view.draws = true;
  }
}

Setup::Setup(const Problem& p, const Options& options)
    : problem(p), programs(p), uses(p), model(p, p.model.graph), given(options.inputs) {
  for (const Program& program : problem.plan.programs) plans.emplace_back(problem, program.graph);
  checkGiven();
  const auto add = [&](std::size_t e) {
    for (Claim& claim : claimsOf(programs, EntryId(e))) claims.push_back(std::move(claim));
  };
  for (std::size_t e = 0; e < problem.plan.lineage.size(); ++e) {
    const Role role = problem.plan.lineage[e].role;
    if (isGiven(role)) continue;
    if (role == Role::kCutPoint && !options.cutPoints) {
      claimsOf(programs, EntryId(e));  // whether its parts are produced is asked all the same
      continue;
    }
    entries.push_back(EntryId(e));
    add(e);
  }
  compared = claims.size();
  for (std::size_t e = 0; e < problem.plan.lineage.size(); ++e)
    if (const Role role = problem.plan.lineage[e].role;
        (role == Role::kInput || (role == Role::kAssumed && options.approved)) &&
        !model.added[problem.plan.lineage[e].tensor])
      add(e);
  indexMentions();
  bindSources();
  findPlacements();
}

void Setup::checkGiven() const {
  if (given == nullptr) return;
  const auto& tensors = problem.model.graph.tensors;
  for (const auto& [name, array] : *given) {
    const auto fail = [&, n = name](const std::string& message) {
      throw InputError(problem.model.file, "/tensors/" + n, message);
    };
    const NameId id = problem.names.find(name);
    const auto it =
        std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == id; });
    if (!id.valid() || it == tensors.end())
      fail("found values for \"" + name +
           "\", expected the name of an input or a parameter of the model");
    if (it->kind != TensorKind::kInput && it->kind != TensorKind::kParameter)
      fail("found values for a tensor that is neither an input nor a parameter of the model");
    if (array.shape != it->shape)
      fail("found values of shape " + text(array.shape) + ", expected " + text(it->shape));
    if (array.element == ElementKind::kComplex ? it->element != ElementKind::kComplex
                                               : it->element == ElementKind::kComplex)
      fail(it->element == ElementKind::kComplex ? "found real values, expected complex ones"
                                                : "found complex values, expected real ones");
    if (static_cast<std::int64_t>(array.data.size()) !=
        positionsOf(it->shape) * planesOf(it->element))
      fail("found " + std::to_string(array.data.size()) + " numbers, which do not fill the shape");
    if (it->element == ElementKind::kInteger &&
        std::any_of(array.data.begin(), array.data.end(),
                    [](double x) { return toIndex(x) == kNoIndex; }))
      fail("found numbers that are not whole, expected integers");
    // An index of an HLO program holds one integer for all that are used alike; others have no row.
    if (it->known && it->known->kind == KnownInput::Kind::kWithin)
      for (const double x : array.data) {
        const std::int64_t n = toIndex(x);
        if (std::none_of(it->known->within.begin(), it->known->within.end(),
                         [&](const auto& range) { return range.first <= n && n < range.second; }))
          fail("found " + std::to_string(n) + ", expected integers of `known.within`");
      }
  }
}

void Setup::indexMentions() {
  firstMention_.assign(at(programs.slots()) + 1, 0);
  const auto slot = [&](const Claim::Part& part) {
    return at(programs.slot(part.rank, part.slot));
  };
  for (std::size_t c = 0; c < compared; ++c)
    for (const Claim::Part& part : claims[c].parts) ++firstMention_[slot(part) + 1];
  for (std::size_t i = 1; i < firstMention_.size(); ++i) firstMention_[i] += firstMention_[i - 1];
  mentions_.resize(firstMention_.back());
  std::vector<std::size_t> next(firstMention_.begin(), firstMention_.end() - 1);
  for (std::size_t c = 0; c < compared; ++c)
    for (const Claim::Part& part : claims[c].parts)
      mentions_[next[slot(part)]++] = static_cast<std::int32_t>(c);
}

// Two sources of one local tensor would restrict the model's inputs to those on which they agree.
void Setup::bindSources() {
  source_.assign(at(programs.slots()), -1);
  for (std::size_t c = compared; c < claims.size(); ++c) {
    const Claim& claim = claims[c];
    for (const Claim::Part& part : claim.parts) {
      std::int32_t& source = source_[programs.slot(part.rank, part.slot)];
      if (source >= 0) {
        const Claim& other = claims[source];
        const bool same =
            claim.parts.size() == 1 && other.parts.size() == 1 && claim.low == other.low &&
            problem.plan.lineage[claim.entry].tensor == problem.plan.lineage[other.entry].tensor;
        if (same) continue;
        const TensorId tensor = programs.layout(part.rank).tensorOfSlot[part.slot];
        throw InputError(
            problem.plan.file,
            "/lineage/" + std::to_string(claim.entry) + "/shards/" + std::to_string(claim.shard),
            "found a second source of local tensor '" +
                problem.names.text(programs.program(part.rank).graph.tensors[tensor].name) +
                "' on " + programs.rankText(part.rank) +
                ", expected one for each local input: the first is /lineage/" +
                std::to_string(other.entry) + "/shards/" + std::to_string(other.shard));
      }
      source = static_cast<std::int32_t>(c);
    }
  }
}

const Placement* Setup::placementOf(std::int64_t slot) const {
  const auto it = placements_.find(slot);
  return it == placements_.end() ? nullptr : &it->second;
}

void Setup::findPlacements() {
  std::set<std::int32_t> dropped;  // tensors of the model whose positions are a mask's
  for (const NodeView& node : model.nodes) {
    if (!node.draws) continue;
    for (const Operand& o : node.in)
      if (o.present()) dropped.insert(o.tensor);
    for (const TensorId t : node.out)
      if (t >= 0) dropped.insert(t);
  }
  if (dropped.empty()) return;
  for (std::size_t e = 0; e < problem.plan.lineage.size(); ++e) {
    const TensorId tensor = problem.plan.lineage[e].tensor;
    // Positions are what the files say: of what was found nobody knows yet whether it is true.
    if (!dropped.contains(tensor) || model.added[tensor] || problem.plan.lineage[e].inferred)
      continue;
    const Shape& whole = problem.model.graph.tensors[tensor].shape;
    for (const Claim& claim : claimsOf(programs, EntryId(e))) {
      for (const Claim::Part& part : claim.parts) {
        const auto [it, added] = placements_.try_emplace(programs.slot(part.rank, part.slot),
                                                         Placement{tensor, claim.low});
        if (added || it->second.tensor < 0) continue;
        const bool same = it->second.low == claim.low &&
                          problem.model.graph.tensors[it->second.tensor].shape == whole;
        if (!same) it->second.tensor = TensorId(-2);
      }
    }
  }
}

}  // namespace shardproof::executor
