// SPDX-License-Identifier: Apache-2.0
#include "correspondence/correspondence.h"

#include <algorithm>

namespace shardproof {

namespace {

// Numbers for keys, in the order in which they are met.
template <class Key>
class Numbering {
 public:
  std::int32_t operator()(Key key) {
    return numbers_.emplace(std::move(key), static_cast<std::int32_t>(numbers_.size()))
        .first->second;
  }

 private:
  std::map<Key, std::int32_t> numbers_;
};

std::vector<Correspondence::Outline> outlinesOf(const Plan& plan) {
  Numbering<std::pair<OperatorId, Communication>> operations;
  Numbering<std::tuple<Shape, bool, ElementKind>> kinds;
  std::vector<Correspondence::Outline> outlines;
  for (const Program& program : plan.programs) {
    const Graph& graph = program.graph;
    Numbering<std::tuple<std::int32_t, std::vector<TensorId>, std::vector<TensorId>>> lines;
    Correspondence::Outline& outline = outlines.emplace_back();
    for (const Node& node : graph.nodes) {
      Correspondence::Outline::Node& own = outline.nodes.emplace_back();
      own.operation = node.communication < 0
                          ? operations({node.op, Communication::kNone})
                          : operations({{}, program.communications[node.communication].kind});
      own.microbatch = node.microbatch;
      for (const Operand& operand : graph.in(node)) own.in.push_back(operand.tensor);
      own.out.assign(graph.out(node).begin(), graph.out(node).end());
      if (node.microbatch.isOne()) own.line = lines({own.operation, own.in, own.out});
    }
    for (const Tensor& tensor : graph.tensors)
      outline.kinds.push_back(kinds({tensor.shape, tensor.perMicrobatch, tensor.element}));
  }
  return outlines;
}

}  // namespace

Correspondence::Correspondence(std::vector<Outline> programs)
    : programs_(std::move(programs)), results_(programs_.size()) {
  groupPrograms();
  groupMicrobatches();
  findPlaces();
}

Correspondence::Correspondence(const Problem& problem) : Correspondence(outlinesOf(problem.plan)) {}

void Correspondence::groupPrograms() {
  Numbering<std::vector<std::pair<std::int32_t, Microbatch>>> stages;
  for (const ProgramId p : firstIds<ProgramId>(programs_.size())) {
    std::vector<std::pair<std::int32_t, Microbatch>> keys;
    for (const Outline::Node& node : programs_[p].nodes)
      keys.emplace_back(node.operation, node.microbatch);
    stageOf_.push_back(static_cast<std::size_t>(stages(std::move(keys))));
    members_.resize(std::max(members_.size(), stageOf_.back() + 1));
    members_[stageOf_.back()].push_back(p);
  }
}

void Correspondence::groupMicrobatches() {
  for (const Outline& program : programs_) {
    auto& lines = lines_.emplace_back();
    for (const NodeId n : firstIds<NodeId>(program.nodes.size()))
      if (program.nodes[n].line >= 0) lines[program.nodes[n].line].push_back(n);
  }
}

void Correspondence::findPlaces() {
  for (const Outline& program : programs_) {
    std::vector<Place>& places = places_.emplace_back(program.kinds.size());
    const auto note = [&](NodeId n, const std::vector<TensorId>& tensors, bool made) {
      for (std::size_t i = 0; i < tensors.size(); ++i)
        if (tensors[i].valid() && !places[tensors[i]].node.valid())
          places[tensors[i]] = {n, i, made};
    };
    for (const bool made : {true, false})
      for (const NodeId n : firstIds<NodeId>(program.nodes.size()))
        note(n, made ? program.nodes[n].out : program.nodes[n].in, made);
  }
}

std::vector<NodeRef> Correspondence::microbatchesOf(NodeRef node) const {
  std::vector<NodeRef> found{node};
  const std::int32_t line = programs_[node.program].nodes[node.node].line;
  if (line < 0) return found;
  for (const NodeId n : lines_[node.program].at(line))
    if (n != node.node) found.push_back({node.program, n});
  return found;
}

std::vector<NodeRef> Correspondence::line(NodeRef node) const {
  std::vector<NodeRef> found = microbatchesOf(node);
  for (const ProgramId p : programsLike(node.program)) {
    if (p == node.program) continue;
    const std::vector<NodeRef> there = microbatchesOf({p, node.node});
    found.insert(found.end(), there.begin(), there.end());
  }
  return found;
}

NodeId Correspondence::producer(ProgramId program, TensorId tensor) const {
  const Place& place = places_[program][tensor];
  return place.made ? place.node : NodeId::none();
}

TensorId Correspondence::tensor(ProgramId from, TensorId tensor, ProgramId to) const {
  if (from == to) return tensor;
  const Place& place = places_[from][tensor];
  if (!place.node.valid() || !alike(from, to)) return {};
  const Outline::Node& other = programs_[to].nodes[place.node];
  const std::vector<TensorId>& list = place.made ? other.out : other.in;
  return place.index < list.size() ? list[place.index] : TensorId::none();
}

Correspondence::Kind Correspondence::kindOf(ProgramId program, NodeId node,
                                            std::size_t result) const {
  const Outline& own = programs_[program];
  return {own.nodes[node].operation, result, own.kinds[own.nodes[node].out[result]]};
}

const Correspondence::Results& Correspondence::resultsOf(ProgramId program) const {
  std::optional<Results>& results = results_[program];
  if (results) return *results;
  results.emplace();
  for (const NodeId n : firstIds<NodeId>(programs_[program].nodes.size())) {
    const std::vector<TensorId>& out = programs_[program].nodes[n].out;
    for (std::size_t r = 0; r < out.size(); ++r)
      if (out[r].valid()) (*results)[kindOf(program, n, r)].push_back(out[r]);
  }
  return *results;
}

TensorId Correspondence::result(ProgramId from, TensorId tensor, ProgramId to) const {
  if (from == to) return tensor;
  const Place& place = places_[from][tensor];
  if (!place.made) return {};
  if (alike(from, to)) {
    const TensorId other = this->tensor(from, tensor, to);
    return other.valid() && programs_[to].kinds[other] == programs_[from].kinds[tensor]
               ? other
               : TensorId::none();
  }
  const Kind kind = kindOf(from, place.node, place.index);
  const std::vector<TensorId>& own = resultsOf(from).at(kind);
  const auto others = resultsOf(to).find(kind);
  if (others == resultsOf(to).end() || others->second.size() != own.size()) return {};
  return others
      ->second[static_cast<std::size_t>(std::find(own.begin(), own.end(), tensor) - own.begin())];
}

}  // namespace shardproof
