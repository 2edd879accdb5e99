#include "infer/choose.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace shardproof::infer {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// What makes a tensor: a node, and which of its results it is.
struct Maker {
  std::int32_t node = -1;
  std::size_t result = 0;
};

std::vector<Maker> makersOf(const Graph& graph) {
  std::vector<Maker> makers(graph.tensors.size());
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const auto out = graph.out(graph.nodes[n]);
    for (std::size_t r = 0; r < out.size(); ++r)
      if (out[r] >= 0) makers[at(out[r])] = {static_cast<std::int32_t>(n), r};
  }
  return makers;
}

class Choice {
 public:
  Choice(const Problem& problem, const Lift& lift, const Relations& found)
      : problem_(problem), model_(problem.model.graph), modelMakers_(makersOf(model_)) {
    for (std::size_t p = 0; p < problem.plan.programs.size(); ++p) {
      const Program& program = problem.plan.programs[p];
      makers_.push_back(makersOf(program.graph));
      chosen_.emplace_back(program.graph.tensors.size());
      for (const Node& node : program.graph.nodes)
        if (node.communication >= 0)
          for (const Operand& o : program.graph.in(node))
            sent_[program.communications[at(node.communication)].comm].push_back(
                {static_cast<std::int32_t>(p), o.tensor});
    }
    for (const LineageEntry& entry : problem.plan.lineage)
      for (const Shard& shard : entry.shards)
        for (const Part& part : shard.parts) given_.emplace(part.local, entry.tensor);
    for (const Relation& relation : found.relations) {
      const std::int32_t p = lift.fullProgram(relation.program);
      if (given_.contains(local(p, relation.tensor).name)) continue;
      auto said = lift.said(relation);
      if (!said.empty()) candidates_[{p, relation.tensor}] = std::move(said);
    }
  }

  std::vector<LineageEntry> entries() {
    std::vector<LineageEntry> entries;
    for (auto& [tensor, all] : candidates_) {
      const std::int32_t chosen = choose(tensor.first, tensor.second);
      for (Lift::Said& said : all) {
        if (said.tensor != chosen) continue;
        entries.push_back({said.tensor, Role::kCheckpoint, {std::move(said.shard)}});
        break;
      }
    }
    return entries;
  }

 private:
  using Local = std::pair<std::int32_t, std::int32_t>;  // program and tensor
  struct State {
    bool entered = false;
    std::int32_t tensor = -1;
  };

  const Tensor& local(std::int32_t p, std::int32_t t) const {
    return problem_.plan.programs[at(p)].graph.tensors[at(t)];
  }

  // The tensor of the model that a local one is taken for; -1: none. Operands first: plans have no
  // cycles, and where one has, what is met again is taken for nothing.
  std::int32_t choose(std::int32_t p, std::int32_t t) {
    std::vector<Local> stack{{p, t}};
    while (!stack.empty()) {
      const Local here = stack.back();
      State& state = chosen_[at(here.first)][at(here.second)];
      if (state.entered) {
        stack.pop_back();
        if (state.tensor < 0) decide(here, state);
        continue;
      }
      state.entered = true;
      for (const Local& o : operandsOf(here))
        if (!chosen_[at(o.first)][at(o.second)].entered) stack.push_back(o);
    }
    return chosen_[at(p)][at(t)].tensor;
  }

  // Of a communication those of all members.
  std::vector<Local> operandsOf(const Local& here) const {
    const Maker& maker = makers_[at(here.first)][at(here.second)];
    if (maker.node < 0) return {};
    const Program& program = problem_.plan.programs[at(here.first)];
    const Node& node = program.graph.nodes[at(maker.node)];
    if (node.communication >= 0) {
      const auto it = sent_.find(program.communications[at(node.communication)].comm);
      return it == sent_.end() ? std::vector<Local>() : it->second;
    }
    std::vector<Local> operands;
    for (const Operand& o : program.graph.in(node))
      if (o.present()) operands.emplace_back(here.first, o.tensor);
    return operands;
  }

  void decide(const Local& here, State& state) {
    const auto candidates = candidates_.find(here);
    if (candidates == candidates_.end()) {
      const auto given = given_.find(local(here.first, here.second).name);
      if (given != given_.end()) state.tensor = given->second;
      return;
    }
    std::optional<Rank> best;
    for (const Lift::Said& said : candidates->second) {
      const Rank rank = rankOf(here, said);
      if (best && !(rank < *best)) continue;
      best = rank;
      state.tensor = said.tensor;
    }
  }

  // The least is the best.
  using Rank = std::tuple<double, int, std::int64_t, std::int32_t>;
  Rank rankOf(const Local& here, const Lift::Said& said) const {
    enum Kind { kSameOperator, kOperand, kOther };
    Kind kind = kOther;
    std::int64_t alike = 0;
    const Maker &maker = makers_[at(here.first)][at(here.second)],
                &model = modelMakers_[at(said.tensor)];
    if (maker.node >= 0) {
      const Graph& graph = problem_.plan.programs[at(here.first)].graph;
      const Node& node = graph.nodes[at(maker.node)];
      const auto in = graph.in(node);
      if (node.communication < 0 && model.node >= 0 && maker.result == model.result &&
          model_.nodes[at(model.node)].op == node.op) {
        kind = kSameOperator;
        const auto there = model_.in(model_.nodes[at(model.node)]);
        for (std::size_t i = 0; i < std::min(in.size(), there.size()); ++i)
          alike += in[i].present() && there[i].present() &&
                   chosen_[at(here.first)][at(in[i].tensor)].tensor == there[i].tensor;
      } else {
        for (const Local& o : operandsOf(here))
          if (chosen_[at(o.first)][at(o.second)].tensor == said.tensor) kind = kOperand;
      }
    }
    return {-said.covered, kind, -alike, said.tensor};
  }

  const Problem& problem_;
  const Graph& model_;
  const std::vector<Maker> modelMakers_;
  std::vector<std::vector<Maker>> makers_;  // by program and tensor
  std::unordered_map<NameId, std::vector<Local>> sent_;
  std::unordered_map<NameId, std::int32_t> given_;  // by name of a local tensor
  std::map<Local, std::vector<Lift::Said>> candidates_;
  std::vector<std::vector<State>> chosen_;
};

}  // namespace

std::vector<LineageEntry> chosenLineage(const Problem& problem, const Lift& lift,
                                        const Relations& found) {
  return Choice(problem, lift, found).entries();
}

}  // namespace shardproof::infer
