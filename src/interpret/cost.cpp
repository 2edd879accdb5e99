// The plan's schedule is run with sizes in place of arrays: what shares a buffer is counted several times, so the estimate is one from above. Where the schedule is
// too long for that, everything is counted as if it were alive at once.
#include "interpret/cost.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "interpret/call.h"
#include "interpret/schedule.h"
#include "ops/registry.h"

namespace shardproof::interpret {
namespace {

constexpr double kMostInstances = 3e6;   // more are not simulated

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

double numbersOf(const Tensor& t) {
  double n = static_cast<double>(planesOf(t.element));
  for (const std::int64_t s : t.shape) n *= static_cast<double>(s);
  return n;
}
double bytesOf(const Tensor& t) { return 8 * numbersOf(t); }

// What one node computes, and what its kernel may need beside operands and results.
Cost nodeCost(const Problem& problem, const Graph& graph, const Node& node, const NodeView& view) {
  Cost c;
  double numbers = 0;
  const auto shape = [&](std::size_t i) -> const Shape& {
    static const Shape none;
    return i < view.in.size() && view.in[i].present() ? graph.tensors[at(view.in[i].tensor)].shape : none;
  };
  for (const Operand& o : view.in)
    if (o.present()) numbers += numbersOf(graph.tensors[at(o.tensor)]);
  double wanted = 0;
  for (const std::int32_t t : view.out) {
    if (t < 0) continue;
    numbers += numbersOf(graph.tensors[at(t)]);
    ++wanted;
  }
  c.bytes = 16 * numbers;
  c.flops = 4 * numbers;
  if (node.communication >= 0) return c;
  std::string_view op = ops::Registry::instance().at(node.op).name;
  const bool backward = op.ends_with("_backward");
  if (backward) op.remove_suffix(9);
  const std::size_t first = backward ? (op == "moe_gate" || op == "apply_rotary_emb" ? 2 : 1) : 0;
  const auto size = [](const Shape& s) { return static_cast<double>(positionsOf(s)); };
  double products = 0;
  if (op == "linear" || op == "moe_gate") {
    if (!shape(first + 1).empty()) products = size(shape(first)) * static_cast<double>(shape(first + 1)[0]);
  } else if (op == "matmul") {
    if (shape(first).size() > 0 && shape(first + 1).size() > 1) products = size(shape(first)) * static_cast<double>(shape(first + 1).back());
    if (shape(first).size() < shape(first + 1).size() && shape(first).size() > 0) products *= size(shape(first + 1)) / std::max(1.0, static_cast<double>(shape(first + 1).back()) * static_cast<double>(shape(first).back()));
  } else if (op == "moe_experts") {
    const Shape &x = shape(first), &indices = shape(first + 1), &gate = shape(first + 3);
    if (x.size() == 2 && indices.size() == 2 && gate.size() == 3) products = 3 * size(x) * static_cast<double>(indices[1]) * static_cast<double>(gate[1]);
  } else if (op == "einsum") {
    products = 1;
    std::set<char> seen;
    const std::string equation = textOf(problem.attributes.at(view.attributes), "equation", "");
    std::size_t operand = first, dim = 0;
    for (const char ch : equation) {
      if (ch == '-') break;
      if (ch == ',') ++operand, dim = 0;
      if ((ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z')) {
        if (dim < shape(operand).size() && seen.insert(ch).second) products *= static_cast<double>(shape(operand)[dim]);
        ++dim;
      }
    }
  }
  c.flops += 2 * products * (backward ? std::max(1.0, wanted) + (op == "moe_experts" ? 1 : 0) : 1);
  return c;
}

struct Meter {
  double alive = 0, peak = 0;
  void add(double bytes, double beside = 0) {
    alive += bytes;
    peak = std::max(peak, alive + beside);
  }
};

// The schedule's host.
class Counter {
 public:
  Counter(const Setup& setup, double base) : setup_(setup), problem_(setup.problem) {
    meter_.add(base);
    for (std::size_t p = 0; p < problem_.plan.programs.size(); ++p) {
      const Graph& graph = problem_.plan.programs[p].graph;
      costs_.emplace_back();
      for (std::size_t n = 0; n < graph.nodes.size(); ++n) costs_.back().push_back(nodeCost(problem_, graph, graph.nodes[n], setup.plans[p].nodes[n]));
    }
    const std::int64_t ranks = setup.programs.mesh().ranks();
    std::set<std::tuple<std::int32_t, Shape, Shape>> pieces;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const ProgramLayout& layout = setup.programs.layout(r);
      reads_.push_back(layout.reads);
      for (std::int32_t s = 0; s < layout.slots(); ++s) {
        const Tensor& tensor = setup.programs.program(r).graph.tensors[at(layout.tensorOfSlot[at(s)])];
        if (tensor.kind == TensorKind::kProduced || layout.reads[at(s)] == 0) continue;
        const std::int32_t source = setup.sourceOf(setup.programs.slot(r, s));
        if (source >= 0 && setup.claims[at(source)].parts.size() == 1) {   // shared by all that have the same piece
          const Claim& claim = setup.claims[at(source)];
          if (!pieces.emplace(problem_.plan.lineage[at(claim.entry)].tensor, claim.low, claim.extent).second) continue;
        }
        meter_.add(bytesOf(tensor));
      }
    }
  }

  void compute(std::int64_t rank, std::int32_t instance) {
    const auto p = at(setup_.programs.programOf(rank));
    const Graph& graph = problem_.plan.programs[p].graph;
    const Instance& i = setup_.programs.layout(rank).instances[at(instance)];
    const Cost& c = costs_[p][at(i.node)];
    flops += c.flops;
    const Node& node = graph.nodes[at(i.node)];
    const ProgramLayout& layout = setup_.programs.layout(rank);
    double made = 0, kept = 0;
    for (const std::int32_t t : graph.out(node)) {
      if (t < 0) continue;
      const std::int32_t slot = setup_.programs.slotOf(layout, graph, t, i.microbatch);
      const double bytes = bytesOf(graph.tensors[at(t)]);
      made += bytes;
      if (reads_[at(rank)][at(slot)] > 0) kept += bytes;
    }
    meter_.add(made, c.bytes);
    meter_.add(kept - made);
    for (const Operand& o : graph.in(node)) {
      if (!o.present()) continue;
      const std::int32_t slot = setup_.programs.slotOf(layout, graph, o.tensor, o.microbatch.isOne() ? o.microbatch.number() : i.microbatch);
      if (--reads_[at(rank)][at(slot)] > 0 || graph.tensors[at(o.tensor)].kind != TensorKind::kProduced) continue;   // a given one may be shared
      meter_.add(-bytesOf(graph.tensors[at(o.tensor)]));
    }
  }
  void communicate(const Meeting& meeting) {
    for (const Member& m : meeting.members) compute(m.rank, m.instance);
  }
  double peak() const { return meter_.peak; }

  double flops = 0;

 private:
  const Setup& setup_;
  const Problem& problem_;
  Meter meter_;
  std::vector<std::vector<Cost>> costs_;
  std::vector<std::vector<std::int32_t>> reads_;
};

}  // namespace

Cost cost(const Setup& setup) {
  const Problem& problem = setup.problem;
  Cost total;
  // The model, and what of it stays for the plan.
  const Graph& graph = problem.model.graph;
  std::vector<std::int64_t> uses(graph.tensors.size(), 0);
  for (const NodeView& view : setup.model.nodes)
    for (const Operand& o : view.in)
      if (o.present()) ++uses[at(o.tensor)];
  for (const Claim& claim : setup.claims) ++uses[at(problem.plan.lineage[at(claim.entry)].tensor)];
  Meter meter;
  for (std::size_t t = 0; t < graph.tensors.size(); ++t)
    if (graph.tensors[t].kind != TensorKind::kProduced && uses[t] > 0) meter.add(bytesOf(graph.tensors[t]));
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const NodeView& view = setup.model.nodes[n];
    const Cost c = nodeCost(problem, graph, graph.nodes[n], view);
    total.flops += c.flops;
    for (const std::int32_t t : view.out)
      if (t >= 0) meter.add(bytesOf(graph.tensors[at(t)]), c.bytes);
    for (const std::int32_t t : view.out)
      if (t >= 0 && uses[at(t)] == 0) meter.add(-bytesOf(graph.tensors[at(t)]));
    for (const Operand& o : view.in)
      if (o.present() && --uses[at(o.tensor)] == 0) meter.add(-bytesOf(graph.tensors[at(o.tensor)]));
  }
  double instances = 0;
  for (std::int64_t r = 0; r < setup.programs.mesh().ranks(); ++r) instances += static_cast<double>(setup.programs.layout(r).instances.size());
  if (instances <= kMostInstances) {
    Counter counter(setup, meter.alive);
    runSchedule(setup.programs, counter);
    total.bytes = std::max(meter.peak, counter.peak());
    total.flops += counter.flops;
    return total;
  }
  total.bytes = meter.peak;
  for (std::int64_t r = 0; r < setup.programs.mesh().ranks(); ++r) {
    const ProgramLayout& layout = setup.programs.layout(r);
    for (const std::int32_t t : layout.tensorOfSlot) total.bytes += bytesOf(setup.programs.program(r).graph.tensors[at(t)]);
  }
  return total;
}

Cost cost(const Problem& problem) { return cost(Setup(problem, {})); }

}  // namespace shardproof::interpret
