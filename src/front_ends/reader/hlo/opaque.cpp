// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/opaque.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "reader/hlo/cut_points.h"
#include "reader/hlo/dimensions.h"
#include "reader/hlo/parser.h"
#include "reader/hlo/placement.h"

namespace shardproof::hlo {
namespace {

// The calls whose results are needed by these tensors and by what is communicated.
std::vector<const OpaqueCall*> neededCalls(const Lowering& l, const std::set<std::string>& wanted) {
  std::map<std::string, std::size_t> callOf;
  for (std::size_t c = 0; c < l.opaqueCalls.size(); ++c)
    for (const std::string& result : l.opaqueCalls[c].results) {
      callOf.emplace(result, c);
      callOf.emplace(result + Lowering::kAsNumber, c);
    }
  std::vector<std::string> open(wanted.begin(), wanted.end());
  for (const GraphNode& n : l.graph.nodes())
    if (!n.communication.empty()) open.insert(open.end(), n.in.begin(), n.in.end());
  std::set<std::string> seen;
  std::vector<bool> needed(l.opaqueCalls.size(), false);
  while (!open.empty()) {
    const std::string name = std::move(open.back());
    open.pop_back();
    if (!l.graph.has(name) || !seen.insert(name).second) continue;
    if (const auto call = callOf.find(name); call != callOf.end()) {
      needed[call->second] = true;
      const auto& arguments = l.opaqueCalls[call->second].arguments;
      open.insert(open.end(), arguments.begin(), arguments.end());
      continue;
    }
    const GraphTensor& t = l.graph.tensor(name);
    if (!t.kind.empty()) continue;
    const std::vector<std::string>& in = l.graph.nodes()[t.producer].in;
    open.insert(open.end(), in.begin(), in.end());
  }
  std::vector<const OpaqueCall*> calls;
  for (std::size_t c = 0; c < needed.size(); ++c)
    if (needed[c]) calls.push_back(&l.opaqueCalls[c]);
  return calls;
}

// One instruction of the plan, with the devices that run it.
struct PlanCall {
  const OpaqueCall* call = nullptr;
  std::vector<std::int64_t> on;
};

class Ties {
 public:
  Ties(const std::string& planFile, const std::vector<std::shared_ptr<Lowering>>& ranks,
       const DeviceMesh& mesh, const std::vector<std::vector<Sizes>>& parameterBegins)
      : planFile_(planFile), ranks_(ranks), mesh_(mesh), parameterBegins_(parameterBegins) {}

  std::vector<PlanCall> planCalls(const std::set<std::string>& wantedLocally) const {
    std::map<const Lowering*, std::vector<const OpaqueCall*>> needed;
    std::vector<PlanCall> calls;
    std::map<std::string, std::size_t> byPath;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const Lowering& rank = *ranks_[r];
      const auto [it, added] = needed.try_emplace(&rank);
      if (added) {
        std::set<std::string> wanted = wantedLocally;
        for (const Lowering::Port& p : rank.results) wanted.insert(p.name);
        it->second = neededCalls(rank, wanted);
      }
      for (const OpaqueCall* c : it->second) {
        const auto [place, isNew] = byPath.emplace(c->path, calls.size());
        if (isNew) calls.push_back({c, {}});
        PlanCall& p = calls[place->second];
        if (p.call->function != c->function || p.call->batch != c->batch ||
            p.call->arguments != c->arguments || p.call->results != c->results)
          failAt(planFile_, c->place,
                 c->target +
                     ": devices call it with other operands each, expected the same "
                     "instruction on all");
        p.on.push_back(static_cast<std::int64_t>(r));
      }
    }
    return calls;
  }

  // Where each device's part of the batch begins. Throws where it is not known.
  std::vector<Sizes> begins(const OpaqueCall& local, const OpaqueCall& full) {
    const std::size_t batch = local.batch.size();
    std::vector<Sizes> begin(ranks_.size(), Sizes(batch, 0));
    if (local.batch == full.batch) return begin;
    const auto fail = [&](const std::string& why) {
      failAt(planFile_, local.place,
             local.target + " of " + listJson(local.batch) + " of the " + listJson(full.batch) +
                 " that the model has along its first dimensions: " + why);
    };
    Sizes tiles;
    for (std::size_t d = 0; d < batch; ++d) {
      if (full.batch[d] % local.batch[d] != 0) fail("pieces that are not equal");
      tiles.push_back(full.batch[d] / local.batch[d]);
    }
    const auto inside = [&] {
      for (const Sizes& b : begin)
        for (std::size_t d = 0; d < batch; ++d)
          if (b[d] < 0 || b[d] + local.batch[d] > full.batch[d]) return false;
      return true;
    };
    if (local.sharding) {
      const Sharding& s = local.sharding->kind == Sharding::Kind::kTuple
                              ? local.sharding->elements.at(0)
                              : *local.sharding;
      const Sizes& sizes = ranks_[0]->graph.tensor(local.results[0]).sizes;
      const auto tiling = tilingOf(s, sizes.size(), mesh_.devices());
      if (tiling && std::equal(tiles.begin(), tiles.end(), tiling->tiles.begin())) {
        for (std::size_t r = 0; r < begin.size(); ++r)
          for (std::size_t d = 0; d < batch; ++d)
            begin[r][d] = tiling->tileOf[r][d] * local.batch[d];
        return begin;
      }
    }
    // Inside of shard_map: as the first operand is guessed to lie.
    if (!placements_) placements_.emplace(ranks_, mesh_, parameterBegins_);
    const Placement* placement = placements_->of(local.arguments[0]);
    if (placement == nullptr) fail("which of them a device has is not known");
    for (std::size_t a = 0; a < placement->size(); ++a) {
      const AxisPlacement& p = (*placement)[a];
      if (p.kind != AxisPlacement::Kind::kPiece || p.dim >= batch) continue;
      for (std::size_t r = 0; r < begin.size(); ++r)
        begin[r][p.dim] += mesh_.coordinate(static_cast<std::int64_t>(r), a) * p.step;
    }
    if (!inside()) fail("which of them a device has is not known");
    return begin;
  }

 private:
  const std::string& planFile_;
  const std::vector<std::shared_ptr<Lowering>>& ranks_;
  const DeviceMesh& mesh_;
  const std::vector<std::vector<Sizes>>& parameterBegins_;
  std::optional<Placements> placements_;
};

std::string shown(const OpaqueCall& c, const std::string& file) {
  return c.target + " (" + file + ":" + std::to_string(c.place.line) + ")";
}

}  // namespace

OpaqueTies tieOpaqueCalls(const Lowering& model, const std::string& modelFile,
                          const std::vector<std::shared_ptr<Lowering>>& ranks,
                          const std::string& planFile, const DeviceMesh& mesh,
                          const std::set<std::string>& wanted,
                          const std::set<std::string>& wantedLocally,
                          const std::vector<std::vector<Sizes>>& parameterBegins) {
  OpaqueTies result;
  Ties ties(planFile, ranks, mesh, parameterBegins);
  std::set<std::string> all = wanted;
  for (const Lowering::Port& p : model.results) all.insert(p.name);
  const std::vector<const OpaqueCall*> calls = neededCalls(model, all);
  const std::vector<PlanCall> planCalls = ties.planCalls(wantedLocally);
  if (!calls.empty()) result.first = calls[0];
  std::set<std::string> said;
  for (const OpaqueCall* c : calls)
    if (said.insert(c->target).second)
      result.assumptions.push_back(
          {"opaque-functions", AssumptionClass::kCheckable,
           shown(*c, modelFile) + " is a function of its whole operands" +
               (c->batch.empty()
                    ? ""
                    : ", at each index of their first " + std::to_string(c->batch.size()) +
                          (c->batch.size() == 1 ? " dimension" : " dimensions")) +
               ", of which nothing else is known"});
  // The k-th call of a function and op_name is the k-th; where names differ, the k-th of the
  // function.
  std::map<std::pair<std::string, std::string>, std::vector<std::size_t>> byName;
  for (std::size_t c = 0; c < calls.size(); ++c) {
    byName[{calls[c]->function, withoutShardMap(calls[c]->operation)}].push_back(c);
    byName[{calls[c]->function, "\n"}].push_back(c);
  }
  std::map<std::pair<std::string, std::string>, std::size_t> taken;
  std::vector<bool> tied(calls.size(), false);
  for (const PlanCall& p : planCalls) {
    std::pair<std::string, std::string> key{p.call->function, withoutShardMap(p.call->operation)};
    if (!byName.contains(key)) key.second = "\n";
    const auto candidates = byName.find(key);
    if (candidates == byName.end())
      failAt(planFile, p.call->place,
             p.call->target +
                 ": found a call that the model does not have, of this target, types, "
                 "sizes and attributes: of a part of its operands nothing can be said");
    const std::size_t k = std::min(taken[key]++, candidates->second.size() - 1);
    const std::size_t c = candidates->second[k];
    const OpaqueCall& full = *calls[c];
    const std::vector<Sizes> begin = ties.begins(*p.call, full);
    const auto tie = [&](const std::string& tensor, const std::string& local, bool argument) {
      OpaqueTie t{tensor, local, argument, false, begin, p.on};
      const std::size_t rank = model.graph.tensor(tensor).sizes.size();
      t.status = !argument && full.results.size() > 1 && rank == full.batch.size() &&
                 model.graph.tensor(tensor).integer;
      for (Sizes& b : t.begin) b.resize(rank, 0);
      result.ties.push_back(std::move(t));
    };
    for (std::size_t a = 0; a < full.arguments.size(); ++a)
      tie(full.arguments[a], p.call->arguments[a], true);
    for (std::size_t r = 0; r < full.results.size(); ++r)
      tie(full.results[r], p.call->results[r], false);
    if (!tied[c])
      result.arguments.insert(result.arguments.end(), full.arguments.begin(), full.arguments.end());
    tied[c] = true;
  }
  for (std::size_t c = 0; c < calls.size(); ++c)
    if (!tied[c])
      failAt(modelFile, calls[c]->place,
             calls[c]->target + ": found a call that the plan does not have, or not as often");
  return result;
}

}  // namespace shardproof::hlo
