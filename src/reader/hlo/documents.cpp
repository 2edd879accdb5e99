#include "reader/hlo/documents.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "reader/hlo/lowering.h"
#include "reader/hlo/mesh.h"
#include "reader/hlo/parser.h"

namespace shardproof::hlo {
namespace {

std::size_t z(std::int64_t i) { return static_cast<std::size_t>(i); }

std::int64_t headerCount(const Module& module, const char* name, const std::string& file) {
  const Attribute* a = module.attribute(name);
  if (a == nullptr) return 1;
  const std::int64_t n = parseInteger(*a, file);
  if (n < 1 || n > std::int64_t{1} << 20)
    failAt(file, a->place, "found " + a->value + ", expected 1 to 2^20");
  return n;
}

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
    static const std::set<std::string, std::less<>> kMoves{
        "identity", "view", "permute", "expand", "slice", "cat", "pad", "embedding", "one_hot"};
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
      if (!kMoves.contains(n.op) && n.communication.empty()) ++result.depth;
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

class Builder {
 public:
  Builder(std::string_view modelText, const std::string& modelFile, std::string_view planText,
          const std::string& planFile, const Options& options)
      : modelFile_(modelFile),
        planFile_(planFile),
        options_(options),
        modelModule_(parse(modelText, modelFile)),
        planModule_(parse(planText, planFile)) {
    shared_.exactConstants = options.exactConstants;
    const std::int64_t partitions = headerCount(planModule_, "num_partitions", planFile),
                       replicas = headerCount(planModule_, "replica_count", planFile);
    if (partitions > 1 && replicas > 1)
      failAt(planFile, {}, "found both num_partitions and replica_count, expected one of them");
    if (headerCount(modelModule_, "num_partitions", modelFile) > 1 ||
        headerCount(modelModule_, "replica_count", modelFile) > 1)
      failAt(modelFile, {},
             "found a program for several devices, expected the model: one device's");
    devices_ = std::max(partitions, replicas);
    replicas_ = replicas > 1;
    if (devices_ > 4096)
      failAt(planFile, {}, "found " + std::to_string(devices_) + " devices, expected at most 4096");
    mesh_ = std::make_unique<DeviceMesh>(planModule_, planFile, devices_);
  }

  Documents build(const std::string& modelName) {
    lowerModel();
    lowerPlan();
    checkPorts();
    addNumbers();
    Documents documents;
    std::string lineage;
    inputLineage(lineage);
    outputLineage(lineage);
    std::set<std::string> wanted;
    if (options_.checkpoints) checkpoints(lineage, wanted);
    documents.plan =
        "{\"format\": \"shardproof-plan\", \"version\": 1, \"name\": " + quotedJson(planFile_) +
        ", \"source\": \"HLO\", \"model\": " + quotedJson(modelName) +
        ",\n\"mesh\": " + mesh_->json() + ",\n\"programs\": [\n" + programs(wanted) +
        "],\n\"lineage\": [\n" + lineage + "\n]}\n";
    documents.model = modelText(wanted);
    for (const auto& [k, n] : shared_.ranges)
      documents.assumptions.push_back("the elements of '" + model_->parameters[k].name +
                                      "' lie in [0, " + std::to_string(n) +
                                      "), as they are used as indices");
    if (!shared_.unknowns.empty())
      documents.assumptions.push_back(
          std::to_string(shared_.unknowns.size()) +
          " tables of numbers that are not rational are taken for arbitrary ones");
    return documents;
  }

 private:
  void lowerModel() {
    // Lookups say on the way which values an index has, so the second time that is known.
    for (;;) {
      const auto ranges = shared_.ranges;
      shared_.unknowns.clear();
      model_ = std::make_unique<Lowering>(modelModule_, modelFile_, shared_, Device{}, nullptr);
      model_->run();
      if (shared_.ranges == ranges) return;
    }
  }

  void lowerPlan() {
    for (;;) {
      shared_.communicatedChanged = false;
      ranks_.clear();
      for (std::int64_t d = 0; d < devices_; ++d) {
        ranks_.push_back(std::make_unique<Lowering>(planModule_, planFile_, shared_,
                                                    Device{d, devices_, replicas_}, mesh_.get()));
        ranks_.back()->run();
      }
      if (!shared_.communicatedChanged) return;
    }
  }

  // Where each device's piece of a tensor begins. Throws where the sharding says nothing, or the
  // pieces are not what it says.
  std::vector<Sizes> begins(const Lowering::Port& local, const Shape& full,
                            const std::string& what) const {
    const auto fail = [&](const std::string& message) {
      failAt(planFile_, local.place, what + " " + message);
    };
    std::optional<Tiling> tiling;
    if (!local.sharding) {
      if (local.shape.sizes != full.sizes)
        fail("has no sharding, and its shape is " + toText(local.shape) + ", in the model " +
             toText(full) + ": dump with xla_keep_shardings_after_spmd");
      tiling = tilingOf(Sharding{}, full.sizes.size(), devices_);
    } else {
      tiling = tilingOf(*local.sharding, full.sizes.size(), devices_);
    }
    if (!tiling) fail("has a sharding that does not say what each device has");
    std::vector<Sizes> begin(z(devices_), Sizes(full.sizes.size(), 0));
    if (local.shape.sizes.size() != full.sizes.size())
      fail("has shape " + toText(local.shape) + ", in the model " + toText(full));
    for (std::size_t d = 0; d < full.sizes.size(); ++d) {
      if (local.shape.sizes[d] * tiling->tiles[d] != full.sizes[d])
        fail("has shape " + toText(local.shape) + ", expected " + std::to_string(full.sizes[d]) +
             " divided by " + std::to_string(tiling->tiles[d]) + " in dimension " +
             std::to_string(d) + " (uneven pieces are not supported here)");
      for (std::int64_t r = 0; r < devices_; ++r)
        begin[z(r)][d] = tiling->tileOf[z(r)][d] * local.shape.sizes[d];
    }
    return begin;
  }

  void checkPorts() const {
    const Lowering& first = *ranks_[0];
    const auto compare = [&](std::size_t model, std::size_t plan, const char* what) {
      if (model != plan)
        failAt(planFile_, {},
               "found " + std::to_string(plan) + " " + what + ", the model has " +
                   std::to_string(model) + " (jit with keep_unused=True keeps all parameters)");
    };
    compare(model_->parameters.size(), first.parameters.size(), "parameters");
    compare(model_->results.size(), first.results.size(), "results");
    for (const std::vector<Lowering::Port>* ports :
         {&std::as_const(*model_).parameters, &first.parameters})
      for (std::size_t k = 0; k < ports->size(); ++k)
        if ((*ports)[k].number != static_cast<std::int64_t>(k))
          failAt(ports == &model_->parameters ? modelFile_ : planFile_, (*ports)[k].place,
                 "found parameter " + std::to_string((*ports)[k].number) + ", expected " +
                     std::to_string(k));
  }

  // Where one program uses an integer parameter as a number, all have it.
  void addNumbers() {
    for (std::size_t k = 0; k < model_->parameters.size(); ++k) {
      const auto name = [&](const Lowering& l) {
        return l.parameters[k].name + Lowering::kAsNumber;
      };
      bool used = model_->graph.has(name(*model_));
      for (const auto& rank : ranks_) used = used || rank->graph.has(name(*rank));
      if (!used) continue;
      numbers_.insert(k);
      const auto add = [&](Lowering& l) {
        if (!l.graph.has(name(l)))
          l.graph.input(name(l), l.parameters[k].shape.sizes, false, "float32");
      };
      add(*model_);
      for (const auto& rank : ranks_) add(*rank);
    }
  }

  void entry(std::string& lineage, const std::string& tensor, const char* role,
             const std::string& shards) const {
    lineage += (lineage.empty() ? "" : ",\n");
    lineage += "  {\"tensor\": " + quotedJson(tensor) + ", \"role\": \"" + role +
               "\", \"shards\": [" + shards + "]}";
  }

  void inputLineage(std::string& lineage) {
    for (std::size_t k = 0; k < model_->parameters.size(); ++k) {
      const Lowering::Port &full = model_->parameters[k], &local = ranks_[0]->parameters[k];
      const auto begin = begins(local, full.shape, "parameter " + std::to_string(k));
      entry(lineage, full.name, "input", mesh_->shards(local.name, local.shape.sizes, begin, {}));
      if (numbers_.contains(k))
        entry(lineage, full.name + Lowering::kAsNumber, "input",
              mesh_->shards(local.name + Lowering::kAsNumber, local.shape.sizes, begin, {}));
    }
    // Tables: which box of which unknown each rank's is.
    std::map<std::pair<std::size_t, std::string>, std::map<std::int64_t, Sizes>> places;
    for (std::int64_t r = 0; r < devices_; ++r)
      for (const LocalUnknown& u : ranks_[z(r)]->localUnknowns)
        places[{u.unknown, u.tensor}][r] = u.offset;
    std::set<std::size_t> placed;
    for (const auto& [what, offsets] : places) {
      std::vector<Sizes> begin(z(devices_));
      std::vector<std::int64_t> on;
      for (const auto& [r, offset] : offsets) {
        begin[z(r)] = offset;
        on.push_back(r);
      }
      const Sizes& sizes = ranks_[z(on[0])]->graph.tensor(what.second).sizes;
      entry(lineage, shared_.unknowns[what.first].name, "input",
            mesh_->shards(what.second, sizes, begin, on));
      placed.insert(what.first);
    }
    for (std::size_t u = 0; u < shared_.unknowns.size(); ++u) {
      const Shared::Unknown& unknown = shared_.unknowns[u];
      if (!model_->graph.has(unknown.name))
        model_->graph.input(unknown.name, unknown.sizes, false, "float32");
      if (placed.contains(u)) continue;
      // No rank has it: it needs a place all the same.
      const std::string name = "unused " + unknown.name;
      for (const auto& rank : ranks_) rank->graph.input(name, unknown.sizes, false, "float32");
      entry(lineage, unknown.name, "input",
            mesh_->shards(name, unknown.sizes,
                          std::vector<Sizes>(z(devices_), Sizes(unknown.sizes.size(), 0)), {}));
    }
  }

  void outputLineage(std::string& lineage) const {
    for (std::size_t k = 0; k < model_->results.size(); ++k) {
      const Lowering::Port &full = model_->results[k], &local = ranks_[0]->results[k];
      const auto begin = begins(local, full.shape, "result " + std::to_string(k));
      entry(lineage, full.name, "output", mesh_->shards(local.name, local.shape.sizes, begin, {}));
    }
  }

  // Tensors of the same op_name and full shape that come from the same parameters are taken for the
  // same, the k-th for the k-th in the order of the longest way from the inputs.
  void checkpoints(std::string& lineage, std::set<std::string>& wanted) const {
    using Key = std::tuple<std::string, Sizes, Ancestry::Parameters>;
    const Ancestry model(*model_), plan(*ranks_[0]);
    std::map<Key, std::vector<std::string>> inModel;
    for (const Mark& m : model_->marks)
      inModel[{m.operation, m.sizes, model.parameters(m.tensor)}].push_back(m.tensor);
    std::map<Key, std::vector<std::pair<const Mark*, Tiling>>> inPlan;
    for (const Mark& m : ranks_[0]->marks) {
      if (!m.sharding) continue;
      const auto tiling = tilingOf(*m.sharding, m.sizes.size(), devices_);
      if (!tiling) continue;
      Sizes full = m.sizes;
      for (std::size_t d = 0; d < full.size(); ++d) full[d] *= tiling->tiles[d];
      inPlan[{m.operation, full, plan.parameters(m.tensor)}].emplace_back(&m, *tiling);
    }
    for (auto& [key, tensors] : inModel)
      std::stable_sort(tensors.begin(), tensors.end(), [&](const auto& a, const auto& b) {
        return model.depth(a) < model.depth(b);
      });
    for (auto& [key, marks] : inPlan)
      std::stable_sort(marks.begin(), marks.end(), [&](const auto& a, const auto& b) {
        return plan.depth(a.first->tensor) < plan.depth(b.first->tensor);
      });
    std::set<std::pair<std::string, std::string>> done;
    for (const auto& [key, marks] : inPlan) {
      const auto found = inModel.find(key);
      if (found == inModel.end() || found->second.size() != marks.size()) continue;
      for (std::size_t k = 0; k < marks.size(); ++k) {
        const Mark& m = *marks[k].first;
        const std::string& tensor = found->second[k];
        const bool everywhere = std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
          return rank->graph.has(m.tensor) && rank->graph.tensor(m.tensor).sizes == m.sizes &&
                 !rank->graph.tensor(m.tensor).integer;
        });
        if (!everywhere || model_->graph.tensor(tensor).kind == "constant" ||
            !done.insert({tensor, m.tensor}).second)
          continue;
        std::vector<Sizes> begin(z(devices_), Sizes(m.sizes.size(), 0));
        for (std::int64_t r = 0; r < devices_; ++r)
          for (std::size_t d = 0; d < m.sizes.size(); ++d)
            begin[z(r)][d] = marks[k].second.tileOf[z(r)][d] * m.sizes[d];
        entry(lineage, tensor, "checkpoint", mesh_->shards(m.tensor, m.sizes, begin, {}));
        wanted.insert(tensor);
        wantedLocally_.insert(m.tensor);
      }
    }
  }

  std::string modelText(const std::set<std::string>& wanted) {
    std::set<std::string> needed = wanted;
    std::string outputs;
    for (const Lowering::Port& p : model_->results) {
      needed.insert(p.name);
      outputs += (outputs.empty() ? "" : ", ") + quotedJson(p.name);
    }
    model_->graph.keepOnly(needed);
    return "{\"format\": \"shardproof-model\", \"version\": 1, \"name\": " +
           quotedJson(modelFile_) + ", \"source\": \"HLO\",\n" + model_->graph.json() +
           ",\n\"outputs\": [" + outputs + "]}\n";
  }

  // One program for all devices that do the same; they are told apart by the axes that matter.
  std::string programs(const std::set<std::string>&) {
    std::vector<std::string> texts;
    for (const auto& rank : ranks_) {
      std::set<std::string> needed = wantedLocally_;
      for (const Lowering::Port& p : rank->results) needed.insert(p.name);
      rank->graph.keepOnly(needed);
      texts.push_back(rank->graph.json());
    }
    std::vector<std::size_t> matter;
    for (std::size_t a = 0; a < mesh_->axes(); ++a) {
      // What another coordinate on this axis alone changes.
      std::map<std::vector<std::int64_t>, std::size_t> first;
      bool differs = false;
      for (std::size_t r = 0; r < texts.size(); ++r) {
        std::vector<std::int64_t> others;
        for (std::size_t b = 0; b < mesh_->axes(); ++b)
          others.push_back(b == a ? 0 : mesh_->coordinate(static_cast<std::int64_t>(r), b));
        const auto [it, added] = first.emplace(std::move(others), r);
        differs = differs || (!added && texts[r] != texts[it->second]);
      }
      if (differs) matter.push_back(a);
    }
    std::string all;
    std::set<std::string> done;
    for (std::size_t r = 0; r < texts.size(); ++r) {
      const std::string at = mesh_->at(static_cast<std::int64_t>(r), matter);
      if (!done.insert(at).second) continue;
      all += (all.empty() ? "{" : ",\n{") + (matter.empty() ? "" : "\"at\": " + at + ", ") +
             texts[r] + "}";
    }
    return all;
  }

  const std::string &modelFile_, &planFile_;
  const Options& options_;
  Module modelModule_, planModule_;
  Shared shared_;
  std::int64_t devices_ = 1;
  bool replicas_ = false;
  std::unique_ptr<DeviceMesh> mesh_;
  std::unique_ptr<Lowering> model_;
  std::vector<std::unique_ptr<Lowering>> ranks_;
  std::set<std::size_t> numbers_;
  mutable std::set<std::string> wantedLocally_;
};

}  // namespace

Documents documentsOf(std::string_view modelText, const std::string& modelFile,
                      std::string_view planText, const std::string& planFile,
                      const std::string& modelName, const Options& options) {
  return Builder(modelText, modelFile, planText, planFile, options).build(modelName);
}

}  // namespace shardproof::hlo
