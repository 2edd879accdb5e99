// SPDX-License-Identifier: Apache-2.0
#include "shrink/shrunk_problem.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "ops/attributes.h"
#include "ops/registry.h"
#include "shardproof/error.h"
#include "shrink/shrink_scalars.h"
#include "util/index.h"
#include "writer/write_problem.h"

namespace shardproof {

namespace {

class Rewriter {
 public:
  Rewriter(const Problem& problem, const KeptRanks& kept, const PlanRelations& relations,
           const std::function<Rational(const Rational&)>& factor)
      : problem_(problem),
        kept_(kept),
        relations_(relations),
        lines_(relations.lines),
        factor_(factor),
        to_(std::make_unique<Problem>()) {}

  std::unique_ptr<Problem> run() {
    // Ids stay what they are: all names and attribute sets, in their order.
    for (std::size_t i = 0; i < problem_.names.size(); ++i)
      to_->names.intern(problem_.names.text(NameId(static_cast<std::int64_t>(i))));
    for (std::size_t i = 0; i < problem_.attributes.size(); ++i)
      to_->attributes.intern(problem_.attributes.at(AttributesId(static_cast<std::int64_t>(i))));
    to_->model = problem_.model;
    to_->lineageAdded = problem_.lineageAdded;
    rewrite(to_->model.graph, relations_.model);
    plan();
    return std::move(to_);
  }

 private:
  void plan() {
    const Plan& from = problem_.plan;
    Plan& to = to_->plan;
    to.file = from.file;
    to.name = from.name;
    to.modelFile = from.modelFile;
    to.capture = from.capture;
    for (std::size_t a = 0; a < from.mesh.size(); ++a)
      to.mesh.push_back({from.mesh[a].name, static_cast<std::int32_t>(kept_.ofAxis[a].size())});
    to.microbatches = static_cast<std::int32_t>(kept_.microbatches.size());
    for (std::size_t p = 0; p < from.programs.size(); ++p) {
      if (!kept_.keeps(from.programs[p].at)) continue;
      to.programs.push_back(from.programs[p]);
      Program& program = to.programs.back();
      renumber(program.at);
      for (CommunicationSpec& spec : program.communications) {
        std::erase_if(spec.groupAt,
                      [&](const Coordinates& member) { return !kept_.keeps(member); });
        for (Coordinates& member : spec.groupAt) renumber(member);
        renumber(spec.peer);
      }
      rewrite(program.graph, relations_.programs[p]);
      dropSummands(program.graph);
    }
    for (std::size_t e = 0; e < from.lineage.size(); ++e) to.lineage.push_back(lineage(e));
  }

  // Of microbatches that went. (Those that stay have the numbers that they had.)
  void dropSummands(Graph& graph) const {
    const auto went = [&](Microbatch m) {
      return m.isOne() && kept_.newCoordinate(kMicrobatchAxis, m.number()) < 0;
    };
    const MicrobatchesRead reads(problem_, graph);
    for (Node& node : graph.nodes) {
      if (!isRunningSum(problem_, graph, node)) continue;
      Operand* const in = graph.operands.data() + node.firstIn;
      const bool first = went(reads.of(node, in[0]));
      if (first || went(reads.of(node, in[1]))) {
        if (first) std::swap(in[0], in[1]);
        node.inCount = 1;
        node.op = ops::Registry::instance().find("identity");
      }
      if (went(node.microbatch)) node.microbatch = Microbatch::none();
    }
    std::erase_if(graph.nodes,
                  [&](const Node& node) { return goes(problem_, kept_, graph, node); });
  }

  void renumber(Coordinates& coordinates) const {
    for (auto& [axis, c] : coordinates) c = kept_.newCoordinate(axis, c);
  }

  LineageEntry lineage(std::size_t e) const {
    const LineageEntry& from = problem_.plan.lineage[e];
    LineageEntry entry{from.tensor, from.role, {}};
    entry.approved = from.approved;
    entry.guess = from.guess;
    const auto& dims = relations_.model.ofTensor[from.tensor];
    for (std::size_t s = 0; s < from.shards.size(); ++s) {
      const Shard& old = from.shards[s];
      Shard shard = old;
      std::erase_if(shard.parts, [&](const Part& part) {
        return !kept_.keeps(part.at) ||
               (part.microbatch.isOne() &&
                kept_.newCoordinate(kMicrobatchAxis, part.microbatch.number()) < 0);
      });
      if (shard.parts.empty()) continue;
      for (Part& part : shard.parts) {
        renumber(part.at);
        if (part.microbatch.isOne())
          part.microbatch =
              Microbatch::of(kept_.newCoordinate(kMicrobatchAxis, part.microbatch.number()));
      }
      for (std::size_t d = 0; d < dims.size(); ++d) {
        const auto even = relations_.evenBoxes.find({e, s, d});
        if (even == relations_.evenBoxes.end()) place(old, d, dims[d], shard);
        else share(old, d, dims[d], even->second, shard);
      }
      entry.shards.push_back(std::move(shard));
    }
    return entry;
  }

  // Boxes one after another over the coordinates that stay.
  void share(const Shard& old, std::size_t d, PlanLines::Dim dim,
             const std::vector<std::pair<std::int32_t, PlanLines::Dim>>& shares,
             Shard& shard) const {
    for (auto& step : shard.step) step.second[d] = 0;
    for (const auto& [axis, part] : shares) {
      const auto it = std::find_if(shard.step.begin(), shard.step.end(),
                                   [axis = axis](const auto& step) { return step.first == axis; });
      it->second[d] = lines_.newSize(part);
    }
    const std::int64_t lo = lines_.newPosition(dim, old.box[d].first);
    const std::int64_t size = shares.empty() ? lines_.newPosition(dim, old.box[d].second) - lo
                                             : lines_.newSize(shares.front().second);
    shard.box[d] = {lo, lo + size};
  }

  // Where the box lies along dimension d, at the first kept coordinates, and how it steps from one
  // kept coordinate to the next.
  void place(const Shard& old, std::size_t d, PlanLines::Dim dim, Shard& shard) const {
    std::int64_t base = old.box[d].first;
    for (const auto& [axis, offsets] : old.step) base += kept_.of(axis).front() * offsets[d];
    const std::int64_t lo = lines_.newPosition(dim, base);
    for (std::size_t s = 0; s < old.step.size(); ++s) {
      const auto& [axis, offsets] = old.step[s];
      const auto& coordinates = kept_.of(axis);
      const std::int64_t step =
          offsets[d] == 0 || coordinates.size() < 2
              ? 0
              : lines_.newPosition(dim, base + (coordinates[1] - coordinates[0]) * offsets[d]) - lo;
      shard.step[s].second[d] = step;
    }
    checkSteps(old, d, dim, shard, lo);
    // All kept boxes have one extent: that of the local tensor.
    shard.box[d] = {lo, lines_.newPosition(dim, base + old.box[d].second - old.box[d].first)};
  }

  void checkSteps(const Shard& old, std::size_t d, PlanLines::Dim dim, const Shard& shard,
                  std::int64_t lo) const {
    std::vector<std::pair<std::int64_t, std::int64_t>> places{
        {old.box[d].first, lo}};  // at full size, as the new steps say
    for (std::size_t s = 0; s < old.step.size(); ++s) {
      const auto& [axis, offsets] = old.step[s];
      if (offsets[d] == 0) continue;
      std::vector<std::pair<std::int64_t, std::int64_t>> more;
      const auto& coordinates = kept_.of(axis);
      for (const auto& [full, now] : places) {
        for (std::size_t k = 0; k < coordinates.size(); ++k)
          more.emplace_back(full + coordinates[k] * offsets[d],
                            now + static_cast<std::int64_t>(k) * shard.step[s].second[d]);
      }
      places = std::move(more);
    }
    for (const auto& [full, now] : places) {
      if (lines_.newPosition(dim, full) != now)
        throw Unsupported("a lineage box does not step evenly at the smaller sizes");
    }
  }

  // ---- graphs ----

  void rewrite(Graph& graph, const GraphDims& dims) {
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      if (dims.fits[n] && graph.nodes[n].communication < 0)
        rewriteNode(graph, dims, graph.nodes[n]);
    }
    for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
      Tensor& tensor = graph.tensors[t];
      for (std::size_t d = 0; d < tensor.shape.size(); ++d)
        tensor.shape[d] = lines_.newSize(dims.ofTensor[t][d]);
      tensor.known = nullptr;  // a smaller plan is about any numbers
      if (tensor.constant < 0) continue;
      ConstantValue value = *graph.constants[tensor.constant];
      if (tensor.element == ElementKind::kReal && value.fill)
        value.elements.front() = factor_(value.elements.front());
      if (dims.values[t] >= 0) {
        for (Rational& r : value.elements) {
          if (r.fitsInt64() && r.toInt64() >= 0 && r.toInt64() < PlanLines::kUnbounded)
            r = Rational(lines_.newPosition(dims.values[t], r.toInt64()));
        }
      }
      graph.constants[tensor.constant] = std::make_shared<const ConstantValue>(std::move(value));
    }
  }

  void rewriteNode(const Graph& graph, const GraphDims& dims, Node& node) {
    const std::string& op = ops::Registry::instance().at(node.op).name;
    const Attributes& old = problem_.attributes.at(node.attributes);
    Attributes now = old;
    const std::size_t first = firstForwardOperand(op);
    const auto operand = [&](std::size_t i) { return graph.in(node)[i].tensor; };
    // Single results: forward the node's own, backward the gradient's place.
    const auto result = [&] { return first == 0 ? graph.out(node)[0] : operand(0); };
    switch (sizedAttribute(op)) {
      case SizedAttribute::kResultShape:
        resultShape(now, dims, result());
        break;
      case SizedAttribute::kSlice:
        slice(now, graph.tensors[operand(first)].shape, dims.ofTensor[operand(first)]);
        break;
      case SizedAttribute::kSelect:
        select(now, graph.tensors[operand(first)].shape, dims.ofTensor[operand(first)]);
        break;
      case SizedAttribute::kPad:
        if (result() >= 0) pad(now, dims.ofTensor[operand(first)], dims.ofTensor[result()]);
        break;
      case SizedAttribute::kWindow:
        positions(now, {"start", "stop"}, dims.values[operand(first)]);
        break;
      case SizedAttribute::kExperts:
        positions(now, {"local_expert_start", "local_expert_end", "n_routed_experts"},
                  dims.values[operand(first + 1)]);
        break;
      case SizedAttribute::kNone:
        break;
    }
    if (const char* key = factorAttribute(op); key != nullptr && ops::has(old, key)) {
      Rational value = factor_(ops::number(old, key));
      // 1/3 has no decimal; dividing by 3 says the same.
      if (!hasDecimal(value)) {
        const std::map<std::string, std::string> kInverse{{"mul", "div"},
                                                          {"div", "mul"},
                                                          {"mul_backward", "div_backward"},
                                                          {"div_backward", "mul_backward"}};
        const auto it = kInverse.find(op);
        if (it == kInverse.end())
          throw Unsupported("the factor " + value.toString() + " of " + op +
                            " has no finite decimal");
        node.op = ops::Registry::instance().find(it->second);
        value = value.inverse();
      }
      now[key] = value;
    }
    node.attributes = to_->attributes.intern(std::move(now));
  }

  void resultShape(Attributes& attributes, const GraphDims& dims, std::int32_t result) const {
    if (result < 0) return;
    Shape size = ops::integers(attributes, "size");
    const auto& own = dims.ofTensor[result];
    if (size.size() != own.size()) return;
    for (std::size_t d = 0; d < size.size(); ++d) {
      if (size[d] != -1) size[d] = lines_.newSize(own[d]);
    }
    attributes["size"] = size;
  }

  static std::size_t dimension(const Attributes& attributes, std::size_t rank) {
    const std::int64_t d = ops::integer(attributes, "dim");
    return at(d < 0 ? d + static_cast<std::int64_t>(rank) : d);
  }

  // A bound at or beyond the end, as it is often written, stays beyond it.
  void slice(Attributes& attributes, const Shape& x,
             const std::vector<PlanLines::Dim>& dims) const {
    if (ops::integer(attributes, "step", 1) != 1) return;  // such a dimension keeps its size
    const std::size_t d = dimension(attributes, x.size());
    for (const char* key : {"start", "stop"}) {
      if (!ops::has(attributes, key)) continue;
      const std::int64_t written = ops::integer(attributes, key);
      if (written > x[d]) continue;
      const std::int64_t bound = std::max<std::int64_t>(0, written < 0 ? written + x[d] : written);
      attributes[key] = Rational(lines_.newPosition(dims[d], bound));
    }
  }

  void select(Attributes& attributes, const Shape& x,
              const std::vector<PlanLines::Dim>& dims) const {
    const std::size_t d = dimension(attributes, x.size());
    const std::int64_t index = ops::integer(attributes, "index");
    attributes["index"] = Rational(lines_.newPosition(dims[d], index < 0 ? index + x[d] : index));
  }

  void pad(Attributes& attributes, const std::vector<PlanLines::Dim>& x,
           const std::vector<PlanLines::Dim>& y) const {
    Shape pad = ops::integers(attributes, "pad");
    for (std::size_t i = 0; i < pad.size() / 2; ++i) {
      const std::size_t d = x.size() - 1 - i;
      pad[2 * i] = lines_.newPosition(y[d], pad[2 * i]);
      pad[2 * i + 1] = lines_.newSize(y[d]) - pad[2 * i] - lines_.newSize(x[d]);
    }
    attributes["pad"] = pad;
  }

  void positions(Attributes& attributes, std::initializer_list<const char*> keys,
                 PlanLines::Dim values) const {
    for (const char* key : keys) {
      if (ops::has(attributes, key))
        attributes[key] = Rational(lines_.newPosition(values, ops::integer(attributes, key)));
    }
  }

  const Problem& problem_;
  const KeptRanks& kept_;
  const PlanRelations& relations_;
  const PlanLines& lines_;
  const std::function<Rational(const Rational&)>& factor_;
  std::unique_ptr<Problem> to_;
};

}  // namespace

std::unique_ptr<Problem> withNewSizes(const Problem& problem, const KeptRanks& kept,
                                      const PlanRelations& relations,
                                      const std::function<Rational(const Rational&)>& factor) {
  return Rewriter(problem, kept, relations, factor).run();
}

}  // namespace shardproof
