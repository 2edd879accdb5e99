// SPDX-License-Identifier: Apache-2.0
#include "executor/uses.h"

#include <algorithm>
#include <unordered_map>

#include "executor/call.h"
#include "ops/collectives.h"
#include "ops/registry.h"
#include "util/index.h"

namespace shardproof::executor {
Uses::Uses(const Problem& problem) {
  std::size_t all = problem.model.graph.tensors.size();
  for (const Program& p : problem.plan.programs) {
    first_.push_back(all);
    all += p.graph.tensors.size();
  }
  for (std::size_t i = 0; i < all; ++i) parent_.push_back(i);
  connect(problem);
  ofModels_.resize(all);
  ofPlans_.resize(all);
  collect(problem, problem.model.graph, 0, true);
  for (std::size_t p = 0; p < first_.size(); ++p)
    collect(problem, problem.plan.programs[p].graph, first_[p], false);
  uses_.resize(all);
  for (std::size_t i = 0; i < all; ++i) {
    // The model decides; where it does not, all pieces that the plan looks up together.
    const Ranges& r = ofModels_[i].must || ofModels_[i].may ? ofModels_[i] : ofPlans_[i];
    Use& use = uses_[i];
    use.positive = ofModels_[i].positive || ofPlans_[i].positive;
    if (r.must) {
      use = {true, r.mustLow, r.mustHigh, use.positive};
      if (r.may && std::max(r.mayLow, r.mustLow) + 1 < std::min(r.mayHigh, r.mustHigh)) {
        use.low = std::max(r.mayLow, r.mustLow);
        use.high = std::min(r.mayHigh, r.mustHigh);
      }
    } else if (r.may) {  // a table of some rows gives zeros for the others: one on each side
      use = {true, r.loose ? r.mayLow - 1 : r.mayLow, r.loose ? r.mayHigh + 1 : r.mayHigh,
             use.positive};
    }
  }
}

std::size_t Uses::find(std::size_t i) const {
  while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
  return i;
}

void Uses::unite(std::size_t a, std::size_t b) { parent_[find(a)] = find(b); }

void Uses::connect(const Problem& problem) {
  const auto graph = [&](const Graph& g, std::size_t first) {
    for (const Node& node : g.nodes) {
      if (node.communication >= 0 || !ops::Registry::instance().at(node.op).traits.moves) continue;
      for (const Operand& o : g.in(node))
        for (const TensorId t : g.out(node))
          if (o.present() && t >= 0) unite(first + at(o.tensor), first + at(t));
    }
  };
  graph(problem.model.graph, 0);
  std::unordered_map<NameId, std::size_t> carried;
  std::unordered_map<NameId, std::vector<std::size_t>> byName;
  for (std::size_t p = 0; p < problem.plan.programs.size(); ++p) {
    const Program& program = problem.plan.programs[p];
    graph(program.graph, first_[p]);
    for (const Node& node : program.graph.nodes) {
      if (node.communication < 0) continue;
      const CommunicationSpec& spec = program.communications[node.communication];
      if (ops::collectiveOf(spec.kind).reduces) continue;
      const auto join = [&](TensorId t) {
        if (t < 0) return;
        const auto [it, added] = carried.emplace(spec.comm, first_[p] + at(t));
        if (!added) unite(it->second, first_[p] + at(t));
      };
      for (const Operand& o : program.graph.in(node)) join(o.tensor);
      for (const TensorId t : program.graph.out(node)) join(t);
    }
    for (std::size_t t = 0; t < program.graph.tensors.size(); ++t)
      byName[program.graph.tensors[t].name].push_back(first_[p] + t);
  }
  for (const LineageEntry& entry : problem.plan.lineage) {
    if (entry.role != Role::kInput) continue;
    for (const Shard& shard : entry.shards) {
      for (const Part& part : shard.parts)
        for (const std::size_t t : byName[part.local]) unite(at(entry.tensor), t);
    }
  }
}

void Uses::collect(const Problem& problem, const Graph& graph, std::size_t first, bool model) {
  std::vector<Ranges>& ranges = model ? ofModels_ : ofPlans_;
  for (const Node& node : graph.nodes) {
    if (node.communication >= 0) continue;
    std::string_view op = ops::Registry::instance().at(node.op).name;
    const Attributes& attributes = problem.attributes.at(node.attributes);
    std::size_t shift = 0;  // of a gradient operator: its forward operator's operands come after
                            // the gradients of the results
    if (op.ends_with("_backward")) {
      op.remove_suffix(9);
      shift = op == "moe_gate" || op == "apply_rotary_emb" ? 2 : 1;
    }
    const auto in = graph.in(node);
    const auto operand = [&](std::size_t i) -> Ranges* {
      return i + shift < in.size() && in[i + shift].present()
                 ? &ranges[find(first + at(in[i + shift].tensor))]
                 : nullptr;
    };
    const auto shapeOf = [&](std::size_t i) -> const Shape& {
      return graph.tensors[in[i + shift].tensor].shape;
    };
    const auto must = [](Ranges* r, std::int64_t low, std::int64_t high) {
      if (r == nullptr) return;
      r->mustLow = r->must ? std::max(r->mustLow, low) : low;
      r->mustHigh = r->must ? std::min(r->mustHigh, high) : high;
      if (r->mustHigh <= r->mustLow) r->mustHigh = r->mustLow + 1;
      r->must = true;
    };
    const auto may = [](Ranges* r, std::int64_t low, std::int64_t high, bool loose) {
      if (r == nullptr) return;
      r->mayLow = r->may ? std::min(r->mayLow, low) : low;
      r->mayHigh = r->may ? std::max(r->mayHigh, high) : high;
      r->loose = r->may ? r->loose && loose : loose;
      r->may = true;
    };
    const auto positive = [](Ranges* r) {
      if (r != nullptr) r->positive = true;
    };
    if (op == "embedding" && operand(0) != nullptr && operand(1) != nullptr &&
        !shapeOf(1).empty()) {
      const std::int64_t start = integerOf(attributes, "start", 0);
      may(operand(0), start, start + shapeOf(1)[0], hasAttribute(attributes, "start"));
    } else if (op == "one_hot") {
      may(operand(0), integerOf(attributes, "start"), integerOf(attributes, "stop"), true);
    } else if (op == "cross_entropy" && operand(0) != nullptr && !shapeOf(0).empty()) {
      must(operand(1), 0, shapeOf(0).back());
    } else if (op == "moe_experts") {
      must(operand(1), 0, integerOf(attributes, "n_routed_experts"));
    } else if (op == "dropout") {
      must(operand(1), 0, 2);
    } else if (op == "where") {
      may(operand(0), 0, 2, true);
    } else if (op == "log" || op == "sqrt" || op == "rsqrt" ||
               (op == "pow" && !numberOf(attributes, "scalar").isInteger())) {
      positive(operand(0));
    } else if (op == "adamw") {
      positive(operand(3));
    }
  }
}

}  // namespace shardproof::executor
