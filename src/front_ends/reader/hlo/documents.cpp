// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/documents.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <utility>

#include "reader/hlo/approximate.h"
#include "reader/hlo/complex.h"
#include "reader/hlo/cut_points.h"
#include "reader/hlo/input_facts.h"
#include "reader/hlo/lowering.h"
#include "reader/hlo/mesh.h"
#include "reader/hlo/opaque.h"
#include "reader/hlo/parser.h"
#include "reader/hlo/programs.h"
#include "reader/hlo/stacked.h"
#include "util/index.h"
#include "writer/write_capture.h"

namespace shardproof::hlo {
namespace {

constexpr int kBitsOfCounters = 32;

std::int64_t headerCount(const Module& module, const char* name, const std::string& file) {
  const Attribute* a = module.attribute(name);
  if (a == nullptr) return 1;
  const std::int64_t n = parseInteger(*a, file);
  if (n < 1 || n > std::int64_t{1} << 20)
    failAt(file, a->place, "found " + a->value + ", expected 1 to 2^20");
  return n;
}

// Before it is partitioned a program for several devices computes with whole arrays, and shardings
// in it are marks. So it is the program of one device, unless it knows of devices itself.
void checkIsOfWholeArrays(const Module& module, const std::string& file) {
  static const std::vector<std::string> kOfDevices{"partition-id",   "replica-id",  "all-",
                                                   "reduce-scatter", "collective-", "ragged-all-",
                                                   "send",           "recv"};
  for (const Computation& computation : module.computations)
    for (const Instruction& i : computation.instructions)
      for (const std::string& of : kOfDevices)
        if (i.opcode.starts_with(of))
          failAt(file, i.place,
                 "found '" + i.opcode +
                     "' in a program for several devices (after partitioning, or a shard_map), "
                     "expected the model: one device's");
}

class Builder {
 public:
  Builder(std::string_view modelText, const std::string& modelFile, std::string_view planText,
          const std::string& planFile, const Options& options)
      : modelFile_(modelFile),
        planFile_(planFile),
        options_(options),
        modelModule_(withoutComplex(parse(modelText, modelFile), modelFile)),
        planModule_(withoutComplex(parse(planText, planFile), planFile)) {
    shared_.exactConstants = options.exactConstants;
    shared_.completeIndices = options.completeIndices;
    shared_.assumeInBounds = options.assumeInBounds;
    const std::int64_t partitions = headerCount(planModule_, "num_partitions", planFile),
                       replicas = headerCount(planModule_, "replica_count", planFile);
    if (partitions > 1 && replicas > 1)
      failAt(planFile, {}, "found both num_partitions and replica_count, expected one of them");
    devices_ = std::max(partitions, replicas);
    replicas_ = replicas > 1;
    if (devices_ > 4096)
      failAt(planFile, {}, "found " + std::to_string(devices_) + " devices, expected at most 4096");
    if (options.beforePass) stack();
    if (headerCount(modelModule_, "replica_count", modelFile) > 1)
      failAt(modelFile, {},
             "found a program of several replicas, expected the model: one device's");
    if (headerCount(modelModule_, "num_partitions", modelFile) > 1)
      checkIsOfWholeArrays(modelModule_, modelFile);
    mesh_ = std::make_unique<DeviceMesh>(planModule_, planFile, devices_);
  }

  Documents build(const std::string& modelName) {
    // What is computed of integers says on the way which of their values must be told apart. With
    // others than before the programs are lowered again; there are more each time.
    do {
      try {
        lowerModel();
        lowerPlan();
      } catch (const Shared::MoreBits&) {
        shared_.rangesChanged = true;
      }
    } while (shared_.rangesChanged);
    checkPorts();
    addNumbers();
    Documents documents;
    std::string lineage;
    inputLineage(lineage);
    describeInputs();
    outputLineage(lineage);
    std::set<std::string> wanted;
    std::vector<std::vector<Sizes>> parameterBegins;
    for (std::size_t k = 0; k < model_->parameters.size(); ++k)
      parameterBegins.push_back(begins(ranks_[0]->parameters[k], model_->parameters[k].shape,
                                       "parameter " + std::to_string(k)));
    if (options_.cutPoints && options_.beforePass) sameInstructions(lineage, wanted);
    else if (options_.cutPoints) cutPoints(lineage, wanted, parameterBegins);
    opaqueCalls(lineage, wanted, parameterBegins, documents.assumptions);
    documents.plan =
        "{\"format\": \"shardproof-plan\", \"version\": 1, \"name\": " + quotedJson(planFile_) +
        ", \"source\": \"HLO\", \"model\": " + quotedJson(modelName) +
        ",\n\"mesh\": " + mesh_->json() + ",\n\"programs\": [\n";
    documents.plan += programsJson(*mesh_, ranks_, wantedLocally_);
    documents.plan += "],\n\"lineage\": [\n" + lineage + "\n]";
    documents.model = modelText(wanted);
    listAssumptions(documents);
    if (!shared_.unknowns.empty())
      documents.assumptions.push_back(
          {"arbitrary-numbers", AssumptionClass::kHarmless,
           "the numbers of " + std::to_string(shared_.unknowns.size()) +
               (shared_.unknowns.size() == 1 ? " table" : " tables") +
               " that are not rational, or random, are taken for arbitrary ones by the proof"});
    JsonWriter capture;
    writeCapture(capture, {"", {}, {}, documents.assumptions});
    documents.plan += ",\n\"capture\": " + capture.take() + "}\n";
    return documents;
  }

 private:
  // Both programs become ones of stacked arrays.
  void stack() {
    for (const char* count : {"num_partitions", "replica_count"}) {
      const std::int64_t before = headerCount(modelModule_, count, modelFile_),
                         after = headerCount(planModule_, count, planFile_);
      if (before != after)
        failAt(planFile_, {},
               "found " + std::string(count) + "=" + std::to_string(after) +
                   ", the program before has " + std::to_string(before));
    }
    StackedPrograms stacked =
        stackedPrograms(modelModule_, modelFile_, planModule_, planFile_, devices_, replicas_);
    modelModule_ = std::move(stacked.model);
    planModule_ = std::move(stacked.plan);
  }

  void listAssumptions(Documents& documents) const {
    for (const auto& [k, range] : shared_.ranges) {
      const bool bounds = shared_.outOfBounds.contains(k) && !shared_.outOfBounds.at(k).empty(),
                 none = shared_.noValue.contains(k) && !shared_.noValue.at(k).empty();
      if (!bounds && !none) continue;
      std::string values, name = model_->parameters[k].name;
      if (range.shift() > 0) name.resize(name.rfind(" + "));
      for (const auto& [low, high] : range.values)
        values += (values.empty() ? "" : ", ") + std::to_string(low) +
                  (high == low + 1 ? "" : " to " + std::to_string(high - 1));
      const std::string what = "what the model looks up by elements of '" + name + "' is ",
                        these = "; of their values these are looked at: " + values;
      if (bounds)
        documents.assumptions.push_back(
            {"indices-in-bounds", AssumptionClass::kRisk, what + "there" + these});
      else
        documents.assumptions.push_back(
            {"looked-up-numbers", AssumptionClass::kCheckable, what + "a number" + these});
    }
    // Counters of 32 bits are in many steps; of what is narrower, a sum over ranks may not fit.
    for (const bool narrow : {false, true}) {
      std::vector<std::string> where;
      for (const auto& [line, found] : shared_.mayOverflow)
        if ((found.bits < kBitsOfCounters) == narrow) where.push_back(found.location);
      if (!where.empty())
        documents.assumptions.push_back(
            {narrow ? "narrow-integer-overflow" : "integer-overflow", AssumptionClass::kRisk,
             std::string("the integers ") +
                 (narrow ? "of fewer than " + std::to_string(kBitsOfCounters) + " bits " : "") +
                 "that are computed at " + listed(where) +
                 " fit their types; what they are where they wrap around is not looked at"});
    }
    if (!shared_.hostCalls.empty())
      documents.assumptions.push_back(
          {"host-callbacks", AssumptionClass::kCheckable,
           "calls of the host without results change nothing that is computed; what they are given "
           "is not compared: " +
               places(shared_.hostCalls)});
  }

  static std::string places(const std::set<std::pair<std::string, std::size_t>>& lines) {
    std::vector<std::string> texts;
    for (const auto& [file, line] : lines) texts.push_back(file + ":" + std::to_string(line));
    return listed(texts);
  }

  static std::string listed(const std::vector<std::string>& texts) {
    constexpr std::size_t kMostShown = 8;
    std::string text;
    for (std::size_t k = 0; k < std::min(texts.size(), kMostShown); ++k)
      text += (k == 0 ? "" : ", ") + texts[k];
    return texts.size() <= kMostShown
               ? text
               : text + " and " + std::to_string(texts.size() - kMostShown) + " more";
  }

  void lowerModel() {
    do {
      shared_.rangesChanged = false;
      shared_.unknowns.clear();
      shared_.mayOverflow.clear();
      shared_.hostCalls.clear();
      model_ = std::make_unique<Lowering>(modelModule_, modelFile_, shared_, Devices{}, nullptr);
      model_->run();
      shared_.updateRanges();
    } while (shared_.rangesChanged);
  }

  void lowerPlan() {
    constexpr int kMostPasses = 12;
    shared_.communicated.clear();
    shared_.communicatedTables.clear();
    shared_.communicatedIndices.clear();
    shared_.gatheredStarts.clear();
    for (int pass = 0;; ++pass) {
      shared_.communicatedChanged = false;
      shared_.forgetTables = pass >= kMostPasses;
      ranks_.assign(at(devices_), nullptr);
      for (std::int64_t d = 0; d < devices_; ++d) {
        if (ranks_[at(d)]) continue;
        std::vector<std::int64_t> candidates;
        for (std::int64_t e = d; e < devices_; ++e)
          if (!ranks_[at(e)]) candidates.push_back(e);
        const auto program = std::make_shared<Lowering>(
            planModule_, planFile_, shared_, Devices{candidates, devices_, replicas_}, mesh_.get());
        program->run();
        for (const std::int64_t e : program->devices()) ranks_[at(e)] = program;
      }
      shared_.updateRanges();
      if (!shared_.communicatedChanged || shared_.rangesChanged) return;
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
    std::vector<Sizes> begin(at(devices_), Sizes(full.sizes.size(), 0));
    if (local.shape.sizes.size() != full.sizes.size())
      fail("has shape " + toText(local.shape) + ", in the model " + toText(full));
    for (std::size_t d = 0; d < full.sizes.size(); ++d) {
      if (local.shape.sizes[d] * tiling->tiles[d] != full.sizes[d])
        fail("has shape " + toText(local.shape) + ", expected " + std::to_string(full.sizes[d]) +
             " divided by " + std::to_string(tiling->tiles[d]) + " in dimension " +
             std::to_string(d) + " (uneven pieces are not supported here)");
      for (std::int64_t r = 0; r < devices_; ++r)
        begin[at(r)][d] = tiling->tileOf[at(r)][d] * local.shape.sizes[d];
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
      for (const LocalUnknown& u : ranks_[at(r)]->localUnknowns)
        places[{u.unknown, u.tensor}][r] = u.offset;
    std::set<std::size_t> placed;
    for (const auto& [what, offsets] : places) {
      std::vector<Sizes> begin(at(devices_));
      std::vector<std::int64_t> on;
      for (const auto& [r, offset] : offsets) {
        begin[at(r)] = offset;
        on.push_back(r);
      }
      const Sizes& sizes = ranks_[at(on[0])]->graph.tensor(what.second).sizes;
      entry(lineage, shared_.unknowns[what.first].name, "input",
            mesh_->shards(what.second, sizes, begin, on));
      placed.insert(what.first);
    }
    for (std::size_t u = 0; u < shared_.unknowns.size(); ++u) {
      const Shared::Unknown& unknown = shared_.unknowns[u];
      if (!model_->graph.has(unknown.name))
        model_->graph.input(unknown.name, unknown.content.shape.sizes, false, "float32");
      if (placed.contains(u)) continue;
      // No rank has it: it needs a place all the same.
      const std::string name = "unused " + unknown.name;
      for (const auto& rank : ranks_)
        if (!rank->graph.has(name))
          rank->graph.input(name, unknown.content.shape.sizes, false, "float32");
      entry(
          lineage, unknown.name, "input",
          mesh_->shards(
              name, unknown.content.shape.sizes,
              std::vector<Sizes>(at(devices_), Sizes(unknown.content.shape.sizes.size(), 0)), {}));
    }
  }

  // What is known of the model's inputs, so that no difference counts at other values.
  void describeInputs() {
    for (const Shared::Unknown& unknown : shared_.unknowns)
      model_->graph.tensor(unknown.name).facts =
          "{\"numbers\": " + numbersText(unknown.content, shared_.scalars, approximations_) + "}";
    for (std::size_t k = 0; k < model_->parameters.size(); ++k) {
      const Lowering::Port& port = model_->parameters[k];
      const auto range = shared_.ranges.find(k);
      const std::int64_t shift = range == shared_.ranges.end() ? 0 : range->second.shift();
      if (const auto type = integerType(port.shape.type)) {
        // Where something is assumed not to overflow, at large integers it might.
        const std::int64_t most = std::int64_t{1} << (shared_.mayOverflow.empty() ? 60 : 20);
        std::string stretches;
        for (const Piece& p : model_->domainOf(port.name)) {
          const std::int64_t low = std::max(p.low, -most) + shift,
                             high = std::min(p.high, most) + shift;
          if (low < high) stretches += (stretches.empty() ? "" : ", ") + listJson({low, high});
        }
        if (!stretches.empty() &&
            (range != shared_.ranges.end() || !type->isSigned || type->bits < 32))
          model_->graph.tensor(port.name).facts = "{\"within\": [" + stretches + "]}";
      }
      if (numbers_.contains(k))
        model_->graph.tensor(port.name + Lowering::kAsNumber).facts =
            "{\"number_of\": " + quotedJson(port.name) + ", \"plus\": " + std::to_string(-shift) +
            "}";
    }
  }

  void outputLineage(std::string& lineage) const {
    for (std::size_t k = 0; k < model_->results.size(); ++k) {
      const Lowering::Port &full = model_->results[k], &local = ranks_[0]->results[k];
      const auto begin = begins(local, full.shape, "result " + std::to_string(k));
      entry(lineage, full.name, "output", mesh_->shards(local.name, local.shape.sizes, begin, {}));
    }
  }

  void cutPoints(std::string& lineage, std::set<std::string>& wanted,
                 const std::vector<std::vector<Sizes>>& begin) {
    for (const CutPoint& c : proposeCutPoints(*model_, ranks_, *mesh_, begin)) {
      entry(lineage, c.tensor, "cut_point", c.shards);
      wanted.insert(c.tensor);
      wantedLocally_.insert(c.local);
    }
  }

  // A pass keeps most instructions and their names. What only moves elements is left out.
  void sameInstructions(std::string& lineage, std::set<std::string>& wanted) {
    static const std::set<std::string, std::less<>> kMove{
        "view", "slice", "cat", "identity", "permute", "expand", "transpose"};
    for (const GraphNode& n : model_->graph.nodes()) {
      if (kMove.contains(n.op)) continue;
      for (const std::string& tensor : n.out) {
        const auto copy = copyOf(tensor);
        if (!copy || copy->device >= devices_) continue;
        const Graph& graph = ranks_[at(copy->device)]->graph;
        if (!graph.has(copy->tensor) || graph.tensor(copy->tensor).kind == "input") continue;
        const GraphTensor &local = graph.tensor(copy->tensor), &full = model_->graph.tensor(tensor);
        const Sizes& sizes = local.sizes;
        if (sizes != full.sizes || local.integer != full.integer) continue;
        entry(lineage, tensor, "cut_point",
              mesh_->shards(copy->tensor, sizes,
                            std::vector<Sizes>(at(devices_), Sizes(sizes.size(), 0)),
                            {copy->device}));
        wanted.insert(tensor);
        wantedLocally_.insert(copy->tensor);
      }
    }
  }

  // Results of functions of which nothing is known are inputs, their arguments must be equal.
  void opaqueCalls(std::string& lineage, const std::set<std::string>& wanted,
                   const std::vector<std::vector<Sizes>>& parameterBegins,
                   std::vector<Assumption>& assumptions) {
    const OpaqueTies found = tieOpaqueCalls(*model_, modelFile_, ranks_, planFile_, *mesh_, wanted,
                                            wantedLocally_, parameterBegins);
    if (options_.strict && found.first != nullptr)
      failAt(modelFile_, found.first->place,
             found.first->target +
                 " is a function of which nothing is known, which --strict "
                 "does not take");
    const auto place = [&](const OpaqueTie& t, const char* suffix, const char* role) {
      const Lowering& rank = *ranks_[at(t.on[0])];
      entry(lineage, t.tensor + suffix, role,
            mesh_->shards(t.local + suffix, rank.graph.tensor(t.local).sizes, t.begin, t.on));
    };
    for (const OpaqueTie& t : found.ties) {
      place(t, "", t.argument ? "output" : "input");
      if (t.argument) wantedLocally_.insert(t.local);
      if (t.argument || !model_->graph.tensor(t.tensor).integer) continue;
      // LAPACK's status, one for each call: differences are looked for where it succeeds, as
      // programs have no number elsewhere.
      if (t.status) model_->graph.tensor(t.tensor).facts = "{\"within\": [[0, 1]]}";
      // Where one program uses an integer as a number, all have it.
      const auto has = [&](const Lowering& l, const std::string& name) {
        return l.graph.has(name + Lowering::kAsNumber);
      };
      const bool used = has(*model_, t.tensor) ||
                        std::any_of(t.on.begin(), t.on.end(),
                                    [&](std::int64_t r) { return has(*ranks_[at(r)], t.local); });
      if (!used) continue;
      const auto add = [&](Lowering& l, const std::string& name) {
        if (!has(l, name))
          l.graph.dispensableInput(name + Lowering::kAsNumber, l.graph.tensor(name).sizes, false);
      };
      add(*model_, t.tensor);
      for (const std::int64_t r : t.on) add(*ranks_[at(r)], t.local);
      place(t, Lowering::kAsNumber, "input");
      model_->graph.tensor(t.tensor + Lowering::kAsNumber).facts =
          "{\"number_of\": " + quotedJson(t.tensor) + "}";
      placedInModel_.insert(t.tensor + Lowering::kAsNumber);
      wantedLocally_.insert(t.local + Lowering::kAsNumber);
    }
    for (const OpaqueTie& t : found.ties) {
      if (t.argument) continue;
      placedInModel_.insert(t.tensor);
      wantedLocally_.insert(t.local);
    }
    arguments_ = found.arguments;
    assumptions.insert(assumptions.end(), found.assumptions.begin(), found.assumptions.end());
  }

  std::string modelText(const std::set<std::string>& wanted) {
    std::set<std::string> needed = wanted;
    std::string outputs, arguments;
    for (const Lowering::Port& p : model_->results) {
      needed.insert(p.name);
      outputs += (outputs.empty() ? "" : ", ") + quotedJson(p.name);
    }
    needed.insert(arguments_.begin(), arguments_.end());
    needed.insert(placedInModel_.begin(), placedInModel_.end());
    for (const std::string& name : arguments_)
      arguments += (arguments.empty() ? "" : ", ") + quotedJson(name);
    if (!arguments.empty()) outputs += ", " + arguments;
    model_->graph.keepOnly(needed);
    return "{\"format\": \"shardproof-model\", \"version\": 1, \"name\": " +
           quotedJson(modelFile_) + ", \"source\": \"HLO\",\n" + model_->graph.json() +
           ",\n\"outputs\": [" + outputs + "]" +
           (arguments.empty() ? "" : ", \"arguments\": [" + arguments + "]") + "}\n";
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
  std::vector<std::shared_ptr<Lowering>> ranks_;
  std::set<std::size_t> numbers_;
  std::set<std::string> wantedLocally_, placedInModel_;
  std::vector<std::string> arguments_;  // of the model, of functions of which nothing is known
};

}  // namespace

Documents documentsOf(std::string_view modelText, const std::string& modelFile,
                      std::string_view planText, const std::string& planFile,
                      const std::string& modelName, const Options& options) {
  return Builder(modelText, modelFile, planText, planFile, options).build(modelName);
}

}  // namespace shardproof::hlo
