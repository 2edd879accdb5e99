// SPDX-License-Identifier: Apache-2.0
#include "infer/choose.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "infer/extrapolate.h"
#include "infer/producers.h"
#include "shrink/kept_ranks.h"
#include "util/index.h"

namespace shardproof::infer {

namespace {

constexpr std::size_t kMostExpected = 256;
// In a plan that is probably wrong: a lemma that rests on more unknown tensors than these is about
// what comes after the mistake, and takes long to fail.
constexpr std::size_t kMostUnknown = 64;

class Choice {
 public:
  Choice(const Problem& problem, const Lift& lift, const Relations& found,
         const std::set<EntryId>& wrong, const std::set<EntryId>& doubtful)
      : problem_(problem),
        model_(problem.model.graph),
        modelProducers_(producersOf(model_)),
        modelMoved_(movedInputs(model_)),
        executedCoordinates_(lift.executedCoordinates()) {
    for (const ProgramId p : firstIds<ProgramId>(problem.plan.programs.size())) {
      const Program& program = problem.plan.programs[p];
      producers_.push_back(producersOf(program.graph));
      moved_.push_back(movedInputs(program.graph));
      chosen_.emplace_back(program.graph.tensors.size());
      for (const Node& node : program.graph.nodes)
        if (node.communication >= 0)
          for (const Operand& o : program.graph.in(node))
            sent_[program.communications[node.communication].comm].push_back({p, o.tensor});
    }
    const auto give = [&](EntryId e, NameId local) {
      if (doubtful.contains(e)) given_[local] = TensorId::none();
      else if (!wrong.contains(e)) given_.emplace(local, problem.plan.lineage[e].tensor);
    };
    for (const EntryId e : firstIds<EntryId>(problem.plan.lineage.size()))
      for (const Shard& shard : problem.plan.lineage[e].shards)
        for (const Part& part : shard.parts) give(e, part.local);
    for (const PlacedPart& placed : problem.plan.placed) give(placed.entry, placed.local);
    std::vector<std::set<TensorId>> partial(problem.plan.programs.size());
    for (const ProgramId p : firstIds<ProgramId>(partial.size())) partial[p] = partialSums(p);
    for (const Relation& relation : found.relations) {
      const ProgramId p = lift.fullProgram(relation.program);
      const Tensor& tensor = local(p, relation.tensor);
      if (tensor.added || given_.contains(tensor.name) || partial[p].contains(relation.tensor))
        continue;
      auto proposal = lift.proposal(relation);
      if (proposal.empty()) continue;
      if (!relation.arrangement.asItIs()) {
        // Said of it already, as a part of a sum: a stage can rely on one of the two only.
        if (!speaker_.contains({p, relation.tensor}))
          pieces_[{p, relation.tensor}].push_back(std::move(proposal));
        continue;
      }
      candidates_[{p, relation.tensor}] = std::move(proposal);
      for (const auto& [q, t] : relation.others)
        speaker_[{lift.fullProgram(q), t}] = {p, relation.tensor};
    }
    for (const auto& [program, t] : found.uninformative) {
      const ProgramId p = lift.fullProgram(program);
      if (at(t) >= problem.plan.programs[p].graph.tensors.size()) continue;
      uninformative_.emplace(local(p, t).name, problem.plan.programs[p].at);
    }
    differs_ = !found.differing.empty();
  }

  Chosen chosen() {
    Chosen chosen{entries(), {}};
    for (auto& [tensor, pieces] : pieces_)
      if (!differs_ || !restsOnMany(tensor)) addPieces(tensor, pieces, chosen);
    return chosen;
  }

 private:
  using Local = std::pair<ProgramId, TensorId>;
  struct State {
    bool entered = false;
    TensorId tensor;
  };

  std::vector<LineageEntry> entries() {
    std::vector<LineageEntry> entries;
    for (auto& [tensor, all] : candidates_) {
      const TensorId chosen = choose(tensor.first, tensor.second);
      if (differs_ && restsOnMany(tensor)) continue;
      if (chosen.valid() && modelMoved_[chosen] && moved_[tensor.first][tensor.second]) continue;
      for (Lift::ShardProposal& proposal : all) {
        if (proposal.tensor != chosen) continue;
        entries.push_back({proposal.tensor, Role::kCutPoint, {std::move(proposal.shard)}});
        break;
      }
    }
    extrapolate(problem_, executedCoordinates_, uninformative_, entries);
    if (differs_) expect(entries);
    return entries;
  }

  // An entry for each. Of the tensors of the model that a piece may be, the one that most of is
  // covered, then what the same operator makes, then the first.
  void addPieces(const Local& here, std::vector<std::vector<Lift::ShardProposal>>& pieces,
                 Chosen& chosen) const {
    // Operators that take parts out have no place among what is under way (ir/local_parts.cpp).
    for (const Program& program : problem_.plan.programs)
      if (!program.asynchrony.empty()) return;
    const NodeId made = producers_[here.first][here.second].node;
    const auto& nodes = problem_.plan.programs[here.first].graph.nodes;
    for (std::vector<Lift::ShardProposal>& piece : pieces) {
      const auto rank = [&](const Lift::ShardProposal& proposal) {
        const NodeId model = modelProducers_[proposal.tensor].node;
        const bool alike = made.valid() && model.valid() && nodes[made].communication < 0 &&
                           nodes[made].op == model_.nodes[model].op;
        return std::tuple(-proposal.covered, !alike, proposal.tensor);
      };
      Lift::ShardProposal& best =
          *std::min_element(piece.begin(), piece.end(),
                            [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
      for (std::uint32_t i = 0; i < best.shard.parts.size(); ++i)
        chosen.placed.push_back(
            {EntryId(chosen.entries.size()), 0, i, best.shard.parts[i].local, best.where});
      chosen.entries.push_back({best.tensor, Role::kCutPoint, {std::move(best.shard)}});
    }
  }

  // Those of microbatches, that more is added to. Where most microbatches went, or the others have
  // nothing at this draw (rows that no token names), they look like the whole.
  std::set<TensorId> partialSums(ProgramId p) const {
    const Graph& graph = problem_.plan.programs[p].graph;
    const MicrobatchesRead reads(problem_, graph);
    std::set<TensorId> sums, read;
    for (const Node& node : graph.nodes) {
      if (!isRunningSum(problem_, graph, node)) continue;
      bool summand = false;
      for (const Operand& o : graph.in(node)) summand |= reads.of(node, o).isOne();
      if (!summand) continue;
      sums.insert(graph.out(node)[0]);
      for (const Operand& o : graph.in(node)) read.insert(o.tensor);
    }
    std::erase_if(sums, [&](TensorId t) { return !read.contains(t); });
    return sums;
  }

  const Tensor& local(ProgramId p, TensorId t) const {
    return problem_.plan.programs[p].graph.tensors[t];
  }

  // The tensor of the model that a local one is taken for; -1: none. Operands first: plans have no
  // cycles, and where one has, what is met again is taken for nothing.
  TensorId choose(ProgramId p, TensorId t) {
    std::vector<Local> stack{{p, t}};
    while (!stack.empty()) {
      const Local here = stack.back();
      State& state = chosen_[here.first][here.second];
      if (state.entered) {
        stack.pop_back();
        if (state.tensor < 0) decide(here, state);
        continue;
      }
      state.entered = true;
      for (const Local& o : operandsOf(here))
        if (!chosen_[o.first][o.second].entered) stack.push_back(o);
    }
    return chosen_[p][t].tensor;
  }

  // Going back to tensors that are known.
  bool restsOnMany(const Local& here) {
    std::set<Local> unknown;
    std::vector<Local> stack{here};
    while (!stack.empty()) {
      const Local next = stack.back();
      stack.pop_back();
      for (const Local& o : operandsOf(next)) {
        if (choose(o.first, o.second).valid() || !producers_[o.first][o.second].node.valid() ||
            !unknown.insert(o).second)
          continue;
        if (unknown.size() > kMostUnknown) return true;
        stack.push_back(o);
      }
    }
    return false;
  }

  // What the first tensors that are nothing of the model should be: what the same operator makes of
  // the same operands there. In a wrong plan these lemmas are what fails where it goes wrong.
  void expect(std::vector<LineageEntry>& entries) {
    std::map<std::pair<OperatorId, std::vector<TensorId>>, NodeId> nodeOf;
    for (const NodeId n : firstIds<NodeId>(model_.nodes.size())) {
      std::vector<TensorId> operands;
      for (const Operand& o : model_.in(model_.nodes[n])) operands.push_back(o.tensor);
      nodeOf.emplace(std::pair(model_.nodes[n].op, std::move(operands)), n);
    }
    std::vector<LineageEntry> expectedEntries;
    for (const ProgramId p : firstIds<ProgramId>(producers_.size())) {
      const Program& program = problem_.plan.programs[p];
      const auto boxes = commonBoxes(program, entries);
      for (const TensorId t : firstIds<TensorId>(producers_[p].size())) {
        const Producer& producer = producers_[p][t];
        if (!producer.node.valid() || choose(p, t).valid() || pieces_.contains({p, t})) continue;
        const Node& node = program.graph.nodes[producer.node];
        std::vector<TensorId> operands;
        for (const Operand& o : program.graph.in(node))
          operands.push_back(o.present() ? choose(p, o.tensor) : TensorId::none());
        TensorId expected;
        if (node.communication >= 0) {
          if (operands.size() == 1) expected = operands[0];
        } else if (const auto it = nodeOf.find({node.op, operands}); it != nodeOf.end()) {
          const auto out = model_.out(model_.nodes[it->second]);
          if (producer.result < out.size()) expected = out[producer.result];
        }
        if (!expected.valid() || expectedEntries.size() == kMostExpected) continue;
        const auto box =
            boxes.find({model_.tensors[expected].shape, program.graph.tensors[t].shape});
        if (box == boxes.end() || sums({p, t}, expected)) continue;
        Shard shard = *box->second;
        shard.parts = {{program.graph.tensors[t].name, program.at, Microbatch::none()}};
        if (!program.graph.tensors[t].perMicrobatch)
          std::erase_if(shard.step, [](const auto& step) { return step.first == kMicrobatchAxis; });
        expectedEntries.push_back({expected, Role::kCutPoint, {std::move(shard)}});
      }
    }
    std::move(expectedEntries.begin(), expectedEntries.end(), std::back_inserter(entries));
  }

  // An operand has a smaller share of its tensor than the result would have of its own: what it is
  // split along is summed, and the result is a part of a sum.
  bool sums(const Local& here, TensorId expected) const {
    const auto share = [&](const Local& of, TensorId tensor) {
      double part = 1;
      for (const std::int64_t n : local(of.first, of.second).shape) part *= static_cast<double>(n);
      for (const std::int64_t n : model_.tensors[tensor].shape) part /= static_cast<double>(n);
      return part;
    };
    const Program& program = problem_.plan.programs[here.first];
    const Node& node = program.graph.nodes[producers_[here.first][here.second].node];
    const double own = share(here, expected);
    if (node.communication >= 0) return false;
    const auto in = program.graph.in(node);
    return std::any_of(in.begin(), in.end(), [&](const Operand& o) {
      if (!o.present()) return false;
      const TensorId tensor = chosen_[here.first][o.tensor].tensor;
      return tensor.valid() && share({here.first, o.tensor}, tensor) < own * 0.99;
    });
  }

  // How most local tensors of a shape lie in tensors of a shape.
  std::map<std::pair<Shape, Shape>, const Shard*> commonBoxes(
      const Program& program, std::span<const LineageEntry> entries) const {
    using Box = std::pair<decltype(Shard::box), decltype(Shard::step)>;
    std::map<std::pair<Shape, Shape>, std::map<Box, std::pair<std::size_t, const Shard*>>> counted;
    for (const LineageEntry& entry : entries) {
      const Shard& shard = entry.shards[0];
      if (shard.parts[0].at != program.at || !shard.sum.empty()) continue;
      Shape extent;
      for (const auto& [low, high] : shard.box) extent.push_back(high - low);
      auto& [count, one] =
          counted[{model_.tensors[entry.tensor].shape, extent}][{shard.box, shard.step}];
      ++count;
      one = &shard;
    }
    std::map<std::pair<Shape, Shape>, const Shard*> common;
    for (const auto& [shapes, ways] : counted)
      common[shapes] = std::max_element(ways.begin(), ways.end(), [](const auto& a, const auto& b) {
                         return a.second.first < b.second.first;
                       })->second.second;
    return common;
  }

  // Of a communication those of all members.
  std::vector<Local> operandsOf(const Local& here) const {
    const Producer& producer = producers_[here.first][here.second];
    if (producer.node < 0) return {};
    const Program& program = problem_.plan.programs[here.first];
    const Node& node = program.graph.nodes[producer.node];
    if (node.communication >= 0) {
      const auto it = sent_.find(program.communications[node.communication].comm);
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
      if (const auto speaker = speaker_.find(here); speaker != speaker_.end()) {
        state.tensor = choose(speaker->second.first, speaker->second.second);
        return;
      }
      const auto given = given_.find(local(here.first, here.second).name);
      if (given != given_.end()) state.tensor = given->second;
      return;
    }
    std::optional<Rank> best;
    for (const Lift::ShardProposal& proposal : candidates->second) {
      const Rank rank = rankOf(here, proposal);
      if (best && !(rank < *best)) continue;
      best = rank;
      state.tensor = proposal.tensor;
    }
  }

  // The least is the best.
  using Rank = std::tuple<double, int, std::int64_t, bool, std::int32_t>;
  Rank rankOf(const Local& here, const Lift::ShardProposal& proposal) const {
    // An operator of the same name that was given nothing of the same says less than that the value
    // is that of an operand.
    enum Kind { kSameOperator, kOperand, kSameName, kOther };
    Kind kind = kOther;
    std::int64_t alike = 0;
    bool attributes = false;
    const Producer &producer = producers_[here.first][here.second],
                   &model = modelProducers_[proposal.tensor];
    if (producer.node >= 0) {
      const Graph& graph = problem_.plan.programs[here.first].graph;
      const Node& node = graph.nodes[producer.node];
      const auto in = graph.in(node);
      if (node.communication < 0 && model.node >= 0 && producer.result == model.result &&
          model_.nodes[model.node].op == node.op) {
        attributes = model_.nodes[model.node].attributes == node.attributes;
        const auto there = model_.in(model_.nodes[model.node]);
        for (std::size_t i = 0; i < std::min(in.size(), there.size()); ++i)
          alike += in[i].present() && there[i].present() &&
                   chosen_[here.first][in[i].tensor].tensor == there[i].tensor;
        kind = alike > 0 || in.empty() ? kSameOperator : kSameName;
      }
      if (kind > kOperand) {
        for (const Local& o : operandsOf(here))
          if (chosen_[o.first][o.second].tensor == proposal.tensor) kind = kOperand;
      }
    }
    return {-proposal.covered, kind, -alike, !attributes, proposal.tensor};
  }

  const Problem& problem_;
  const Graph& model_;
  const std::vector<Producer> modelProducers_;
  const std::vector<char> modelMoved_;
  const std::vector<std::vector<std::int32_t>>& executedCoordinates_;
  std::vector<std::vector<Producer>> producers_;  // by program and tensor
  std::vector<std::vector<char>> moved_;          // the same
  std::unordered_map<NameId, std::vector<Local>> sent_;
  // By name of a local tensor: what the file says it is; none of a doubtful one.
  std::unordered_map<NameId, TensorId> given_;
  std::map<Local, std::vector<Lift::ShardProposal>> candidates_;
  std::map<Local, std::vector<std::vector<Lift::ShardProposal>>>
      pieces_;                      // of what does not lie as it is
  std::map<Local, Local> speaker_;  // whose relation says what a part of the same sum is
  std::vector<std::vector<State>> chosen_;
  Locals uninformative_;
  bool differs_ = false;  // the plan is probably wrong
};

}  // namespace

Chosen chosenLineage(const Problem& problem, const Lift& lift, const Relations& found,
                     const std::set<EntryId>& wrong, const std::set<EntryId>& doubtful) {
  return Choice(problem, lift, found, wrong, doubtful).chosen();
}

}  // namespace shardproof::infer
