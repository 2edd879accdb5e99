#include "reader/hlo/documents.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "reader/hlo/approximate.h"
#include "reader/hlo/checkpoints.h"
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
    shared_.completeIndices = options.completeIndices;
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
    describeInputs();
    outputLineage(lineage);
    std::set<std::string> wanted;
    if (options_.checkpoints) checkpoints(lineage, wanted);
    documents.plan =
        "{\"format\": \"shardproof-plan\", \"version\": 1, \"name\": " + quotedJson(planFile_) +
        ", \"source\": \"HLO\", \"model\": " + quotedJson(modelName) +
        ",\n\"mesh\": " + mesh_->json() + ",\n\"programs\": [\n" + programs() +
        "],\n\"lineage\": [\n" + lineage + "\n]}\n";
    documents.model = modelText(wanted);
    for (const auto& [k, range] : shared_.ranges) {
      std::string others, name = model_->parameters[k].name;
      if (range.shift() > 0) name.resize(name.rfind(" + "));
      for (const std::int64_t i : range.others)
        others += (others.empty() ? "" : ", ") + std::to_string(i);
      documents.assumptions.push_back(
          "the elements of '" + name + "' lie in [0, " + std::to_string(range.count) + ")" +
          (others.empty() ? "" : " or are one of " + others) + ", as they are used as indices");
    }
    if (!shared_.unknowns.empty())
      documents.assumptions.push_back(
          "the numbers of " + std::to_string(shared_.unknowns.size()) +
          (shared_.unknowns.size() == 1 ? " table" : " tables") +
          " that are not rational, or random, are taken for arbitrary ones by the proof");
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
      shared_.widenRanges();
      if (shared_.ranges == ranges) return;
    }
  }

  void lowerPlan() {
    constexpr int kMostPasses = 12;
    for (int pass = 0;; ++pass) {
      shared_.communicatedChanged = false;
      shared_.forgetTables = pass >= kMostPasses;
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

  // What is known of the model's inputs, so that no difference counts at other values.
  void describeInputs() {
    for (const Shared::Unknown& unknown : shared_.unknowns)
      model_->graph.tensor(unknown.name).facts = "{\"numbers\": " + numbersText(unknown) + "}";
    for (std::size_t k = 0; k < model_->parameters.size(); ++k) {
      const Lowering::Port& port = model_->parameters[k];
      const auto range = shared_.ranges.find(k);
      const std::int64_t shift = range == shared_.ranges.end() ? 0 : range->second.shift();
      if (integerType(port.shape.type)) {
        constexpr std::int64_t kMost = std::int64_t{1} << 60;
        std::string stretches;
        for (const Piece& p : model_->domainOf(port.name)) {
          const std::int64_t least = port.shape.type[0] == 'u' ? 0 : -kMost,
                             low = std::max(p.low + shift, least),
                             high = std::min(p.high + shift, kMost);
          if (low < high) stretches += (stretches.empty() ? "" : ", ") + listJson({low, high});
        }
        if (!stretches.empty() && (range != shared_.ranges.end() || port.shape.type[0] == 'u'))
          model_->graph.tensor(port.name).facts = "{\"within\": [" + stretches + "]}";
      }
      if (numbers_.contains(k))
        model_->graph.tensor(port.name + Lowering::kAsNumber).facts =
            "{\"number_of\": " + quotedJson(port.name) + ", \"plus\": " + std::to_string(-shift) +
            "}";
    }
  }

  // Of what depends on the key of a random generator, for one key.
  std::optional<Approximation> sampled(ScalarId id) {
    try {
      return approximations_.of(shared_.scalars.sample(id));
    } catch (const std::invalid_argument&) {  // not known, or not defined
      return std::nullopt;
    }
  }

  // A list, or null where some number is not known precisely enough to tell a difference.
  std::string numbersText(const Shared::Unknown& unknown) {
    constexpr double kPrecise = 0x1p-46;  // of the largest: noise of 2^-40 hides it
    std::vector<Approximation> numbers;
    double size = 0;
    for (const ScalarId id : unknown.values) {
      const auto number = sampled(id);
      if (!number) return "null";
      numbers.push_back(*number);
      size = std::max(size, std::abs(number->value));
    }
    std::string text = "[";
    for (const Approximation& number : numbers) {
      if (number.error > kPrecise * size) return "null";
      char digits[32];
      const auto end = std::to_chars(digits, digits + sizeof digits, number.value).ptr;
      text += (text.size() > 1 ? "," : "") + std::string(digits, end);
    }
    return text + "]";
  }

  void outputLineage(std::string& lineage) const {
    for (std::size_t k = 0; k < model_->results.size(); ++k) {
      const Lowering::Port &full = model_->results[k], &local = ranks_[0]->results[k];
      const auto begin = begins(local, full.shape, "result " + std::to_string(k));
      entry(lineage, full.name, "output", mesh_->shards(local.name, local.shape.sizes, begin, {}));
    }
  }

  void checkpoints(std::string& lineage, std::set<std::string>& wanted) {
    std::vector<std::vector<Sizes>> begin;
    for (std::size_t k = 0; k < model_->parameters.size(); ++k)
      begin.push_back(begins(ranks_[0]->parameters[k], model_->parameters[k].shape,
                             "parameter " + std::to_string(k)));
    for (const Checkpoint& c : proposeCheckpoints(*model_, ranks_, *mesh_, begin)) {
      entry(lineage, c.tensor, "checkpoint", c.shards);
      wanted.insert(c.tensor);
      wantedLocally_.insert(c.local);
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
  std::string programs() {
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
  Approximations approximations_{shared_.scalars};
  std::int64_t devices_ = 1;
  bool replicas_ = false;
  std::unique_ptr<DeviceMesh> mesh_;
  std::unique_ptr<Lowering> model_;
  std::vector<std::unique_ptr<Lowering>> ranks_;
  std::set<std::size_t> numbers_;
  std::set<std::string> wantedLocally_;
};

}  // namespace

Documents documentsOf(std::string_view modelText, const std::string& modelFile,
                      std::string_view planText, const std::string& planFile,
                      const std::string& modelName, const Options& options) {
  return Builder(modelText, modelFile, planText, planFile, options).build(modelName);
}

}  // namespace shardproof::hlo
