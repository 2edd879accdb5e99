// SPDX-License-Identifier: Apache-2.0
#include "shardproof/builder.h"

#include <stdexcept>

#include "ir/complete.h"
#include "ir/draft.h"
#include "ops/collectives.h"
#include "ops/registry.h"

namespace shardproof {

namespace {

ir::NamedCoordinates named(Names& names, const AxisCoordinates& at) {
  ir::NamedCoordinates out;
  for (const auto& [axis, coordinate] : at) out.emplace_back(names.intern(axis), coordinate);
  return out;
}

}  // namespace

// --- GraphBuilder ---

ir::GraphDraft& GraphBuilder::graph() const {
  return program_ < 0 ? problem_->model.graph : problem_->plan.programs[program_].graph;
}

TensorId GraphBuilder::add(std::string_view name, Shape shape, TensorKind kind,
                           const TensorOptions& options) {
  Tensor tensor;
  tensor.name = problem_->names.intern(name);
  tensor.shape = std::move(shape);
  tensor.kind = kind;
  tensor.element = options.element.value_or(ElementKind::kReal);
  tensor.elementDeclared = options.element.has_value();
  tensor.perMicrobatch = options.perMicrobatch;
  graph().tensors.push_back(std::move(tensor));
  return TensorId(static_cast<std::int64_t>(graph().tensors.size()) - 1);
}

TensorId GraphBuilder::input(std::string_view name, Shape shape, const TensorOptions& options) {
  return add(name, std::move(shape), TensorKind::kInput, options);
}

TensorId GraphBuilder::parameter(std::string_view name, Shape shape, const TensorOptions& options) {
  return add(name, std::move(shape), TensorKind::kParameter, options);
}

TensorId GraphBuilder::produced(std::string_view name, Shape shape, const TensorOptions& options) {
  return add(name, std::move(shape), TensorKind::kProduced, options);
}

TensorId GraphBuilder::constant(std::string_view name, Shape shape, ConstantValue value,
                                const TensorOptions& options) {
  const TensorId id = add(name, std::move(shape), TensorKind::kConstant, options);
  graph().tensors[id.index()].constant = static_cast<std::int32_t>(graph().constants.size());
  graph().constants.push_back(std::make_shared<const ConstantValue>(std::move(value)));
  return id;
}

NodeId GraphBuilder::add(Node node, const TensorNames& in, const TensorNames& out,
                         const NodeOptions& options) {
  ir::GraphDraft& g = graph();
  const auto append = [&](std::vector<NameId>& to, const TensorNames& names) {
    for (const std::string& name : names)
      to.push_back(name.empty() ? NameId() : problem_->names.intern(name));
  };
  node.firstIn = static_cast<std::uint32_t>(g.operands.size());
  node.inCount = static_cast<std::uint32_t>(in.size());
  append(g.operands, in);
  node.firstOut = static_cast<std::uint32_t>(g.results.size());
  node.outCount = static_cast<std::uint32_t>(out.size());
  append(g.results, out);
  node.attributes = problem_->attributes.intern(options.attributes);
  if (!options.location.empty()) node.location = problem_->names.intern(options.location);
  node.microbatch = options.microbatch;
  if (!options.step.empty()) {
    if (!program_.valid() || node.communication >= 0)
      throw std::invalid_argument("a step of " +
                                  std::string(program_.valid() ? "a communication" : "the model") +
                                  ", expected one only of an operator of a plan");
    auto& steps =
        g.steps.emplace_back(NodeId(g.nodes.size()), std::vector<std::pair<NameId, Attributes>>())
            .second;
    for (const auto& [axis, added] : options.step)
      steps.emplace_back(problem_->names.intern(axis), added);
  }
  g.nodes.push_back(node);
  return NodeId(static_cast<std::int64_t>(g.nodes.size()) - 1);
}

NodeId GraphBuilder::node(std::string_view op, const TensorNames& in, const TensorNames& out,
                          const NodeOptions& options) {
  Node node;
  node.op = ops::Registry::instance().find(op);
  if (!node.op.valid())
    throw std::invalid_argument("unknown operator \"" + std::string(op) +
                                "\", expected one of docs/operators.md");
  return add(node, in, out, options);
}

void ModelBuilder::gradient(std::string_view tensor, std::string_view parameter) {
  const NameId name = problem_->names.intern(tensor);
  for (Tensor& t : graph().tensors) {
    if (t.name == name) t.gradientOf = problem_->names.intern(parameter);
  }
}

// --- ProgramBuilder ---

void ProgramBuilder::issueOrder() { problem_->plan.programs[program_].issueOrder = true; }

ir::CommunicationDraft ProgramBuilder::draftOf(Communication kind, const Group& group,
                                               const AxisCoordinates& peer) const {
  if (!group.axes.empty() && !group.members.empty())
    throw std::invalid_argument("a group of axes and of members, expected one of both");
  ir::CommunicationDraft draft;
  draft.kind = kind;
  draft.peer = named(problem_->names, peer);
  draft.comm = problem_->names.intern(group.comm);
  draft.tag = group.tag;
  draft.sizes = group.sizes;
  for (const std::string& axis : group.axes)
    draft.groupAxes.push_back(problem_->names.intern(axis));
  for (const AxisCoordinates& member : group.members)
    draft.groupAt.push_back(named(problem_->names, member));
  return draft;
}

NodeId ProgramBuilder::communicate(ir::CommunicationDraft draft, const TensorNames& in,
                                   const TensorNames& out, const NodeOptions& options) {
  auto& communications = problem_->plan.programs[program_].communications;
  const ops::Collective& collective = ops::collectiveOf(draft.kind);
  NodeOptions complete = options;  // what a file says of it
  if (collective.gathers == ops::Along::kOtherDim) {
    complete.attributes["idim"] = Rational(draft.dim);
    complete.attributes["odim"] = Rational(draft.odim);
  } else if (collective.movesPieces()) {
    complete.attributes["dim"] = Rational(draft.dim);
  }
  if (draft.reduction != Reduction::kSum)
    complete.attributes["reduce"] = std::string(ops::reductionName(draft.reduction));
  Node node;
  node.communication = static_cast<std::int32_t>(communications.size());
  communications.push_back(std::move(draft));
  return add(node, in, out, complete);
}

namespace {

// A name, or nothing where there is none.
TensorNames present(std::string_view name) {
  return name.empty() ? TensorNames{} : TensorNames{std::string(name)};
}

}  // namespace

NodeId ProgramBuilder::allReduce(std::string_view in, std::string_view out, const Group& group,
                                 Reduction reduction, const NodeOptions& options) {
  ir::CommunicationDraft draft = draftOf(Communication::kAllReduce, group);
  draft.reduction = reduction;
  return communicate(std::move(draft), {std::string(in)}, {std::string(out)}, options);
}

NodeId ProgramBuilder::allGather(std::string_view in, std::string_view out, const Group& group,
                                 std::int32_t dim, const NodeOptions& options) {
  ir::CommunicationDraft draft = draftOf(Communication::kAllGather, group);
  draft.dim = dim;
  return communicate(std::move(draft), present(in), present(out), options);
}

NodeId ProgramBuilder::reduceScatter(std::string_view in, std::string_view out, const Group& group,
                                     std::int32_t dim, Reduction reduction,
                                     const NodeOptions& options) {
  ir::CommunicationDraft draft = draftOf(Communication::kReduceScatter, group);
  draft.dim = dim;
  draft.reduction = reduction;
  return communicate(std::move(draft), present(in), present(out), options);
}

NodeId ProgramBuilder::allToAll(std::string_view in, std::string_view out, const Group& group,
                                std::int32_t splitDim, std::int32_t concatenateDim,
                                const NodeOptions& options) {
  ir::CommunicationDraft draft = draftOf(Communication::kAllToAll, group);
  draft.dim = splitDim;
  draft.odim = concatenateDim;
  return communicate(std::move(draft), present(in), present(out), options);
}

NodeId ProgramBuilder::broadcastFromHere(std::string_view tensor, const Group& group,
                                         const AxisCoordinates& root, const NodeOptions& options) {
  return communicate(draftOf(Communication::kBroadcast, group, root), {std::string(tensor)}, {},
                     options);
}

NodeId ProgramBuilder::broadcastToHere(std::string_view tensor, const Group& group,
                                       const AxisCoordinates& root, const NodeOptions& options) {
  return communicate(draftOf(Communication::kBroadcast, group, root), {}, {std::string(tensor)},
                     options);
}

NodeId ProgramBuilder::reduce(std::string_view in, std::string_view out, const Group& group,
                              const AxisCoordinates& root, Reduction reduction,
                              const NodeOptions& options) {
  ir::CommunicationDraft draft = draftOf(Communication::kReduce, group, root);
  draft.reduction = reduction;
  return communicate(std::move(draft), present(in), present(out), options);
}

NodeId ProgramBuilder::gather(std::string_view in, std::string_view out, const Group& group,
                              const AxisCoordinates& root, std::int32_t dim,
                              const NodeOptions& options) {
  ir::CommunicationDraft draft = draftOf(Communication::kGather, group, root);
  draft.dim = dim;
  return communicate(std::move(draft), present(in), present(out), options);
}

NodeId ProgramBuilder::scatter(std::string_view in, std::string_view out, const Group& group,
                               const AxisCoordinates& root, std::int32_t dim,
                               const NodeOptions& options) {
  ir::CommunicationDraft draft = draftOf(Communication::kScatter, group, root);
  draft.dim = dim;
  return communicate(std::move(draft), present(in), present(out), options);
}

NodeId ProgramBuilder::collectivePermute(std::string_view in, std::string_view out,
                                         const Group& group,
                                         std::vector<std::pair<std::int32_t, std::int32_t>> pairs,
                                         const NodeOptions& options) {
  ir::CommunicationDraft draft = draftOf(Communication::kPermute, group);
  draft.pairs = std::move(pairs);
  return communicate(std::move(draft), {std::string(in)}, {std::string(out)}, options);
}

NodeId ProgramBuilder::barrier(const Group& group, const NodeOptions& options) {
  return communicate(draftOf(Communication::kBarrier, group), {}, {}, options);
}

NodeId ProgramBuilder::send(std::string_view tensor, std::string_view comm,
                            const AxisCoordinates& to, const NodeOptions& options) {
  return communicate(draftOf(Communication::kSend, {.comm = std::string(comm)}, to),
                     {std::string(tensor)}, {}, options);
}

NodeId ProgramBuilder::receive(std::string_view tensor, std::string_view comm,
                               const AxisCoordinates& from, const NodeOptions& options) {
  return communicate(draftOf(Communication::kReceive, {.comm = std::string(comm)}, from), {},
                     {std::string(tensor)}, options);
}

// --- lineage ---

ir::ShardDraft& ShardBuilder::draft() const {
  return problem_->plan.lineage[entry_].shards[shard_];
}

ShardBuilder& ShardBuilder::step(std::string_view axis, Shape offsets) {
  draft().step.emplace_back(problem_->names.intern(axis), std::move(offsets));
  return *this;
}

ShardBuilder& ShardBuilder::part(std::string_view local, const AxisCoordinates& at,
                                 Microbatch microbatch, LocalPart where) {
  draft().parts.push_back(
      {problem_->names.intern(local), named(problem_->names, at), microbatch, std::move(where)});
  return *this;
}

ShardBuilder& ShardBuilder::sum(std::string_view axis) {
  draft().sum.push_back(problem_->names.intern(axis));
  return *this;
}

ShardBuilder EntryBuilder::shard(std::vector<std::pair<std::int64_t, std::int64_t>> box) {
  std::vector<ir::ShardDraft>& shards = problem_->plan.lineage[entry_].shards;
  shards.emplace_back();
  shards.back().box = std::move(box);
  return {*problem_, entry_, shards.size() - 1};
}

// --- ProblemBuilder ---

ProblemBuilder::ProblemBuilder()
    : draft_(std::make_unique<ir::ProblemDraft>()),
      model_(std::make_unique<ModelBuilder>(*draft_)) {
  draft_->model.file = "the model";
  draft_->plan.file = "the plan";
}
ProblemBuilder::~ProblemBuilder() = default;
ProblemBuilder::ProblemBuilder(ProblemBuilder&&) noexcept = default;
ProblemBuilder& ProblemBuilder::operator=(ProblemBuilder&&) noexcept = default;

void ProblemBuilder::output(std::string_view tensor) {
  draft_->model.outputs.push_back(draft_->names.intern(tensor));
}

void ProblemBuilder::axis(std::string_view name, std::int32_t size) {
  draft_->plan.mesh.push_back({std::string(name), size});
}

void ProblemBuilder::microbatches(std::int32_t number) { draft_->plan.microbatches = number; }

ProgramBuilder& ProblemBuilder::program(const AxisCoordinates& at) {
  std::vector<ir::ProgramDraft>& programs = draft_->plan.programs;
  programs.emplace_back();
  programs.back().at = named(draft_->names, at);
  programs_.push_back(
      ProgramBuilder(*draft_, ProgramId(static_cast<std::int32_t>(programs.size()) - 1)));
  return programs_.back();
}

EntryBuilder ProblemBuilder::lineage(std::string_view tensor, Role role) {
  std::vector<ir::EntryDraft>& lineage = draft_->plan.lineage;
  lineage.emplace_back();
  lineage.back().tensor = draft_->names.intern(tensor);
  lineage.back().role = role;
  return {*draft_, lineage.size() - 1};
}

std::unique_ptr<Problem> ProblemBuilder::build() && {
  return ir::completeProblem(std::move(*draft_));
}

}  // namespace shardproof
