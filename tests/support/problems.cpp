// SPDX-License-Identifier: Apache-2.0
#include "support/problems.h"

#include "ops/collectives.h"
#include "ops/registry.h"
#include "prover/model_facts.h"
#include "reader/reader.h"

namespace shardproof::test {

Draft draft(const std::string& model, const std::string& plan) {
  return {Json::parse(model), Json::parse(plan)};
}

std::unique_ptr<Problem> read(const Draft& d) {
  const TemporaryDirectory directory;
  Json model{{"format", "shardproof-model"}, {"version", 1}},
      plan{{"format", "shardproof-plan"}, {"version", 1}};
  model.update(d.model);
  plan.update(d.plan);
  return readProblem(directory.write("m.json", model.dump()),
                     directory.write("p.json", plan.dump()), {}, ir::Programs::kAsStated);
}

std::unique_ptr<Problem> read(const std::string& model, const std::string& plan) {
  return read(draft(model, plan));
}

Draft microbatchByMicrobatch(int rows) {
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

std::filesystem::path sharedPlans() {
  if (const char* shared = std::getenv("SHARDPROOF_SHARED"))
    return std::filesystem::path(shared) / "plans";
  return std::filesystem::path(SHARDPROOF_SOURCE_DIR).parent_path() / "shared" / "plans";
}

std::vector<std::string> planNames() { return {kFirstPlan, kLargestPlan, kExpertsPlan}; }

std::unique_ptr<Problem> readShared(const std::string& name) {
  const auto file = sharedPlans() / name;
  return std::filesystem::exists(file) ? readProblem(std::nullopt, file.string()) : nullptr;
}

std::int32_t modelTensor(const Problem& problem, const std::string& name) {
  const auto& tensors = problem.model.graph.tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (problem.names.text(tensors[t].name) == name) return static_cast<std::int32_t>(t);
  }
  throw std::logic_error("the test looks for a tensor that the model does not have: " + name);
}

TensorId localTensor(const Problem& problem, std::int32_t program, const std::string& name) {
  const auto& tensors = problem.plan.programs[static_cast<std::size_t>(program)].graph.tensors;
  for (const TensorId t : firstIds<TensorId>(tensors.size())) {
    if (problem.names.text(tensors[t].name) == name) return t;
  }
  throw std::logic_error("the test looks for a tensor that the program does not have: " + name);
}

const CommunicationSpec& communicationOf(const Problem& problem, std::int32_t program,
                                         std::int32_t node) {
  const Program& p = problem.plan.programs[static_cast<std::size_t>(program)];
  return p.communications[static_cast<std::size_t>(
      p.graph.nodes[static_cast<std::size_t>(node)].communication)];
}

std::int32_t findIn(const Stage& stage, const Problem& problem, const std::string& name,
                    std::int32_t rank, std::int32_t microbatch) {
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

std::string opOf(const StageNode& node) {
  return node.communication == Communication::kNone ? ops::Registry::instance().at(node.op).name
                                                    : ops::communicationName(node.communication);
}

std::vector<std::string> opsOf(const Stage& stage, bool logical) {
  std::vector<std::string> list;
  for (const StageNode& node : stage.nodes) {
    if (node.logical == logical) list.push_back(opOf(node));
  }
  return list;
}

Cut cut(std::unique_ptr<Problem> problem, std::int32_t entry, const CutOptions& options) {
  auto planIndex = std::make_unique<PlanIndex>(*problem);
  if (!planIndex->defects().empty())
    throw std::logic_error("the test's plan has a defect: " + planIndex->defects().front().message);
  const ModelFacts facts = modelFacts(*problem);
  CutOptions informed = options;
  if (!informed.facts) informed.facts = &facts;
  Stage stage = cutStage(*planIndex, EntryId(entry), informed);
  return {std::move(problem), std::move(planIndex), std::move(stage)};
}

Cut cut(const Draft& d, std::int32_t entry, const CutOptions& options) {
  return cut(read(d), entry, options);
}

std::int32_t lastEntry(const Draft& d) {
  return static_cast<std::int32_t>(d.plan["lineage"].size()) - 1;
}

Draft pipeline() {
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

Draft approvedPipeline() {
  Draft d = pipeline();
  d.node(1, 1)["op"] = "mean";
  d.entry(4)["role"] = "assumed";
  d.entry(4)["approved"] = "means";
  return d;
}

Draft overDetermined() {
  Draft d = pipeline();
  const Json again = Json::parse(
      R"({"tensor": "s", "role": "checkpoint", "shards": [{"box": [],
          "parts": [{"local": "t", "at": {"pp": 1, "tp": 1}},
          {"local": "t", "at": {"pp": 1, "tp": 0}}], "sum": ["mb"]}]})");
  d.plan["lineage"].insert(d.plan["lineage"].begin() + 5, again);
  return d;
}

Draft twoRanks() {
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

Draft oneRank(const std::string& inputs, const std::string& modelTensors,
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
