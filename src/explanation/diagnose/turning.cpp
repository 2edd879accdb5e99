// SPDX-License-Identifier: Apache-2.0
#include "diagnose/turning.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "ops/registry.h"
#include "shrink/plan_relations.h"

namespace shardproof::diagnose {

namespace {

using ProgramTensor = std::pair<ProgramId, TensorId>;

class Turning {
 public:
  Turning(const Search::Failing& failing, const Finder& finder, ProcessorClock::time_point end)
      : failing_(failing), finder_(finder), numbers_(*failing.numbers), end_(end) {
    const executor::Claim& claim = numbers_.claim(failing.claims.front());
    microbatch_ = std::max(claim.microbatch, 0);
    const auto& programs = numbers_.setup().programs;
    for (const std::size_t c : failing.claims)
      for (const auto& part : numbers_.claim(c).parts)
        rankOf_.emplace(programs.programOf(part.rank), part.rank);
    for (const Rank r : firstIds<Rank>(programs.mesh().ranks()))
      rankOf_.emplace(programs.programOf(r), r);
  }

  std::vector<NodeRef> nodes() {
    takeOrder();
    std::vector<NodeRef> found;
    // Backward: whether anything that is made of a tensor is something of the model.
    std::map<ProgramTensor, bool> recovers;
    for (std::size_t i = order_.size(); i-- > 0;) {
      const std::size_t n = order_[i];
      bool after = false;
      for (const TensorId t : out(n)) {
        const ProgramTensor here{failing_.here[n].program, t};
        after = after || recovers[here] || isOfModel(here);
      }
      for (const Operand& o : telling(n))
        if (o.present()) {
          bool& own = recovers[{failing_.here[n].program, o.tensor}];
          own = own || after;
        }
      for (const std::size_t member : membersOf(n))
        for (const Operand& o : in(member))
          if (o.present()) {
            bool& theirs = recovers[{failing_.here[member].program, o.tensor}];
            theirs = theirs || after;
          }
      if (after || ProcessorClock::now() > end_) continue;
      const auto operands = in(n);
      const bool known = std::all_of(operands.begin(), operands.end(), [&](const Operand& o) {
        return !o.present() || isKnown({failing_.here[n].program, o.tensor});
      });
      const auto results = out(n);
      const bool turns = std::any_of(results.begin(), results.end(), [&](TensorId t) {
        return t.valid() && !isKnown({failing_.here[n].program, t});
      });
      if (known && turns) found.push_back(failing_.nodes[n]);
    }
    if (ProcessorClock::now() > end_) return {};
    std::reverse(found.begin(), found.end());
    if (found.size() > kMostTurning) found.resize(kMostTurning);
    return found;
  }

 private:
  const Graph& graph(ProgramId p) const { return numbers_.setup().problem.plan.programs[p].graph; }
  const Node& node(std::size_t n) const {
    return graph(failing_.here[n].program).nodes[failing_.here[n].node];
  }
  std::span<const Operand> in(std::size_t n) const {
    return graph(failing_.here[n].program).in(node(n));
  }
  std::span<const TensorId> out(std::size_t n) const {
    return graph(failing_.here[n].program).out(node(n));
  }

  // The operands of which a right result says that they were right. One that only lends its shape
  // is none of them; nor is a forward operand of a gradient: the results that depend on it are
  // wrong where it is, and those that do not (x w of x) say nothing.
  std::span<const Operand> telling(std::size_t n) const {
    const auto all = in(n);
    if (node(n).communication >= 0) return all;
    const ops::OperatorInfo& op = ops::Registry::instance().at(node(n).op);
    const std::size_t gradients = op.traits.rearranges ? 1 : firstForwardOperand(op.name);
    return gradients > 0 ? all.first(std::min(gradients, all.size())) : all;
  }

  // The other nodes of a collective, by number.
  std::vector<std::size_t> membersOf(std::size_t n) const {
    std::vector<std::size_t> members;
    if (node(n).communication < 0) return members;
    const auto it = byComm_.find(commOf(n));
    if (it == byComm_.end()) return members;
    for (const std::size_t other : it->second)
      if (other != n) members.push_back(other);
    return members;
  }
  NameId commOf(std::size_t n) const {
    const Program& program = numbers_.setup().problem.plan.programs[failing_.here[n].program];
    return program.communications[node(n).communication].comm;
  }

  // Numbers of nodes, each after those that make its operands: the farthest from the claim first,
  // as failing_.distance is along the shortest way and not along the longest.
  void takeOrder() {
    for (std::size_t n = 0; n < failing_.nodes.size(); ++n) {
      for (const TensorId t : out(n))
        if (t.valid()) makers_.emplace(ProgramTensor{failing_.here[n].program, t}, n);
      if (node(n).communication >= 0) byComm_[commOf(n)].push_back(n);
    }
    std::vector<char> state(failing_.nodes.size(), 0);  // 1: entered, 2: placed
    for (std::size_t root = 0; root < failing_.nodes.size(); ++root) {
      std::vector<std::size_t> stack{root};
      while (!stack.empty()) {
        const std::size_t n = stack.back();
        if (state[n] != 0) {
          stack.pop_back();
          if (state[n] == 1) order_.push_back(n);
          state[n] = 2;
          continue;
        }
        state[n] = 1;
        const auto enter = [&](std::size_t of) {
          for (const Operand& o : in(of)) {
            if (!o.present()) continue;
            const auto it = makers_.find({failing_.here[of].program, o.tensor});
            if (it != makers_.end() && state[it->second] == 0) stack.push_back(it->second);
          }
        };
        enter(n);
        for (const std::size_t member : membersOf(n)) enter(member);
      }
    }
  }

  std::optional<Match> lookUp(ProgramTensor what) const {
    const auto& [p, t] = what;
    const Tensor& tensor = graph(p).tensors[t];
    if (tensor.element != ElementKind::kReal) return std::nullopt;
    const auto rank = rankOf_.find(p);
    if (rank == rankOf_.end()) return std::nullopt;
    const auto& layout = numbers_.setup().programs.layout(rank->second);
    const std::int32_t slot = layout.firstSlot[t] + (tensor.perMicrobatch ? microbatch_ : 0);
    if (!numbers_.local(rank->second, slot).known()) return std::nullopt;
    return finder_.local(rank->second, slot);
  }

  // Something of the model, which nothing but the right computation makes.
  bool isOfModel(ProgramTensor what) {
    isKnown(what);
    return ofModel_[what];
  }

  // Also numbers that say nothing, integers, and what was not computed.
  bool isKnown(ProgramTensor what) {
    if (const auto it = known_.find(what); it != known_.end()) return it->second;
    known_[what] = true;
    ofModel_[what] = false;
    if (ProcessorClock::now() > end_) return true;
    const auto producer = makers_.find(what);
    if (producer == makers_.end()) return true;  // lineage says what it is
    const std::optional<Match> match = lookUp(what);
    if (!match) return true;
    bool known = match->kind != Match::Kind::kUnknown;
    ofModel_[what] = match->kind == Match::Kind::kBox || match->kind == Match::Kind::kPartial ||
                     match->kind == Match::Kind::kMultiple;
    // What is only moved is what it was.
    const Node& made = node(producer->second);
    if (!known && made.communication < 0 &&
        ops::Registry::instance().at(made.op).traits.rearranges) {
      const auto operands = in(producer->second);
      known = std::all_of(operands.begin(), operands.end(), [&](const Operand& o) {
        return !o.present() || isKnown({what.first, o.tensor});
      });
    }
    known_[what] = known;
    return known;
  }

  const Search::Failing& failing_;
  const Finder& finder_;
  const Numbers& numbers_;
  const ProcessorClock::time_point end_;
  std::int32_t microbatch_ = 0;
  std::map<ProgramId, Rank> rankOf_;
  std::map<NameId, std::vector<std::size_t>> byComm_;
  std::map<ProgramTensor, std::size_t> makers_;
  std::map<ProgramTensor, bool> known_, ofModel_;
  std::vector<std::size_t> order_;
};

}  // namespace

std::vector<NodeRef> turningNodes(const Search::Failing& failing, const Finder& finder,
                                  ProcessorClock::time_point end) {
  return Turning(failing, finder, end).nodes();
}

}  // namespace shardproof::diagnose
