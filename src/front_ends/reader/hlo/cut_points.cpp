// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/cut_points.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "reader/hlo/placement.h"
#include "util/index.h"

namespace shardproof::hlo {
namespace {

// From which parameters a tensor comes, and by how many operators.
class Ancestry {
 public:
  using Parameters = std::vector<bool>;
  explicit Ancestry(const Lowering& l) {
    for (std::size_t k = 0; k < l.parameters.size(); ++k)
      for (const char* suffix : {"", Lowering::kAsNumber}) {
        Entry& e = entries_[l.parameters[k].name + suffix];
        e.parameters.resize(l.parameters.size());
        e.parameters[k] = true;
      }
    for (const GraphNode& n : l.graph.nodes()) {
      Entry result;
      result.parameters.resize(l.parameters.size());
      for (const std::string& in : n.in) {
        const auto found = entries_.find(in);
        if (found == entries_.end()) continue;
        result.depth = std::max(result.depth, found->second.depth);
        for (std::size_t k = 0; k < result.parameters.size(); ++k)
          if (found->second.parameters[k]) result.parameters[k] = true;
      }
      const bool computes = !traitsOf(n.op).moves && n.op != "pad" && n.op != "embedding" &&
                            n.op != "one_hot" && n.communication.empty();
      if (computes) ++result.depth;
      for (const std::string& out : n.out) entries_[out] = result;
    }
  }
  Parameters parameters(const std::string& tensor) const {
    const auto found = entries_.find(tensor);
    return found == entries_.end() ? Parameters{} : found->second.parameters;
  }
  std::size_t depth(const std::string& tensor) const {
    const auto found = entries_.find(tensor);
    return found == entries_.end() ? 0 : found->second.depth;
  }

 private:
  struct Entry {
    Parameters parameters;
    std::size_t depth = 0;
  };
  std::unordered_map<std::string, Entry> entries_;
};

class Proposer {
 public:
  Proposer(const Lowering& model, const std::vector<std::shared_ptr<Lowering>>& ranks,
           const DeviceMesh& mesh, const std::vector<std::vector<Sizes>>& begins)
      : model_(model), ranks_(ranks), mesh_(mesh), placements_(ranks, mesh, begins) {}

  // Tensors of the same op_name and full shape that come from the same parameters are taken for the
  // same, the k-th for the k-th in the order of the longest way from the inputs.
  std::vector<CutPoint> propose() {
    using Key = std::tuple<std::string, Sizes, Ancestry::Parameters>;
    const Ancestry model(model_), plan(*ranks_[0]);
    std::map<Key, std::vector<std::string>> inModel;
    std::set<std::pair<std::string, std::string>> seenInModel;
    for (const Mark& m : model_.marks)
      if (seenInModel.insert({m.tensor, m.operation}).second)
        inModel[{m.operation, m.sizes, model.parameters(m.tensor)}].push_back(m.tensor);
    struct Local {
      std::string tensor, shards;
    };
    // Summands and their sum may have one name: each are counted on their own.
    std::map<std::pair<bool, Key>, std::vector<Local>> inPlan;
    std::set<std::string> seen;
    for (const Mark& m : ranks_[0]->marks) {
      Sizes full;
      std::string shards = seen.insert(m.tensor).second ? shardsOf(m, full) : "";
      if (shards.empty()) continue;
      const bool summands = shards.find("\"sum\": [") != std::string::npos;
      inPlan[{summands, {withoutShardMap(m.operation), full, plan.parameters(m.tensor)}}].push_back(
          {m.tensor, std::move(shards)});
    }
    for (auto& [key, tensors] : inModel)
      std::stable_sort(tensors.begin(), tensors.end(), [&](const auto& a, const auto& b) {
        return model.depth(a) < model.depth(b);
      });
    for (auto& [key, locals] : inPlan) {
      std::stable_sort(locals.begin(), locals.end(), [&](const Local& a, const Local& b) {
        return plan.depth(a.tensor) < plan.depth(b.tensor);
      });
      const auto found = inModel.find(key.second);
      if (found == inModel.end() || found->second.size() != locals.size()) continue;
      for (std::size_t k = 0; k < locals.size(); ++k)
        add(found->second[k], locals[k].tensor, locals[k].shards);
    }
    followCommunication();
    return std::move(cutPoints_);
  }

 private:
  // Empty where it is not known how the tensor lies; else `full` becomes the whole tensor's sizes.
  std::string shardsOf(const Mark& m, Sizes& full) const {
    if (m.sharding) {
      if (const auto tiling = tilingOf(*m.sharding, m.sizes.size(), mesh_.devices())) {
        full = m.sizes;
        for (std::size_t d = 0; d < full.size(); ++d) full[d] *= tiling->tiles[d];
        std::vector<Sizes> begin(at(mesh_.devices()), Sizes(m.sizes.size(), 0));
        for (std::int64_t r = 0; r < mesh_.devices(); ++r)
          for (std::size_t d = 0; d < m.sizes.size(); ++d)
            begin[at(r)][d] = tiling->tileOf[at(r)][d] * m.sizes[d];
        return mesh_.shards(m.tensor, m.sizes, begin, {});
      }
    }
    const auto sizes = placements_.fullSizes(m.tensor);
    if (!sizes) return {};
    full = *sizes;
    return placements_.shard(m.tensor);
  }

  void add(const std::string& tensor, const std::string& local, const std::string& shards) {
    const Sizes& sizes = ranks_[0]->graph.tensor(local).sizes;
    const bool everywhere = std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
      return rank->graph.has(local) && rank->graph.tensor(local).sizes == sizes &&
             !rank->graph.tensor(local).integer;
    });
    if (!everywhere || model_.graph.tensor(tensor).kind == "constant" ||
        !done_.insert({tensor, local}).second)
      return;
    tensorOf_.emplace(local, tensor);
    cutPoints_.push_back({tensor, local, shards});
  }

  // What was communicated is the same tensor, lying otherwise.
  void followCommunication() {
    for (const GraphNode& n : ranks_[0]->graph.nodes()) {
      if (n.communication.empty()) continue;
      const auto from = tensorOf_.find(n.in[0]);
      if (from == tensorOf_.end() || tensorOf_.contains(n.out[0])) continue;
      const auto full = placements_.fullSizes(n.out[0]);
      const std::string tensor = from->second;
      if (full && *full == model_.graph.tensor(tensor).sizes)
        add(tensor, n.out[0], placements_.shard(n.out[0]));
    }
  }

  const Lowering& model_;
  const std::vector<std::shared_ptr<Lowering>>& ranks_;
  const DeviceMesh& mesh_;
  Placements placements_;
  std::vector<CutPoint> cutPoints_;
  std::set<std::pair<std::string, std::string>> done_;
  std::unordered_map<std::string, std::string> tensorOf_;
};

}  // namespace

std::string withoutShardMap(std::string name) {
  constexpr std::string_view kPart = "shard_map/";
  for (std::size_t at = name.find(kPart); at != std::string::npos; at = name.find(kPart, at))
    name.erase(at, kPart.size());
  return name;
}

std::vector<CutPoint> proposeCutPoints(const Lowering& model,
                                       const std::vector<std::shared_ptr<Lowering>>& ranks,
                                       const DeviceMesh& mesh,
                                       const std::vector<std::vector<Sizes>>& parameterBegins) {
  return Proposer(model, ranks, mesh, parameterBegins).propose();
}

}  // namespace shardproof::hlo
