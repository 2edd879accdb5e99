// SPDX-License-Identifier: Apache-2.0
// Problems for the tests of what comes after the reader: small ones from inline JSON, and the real
// plans beside the repository.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "ops/collectives.h"
#include "ops/registry.h"
#include "plan/plan_index.h"
#include "prover/model_facts.h"
#include "reader/reader.h"
#include "shardproof/error.h"
#include "shardproof/graph.h"
#include "stages/cutter.h"
#include "stages/stage.h"

namespace shardproof::test {

using Json = nlohmann::ordered_json;

// A directory that goes away with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "shardproof-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary directory");
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::string write(const std::string& name, const std::string& text) const {
    const std::string file = (path_ / name).string();
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }

 private:
  std::filesystem::path path_;
};

// A problem as JSON, without the headers, so that a test can edit it before it is read.
struct Draft {
  Json model, plan;
  Json& program(std::size_t i) { return plan["programs"][i]; }
  Json& node(std::size_t program_, std::size_t n) { return plan["programs"][program_]["nodes"][n]; }
  Json& tensor(std::size_t program_, const std::string& name) {
    return plan["programs"][program_]["tensors"][name];
  }
  Json& entry(std::size_t i) { return plan["lineage"][i]; }
};

inline Draft draft(const std::string& model, const std::string& plan) {
  return {Json::parse(model), Json::parse(plan)};
}

// With the programs that it states.
inline std::unique_ptr<Problem> read(const Draft& d) {
  const TemporaryDirectory directory;
  Json model{{"format", "shardproof-model"}, {"version", 1}},
      plan{{"format", "shardproof-plan"}, {"version", 1}};
  model.update(d.model);
  plan.update(d.plan);
  return readProblem(directory.write("m.json", model.dump()),
                     directory.write("p.json", plan.dump()), {}, ir::Programs::kAsStated);
}
inline std::unique_ptr<Problem> read(const std::string& model, const std::string& plan) {
  return read(draft(model, plan));
}

// ---- the real plans; tests that need them are skipped where they are absent ----

// The sum of squares over `rows` rows of each of 8 microbatches, which a schedule names one by one,
// and whose results it adds up one after the other, in `sum.1` to `sum.6` and `y`.
inline Draft microbatchByMicrobatch(int rows) {
  Draft d = draft(
      R"({"tensors": {"x": {"kind": "input"}, "s": {}, "y": {"shape": [6]}},
          "nodes": [{"op": "square", "in": ["x"], "out": ["s"]},
           {"op": "sum", "in": ["s"], "out": ["y"], "attrs": {"dim": 0}}], "outputs": ["y"]})",
      R"({"mesh": [["dp", 1]], "microbatches": 8, "programs": [],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"step": {},
           "parts": [{"local": "x"}]}]},
                      {"tensor": "y", "role": "output", "shards": [{"box": [[0, 6]],
                       "parts": [{"local": "y"}]}]}]})");
  const Json part = {rows, 6}, whole = {8 * rows, 6};
  d.model["tensors"]["x"]["shape"] = d.model["tensors"]["s"]["shape"] = whole;
  d.plan["lineage"][0]["shards"][0]["box"] = Json::array({{0, rows}, {0, 6}});
  d.plan["lineage"][0]["shards"][0]["step"]["mb"] = {rows, 0};
  Json tensors = {{"x", {{"shape", part}, {"kind", "input"}, {"per_mb", true}}},
                  {"s", {{"shape", part}, {"per_mb", true}}},
                  {"t", {{"shape", {6}}, {"per_mb", true}}}};
  Json nodes = Json::array();
  for (int m = 0; m < 8; ++m) {
    nodes.push_back({{"op", "square"}, {"in", {"x"}}, {"out", {"s"}}, {"mb", m}});
    nodes.push_back(
        {{"op", "sum"}, {"in", {"s"}}, {"out", {"t"}}, {"attrs", {{"dim", 0}}}, {"mb", m}});
    if (m == 0) continue;
    const std::string sum = m == 7 ? "y" : "sum." + std::to_string(m);
    tensors[sum] = {{"shape", {6}}};
    const std::string before = m == 1 ? "t#0" : "sum." + std::to_string(m - 1);
    nodes.push_back({{"op", "add"}, {"in", {before, "t"}}, {"out", {sum}}, {"mb", m}});
  }
  d.plan["programs"].push_back({{"order", "issue"}, {"tensors", tensors}, {"nodes", nodes}});
  return d;
}

inline std::filesystem::path sharedPlans() {
  if (const char* shared = std::getenv("SHARDPROOF_SHARED"))
    return std::filesystem::path(shared) / "plans";
  return std::filesystem::path(SHARDPROOF_SOURCE_DIR).parent_path() / "shared" / "plans";
}
inline constexpr const char* kFirstPlan = "llama3_dp2_pp2_tp2_nm2_ly2.plan.json";
inline constexpr const char* kLargestPlan = "llama3_dp64_pp4_tp8_nm8_ly2.plan.json.gz";
inline constexpr const char* kExpertsPlan = "moe_dp16_pp2_tp4_nm16_ly2_e64.plan.json.gz";
inline std::vector<std::string> planNames() { return {kFirstPlan, kLargestPlan, kExpertsPlan}; }
// nullptr where the plan is absent.
inline std::unique_ptr<Problem> readShared(const std::string& name) {
  const auto file = sharedPlans() / name;
  return std::filesystem::exists(file) ? readProblem(std::nullopt, file.string()) : nullptr;
}

// ---- looking things up ----

inline std::int32_t modelTensor(const Problem& problem, const std::string& name) {
  const auto& tensors = problem.model.graph.tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (problem.names.text(tensors[t].name) == name) return static_cast<std::int32_t>(t);
  }
  throw std::logic_error("the test looks for a tensor that the model does not have: " + name);
}
inline TensorId localTensor(const Problem& problem, std::int32_t program, const std::string& name) {
  const auto& tensors = problem.plan.programs[static_cast<std::size_t>(program)].graph.tensors;
  for (const TensorId t : firstIds<TensorId>(tensors.size())) {
    if (problem.names.text(tensors[t].name) == name) return t;
  }
  throw std::logic_error("the test looks for a tensor that the program does not have: " + name);
}
inline const CommunicationSpec& communicationOf(const Problem& problem, std::int32_t program,
                                                std::int32_t node) {
  const Program& p = problem.plan.programs[static_cast<std::size_t>(program)];
  return p.communications[static_cast<std::size_t>(
      p.graph.nodes[static_cast<std::size_t>(node)].communication)];
}
// The stage tensor of a model's tensor, or of a local one on `rank` (microbatch -1: any); -1 when
// the stage has none.
inline std::int32_t findIn(const Stage& stage, const Problem& problem, const std::string& name,
                           std::int32_t rank = -1, std::int32_t microbatch = -1) {
  for (std::size_t t = 0; t < stage.tensors.size(); ++t) {
    const StageTensor& tensor = stage.tensors[t];
    if (tensor.logical != (rank < 0)) continue;
    const Graph& graph =
        tensor.logical ? problem.model.graph
                       : problem.plan.programs[static_cast<std::size_t>(tensor.program)].graph;
    if (problem.names.text(graph.tensors[static_cast<std::size_t>(tensor.tensor)].name) != name)
      continue;
    if (rank >= 0 && (tensor.rank != rank ||
                      (microbatch >= 0 && tensor.microbatch != Microbatch::of(microbatch))))
      continue;
    return static_cast<std::int32_t>(t);
  }
  return -1;
}

// The name of a stage node's operator or communication, for lists of what a stage holds.
inline std::string opOf(const StageNode& node) {
  return node.communication == Communication::kNone ? ops::Registry::instance().at(node.op).name
                                                    : ops::communicationName(node.communication);
}
inline std::vector<std::string> opsOf(const Stage& stage, bool logical) {
  std::vector<std::string> list;
  for (const StageNode& node : stage.nodes) {
    if (node.logical == logical) list.push_back(opOf(node));
  }
  return list;
}

// Ids by their numbers.
template <class AnyId>
std::vector<AnyId> ids(std::initializer_list<int> numbers) {
  std::vector<AnyId> made;
  for (const int n : numbers) made.emplace_back(n);
  return made;
}

// A problem, its index and one stage, kept alive together.
struct Cut {
  std::unique_ptr<Problem> problem;
  std::unique_ptr<PlanIndex> planIndex;
  Stage stage;
};
inline Cut cut(std::unique_ptr<Problem> problem, std::int32_t entry,
               const CutOptions& options = {}) {
  auto planIndex = std::make_unique<PlanIndex>(*problem);
  if (!planIndex->defects().empty())
    throw std::logic_error("the test's plan has a defect: " + planIndex->defects().front().message);
  const ModelFacts facts = modelFacts(*problem);
  CutOptions informed = options;
  if (!informed.facts) informed.facts = &facts;
  Stage stage = cutStage(*planIndex, EntryId(entry), informed);
  return {std::move(problem), std::move(planIndex), std::move(stage)};
}
inline Cut cut(const Draft& d, std::int32_t entry, const CutOptions& options = {}) {
  return cut(read(d), entry, options);
}
inline std::int32_t lastEntry(const Draft& d) {
  return static_cast<std::int32_t>(d.plan["lineage"].size()) - 1;
}

// ---- problems that several tests use ----

// Two pipeline stages of two tensor-parallel ranks each, two microbatches: rank = 2 pp + tp.
// Lineage: 0 x, 1 w (inputs), 2 y on pp 0, 3 y on pp 1, 4 t (sums over each microbatch's columns),
// 5 the output s.
inline Draft pipeline() {
  return draft(
      R"({"tensors": {"x": {"shape": [8, 4], "kind": "input"},
          "w": {"shape": [6, 4], "kind": "parameter"}, "y": {"shape": [8, 6]}, "s": {"shape": []}},
    "nodes": [{"op": "linear", "in": ["x", "w"], "out": ["y"]},
     {"op": "sum", "in": ["y"], "out": ["s"], "loc": "model.py:2"}], "outputs": ["s"]})",
      R"({"mesh": [["pp", 2], ["tp", 2]], "microbatches": 2, "programs": [
      {"at": {"pp": 0}, "tensors": {"x": {"shape": [4, 4], "kind": "input", "per_mb": true},
       "w": {"shape": [3, 4], "kind": "parameter"}, "y": {"shape": [4, 3], "per_mb": true}},
       "nodes": [{"op": "linear", "in": ["x", "w"], "out": ["y"], "mb": "*"},
        {"op": "send", "in": ["y"], "out": [], "comm": "p2p", "to": {"pp": 1}, "mb": "*"}]},
      {"at": {"pp": 1}, "tensors": {"y": {"shape": [4, 3], "per_mb": true},
       "t": {"shape": [], "per_mb": true}, "s0": {"shape": []}, "s": {"shape": []}},
       "nodes": [{"op": "recv", "in": [], "out": ["y"], "comm": "p2p", "from": {"pp": 0},
        "mb": "*"}, {"op": "sum", "in": ["y"], "out": ["t"], "mb": "*", "loc": "plan.py:7"},
                 {"op": "add", "in": ["t#0", "t#1"], "out": ["s0"]},
                  {"op": "all_reduce", "in": ["s0"], "out": ["s"], "comm": "ar",
                  "group": ["tp"]}]}],
     "lineage": [
      {"tensor": "x", "role": "input", "shards": [{"box": [[0, 4], [0, 4]], "step": {"mb": [4, 0]},
       "parts": [{"local": "x", "at": {"pp": 0}}]}]},
      {"tensor": "w", "role": "input", "shards": [{"box": [[0, 3], [0, 4]], "step": {"tp": [3, 0]},
       "parts": [{"local": "w", "at": {"pp": 0}}]}]},
      {"tensor": "y", "role": "checkpoint", "shards": [{"box": [[0, 4], [0, 3]],
       "step": {"mb": [4, 0], "tp": [0, 3]}, "parts": [{"local": "y", "at": {"pp": 0}}]}]},
      {"tensor": "y", "role": "checkpoint", "shards": [{"box": [[0, 4], [0, 3]],
       "step": {"mb": [4, 0], "tp": [0, 3]}, "parts": [{"local": "y", "at": {"pp": 1}}]}]},
      {"tensor": "s", "role": "checkpoint", "shards": [{"box": [],
       "parts": [{"local": "t", "at": {"pp": 1}}], "sum": ["tp", "mb"]}]},
      {"tensor": "s", "role": "output", "shards": [{"box": [],
       "parts": [{"local": "s", "at": {"pp": 1}}]}]}]})");
}

// The pipeline, whose ranks take means where the model sums. Entry 4, about what they sum up to, is
// an approved difference.
inline Draft approvedPipeline() {
  Draft d = pipeline();
  d.node(1, 1)["op"] = "mean";
  d.entry(4)["role"] = "assumed";
  d.entry(4)["approved"] = "means";
  return d;
}

// The pipeline, with the sum of t stated once more in other words: the second equation finds no
// part that is not determined. Output: 6.
inline Draft overDetermined() {
  Draft d = pipeline();
  const Json again = Json::parse(
      R"({"tensor": "s", "role": "checkpoint", "shards": [{"box": [],
          "parts": [{"local": "t", "at": {"pp": 1, "tp": 1}},
          {"local": "t", "at": {"pp": 1, "tp": 0}}], "sum": ["mb"]}]})");
  d.plan["lineage"].insert(d.plan["lineage"].begin() + 5, again);
  return d;
}

// Two ranks, each with its own program, that hold the halves of x [8] and compute nothing yet.
// Lineage: 0 x.
inline Draft twoRanks() {
  Draft d =
      draft(R"({"tensors": {"x": {"shape": [8], "kind": "input"}}, "nodes": [], "outputs": ["x"]})",
            R"({"mesh": [["tp", 2]], "programs": [
      {"at": {"tp": 0}, "tensors": {"x": {"shape": [4], "kind": "input"}}, "nodes": []},
      {"at": {"tp": 1}, "tensors": {"x": {"shape": [4], "kind": "input"}}, "nodes": []}],
     "lineage": [
      {"tensor": "x", "role": "input", "shards": [{"box": [[0, 4]], "step": {"tp": [4]},
       "parts": [{"local": "x"}]}]},
      {"tensor": "x", "role": "output", "shards": [{"box": [[0, 4]], "step": {"tp": [4]},
       "parts": [{"local": "x"}]}]}]})");
  return d;
}

// One rank; the model and the plan each compute "o" from inputs that are equal. `modelNodes` and
// `planNodes` are lists of nodes, `tensors` what both declare besides (each side may leave out what
// it does not produce). Last entry: the output.
inline Draft oneRank(const std::string& inputs, const std::string& modelTensors,
                     const std::string& modelNodes, const std::string& planTensors,
                     const std::string& planNodes) {
  Draft d;
  const Json given = Json::parse("{" + inputs + "}");
  Json modelAll = given, planAll = given;
  modelAll.update(Json::parse("{" + modelTensors + "}"));
  planAll.update(Json::parse("{" + planTensors + "}"));
  const auto boxOf = [](const Json& shape) {
    Json box = Json::array();
    for (const auto& n : shape) box.push_back({0, n});
    return box;
  };
  d.model = {
      {"tensors", modelAll}, {"nodes", Json::parse("[" + modelNodes + "]")}, {"outputs", {"o"}}};
  Json lineage = Json::array();
  for (const auto& [name, t] : given.items()) {
    if (t["kind"] == "constant") continue;
    lineage.push_back({{"tensor", name},
                       {"role", "input"},
                       {"shards", {{{"box", boxOf(t["shape"])}, {"parts", {{{"local", name}}}}}}}});
  }
  lineage.push_back(
      {{"tensor", "o"},
       {"role", "output"},
       {"shards", {{{"box", boxOf(modelAll["o"]["shape"])}, {"parts", {{{"local", "o"}}}}}}}});
  d.plan = {{"mesh", Json::array()},
            {"programs", {{{"tensors", planAll}, {"nodes", Json::parse("[" + planNodes + "]")}}}},
            {"lineage", lineage}};
  return d;
}

}  // namespace shardproof::test
