// SPDX-License-Identifier: Apache-2.0
// Why it is right: nodes of such a program run in file order (ir/validate_programs.cpp sees to
// that), so one walk knows at each node which handles nobody has waited for, and which tensor each
// stretch of a buffer holds. Programs are looked at one by one: no rule involves two ranks.
#include "plan/async.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "ir/buffers.h"
#include "plan/checks.h"
#include "plan/plan_index.h"

namespace shardproof {

namespace {

// A tensor's instance: the tensor and, of a `per_mb` one, the microbatch.
struct Instance {
  TensorId tensor;
  Microbatch microbatch;
  friend auto operator<=>(const Instance&, const Instance&) = default;
};

class Walk {
 public:
  Walk(const PlanIndex& planIndex, ProgramId program, std::vector<Defect>& defects)
      : index_(planIndex),
        problem_(planIndex.problem()),
        number_(program),
        program_(problem_.plan.programs[program]),
        defects_(defects) {
    for (const auto& [tensor, place] : program_.asynchrony.buffers) places_.emplace(tensor, place);
  }

  void run() {
    const Graph& graph = program_.graph;
    for (const TensorId t : firstIds<TensorId>(graph.tensors.size()))
      // One in a buffer that is `per_mb` is that of the only microbatch (ir/validate_programs.cpp).
      if (graph.tensors[t].kind != TensorKind::kProduced)
        hold({t, graph.tensors[t].perMicrobatch ? Microbatch::of(0) : Microbatch::none()});
    std::size_t nextWait = 0, nextHandle = 0;
    const Asynchrony& all = program_.asynchrony;
    for (const NodeId n : firstIds<NodeId>(graph.nodes.size())) {
      if (defects_.size() >= kMostDefects) return;
      for (; nextWait < all.waits.size() && all.waits[nextWait].first == n; ++nextWait)
        underWay_.erase(all.waits[nextWait].second);
      const Node& node = graph.nodes[n];
      for (const Operand& operand : graph.in(node))
        if (operand.present()) read(n, instanceOf(operand, node));
      for (const TensorId t : graph.out(node))
        if (t >= 0) write(n, instanceOf({t, Microbatch::none()}, node));
      if (nextHandle < all.handles.size() && all.handles[nextHandle].first == n)
        underWay_.emplace(all.handles[nextHandle++].second, n);
    }
    for (const NameId handle : all.waitsAtEnd) underWay_.erase(handle);
    checkOutputs();
  }

 private:
  const Tensor& tensor(TensorId t) const { return program_.graph.tensors[t]; }
  const std::string& text(NameId name) const { return problem_.names.text(name); }
  std::string nameOf(const Instance& i) const {
    return "'" + text(tensor(i.tensor).name) +
           (i.microbatch.isOne() ? "#" + std::to_string(i.microbatch.number()) : "") + "'";
  }
  Instance instanceOf(const Operand& operand, const Node& node) const {
    if (!tensor(operand.tensor).perMicrobatch) return {operand.tensor, Microbatch::none()};
    return {operand.tensor, operand.microbatch.orElse(node.microbatch)};
  }
  const BufferPlace* placeOf(const Instance& i) const {
    const auto it = places_.find(i.tensor);
    return it == places_.end() ? nullptr : &it->second;
  }
  std::string issued(NameId handle, NodeId node) const {
    return "the asynchronous " + index_.opName(number_, program_.graph.nodes[node]) + " at " +
           problem_.plan.nodePointer(number_, node) + " (handle '" + text(handle) + "')";
  }

  void report(NodeId n, std::optional<NodeId> other, const Instance& about,
              const std::string& message) {
    Defect defect;
    defect.kind = DefectKind::kAsync;
    defect.nodes.push_back(index_.place(number_, n));
    defect.message =
        defect.nodes.front().pointer + " (" + defect.nodes.front().op + "): " + message;
    if (other) defect.nodes.push_back(index_.place(number_, *other));
    defect.tensor = text(tensor(about.tensor).name);
    if (about.microbatch.isOne()) defect.microbatch = about.microbatch.number();
    index_.forEachRank(number_, [&](Rank r) { defect.ranks.push_back(r); });
    defects_.push_back(std::move(defect));
  }

  // The operands (or results) of a communication.
  std::vector<Instance> touched(NodeId n, bool results) const {
    const Graph& graph = program_.graph;
    const Node& node = graph.nodes[n];
    std::vector<Instance> list;
    if (results) {
      for (const TensorId t : graph.out(node))
        if (t >= 0) list.push_back(instanceOf({t, Microbatch::none()}, node));
    } else {
      for (const Operand& o : graph.in(node))
        if (o.present()) list.push_back(instanceOf(o, node));
    }
    return list;
  }

  // A communication that nobody has waited for and that reads (or writes) this instance, or memory
  // in which it lies.
  std::optional<std::pair<NameId, NodeId>> using_(const Instance& i, bool results) const {
    const BufferPlace* place = placeOf(i);
    for (const auto& [handle, node] : underWay_) {
      for (const Instance& other : touched(node, results)) {
        const BufferPlace* theirs = placeOf(other);
        if (other == i || (place != nullptr && theirs != nullptr && ir::overlap(*place, *theirs)))
          return std::pair(handle, node);
      }
    }
    return std::nullopt;
  }

  void read(NodeId n, const Instance& i) {
    if (const auto writer = using_(i, true)) {
      report(n, writer->second, i,
             "reads " + nameOf(i) + ", which " + issued(writer->first, writer->second) +
                 " still writes: nothing before it waits for the handle");
      return;
    }
    if (const auto it = overwritten_.find(i); it != overwritten_.end())
      report(n, it->second, i,
             "reads " + nameOf(i) + ", whose buffer '" + text(placeOf(i)->buffer) +
                 "' was written again by " + problem_.plan.nodePointer(number_, it->second));
  }

  void write(NodeId n, const Instance& i) {
    if (placeOf(i) == nullptr) return;
    const std::string what =
        "writes " + nameOf(i) + " into buffer '" + text(placeOf(i)->buffer) + "', which ";
    if (const auto reader = using_(i, false))
      report(n, reader->second, i,
             what + issued(reader->first, reader->second) +
                 " still sends: nothing before it waits for the handle");
    else if (const auto writer = using_(i, true))
      report(n, writer->second, i,
             what + issued(writer->first, writer->second) +
                 " still writes: nothing before it waits for the handle");
    auto& held = held_[placeOf(i)->buffer];
    std::erase_if(held, [&](const Instance& old) {
      if (old == i || !ir::overlap(*placeOf(old), *placeOf(i))) return false;
      overwritten_.emplace(old, n);
      return true;
    });
    hold(i);
  }

  void hold(const Instance& i) {
    if (const BufferPlace* place = placeOf(i)) held_[place->buffer].push_back(i);
  }

  std::optional<EntryId> outputOf(const Instance& i) const {
    for (const Mention& mention : index_.mentions(number_, i.tensor)) {
      const LineageEntry& entry = problem_.plan.lineage[mention.entry];
      const Microbatch named = entry.shards[mention.shard].parts[mention.part].microbatch;
      if (entry.role == Role::kOutput && (!named.isOne() || named == i.microbatch))
        return mention.entry;
    }
    return std::nullopt;
  }

  // Outputs are what the program leaves behind.
  void checkOutputs() {
    for (const auto& [i, node] : overwritten_) {
      if (const auto entry = outputOf(i))
        report(node, std::nullopt, i,
               "writes into buffer '" + text(placeOf(i)->buffer) + "', in which " + nameOf(i) +
                   " lies, a part of an output (/lineage/" + std::to_string(*entry) +
                   "): it is no more there when the program ends");
    }
    for (const auto& [handle, node] : underWay_) {
      for (const Instance& i : touched(node, true)) {
        if (const auto entry = outputOf(i))
          report(node, std::nullopt, i,
                 nameOf(i) + " is a part of an output (/lineage/" + std::to_string(*entry) +
                     "), and nothing waits for the handle '" + text(handle) +
                     "' of what writes it before the program ends");
      }
    }
  }

  const PlanIndex& index_;
  const Problem& problem_;
  ProgramId number_;
  const Program& program_;
  std::vector<Defect>& defects_;
  std::map<TensorId, BufferPlace> places_;
  std::map<NameId, NodeId> underWay_;             // handles that nobody has waited for
  std::map<NameId, std::vector<Instance>> held_;  // by buffer
  std::map<Instance, NodeId> overwritten_;        // and by which node
};

}  // namespace

void checkAsync(const PlanIndex& planIndex, std::vector<Defect>& defects) {
  const Plan& plan = planIndex.problem().plan;
  for (const ProgramId p : firstIds<ProgramId>(plan.programs.size()))
    if (!plan.programs[p].asynchrony.empty()) Walk(planIndex, p, defects).run();
}

}  // namespace shardproof
