// SPDX-License-Identifier: Apache-2.0
// Model and schedule are run with sizes in place of arrays, which share buffers where they surely
// will; so the estimate is one from above. Where the schedule is too long for that, everything is
// counted as if it were alive at once.
#include "executor/cost.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "executor/call.h"
#include "executor/schedule.h"
#include "ops/registry.h"
#include "util/index.h"

namespace shardproof::executor {
namespace {

constexpr double kMostInstances = 3e6;  // more are not simulated

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
    return i < view.in.size() && view.in[i].present() ? graph.tensors[view.in[i].tensor].shape
                                                      : none;
  };
  for (const Operand& o : view.in)
    if (o.present()) numbers += numbersOf(graph.tensors[o.tensor]);
  double wanted = 0;
  for (const TensorId t : view.out) {
    if (t < 0) continue;
    numbers += numbersOf(graph.tensors[t]);
    ++wanted;
  }
  c.bytes = 16 * numbers;
  c.flops = 4 * numbers;
  if (node.communication >= 0) return c;
  std::string_view op = ops::Registry::instance().at(node.op).name;
  const bool backward = op.ends_with("_backward");
  if (backward) op.remove_suffix(9);
  const std::size_t first =
      backward ? (op == "moe_gate" || op == "apply_rotary_emb" || op == "attention" ? 2 : 1) : 0;
  const auto size = [](const Shape& s) { return static_cast<double>(positionsOf(s)); };
  double products = 0;
  if (op == "linear" || op == "moe_gate") {
    if (!shape(first + 1).empty())
      products = size(shape(first)) * static_cast<double>(shape(first + 1)[0]);
  } else if (op == "matmul") {
    if (shape(first).size() > 0 && shape(first + 1).size() > 1)
      products = size(shape(first)) * static_cast<double>(shape(first + 1).back());
    if (shape(first).size() < shape(first + 1).size() && shape(first).size() > 0)
      products *=
          size(shape(first + 1)) / std::max(1.0, static_cast<double>(shape(first + 1).back()) *
                                                     static_cast<double>(shape(first).back()));
  } else if (op == "attention") {
    const Shape &q = shape(first), &k = shape(first + 1), &v = shape(first + 2);
    if (q.size() > 1 && k.size() > 1 && v.size() > 1)
      products = size(q) / static_cast<double>(q.back()) * static_cast<double>(k[k.size() - 2]) *
                 static_cast<double>(q.back() + v.back()) * (backward ? 2 : 1);
  } else if (op == "moe_experts") {
    const Shape &x = shape(first), &indices = shape(first + 1), &gate = shape(first + 3);
    if (x.size() == 2 && indices.size() == 2 && gate.size() == 3)
      products = 3 * size(x) * static_cast<double>(indices[1]) * static_cast<double>(gate[1]);
  } else if (op == "einsum") {
    products = 1;
    std::set<char> seen;
    const std::string equation = textOf(problem.attributes.at(view.attributes), "equation", "");
    std::size_t operand = first, dim = 0;
    for (const char ch : equation) {
      if (ch == '-') break;
      if (ch == ',') ++operand, dim = 0;
      if ((ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z')) {
        if (dim < shape(operand).size() && seen.insert(ch).second)
          products *= static_cast<double>(shape(operand)[dim]);
        ++dim;
      }
    }
  }
  if (op == "attention" &&
      shape(first + 1).size() > 1)  // the scores, and in the gradient their slopes
    c.bytes += 16 * static_cast<double>(shape(first)[shape(first).size() - 2]) *
               static_cast<double>(shape(first + 1)[shape(first + 1).size() - 2]);
  c.flops += 2 * products * (backward ? std::max(1.0, wanted) + (op == "moe_experts" ? 1 : 0) : 1);
  return c;
}

// Buffers by number, with how many arrays have each.
class Buffers {
 public:
  std::int32_t make(double bytes) {
    bytes_.push_back(bytes);
    holders_.push_back(0);
    return static_cast<std::int32_t>(bytes_.size()) - 1;
  }
  void hold(std::int32_t b) {
    if (b >= 0 && holders_[b]++ == 0) alive_ += bytes_[b];
    peak_ = std::max(peak_, alive_);
  }
  void drop(std::int32_t b) {
    if (b >= 0 && --holders_[b] == 0) alive_ -= bytes_[b];
  }
  void beside(double bytes) { peak_ = std::max(peak_, alive_ + bytes); }  // for a moment
  double peak() const { return peak_; }

 private:
  std::vector<double> bytes_;
  std::vector<std::int32_t> holders_;
  double alive_ = 0, peak_ = 0;
};

// Operators whose first operand's elements are the result's, and stay where they are.
bool shares(std::string_view op) {
  constexpr std::string_view list[] = {"identity", "to",      "contiguous", "multiref", "float",
                                       "view",     "reshape", "squeeze",    "unsqueeze"};
  if (op.ends_with("_backward")) op.remove_suffix(9);
  return std::find(std::begin(list), std::end(list), op) != std::end(list);
}

// A run with sizes in place of arrays: the model, then the schedule, whose host this is.
class Rehearsal {
 public:
  explicit Rehearsal(const Setup& setup)
      : setup_(setup), problem_(setup.problem), programs_(setup.programs) {}

  Cost model() {
    const Graph& graph = problem_.model.graph;
    uses_.assign(graph.tensors.size(), 0);
    logical_.assign(graph.tensors.size(), -1);
    for (const NodeView& view : setup_.model.nodes)
      for (const Operand& o : view.in)
        if (o.present()) ++uses_[o.tensor];
    for (const Claim& claim : setup_.claims) ++uses_[tensorOf(claim)];
    for (std::size_t t = 0; t < graph.tensors.size(); ++t)
      if (graph.tensors[t].kind != TensorKind::kProduced && !setup_.model.added[t])
        store(TensorId(t), buffers_.make(bytesOf(graph.tensors[t])));
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      const NodeView& view = setup_.model.nodes[n];
      const Cost c = nodeCost(problem_, graph, graph.nodes[n], view);
      total_.flops += c.flops;
      buffers_.beside(c.bytes);
      const bool same = shares(ops::Registry::instance().at(graph.nodes[n].op).name) &&
                        !view.in.empty() && view.in[0].present();
      for (const TensorId t : view.out)
        if (t >= 0)
          store(t, same ? logical_[view.in[0].tensor] : buffers_.make(bytesOf(graph.tensors[t])));
      for (const Operand& o : view.in)
        if (o.present()) release(o.tensor);
    }
    total_.bytes = buffers_.peak();
    return total_;
  }

  Cost plan() {
    for (std::size_t p = 0; p < problem_.plan.programs.size(); ++p) {
      const Graph& graph = problem_.plan.programs[p].graph;
      costs_.emplace_back();
      for (std::size_t n = 0; n < graph.nodes.size(); ++n)
        costs_.back().push_back(
            nodeCost(problem_, graph, graph.nodes[n], setup_.plans[p].nodes[n]));
    }
    remaining_.resize(setup_.compared);
    sums_.assign(setup_.compared, -1);
    for (std::size_t c = 0; c < setup_.compared; ++c)
      remaining_[c] = static_cast<std::int32_t>(setup_.claims[c].parts.size());
    const std::int64_t ranks = programs_.mesh().ranks();
    for (const Rank r : firstIds<Rank>(ranks)) {
      reads_.push_back(programs_.layout(r).reads);
      local_.emplace_back(reads_.back().size(), -1);
    }
    for (const Rank r : firstIds<Rank>(ranks)) give(r);
    for (std::size_t c = setup_.compared; c < setup_.claims.size(); ++c)
      release(TensorId(tensorOf(setup_.claims[c])));
    runSchedule(programs_, *this);
    total_.bytes = buffers_.peak();
    return total_;
  }

  // --- the schedule's host ---

  void compute(Rank rank, std::int32_t instance) {
    const Node& node = programs_.node(rank, instance);
    count(rank, instance);
    const bool same = node.inCount > 0 && shares(ops::Registry::instance().at(node.op).name);
    const std::int32_t first = same ? programs_.operandSlot(rank, instance, 0) : -1;
    for (std::uint32_t r = 0; r < node.outCount; ++r) {
      const std::int32_t slot = programs_.resultSlot(rank, instance, r);
      if (slot >= 0)
        produce(rank, slot,
                first >= 0 ? local_[rank][first] : buffers_.make(bytesOf(tensorOf(rank, slot))));
    }
    releaseOperands(rank, instance);
  }

  void communicate(const Rendezvous& rendezvous) {
    std::int32_t shared = -1;  // what all members get, where it is one array
    for (const Member& m : rendezvous.members) {
      count(m.rank, m.instance);
      const Communication kind = programs_.communication(m.rank, m.instance)->kind;
      if ((kind == Communication::kSend || kind == Communication::kBroadcast) &&
          programs_.node(m.rank, m.instance).inCount == 1)
        shared = local_[m.rank][programs_.operandSlot(m.rank, m.instance, 0)];
    }
    for (const Member& m : rendezvous.members) {
      if (programs_.node(m.rank, m.instance).outCount == 0) continue;
      const std::int32_t slot = programs_.resultSlot(m.rank, m.instance, 0);
      const Communication kind = programs_.communication(m.rank, m.instance)->kind;
      if (kind == Communication::kReduceScatter || kind == Communication::kAllToAll ||
          kind == Communication::kScatter || kind == Communication::kPermute || shared < 0)
        shared = buffers_.make(bytesOf(tensorOf(m.rank, slot)));
      produce(m.rank, slot, shared);
    }
    for (const Member& m : rendezvous.members) releaseOperands(m.rank, m.instance);
  }

 private:
  std::int32_t tensorOf(const Claim& claim) const {
    return problem_.plan.lineage[claim.entry].tensor;
  }
  const Tensor& tensorOf(Rank rank, std::int32_t slot) const {
    return programs_.program(rank).graph.tensors[programs_.layout(rank).tensorOfSlot[slot]];
  }

  void store(TensorId t, std::int32_t buffer) {
    buffers_.hold(buffer);
    if (uses_[t] == 0) buffers_.drop(buffer);
    else logical_[t] = buffer;
  }
  void release(TensorId t) {
    if (--uses_[t] == 0) buffers_.drop(logical_[t]);
  }

  void give(Rank rank) {
    const ProgramLayout& layout = programs_.layout(rank);
    for (std::int32_t slot = 0; slot < layout.slots(); ++slot) {
      const Tensor& tensor = tensorOf(rank, slot);
      const std::int64_t number = programs_.slot(rank, slot);
      if (tensor.kind == TensorKind::kProduced ||
          (layout.reads[slot] == 0 && setup_.claimsOfSlot(number).empty()))
        continue;
      const std::int32_t source = setup_.sourceOf(number);
      if (source < 0 || setup_.claims[source].parts.size() != 1) {
        produce(rank, slot, buffers_.make(bytesOf(tensor)));
        continue;
      }
      const Claim& claim = setup_.claims[source];
      if (claim.extent == problem_.model.graph.tensors[tensorOf(claim)].shape) {
        produce(rank, slot, logical_[tensorOf(claim)]);
        continue;
      }
      const auto [it, added] = pieces_.try_emplace({tensorOf(claim), claim.low, claim.extent}, -1);
      if (added) it->second = buffers_.make(bytesOf(tensor));
      produce(rank, slot, it->second);
    }
  }

  void count(Rank rank, std::int32_t instance) {
    const Cost& c =
        costs_[programs_.programOf(rank)][at(programs_.layout(rank).instances[instance].node)];
    total_.flops += c.flops;
    buffers_.beside(c.bytes);
  }

  void produce(Rank rank, std::int32_t slot, std::int32_t buffer) {
    buffers_.hold(buffer);
    for (const std::int32_t c : setup_.claimsOfSlot(programs_.slot(rank, slot))) {
      if (sums_[c] < 0)
        sums_[c] = setup_.claims[c].parts.size() == 1
                       ? buffer
                       : buffers_.make(2 * bytesOf(tensorOf(rank, slot)));
      if (remaining_[c] == static_cast<std::int32_t>(setup_.claims[c].parts.size()))
        buffers_.hold(sums_[c]);
      if (--remaining_[c] > 0) continue;
      buffers_.drop(sums_[c]);
      release(TensorId(tensorOf(setup_.claims[c])));
    }
    if (reads_[rank][slot] == 0) buffers_.drop(buffer);
    else local_[rank][slot] = buffer;
  }

  void releaseOperands(Rank rank, std::int32_t instance) {
    const Node& node = programs_.node(rank, instance);
    for (std::uint32_t i = 0; i < node.inCount; ++i) {
      const std::int32_t slot = programs_.operandSlot(rank, instance, i);
      if (slot >= 0 && --reads_[rank][slot] == 0) buffers_.drop(local_[rank][slot]);
    }
  }

  const Setup& setup_;
  const Problem& problem_;
  const Programs& programs_;
  Buffers buffers_;
  Cost total_;
  std::vector<std::int64_t> uses_;                        // of the model's tensors, as in a run
  std::vector<std::int32_t> logical_;                     // their buffers
  std::vector<std::vector<Cost>> costs_;                  // by program and node
  std::vector<std::vector<std::int32_t>> reads_, local_;  // by rank and slot
  std::vector<std::int32_t> remaining_, sums_;            // by claim
  std::map<std::tuple<std::int32_t, Shape, Shape>, std::int32_t> pieces_;
};

}  // namespace

Cost cost(const Setup& setup) {
  Rehearsal rehearsal(setup);
  Cost total = rehearsal.model();
  double instances = 0;
  for (const Rank r : firstIds<Rank>(setup.programs.mesh().ranks()))
    instances += static_cast<double>(setup.programs.layout(r).instances.size());
  if (instances <= kMostInstances) return rehearsal.plan();
  total.bytes += keptBytes(setup);
  return total;
}

double keptBytes(const Setup& setup) {
  double bytes = 0;
  for (const Tensor& t : setup.problem.model.graph.tensors) bytes += bytesOf(t);
  for (const Rank r : firstIds<Rank>(setup.programs.mesh().ranks())) {
    const ProgramLayout& layout = setup.programs.layout(r);
    for (const TensorId t : layout.tensorOfSlot)
      bytes += bytesOf(setup.programs.program(r).graph.tensors[t]);
  }
  return bytes;
}

namespace {

double ranksOf(const Plan& plan, const Program& program) {
  double ranks = 1;
  for (std::size_t a = 0; a < plan.mesh.size(); ++a) {
    const bool named = std::any_of(program.at.begin(), program.at.end(),
                                   [&](const auto& c) { return at(c.first) == a; });
    if (!named) ranks *= plan.mesh[a].size;
  }
  return ranks;
}

double timesOf(const Plan& plan, Microbatch microbatch) {
  return microbatch.isEach() ? plan.microbatches : 1;
}

// Everything that a graph computes, as often as `ranks` do.
void addGraph(const Problem& problem, const Graph& graph, double ranks, Cost& total) {
  const GraphView view(problem, graph);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    total.flops += ranks * timesOf(problem.plan, graph.nodes[n].microbatch) *
                   nodeCost(problem, graph, graph.nodes[n], view.nodes[n]).flops;
  for (const Tensor& t : graph.tensors)
    total.bytes += ranks * (t.perMicrobatch ? problem.plan.microbatches : 1) * bytesOf(t);
}

// Listing them takes long and much memory. Operations are as many, bytes more: of all tensors.
Cost withoutInstances(const Problem& problem) {
  Cost total;
  addGraph(problem, problem.model.graph, 1, total);
  for (const Program& program : problem.plan.programs)
    addGraph(problem, program.graph, ranksOf(problem.plan, program), total);
  return total;
}

}  // namespace

Cost cost(const Problem& problem) {
  const Plan& plan = problem.plan;
  double instances = 0;
  for (const Program& program : plan.programs)
    for (const Node& node : program.graph.nodes)
      instances += ranksOf(plan, program) * timesOf(plan, node.microbatch);
  if (instances <= kMostInstances) return cost(Setup(problem, {}));
  return withoutInstances(problem);
}

bool costsAtMost(const Problem& problem, const Cost& most) {
  return withoutInstances(problem).flops <= most.flops && cost(problem).bytes <= most.bytes;
}

}  // namespace shardproof::executor
