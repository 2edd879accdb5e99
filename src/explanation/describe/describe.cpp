// SPDX-License-Identifier: Apache-2.0
#include "describe/describe.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "ir/part_nodes.h"
#include "ops/attributes.h"
#include "prover/obligation.h"
#include "shardproof/infer.h"

namespace shardproof {

namespace {

constexpr std::size_t kMostNodesShown = 32;       // of the plan
constexpr std::size_t kMostModelNodesShown = 15;  // with the plan's, but always some

std::string boxText(const std::string& name, const Equation& e) {
  std::string text = name + "[";
  for (std::size_t d = 0; d < e.box.size(); ++d)
    text +=
        (d ? ", " : "") + std::to_string(e.box[d].first) + ":" + std::to_string(e.box[d].second);
  return text + "]";
}

std::string coordinatesText(const Plan& plan, const MeshView& mesh, Rank rank) {
  std::string text;
  for (std::int32_t a = 0; a < mesh.axes(); ++a) {
    text += (a ? " " : "") + plan.mesh[a].name + "=" + std::to_string(mesh.coordinate(rank, a));
  }
  return text;
}

}  // namespace

std::string describeFound(const Problem& problem, EntryId number) {
  const LineageEntry& entry = problem.plan.lineage[number];
  const Shard& shard = entry.shards[0];
  const auto axisName = [&](std::int32_t axis) {
    return axis == kMicrobatchAxis ? "mb" : problem.plan.mesh[axis].name;
  };
  std::string text = "local `" + problem.names.text(shard.parts[0].local) + "` holds " +
                     problem.names.text(problem.model.graph.tensors[entry.tensor].name);
  text += ir::textOf(shard.box);
  for (const auto& [axis, offsets] : shard.step)
    text += ", " + ops::toText(offsets) + " further for each " + axisName(axis);
  for (const std::int32_t axis : shard.sum) text += ", summed over " + axisName(axis);
  return text;
}

std::string numberText(double value) {
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                          std::chars_format::general, 8);
  return error == std::errc() ? std::string(buffer.data(), end) : "?";
}

Counterexample renamed(const Counterexample& example, const Stage& from, const Stage& to) {
  std::map<std::string, std::int32_t> tensors;
  for (std::size_t t = 0; t < from.tensors.size(); ++t)
    tensors.emplace(instanceName(from, StageTensorId(t)), static_cast<std::int32_t>(t));
  Counterexample made = example;
  const auto rename = [&](std::string& element) {
    const std::size_t bracket = element.rfind('[');  // names may have such, positions have not
    const auto it = tensors.find(element.substr(0, bracket));
    if (bracket != std::string::npos && it != tensors.end())
      element = instanceName(to, StageTensorId(it->second)) + element.substr(bracket);
  };
  rename(made.element);
  for (Assignment& a : made.assignment) rename(a.element);
  return made;
}

std::string claimText(const PlanIndex& planIndex, const Stage& stage, const Equation& claim) {
  const Problem& problem = planIndex.problem();
  const StageTensor& whole = stage.tensors[claim.logical];
  const std::string asked =
      boxText(problem.names.text(problem.model.graph.tensors[whole.tensor].name), claim) + " == ";
  const Shard* shard = claim.entry < 0 || claim.shard < 0
                           ? nullptr
                           : &problem.plan.lineage[claim.entry].shards[claim.shard];
  if (shard && shard->parts.size() == 1 && !shard->sum.empty() && !claim.parts.empty()) {
    const StageTensor& first = stage.tensors[claim.parts.front().first];
    const auto sums = [&](std::int32_t axis) {
      return std::find(shard->sum.begin(), shard->sum.end(), axis) != shard->sum.end();
    };
    std::string axes, where;
    for (const std::int32_t axis : shard->sum)
      axes += (axes.empty() ? "" : ", ") +
              (axis == kMicrobatchAxis ? std::string("mb") : problem.plan.mesh[axis].name);
    for (std::int32_t a = 0; a < planIndex.mesh().axes(); ++a)
      if (!sums(a))
        where += (where.empty() ? "" : " ") + problem.plan.mesh[a].name + "=" +
                 std::to_string(planIndex.mesh().coordinate(first.rank, a));
    if (first.microbatch.isOne() && !sums(kMicrobatchAxis))
      where += (where.empty() ? "" : " ") + std::string("microbatch ") +
               std::to_string(first.microbatch.number());
    return asked + "sum over " + axes + " of " + problem.names.text(shard->parts.front().local) +
           (where.empty() ? "" : " on " + where);
  }
  std::string parts;
  std::size_t shown = 0;
  for (const auto& [part, weight] : claim.parts) {
    const StageTensor& local = stage.tensors[part];
    if (++shown > 8) continue;
    parts += (parts.empty() ? "" : " + ");
    if (weight != 1) parts += std::to_string(weight) + " * ";
    parts +=
        problem.names.text(problem.plan.programs[local.program].graph.tensors[local.tensor].name) +
        " on rank " + std::to_string(local.rank) + " (" +
        coordinatesText(problem.plan, planIndex.mesh(), local.rank) +
        (local.microbatch.isOne() ? " microbatch " + std::to_string(local.microbatch.number())
                                  : std::string()) +
        ")";
  }
  if (shown > 8) parts += " + ... (" + std::to_string(claim.parts.size()) + " parts)";
  return asked + parts;
}

Defect describeFailure(const PlanIndex& planIndex, const Stage& stage,
                       const StageOutcome& outcome) {
  const Problem& problem = planIndex.problem();
  Defect defect;
  defect.kind = DefectKind::kLineage;
  const Equation& claim = stage.claims[std::clamp<std::int32_t>(
      outcome.claim, 0, static_cast<std::int32_t>(stage.claims.size()) - 1)];
  const auto& logical = stage.tensors[claim.logical];
  defect.tensor = problem.names.text(problem.model.graph.tensors[logical.tensor].name);
  std::set<std::int64_t> ranks;
  for (const auto& part : claim.parts) {
    const StageTensor& local = stage.tensors[part.first];
    ranks.insert(local.rank);
    if (local.microbatch.isOne() && claim.parts.size() == 1)
      defect.microbatch = local.microbatch.number();
  }
  defect.entry = claim.entry;
  defect.lineage = claimText(planIndex, stage, claim);
  defect.ranks.assign(ranks.begin(), ranks.end());
  const LineageEntry& entry = problem.plan.lineage[claim.entry];
  defect.message = std::string(entry.role == Role::kOutput ? "output '" : "tensor '") +
                   defect.tensor + "' of the plan is not what the model computes (" +
                   (entry.isGuess() ? "as was inferred"
                                    : "lineage entry /lineage/" + std::to_string(claim.entry) +
                                          "/shards/" + std::to_string(claim.shard)) +
                   ")";
  if (outcome.verdict() != StageVerdict::kRefuted)
    defect.message +=
        "; this stage itself is undecided" + (outcome.reason.empty() ? "" : ": " + outcome.reason);
  defect.counterexample = outcome.counterexample;

  // The operators that the differing parts are computed by, nearest to the claim first: by the
  // number of steps between, not in the order of the stage, which follows one operand to its
  // beginning before it comes to the next.
  std::map<std::int32_t, std::size_t> producers;
  for (std::size_t i = 0; i < stage.nodes.size(); ++i)
    for (const StageTensorId t : stage.nodes[i].out)
      if (t >= 0 && !stage.nodes[i].logical) producers.emplace(t, i);
  std::set<std::pair<std::int32_t, std::int32_t>> listed;
  std::set<std::size_t> reached;
  std::vector<StageTensorId> level;
  for (const auto& part : claim.parts) level.push_back(part.first);
  while (!level.empty()) {
    std::vector<StageTensorId> next;
    for (const StageTensorId t : level) {
      const auto producer = producers.find(t);
      if (producer == producers.end() || !reached.insert(producer->second).second) continue;
      const StageNode& node = stage.nodes[producer->second];
      next.insert(next.end(), node.in.begin(), node.in.end());
      // Nodes that no file has are lineage, which the message names.
      const bool own = problem.plan.programs[node.program].graph.nodes[node.node].added < 0;
      if (own && listed.emplace(node.program, node.node).second &&
          defect.nodes.size() < kMostNodesShown)
        defect.nodes.push_back(planIndex.place(node.program, node.node));
    }
    level = std::move(next);
  }
  // A stage without operators relates two lineages of one tensor: then what produces the local
  // tensors is where to look.
  if (defect.nodes.empty()) {
    for (const auto& part : claim.parts) {
      const StageTensor& local = stage.tensors[part.first];
      const Producer producer =
          planIndex.producerOf({local.program, local.tensor, local.rank, local.microbatch});
      if (producer.node >= 0 && listed.emplace(local.program, producer.node).second &&
          defect.nodes.size() < kMostNodesShown) {
        defect.nodes.push_back(planIndex.place(local.program, producer.node));
      }
    }
  }
  // The model's side, for comparison.
  const std::size_t ofPlan = defect.nodes.size();
  for (std::size_t i = stage.nodes.size(); i-- > 0;) {
    const StageNode& node = stage.nodes[i];
    if (!node.logical ||
        (defect.nodes.size() >= kMostModelNodesShown && defect.nodes.size() >= ofPlan + 3))
      continue;
    NodePlace place;
    place.inPlan = false;
    place.pointer = Model::nodePointer(node.node);
    place.op = ops::Registry::instance().at(node.op).name;
    const Node& source = problem.model.graph.nodes[node.node];
    if (source.location) place.location = problem.names.text(source.location);
    defect.nodes.push_back(std::move(place));
  }
  return defect;
}

std::vector<std::string> outputNames(const Problem& problem) {
  std::vector<std::string> names;
  for (const auto output : problem.model.outputs)
    names.push_back(
        problem.names.text(problem.model.graph.tensors[static_cast<std::size_t>(output)].name));
  return names;
}

void leaveOutGuesses(const Problem& problem, Report& report) {
  constexpr std::size_t kLeftOut = std::numeric_limits<std::size_t>::max();
  const auto guessed = [&](const Defect& d) {
    return d.entry >= 0 && problem.plan.lineage[EntryId(d.entry)].isGuess();
  };
  if (std::all_of(report.defects.begin(), report.defects.end(), guessed)) return;
  std::vector<std::size_t> moved;  // where each defect is then
  std::size_t kept = 0;
  for (const Defect& d : report.defects) moved.push_back(guessed(d) ? kLeftOut : kept++);
  std::erase_if(report.defects, guessed);
  for (Cause& cause : report.causes) {
    for (std::size_t& d : cause.defects) d = moved[d];
    std::erase(cause.defects, kLeftOut);
  }
}

}  // namespace shardproof
