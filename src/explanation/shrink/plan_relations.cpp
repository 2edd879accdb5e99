// SPDX-License-Identifier: Apache-2.0
// Operators say themselves how their dimensions run together (ops/relations.h); what is added here
// is what they need not say for a proof: all pieces of a chunk or a scattered dimension are equal,
// a gate has experts to choose from. An operator that has an attribute which is not known here to
// be free of sizes keeps all its dimensions as they are.
#include "shrink/plan_relations.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/registry.h"
#include "plan/checks.h"
#include "shardproof/error.h"
#include "shrink/dimension_shares.h"
#include "shrink/lineage_relations.h"
#include "util/index.h"
#include "util/shapes.h"

namespace shardproof {

namespace {

using Dim = PlanLines::Dim;

std::string forwardName(const std::string& op) {
  constexpr std::string_view kSuffix = "_backward";
  return op.ends_with(kSuffix) ? op.substr(0, op.size() - kSuffix.size()) : op;
}

// Attributes that name dimensions, or numbers that are no positions. (Factors are seen to in
// shrink_scalars.cpp.)
bool freeOfSizes(const std::string& key) {
  static const std::set<std::string, std::less<>> kKeys{
      "alpha", "approximate", "beta1",       "beta2",    "dampening",   "dim",        "dim0",
      "dim1",  "dims",        "eps",         "equation", "index",       "keepdim",    "largest",
      "lr",    "max_norm",    "mode",        "momentum", "n_groups",    "nesterov",   "p",
      "parts", "reduction",   "route_scale", "scalar",   "scale",       "score_func", "seed",
      "step",  "topk",        "topk_groups", "value",    "weight_decay"};
  return kKeys.contains(key);
}

// Attention that divides by the root of its own dimension d.
bool scalesBySize(const std::string& op, const Attributes& attributes) {
  return forwardName(op) == "attention" && !ops::has(attributes, "scale");
}

// What one operator call states, on the dimensions of its tensors.
class CallRelations final : public ops::Relations {
 public:
  CallRelations(PlanLines& lines, const std::string& op, std::size_t operands,
                std::vector<const std::vector<Dim>*> dims, std::vector<Dim> values,
                const std::vector<ops::TensorInfo>& results)
      : lines_(lines),
        operands_(operands),
        dims_(std::move(dims)),
        values_(std::move(values)),
        results_(results) {
    // The experts of a gate are an ordered row for a proof; here they may be fewer (Gate).
    if (op == "moe_gate") gate_ = 1;
    if (op == "moe_gate_backward") gate_ = 3;
    dropout_ = op == "dropout" || op == "dropout_backward";
  }

  void equal(ops::DimRef a, ops::DimRef b) override {
    const Dim x = dim(a), y = dim(b);
    if (x >= 0 && y >= 0) lines_.equal(x, y);
  }
  void range(ops::DimRef whole, std::int64_t lo, ops::DimRef part) override {
    const Dim x = dim(whole), y = dim(part);
    if (x < 0 || y < 0) return;
    lines_.range(x, lo, y);
    if (whole.dim == ops::kValues) lines_.telling(y, PlanLines::Telling::kRows);
  }
  void regroup(std::span<const ops::DimRef> a, std::span<const ops::DimRef> b) override {
    std::vector<Dim> x, y;
    for (const ops::DimRef d : a) x.push_back(dim(d));
    for (const ops::DimRef d : b) y.push_back(dim(d));
    lines_.regroup(std::move(x), std::move(y));
  }
  void pairs(ops::DimRef whole, ops::DimRef half) override {
    const Dim two = lines_.add(2);
    lines_.keep(two);
    lines_.regroup({dim(whole)}, {dim(half), two});
  }
  void summed(ops::DimRef) override {}
  void keep(ops::DimRef d) override {
    if (d.slot == gate_ && d.dim == 0) return;
    // Which bits a mask has is no matter of sizes.
    if (dropout_ && d.slot < static_cast<int>(operands_)) return;
    if (const Dim x = dim(d); x >= 0) lines_.keep(x);
  }
  void absolute(ops::DimRef d) override {
    if (const Dim x = dim(d); x >= 0 && !dropout_) lines_.telling(x, PlanLines::Telling::kOrder);
  }
  void iterates(std::span<const ops::DimRef>) override {}
  void virtualTensor(int slot, const Shape& shape) override {
    std::vector<Dim> dims;
    for (const std::int64_t n : shape) dims.push_back(lines_.add(n));
    virtual_[slot] = std::move(dims);
  }

 private:
  Dim dim(ops::DimRef d) {
    if (const auto it = virtual_.find(d.slot); it != virtual_.end())
      return d.dim == ops::kValues ? -1 : it->second.at(at(d.dim));
    const auto* dims = dims_.at(at(d.slot));
    if (dims == nullptr) {  // a result that nobody wants still ties its operands together
      virtualTensor(d.slot, results_.at(at(d.slot) - operands_).shape);
      return dim(d);
    }
    return d.dim == ops::kValues ? values_[d.slot] : dims->at(at(d.dim));
  }

  PlanLines& lines_;
  std::size_t operands_;
  std::vector<const std::vector<Dim>*> dims_;  // by slot; null: absent
  std::vector<Dim> values_;
  const std::vector<ops::TensorInfo>& results_;
  int gate_ = -2;
  bool dropout_ = false;
  std::map<int, std::vector<Dim>> virtual_;
};

// Of the operators and communications of the model and of the programs that stay.
class GraphRelations {
 public:
  GraphRelations(const Problem& problem, const KeptRanks& kept, DimensionShares& shares,
                 PlanRelations& to)
      : problem_(problem),
        plan_(problem.plan),
        mesh_(problem.plan.mesh),
        kept_(kept),
        shares_(shares),
        to_(to),
        lines_(to.lines) {}

  void run() {
    oneSideScalesBySize_ =
        scalesBySize(problem_.model.graph) !=
        std::any_of(plan_.programs.begin(), plan_.programs.end(),
                    [&](const Program& program) { return scalesBySize(program.graph); });
    to_.model = addGraph(problem_.model.graph);
    to_.programs.resize(plan_.programs.size());
    for (const ProgramId p : firstIds<ProgramId>(plan_.programs.size())) {
      if (kept_.keeps(plan_.programs[p].at)) to_.programs[p] = addGraph(plan_.programs[p].graph);
    }
    for (const Node& node : problem_.model.graph.nodes)
      to_.model.fits.push_back(relateCall(problem_.model.graph, to_.model, node));
    for (const ProgramId p : firstIds<ProgramId>(plan_.programs.size())) {
      if (!kept_.keeps(plan_.programs[p].at)) continue;
      const Program& program = plan_.programs[p];
      for (const Node& node : program.graph.nodes) {
        if (goes(problem_, kept_, program.graph, node)) {  // as those that stay
          to_.programs[p].fits.push_back(0);
          continue;
        }
        to_.programs[p].fits.push_back(node.communication < 0
                                           ? relateCall(program.graph, to_.programs[p], node)
                                           : relateCommunication(program, to_.programs[p], node));
      }
    }
    std::sort(to_.gates.begin(), to_.gates.end());
    to_.gates.erase(std::unique(to_.gates.begin(), to_.gates.end()), to_.gates.end());
  }

 private:
  bool scalesBySize(const Graph& graph) const {
    return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
      return node.communication < 0 &&
             shardproof::scalesBySize(ops::Registry::instance().at(node.op).name,
                                      problem_.attributes.at(node.attributes));
    });
  }

  GraphDims addGraph(const Graph& graph) {
    GraphDims dims;
    for (const Tensor& t : graph.tensors) {
      std::vector<Dim> own;
      for (const std::int64_t n : t.shape) own.push_back(lines_.add(n));
      dims.values.push_back(t.element == ElementKind::kInteger ? lines_.add(PlanLines::kUnbounded)
                                                               : -1);
      if (t.constant >= 0) addConstant(*graph.constants[t.constant], own, dims.values.back());
      dims.ofTensor.push_back(std::move(own));
    }
    return dims;
  }

  // A constant that lists its elements has no element to spare; one that is an index names a row.
  void addConstant(const ConstantValue& value, const std::vector<Dim>& dims, Dim values) {
    if (!value.fill) {
      for (const Dim d : dims) lines_.keep(d);
    }
    if (values < 0) return;
    for (const Rational& r : value.elements) {
      if (!r.fitsInt64() || r.toInt64() < 0 || r.toInt64() >= PlanLines::kUnbounded) continue;
      lines_.cut(values, r.toInt64());
      lines_.cut(values, r.toInt64() + 1);
    }
  }

  char relateCall(const Graph& graph, const GraphDims& dims, const Node& node) {
    const ops::OperatorInfo& op = ops::Registry::instance().at(node.op);
    const auto in = graph.in(node);
    const auto out = graph.out(node);
    std::vector<ops::TensorInfo> infos(in.size());
    std::vector<const ops::TensorInfo*> operands(in.size(), nullptr), results(out.size(), nullptr);
    std::vector<const std::vector<Dim>*> slots;
    std::vector<Dim> values;
    const auto slot = [&](TensorId tensor) {
      slots.push_back(tensor < 0 ? nullptr : &dims.ofTensor[tensor]);
      values.push_back(tensor < 0 ? -1 : dims.values[tensor]);
    };
    for (std::size_t i = 0; i < in.size(); ++i) {
      slot(in[i].tensor);
      if (!in[i].present()) continue;
      infos[i] = {graph.tensors[in[i].tensor].shape, graph.tensors[in[i].tensor].element};
      operands[i] = &infos[i];
    }
    const Attributes& attributes = problem_.attributes.at(node.attributes);
    const ops::Signature signature{attributes, operands, out.size()};
    std::vector<ops::TensorInfo> inferred;
    bool fits = true;
    try {
      inferred = op.infer(signature);
    } catch (const ShapeError&) {
      fits = false;
    } catch (const Unsupported&) {
      fits = false;
    }
    for (std::size_t i = 0; i < out.size() && fits; ++i) {
      slot(out[i]);
      if (out[i] < 0) continue;
      const Tensor& t = graph.tensors[out[i]];
      fits = i < inferred.size() && fitsDeclared(inferred[i].shape, t.shape, op.scalarMayBeOne);
      if (!fits) break;
      inferred[i].shape = t.shape;  // [1] for []
      results[i] = &inferred[i];
    }
    if (!fits) return 0;
    const SizedAttribute sized = sizedAttribute(op.name);
    const bool known = std::all_of(attributes.begin(), attributes.end(), [&](const auto& a) {
      return sized != SizedAttribute::kNone || freeOfSizes(a.first);
    });
    if (!known) {
      for (const auto* s : slots) {
        if (s == nullptr) continue;
        for (const Dim d : *s) lines_.keep(d);
      }
    }
    CallRelations relations(lines_, op.name, in.size(), slots, values, inferred);
    op.relate(signature, results, relations);
    const std::size_t first = firstForwardOperand(op.name);
    if (oneSideScalesBySize_ && shardproof::scalesBySize(op.name, attributes))
      lines_.keep(slots.at(first)->back());
    if (forwardName(op.name) == "chunk")
      relateChunk(attributes, *slots.at(first), first == 0 ? slots.at(in.size()) : slots.at(0));
    if (forwardName(op.name) == "moe_gate") {
      to_.gates.push_back({slots.at(first + 1)->at(0), ops::integer(attributes, "n_groups", 1),
                           ops::integer(attributes, "topk_groups", 1),
                           ops::integer(attributes, "topk")});
    }
    if (sized == SizedAttribute::kExperts)
      lines_.cut(values.at(first + 1), ops::integer(attributes, "n_routed_experts"));
    return 1;
  }

  // All pieces are as large as the one that is taken.
  void relateChunk(const Attributes& attributes, const std::vector<Dim>& whole,
                   const std::vector<Dim>* piece) {
    if (piece == nullptr) return;
    const std::int64_t named = ops::integer(attributes, "dim");
    const std::size_t d = at(named < 0 ? named + static_cast<std::int64_t>(whole.size()) : named);
    const std::int64_t size = lines_.fullSize(piece->at(d));
    for (std::int64_t i = 0; i < ops::integer(attributes, "parts"); ++i)
      lines_.range(whole.at(d), i * size, piece->at(d));
  }

  // The places of the members that stay, among `size`.
  std::vector<char> membersThatStay(const CommunicationSpec& spec, std::int64_t& size) const {
    if (!spec.groupAt.empty()) {
      size = static_cast<std::int64_t>(spec.groupAt.size());
      std::vector<char> stay;
      for (const Coordinates& c : spec.groupAt) stay.push_back(kept_.keeps(c));
      return stay;
    }
    std::vector<char> stay{1};
    for (const std::int32_t axis : spec.groupAxes) {  // sorted: rank order
      std::vector<char> wider;
      for (const char s : stay) {
        for (std::int32_t c = 0; c < mesh_.size(axis); ++c)
          wider.push_back(s && kept_.newCoordinate(axis, c) >= 0);
      }
      stay = std::move(wider);
    }
    size = static_cast<std::int64_t>(stay.size());
    return stay;
  }

  // `part` is piece i of `whole`, for each member i that stays; the others' pieces go.
  void relatePieces(Dim whole, Dim part, const std::vector<char>& stay) {
    const std::int64_t size = lines_.fullSize(part);
    for (std::size_t i = 0; i < stay.size(); ++i) {
      if (stay[i]) {
        lines_.range(whole, static_cast<std::int64_t>(i) * size, part);
        continue;
      }
      std::size_t end = i;
      while (end < stay.size() && !stay[end]) ++end;
      lines_.drop(whole, static_cast<std::int64_t>(i) * size,
                  static_cast<std::int64_t>(end - i) * size);
      i = end - 1;
    }
  }

  char relateCommunication(const Program& program, const GraphDims& dims, const Node& node) {
    const CommunicationSpec& spec = program.communications[node.communication];
    const auto in = program.graph.in(node);
    const auto out = program.graph.out(node);
    const std::int32_t a = in.empty() ? -1 : in[0].tensor, b = out.empty() ? -1 : out[0];
    if (!spec.sizes.empty()) return keepPieces(spec, dims, a, b);
    if (a >= 0 && b >= 0) {
      std::int64_t size = 0;
      const std::vector<char> stay = membersThatStay(spec, size);
      try {
        if (ops::communicationShape(spec, program.graph.tensors[a].shape, size) !=
            program.graph.tensors[b].shape)
          return 0;
      } catch (const ShapeError&) {
        return 0;
      }
      const auto &x = dims.ofTensor[a], &y = dims.ofTensor[b];
      const ops::Collective& collective = ops::collectiveOf(spec.kind);
      const auto dimension = [&](ops::Along along) {
        return ops::Collective::dimension(along, spec.dim, spec.odim, x.size());
      };
      const std::int32_t gathered = dimension(collective.gathers),
                         scattered = dimension(collective.scatters);
      for (std::size_t d = 0; d < x.size(); ++d) {
        const auto dim = static_cast<std::int32_t>(d);
        if (dim == gathered && dim == scattered) relateExchange(x[d], y[d], stay);
        else if (dim == gathered) sharePieces(spec, y[d], x[d], stay);
        else if (dim == scattered) sharePieces(spec, x[d], y[d], stay);
        else lines_.equal(x[d], y[d]);
      }
      if (dims.values[a] >= 0 && dims.values[b] >= 0) lines_.equal(dims.values[a], dims.values[b]);
    }
    // Members have equal shapes of what they all have.
    const bool given = ops::collectiveOf(spec.kind).operand != ops::Who::kAll && b >= 0;
    const TensorId t = TensorId(a >= 0 && !given ? a : b);
    if (t < 0) return 1;  // a barrier
    const auto [it, first] = members_.try_emplace(
        {spec.comm, spec.tag.value_or(std::numeric_limits<std::int64_t>::min()),
         program.graph.tensors[t].shape},
        dims.ofTensor[t], dims.values[t]);
    if (first) return 1;
    for (std::size_t d = 0; d < it->second.first.size(); ++d)
      lines_.equal(it->second.first[d], dims.ofTensor[t][d]);
    if (it->second.second >= 0 && dims.values[t] >= 0)
      lines_.equal(it->second.second, dims.values[t]);
    return 1;
  }

  // Uneven pieces stay as they are: all members do, as none is like another (`pieces` of
  // SymmetryClasses), and the dimensions of the pieces keep their sizes. In the others tensors are
  // alike on all members.
  char keepPieces(const CommunicationSpec& spec, const GraphDims& dims, std::int32_t a,
                  std::int32_t b) {
    const std::int32_t other = spec.kind == Communication::kAllToAll ? spec.odim : spec.dim;
    for (const std::int32_t t : {a, b}) {
      if (t < 0) continue;
      const auto& own = dims.ofTensor[t];
      const auto [it, first] = members_.try_emplace(
          {spec.comm, spec.tag.value_or(std::numeric_limits<std::int64_t>::min()), Shape{}}, own,
          dims.values[t]);
      if (it->second.first.size() != own.size()) return 0;
      for (std::size_t d = 0; d < own.size(); ++d) {
        const auto dim = static_cast<std::int32_t>(d);
        if (dim == spec.dim || dim == other) lines_.keep(own[d]);
        else if (lines_.fullSize(own[d]) == lines_.fullSize(it->second.first[d]))
          lines_.equal(it->second.first[d], own[d]);
        else return 0;
      }
      if (!first && it->second.second >= 0 && dims.values[t] >= 0)
        lines_.equal(it->second.second, dims.values[t]);
    }
    return 1;
  }

  // A gather or scatter: shares of one dimension, over one axis after another.
  void sharePieces(const CommunicationSpec& spec, Dim whole, Dim part,
                   const std::vector<char>& stay) {
    if (!spec.groupAt.empty()) return relatePieces(whole, part, stay);
    shares_.shareOut(whole, 0, part, {spec.groupAxes.rbegin(), spec.groupAxes.rend()});
  }

  // An all_to_all along one dimension: all pieces on both sides are equal.
  void relateExchange(Dim x, Dim y, const std::vector<char>& stay) {
    const std::int64_t piece = lines_.fullSize(x) / static_cast<std::int64_t>(stay.size());
    const Dim one = lines_.add(piece);
    relatePieces(x, one, stay);
    relatePieces(y, one, stay);
  }

  const Problem& problem_;
  const Plan& plan_;
  MeshView mesh_;
  const KeptRanks& kept_;
  DimensionShares& shares_;
  PlanRelations& to_;
  PlanLines& lines_;
  // The other side writes the root as a number, which fits one size only.
  bool oneSideScalesBySize_ = false;
  std::map<std::tuple<NameId, std::int64_t, Shape>, std::pair<std::vector<Dim>, Dim>> members_;
};

}  // namespace

SizedAttribute sizedAttribute(const std::string& op) {
  const std::string name = forwardName(op);
  if (name == "view" || name == "reshape" || name == "expand") return SizedAttribute::kResultShape;
  if (name == "slice") return SizedAttribute::kSlice;
  if (name == "select") return SizedAttribute::kSelect;
  if (name == "pad") return SizedAttribute::kPad;
  if (name == "embedding" || name == "one_hot") return SizedAttribute::kWindow;
  if (name == "moe_experts") return SizedAttribute::kExperts;
  return SizedAttribute::kNone;
}

std::size_t firstForwardOperand(const std::string& op) {
  const std::string name = forwardName(op);
  if (name == op) return 0;
  return name == "attention" || name == "moe_gate" || name == "apply_rotary_emb" ? 2 : 1;
}

PlanRelations relatePlan(const Problem& problem, const KeptRanks& kept) {
  PlanRelations result;
  DimensionShares shares(problem.plan, kept, result.lines);
  GraphRelations(problem, kept, shares, result).run();
  relateLineage(problem, kept, shares, result);
  result.lines.close();
  return result;
}

}  // namespace shardproof
