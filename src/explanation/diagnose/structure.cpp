// SPDX-License-Identifier: Apache-2.0
#include "diagnose/structure.h"
#include "ir/clone.h"
#include "ir/local_parts.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "diagnose/edit.h"
#include "diagnose/words.h"
#include "plan/mesh.h"
#include "report/text.h"
#include "shardproof/error.h"
#include "writer/write_problem.h"

namespace shardproof::diagnose {

namespace {

// Of several programs that stand for one of the file, the first.
std::optional<NodeRef> refOf(const Plan& plan, const NodePlace& place) {
  NodeRef ref;
  if (!place.inPlan || std::sscanf(place.pointer.c_str(), "/programs/%d/nodes/%d",
                                   &ref.program.value, &ref.node.value) != 2)
    return std::nullopt;
  const auto made = std::find_if(plan.programs.begin(), plan.programs.end(),
                                 [&](const Program& p) { return p.inFile == ref.program; });
  if (made != plan.programs.end()) ref.program = ProgramId(made - plan.programs.begin());
  if (ref.program.index() >= plan.programs.size()) return std::nullopt;
  ref.node = plan.nodeAt(ref.program, ref.node.value);
  if (!ref.node.valid()) return std::nullopt;
  return ref;
}

// The messages of one communication.
class Messages {
 public:
  struct End {
    NodeRef node;
    Rank rank, peer;
  };
  Messages(const Problem& problem, NameId comm) : mesh_(problem.plan.mesh) {
    for (const ProgramId p : firstIds<ProgramId>(problem.plan.programs.size())) {
      const Program& program = problem.plan.programs[p];
      for (const NodeId n : firstIds<NodeId>(program.graph.nodes.size())) {
        const std::int32_t c = program.graph.nodes[n].communication;
        if (c < 0 || program.communications[c].comm != comm) continue;
        const CommunicationSpec& spec = program.communications[c];
        nodes.push_back({p, n});
        for (const Rank r : firstIds<Rank>(mesh_.ranks())) {
          if (mesh_.with(r, program.at) != r) continue;
          const End end{nodes.back(), r, mesh_.with(r, spec.peer)};
          if (spec.kind == Communication::kSend) sends.push_back(end);
          else if (spec.kind == Communication::kReceive) receives.push_back(end);
        }
      }
    }
  }

  // Of these ends, those that no other end meets.
  static std::vector<End> alone(const std::vector<End>& ends, const std::vector<End>& others) {
    std::set<std::pair<std::int64_t, std::int64_t>> met;
    for (const End& other : others) met.insert({other.peer, other.rank});
    std::vector<End> found;
    for (const End& end : ends)
      if (!met.contains({end.rank, end.peer})) found.push_back(end);
    return found;
  }

  // The peers with which each of `ends` meets one that waits for its rank; by program, as
  // coordinates that differ from the rank's own. Nothing: there are no such.
  std::vector<Edit> fix(const std::vector<End>& ends, const std::vector<End>& waiting) const {
    std::map<std::int64_t, std::set<std::int64_t>> wanted;
    for (const End& w : waiting) wanted[w.peer].insert(w.rank);
    std::map<std::int32_t, Edit> byProgram;
    std::map<std::int32_t, std::map<std::int32_t, std::set<std::int32_t>>> coordinates;
    for (const End& end : ends) {
      const auto it = wanted.find(end.rank);
      if (it == wanted.end() || it->second.size() != 1) return {};
      Edit& edit = byProgram[end.node.program];
      edit.kind = Edit::Kind::kPeer;
      edit.nodes.push_back(end.node);
      for (std::int32_t a = 0; a < mesh_.axes(); ++a) {
        const std::int32_t c = mesh_.coordinate(Rank(*it->second.begin()), a);
        coordinates[end.node.program][a].insert(c == mesh_.coordinate(end.rank, a) ? -1 : c);
      }
    }
    std::vector<Edit> edits;
    for (auto& [p, edit] : byProgram) {
      for (const auto& [axis, values] : coordinates[p]) {
        if (values.size() != 1) return {};
        if (*values.begin() < 0) edit.axes.push_back(axis);
        else edit.peer.emplace_back(axis, *values.begin());
      }
      edits.push_back(edit);
    }
    return edits;
  }

  std::vector<NodeRef> nodes;
  std::vector<End> sends, receives;

 private:
  const MeshView mesh_;
};

std::string ranksText(std::vector<Rank> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return (ranks.size() == 1 ? "rank " : "ranks ") + formatRanks({ranks.begin(), ranks.end()});
}

class Structure {
 public:
  Structure(const Problem& problem, const Report& report) : problem_(problem), report_(report) {}

  Causes run(const std::string& modelFile) {
    // Defects of one communication, or of one kind at one node, are one cause: they differ in ranks
    // and microbatches.
    std::map<std::pair<DefectKind, std::string>, std::size_t> known;
    for (std::size_t d = 0; d < report_.defects.size(); ++d) {
      const Defect& defect = report_.defects[d];
      const NameId comm = commOf(defect);
      const std::string place = comm.valid() && defect.kind != DefectKind::kDeadlock
                                    ? problem_.names.text(comm)
                                : defect.nodes.empty() ? ""
                                                       : defect.nodes.front().pointer;
      // What no other program takes part in was put there by one mistake, however much it is.
      const ProgramId alone = onlyProgramOf(comm);
      const auto key = alone.valid() && defect.kind != DefectKind::kDeadlock
                           ? std::pair(DefectKind::kCollective, "program " + std::to_string(alone))
                           : std::pair(defect.kind, place);
      const auto [it, added] = known.emplace(key, result_.causes.size());
      if (added) result_.causes.push_back(causeOf(defect, comm));
      if (alone.valid()) communicationsAlone_[it->second].insert(comm);
      Cause& cause = result_.causes[it->second];
      cause.defects.push_back(d);
      if (ranksKnown_.contains(it->second)) continue;
      for (const std::int64_t r : defect.ranks)
        if (std::find(cause.ranks.begin(), cause.ranks.end(), r) == cause.ranks.end())
          cause.ranks.push_back(r);
      if (defect.microbatch && std::find(cause.microbatches.begin(), cause.microbatches.end(),
                                         *defect.microbatch) == cause.microbatches.end())
        cause.microbatches.push_back(*defect.microbatch);
    }
    for (const auto& [c, comms] : communicationsAlone_) {
      const std::size_t more = comms.size() - 1;
      if (more > 0)
        result_.causes[c].sentence += "; " + std::to_string(more) +
                                      (more == 1 ? " more communication" : " more communications") +
                                      " of the same program that no other takes part in";
    }
    if (!edits_.empty()) {
      try {
        const auto fixed = cloneProblem(problem_);
        ir::makePartsOwn(*fixed);
        bool all = true;
        for (const Edit& edit : edits_) all = all && apply(*fixed, Correspondence(*fixed), edit);
        if (all) {
          result_.fixedPlan = planText(*fixed, modelFile);
          result_.fixedModel = modelText(*fixed);
        }
      } catch (const Unsupported&) {
      }
    }
    return std::move(result_);
  }

 private:
  NameId commOf(const Defect& defect) const {
    if (defect.nodes.empty()) return {};
    const auto ref = refOf(problem_.plan, defect.nodes.front());
    if (!ref) return {};
    const Program& program = problem_.plan.programs[ref->program];
    const std::int32_t c = program.graph.nodes[ref->node].communication;
    return c < 0 ? NameId() : program.communications[c].comm;
  }

  // The one program that has this communication; none: several have it.
  ProgramId onlyProgramOf(NameId comm) const {
    ProgramId only;
    if (!comm.valid() || problem_.plan.programs.size() < 2) return only;
    for (const ProgramId p : firstIds<ProgramId>(problem_.plan.programs.size())) {
      const auto& specs = problem_.plan.programs[p].communications;
      if (std::none_of(specs.begin(), specs.end(),
                       [&](const CommunicationSpec& spec) { return spec.comm == comm; }))
        continue;
      if (only.valid()) return ProgramId();
      only = p;
    }
    return only;
  }

  Cause causeOf(const Defect& defect, NameId comm) {
    Cause cause;
    cause.kind = toString(defect.kind);
    cause.sentence = defect.message;
    cause.nodes = defect.nodes;
    if (defect.kind == DefectKind::kSendReceive && comm.valid()) message(cause, comm);
    if (defect.kind == DefectKind::kDeadlock) tags(cause, defect);
    return cause;
  }

  void message(Cause& cause, NameId comm) {
    const Messages messages(problem_, comm);
    const auto sends = Messages::alone(messages.sends, messages.receives);
    const auto receives = Messages::alone(messages.receives, messages.sends);
    if (sends.empty() || receives.empty()) return;
    std::vector<Rank> senders, to, waiting, from;
    for (const auto& end : sends) {
      senders.push_back(end.rank);
      to.push_back(end.peer);
    }
    for (const auto& end : receives) {
      waiting.push_back(end.rank);
      from.push_back(end.peer);
    }
    std::vector<Edit> edits = messages.fix(sends, receives);
    bool atSend = true;
    if (edits.empty()) {
      edits = messages.fix(receives, sends);
      atSend = false;
    }
    const NodeRef first = sends.front().node, second = receives.front().node;
    const auto one = [](const std::vector<Rank>& ranks) {
      return std::set<Rank>(ranks.begin(), ranks.end()).size() == 1;
    };
    cause.sentence = ranksText(senders) + (one(senders) ? " sends to " : " send to ") +
                     ranksText(to) + " at " + nodeText(problem_, first) + ", but " +
                     ranksText(waiting) + (one(waiting) ? " waits for " : " wait for ") +
                     ranksText(from) + " at " + nodeText(problem_, second);
    cause.kind = "wrong-peer";
    cause.nodes = {placeOf(problem_, atSend ? first : second),
                   placeOf(problem_, atSend ? second : first)};
    cause.ranks.assign(senders.begin(), senders.end());
    std::sort(cause.ranks.begin(), cause.ranks.end());
    cause.ranks.erase(std::unique(cause.ranks.begin(), cause.ranks.end()), cause.ranks.end());
    ranksKnown_.insert(result_.causes.size());
    if (edits.empty()) return;
    std::string text;
    for (const Edit& edit : edits) {
      if (!text.empty()) text += "; ";
      text += nodeText(problem_, edit.nodes.front()) + (atSend ? " sends to" : " receives from");
      for (const auto& [axis, c] : edit.peer)
        text += " " + problem_.plan.mesh[axis].name + "=" + std::to_string(c);
      if (!edit.axes.empty()) text += " and else the rank's own coordinates";
    }
    cause.fix = Cause::Fix{text, false};
    edits_.insert(edits_.end(), edits.begin(), edits.end());
  }

  // Messages that meet by tags, on a cycle: without tags each meets that of its own microbatch.
  void tags(Cause& cause, const Defect& defect) {
    std::set<NameId> comms;
    for (const NodePlace& place : defect.nodes) {
      const auto ref = refOf(problem_.plan, place);
      if (!ref) continue;
      const Program& program = problem_.plan.programs[ref->program];
      const std::int32_t c = program.graph.nodes[ref->node].communication;
      if (c < 0 || !program.communications[c].tag) continue;
      const CommunicationSpec& spec = program.communications[c];
      if (spec.kind == Communication::kSend || spec.kind == Communication::kReceive)
        comms.insert(spec.comm);
    }
    if (comms.size() != 1) return;
    Edit edit;
    edit.kind = Edit::Kind::kTag;
    edit.nodes = Messages(problem_, *comms.begin()).nodes;
    cause.fix = Cause::Fix{fixText(problem_, edit), false};
    for (const NodeRef ref : edit.nodes)
      if (cause.nodes.size() < 12) cause.nodes.insert(cause.nodes.begin(), placeOf(problem_, ref));
    cause.sentence =
        "messages `" + problem_.names.text(*comms.begin()) +
        "` meet by tags those of other microbatches, and wait in a cycle: " + defect.message;
    edits_.push_back(std::move(edit));
  }

  const Problem& problem_;
  const Report& report_;
  Causes result_;
  std::vector<Edit> edits_;
  std::set<std::size_t> ranksKnown_;
  std::map<std::size_t, std::set<NameId>> communicationsAlone_;  // by cause
};

}  // namespace

Causes structuralCauses(const Problem& problem, const Report& report,
                        const std::string& modelFile) {
  return Structure(problem, report).run(modelFile);
}

}  // namespace shardproof::diagnose
