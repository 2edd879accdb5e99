// SPDX-License-Identifier: Apache-2.0
// Canonical forms are equal for stages that differ in names only, and different for anything a
// proof depends on.
#include <algorithm>
#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "prover/model_facts.h"
#include "stages/stage.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::Draft;
using test::Json;

// Two layers, linear then add with alpha, on two tensor-parallel ranks; a cut point after each
// layer.
Draft twoLayers() {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [4, 8], "kind": "input"}}, "nodes": [], "outputs": ["y2"]})",
      R"({"mesh": [["tp", 2]], "programs": [{"tensors": {"x": {"shape": [4, 8], "kind": "input"}},
          "nodes": []}],
                            "lineage": [{"tensor": "x", "role": "input",
                             "shards": [{"box": [[0, 4], [0, 8]], "parts": [{"local": "x"}]}]}]})");
  for (const std::string layer : {"1", "2"}) {
    const std::string in = layer == "1" ? "x" : "y1", w = "w" + layer, h = "h" + layer,
                      g = "g" + layer, y = "y" + layer, c = "c" + layer;
    d.model["tensors"][w] = {{"shape", {8, 8}}, {"kind", "parameter"}};
    d.model["tensors"][c] = {{"shape", {8}}, {"kind", "constant"}, {"value", 0.5}};
    d.model["tensors"][h] = d.model["tensors"][y] = {{"shape", {4, 8}}};
    d.model["nodes"].push_back({{"op", "linear"}, {"in", {in, w}}, {"out", {h}}});
    d.model["nodes"].push_back(
        {{"op", "add"}, {"in", {h, c}}, {"out", {y}}, {"attrs", {{"alpha", 2}}}});
    d.tensor(0, w) = {{"shape", {4, 8}}, {"kind", "parameter"}};
    d.tensor(0, c) = d.model["tensors"][c];
    d.tensor(0, h) = {{"shape", {4, 4}}};
    d.tensor(0, g) = d.tensor(0, y) = {{"shape", {4, 8}}};
    d.program(0)["nodes"].push_back({{"op", "linear"}, {"in", {in, w}}, {"out", {h}}});
    d.program(0)["nodes"].push_back({{"op", "all_gather"},
                                     {"in", {h}},
                                     {"out", {g}},
                                     {"comm", "gather" + layer},
                                     {"group", {"tp"}},
                                     {"attrs", {{"dim", 1}}}});
    d.program(0)["nodes"].push_back(
        {{"op", "add"}, {"in", {g, c}}, {"out", {y}}, {"attrs", {{"alpha", 2}}}});
    d.plan["lineage"].push_back(
        {{"tensor", w},
         {"role", "input"},
         {"shards",
          {{{"box", {{0, 4}, {0, 8}}}, {"step", {{"tp", {4, 0}}}}, {"parts", {{{"local", w}}}}}}}});
    d.plan["lineage"].push_back(
        {{"tensor", y},
         {"role", layer == "1" ? "cut_point" : "output"},
         {"shards", {{{"box", {{0, 4}, {0, 8}}}, {"parts", {{{"local", y}}}}}}}});
  }
  return d;
}

struct Forms {
  std::string first, second;
};
Forms formsOf(const Draft& d) {
  const auto problem = test::read(d);
  const PlanIndex planIndex(*problem);
  if (!planIndex.defects().empty()) throw std::logic_error(planIndex.defects().front().message);
  const ModelFacts facts = modelFacts(*problem);
  CutOptions options;
  options.facts = &facts;
  return {canonicalForm(cutStage(planIndex, EntryId(2), options)),
          canonicalForm(cutStage(planIndex, EntryId(4), options))};
}

TEST(Canonical, EqualLayersHaveEqualForms) {
  const Forms forms = formsOf(twoLayers());
  EXPECT_EQ(forms.first, forms.second);
  EXPECT_FALSE(forms.first.empty());
}

TEST(Canonical, AnotherAttributeConstantOrOperatorMakesAnotherForm) {
  const std::vector<std::function<void(Draft&)>> edits{
      [](Draft& d) { d.model["nodes"][3]["attrs"]["alpha"] = 3; },
      [](Draft& d) { d.model["nodes"][3]["op"] = "sub"; },
      [](Draft& d) { d.model["tensors"]["c2"]["value"] = 0.25; },
      [](Draft& d) { d.node(0, 5)["attrs"]["alpha"] = 3; },
      [](Draft& d) { d.tensor(0, "c2")["value"] = 0.25; },
      [](Draft& d) {
        d.tensor(0, "c2") = d.model["tensors"]["c2"] = Json::parse(
            R"({"shape": [8], "kind": "constant", "value": [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5,
                0.5]})");
      },
      [](Draft& d) {
        d.node(0, 5)["in"] = {"h2", "c2"}, d.tensor(0, "c2")["shape"] = {4},
                  d.tensor(0, "y2")["shape"] = {4, 4},
                  d.entry(4)["shards"][0]["box"] = {{0, 4}, {0, 4}},
                  d.entry(4)["shards"][0]["step"] = {{"tp", {0, 4}}};
      },
  };
  for (std::size_t i = 0; i < edits.size(); ++i) {
    Draft d = twoLayers();
    edits[i](d);
    const Forms forms = formsOf(d);
    EXPECT_NE(forms.first, forms.second) << "edit " << i;
    EXPECT_EQ(forms.first, formsOf(twoLayers()).first) << "edit " << i;
  }
}

// Every field of a stage that the reduction, the interpreter or the checker reads.
TEST(Canonical, EveryFieldThatDecidesAProofCounts) {
  const auto c = test::cut(twoLayers(), 2);
  const Stage& stage = c.stage;
  const std::string form = canonicalForm(stage);
  const auto node = [](Stage& s, Communication kind) -> StageNode& {
    for (StageNode& n : s.nodes) {
      if (n.communication == kind) return n;
    }
    throw std::logic_error("no such node");
  };
  const auto empty = std::make_shared<const Attributes>();
  const std::vector<std::function<void(Stage&)>> edits{
      [](Stage& s) { s.tensors[0].info.shape[0] += 1; },
      [](Stage& s) { s.tensors[0].info.shape.push_back(1); },
      [](Stage& s) { s.tensors[0].info.element = ElementKind::kInteger; },
      [](Stage& s) { s.tensors[0].origin = Origin::kUnbound; },
      [](Stage& s) { s.tensors[0].logical = !s.tensors[0].logical; },
      [](Stage& s) { std::swap(s.tensors[0], s.tensors[2]); },
      [](Stage& s) { s.nodes[0].op = s.nodes[1].op; },
      [&](Stage& s) { s.nodes[1].attributes = empty; },
      [](Stage& s) { std::swap(s.nodes[0].in[0], s.nodes[0].in[1]); },
      [](Stage& s) { s.nodes[0].in[1] = StageTensorId(); },
      [](Stage& s) { s.nodes[0].in.pop_back(); },
      [](Stage& s) { s.nodes[1].out[0] = StageTensorId(); },
      [](Stage& s) { s.nodes.pop_back(); },
      [&](Stage& s) {
        node(s, Communication::kAllGather).communication = Communication::kAllReduce;
      },
      [&](Stage& s) { node(s, Communication::kAllGather).reduction = Reduction::kMax; },
      [&](Stage& s) { node(s, Communication::kAllGather).dim = 0; },
      [&](Stage& s) { node(s, Communication::kAllGather).odim = 1; },
      [&](Stage& s) { node(s, Communication::kAllGather).member += 1; },
      [&](Stage& s) { node(s, Communication::kAllGather).weight[1] = 7; },
      [&](Stage& s) {
        std::swap(node(s, Communication::kAllGather).in[0],
                  node(s, Communication::kAllGather).in[1]);
      },
      [](Stage& s) { ++s.claims[0].logical; },
      [](Stage& s) { s.claims[0].box[0].first += 1; },
      [](Stage& s) { s.claims[0].box[0].second -= 1; },
      [](Stage& s) { ++s.claims[0].parts[0].first; },
      [](Stage& s) { s.claims[0].parts[0].second = 2; },
      [](Stage& s) { s.claims[0].parts.push_back(s.claims[0].parts[0]); },
      [](Stage& s) {
        s.claims[0].step.push_back({0, 1, {1, 0}});
      },
      [](Stage& s) { s.claims.pop_back(); },
      [](Stage& s) { s.assumptions[0].box[0].first += 1; },
      [](Stage& s) { s.assumptions.pop_back(); },
      [](Stage& s) { s.claims.push_back(s.assumptions.back()), s.assumptions.pop_back(); },
      [](Stage& s) { s.collapsedAxes.push_back(CollapsedAxis::whole(0, 8)); },
  };
  for (std::size_t i = 0; i < edits.size(); ++i) {
    Stage edited = stage;
    edits[i](edited);
    EXPECT_NE(canonicalForm(edited), form) << "edit " << i;
  }
  Stage withAxis = stage;
  withAxis.collapsedAxes.push_back(CollapsedAxis::whole(0, 8));
  withAxis.claims[0].step.push_back({0, 0, {1, 0}});
  const std::string collapsedForm = canonicalForm(withAxis);
  const std::vector<std::function<void(Stage&)>> collapsedEdits{
      [](Stage& s) {
        s.collapsedAxes[0] = CollapsedAxis::ofClasses(0, 8, {{0, 1, 2, 3, 4, 6, 7}, {5}});
      },
      [](Stage& s) { s.collapsedAxes[0] = CollapsedAxis::whole(0, 16); },
      [](Stage& s) { s.collapsedAxes[0].alone = {0}; },
      [](Stage& s) { s.claims[0].step[0].coordinate = 1; },
      [](Stage& s) {
        s.claims[0].step[0].offset = {0, 1};
      },
      [](Stage& s) { s.claims[0].step[0].collapsed = 1; },
  };
  for (std::size_t i = 0; i < collapsedEdits.size(); ++i) {
    Stage edited = withAxis;
    collapsedEdits[i](edited);
    EXPECT_NE(canonicalForm(edited), collapsedForm) << "collapsed edit " << i;
  }
}

TEST(Canonical, NamesRanksAndPlacesDoNotCount) {
  const auto c = test::cut(twoLayers(), 2);
  Stage other = c.stage;
  other.entry = EntryId(77);
  other.usedEntries = {EntryId(1), EntryId(2), EntryId(3)};
  for (StageTensor& t : other.tensors) {
    if (t.origin == Origin::kConstant) continue;  // its value is looked up by these
    ++t.tensor, ++t.program, ++t.rank, t.microbatch = Microbatch::of(7);
  }
  for (StageNode& n : other.nodes)
    ++n.program, ++n.node, ++n.rank, n.microbatch = Microbatch::of(7);
  for (Equation& e : other.claims) ++e.entry, e.shard += 1;
  EXPECT_EQ(canonicalForm(other), canonicalForm(c.stage));
  other.collapsedAxes = {CollapsedAxis::whole(0, 8)};
  const std::string form = canonicalForm(other);
  other.collapsedAxes = {CollapsedAxis::whole(3, 8)};
  EXPECT_EQ(canonicalForm(other), form);
}

// Forms of several problems are compared with each other: ids that a problem gives out in the order
// of its own reading must not be in them.
TEST(Canonical, IdsOfAttributesAndConstantsDoNotCountAcrossProblems) {
  Draft other = twoLayers();
  // Tensors, constants and attribute sets that come first, so that all others get other ids;
  // nothing depends on them.
  Json tensors{{"k0", {{"shape", {3}}, {"kind", "constant"}, {"value", {1, 2, 3}}}},
               {"k1", {{"shape", {3}}}}};
  for (Json* graph : {&other.model, &other.program(0)}) {
    Json all = tensors;
    all.update((*graph)["tensors"]);
    (*graph)["tensors"] = all;
    (*graph)["nodes"].insert(
        (*graph)["nodes"].begin(),
        Json{{"op", "add"}, {"in", {"k0", "k0"}}, {"out", {"k1"}}, {"attrs", {{"alpha", 77}}}});
  }
  const auto here = test::cut(twoLayers(), 2), there = test::cut(other, 2);
  const auto add = [](const Stage& s) {
    return std::find_if(s.nodes.begin(), s.nodes.end(),
                        [](const StageNode& n) { return test::opOf(n) == "add"; })
        ->attributes;
  };
  ASSERT_NE(add(here.stage), add(there.stage));
  EXPECT_EQ(canonicalForm(here.stage), canonicalForm(there.stage));
}

TEST(Canonical, OtherAttributesAndConstantsMakeAnotherForm) {
  const auto here = test::cut(twoLayers(), 2);
  const std::string form = canonicalForm(here.stage);
  for (const bool inPlan : {false, true}) {
    Draft d = twoLayers();
    for (const int layer : {0, 1})
      (inPlan ? d.node(0, 2 + 3 * static_cast<std::size_t>(layer))
              : d.model["nodes"][1 + 2 * static_cast<std::size_t>(layer)])["attrs"]["alpha"] = 3;
    const auto there = test::cut(d, 2);
    EXPECT_NE(canonicalForm(there.stage), form);
    d = twoLayers();
    for (const char* name : {"c1", "c2"})
      (inPlan ? d.program(0) : d.model)["tensors"][name]["value"] = 0.25;
    const auto constants = test::cut(d, 2);
    EXPECT_NE(canonicalForm(constants.stage), form);
  }
  // In every node that has the attribute, so that nothing but its value differs.
  Draft d = twoLayers();
  for (const int layer : {0, 1})
    d.model["nodes"][1 + 2 * static_cast<std::size_t>(layer)]["attrs"]["alpha"] =
        d.node(0, 2 + 3 * static_cast<std::size_t>(layer))["attrs"]["alpha"] = 3;
  const auto there = test::cut(d, 2);
  ASSERT_EQ(here.stage.nodes.size(), there.stage.nodes.size());
  EXPECT_NE(canonicalForm(there.stage), form);
}

// Every type of attribute, and values of different types that read alike.
TEST(Canonical, AttributesOfEveryTypeCount) {
  auto c = test::cut(twoLayers(), 2);
  std::vector<Attributes> sets{{}};
  for (const char* key : {"a", "b"}) {
    for (const AttributeValue& value :
         {AttributeValue(true), AttributeValue(false), AttributeValue(Rational(1)),
          AttributeValue(Rational(0)), AttributeValue(Rational(1, 3)),
          AttributeValue(std::string("1")), AttributeValue(std::string("")),
          AttributeValue(std::vector<std::int64_t>{}), AttributeValue(std::vector<std::int64_t>{1}),
          AttributeValue(std::vector<std::int64_t>{1, 2})}) {
      sets.push_back({{key, value}});
    }
  }
  sets.push_back({{"a", true}, {"b", true}});
  std::set<std::string> forms;
  for (const Attributes& a : sets) {
    c.stage.nodes[1].attributes = std::make_shared<const Attributes>(a);
    EXPECT_TRUE(forms.insert(canonicalForm(c.stage)).second);
  }
}

TEST(Canonical, AConstantsListAndItsFillAreTwoThings) {
  auto c = test::cut(twoLayers(), 2);
  const std::string form = canonicalForm(c.stage);
  int constants = 0;
  for (StageTensor& tensor : c.stage.tensors) {
    if (tensor.origin != Origin::kConstant) continue;
    ++constants;
    ASSERT_TRUE(tensor.constant->fill);
    auto listed = std::make_shared<ConstantValue>(*tensor.constant);
    listed->fill = false;
    tensor.constant = std::move(listed);
  }
  EXPECT_GT(constants, 0);
  EXPECT_NE(canonicalForm(c.stage), form);
}

}  // namespace
}  // namespace shardproof
