// SPDX-License-Identifier: Apache-2.0
// A stage read back from its canonical form is the same proof problem: what the checker says about
// it does not depend on anything that the form leaves out.
#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string_view>

#include <gtest/gtest.h>

#include "cache/proof_store.h"
#include "check/checker.h"
#include "shape_reduction/reduction.h"
#include "stages/canonical_reader.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::Draft;
using test::Json;

// On each side: the sum of two dropouts of x, the first with seed 1 and the second with the given
// one, scaled by a constant.
Draft dropouts(int modelSeed, int planSeed) {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [4, 8], "kind": "input"}, "a": {"shape": [4, 8]},
          "b": {"shape": [4, 8]}, "c": {"shape": [4, 8]},
                                        "k": {"shape": [8], "kind": "constant",
                                         "value": [1, 2, 3, 4, 5, 6, 7, 0.125]},
                                         "y": {"shape": [4, 8]}}, "outputs": ["y"],
                            "nodes": [{"op": "dropout", "in": ["x"], "out": ["a"],
                             "attrs": {"p": 0.1, "seed": 1}},
                             {"op": "dropout", "in": ["x"], "out": ["b"], "attrs": {"p": 0.1}},
                                      {"op": "add", "in": ["a", "b"], "out": ["c"]},
                                       {"op": "mul", "in": ["c", "k"], "out": ["y"]}]})",
      R"({"mesh": [["dp", 2]], "programs": [{"tensors": {"x": {"shape": [2, 8], "kind": "input"},
          "a": {"shape": [2, 8]}, "b": {"shape": [2, 8]}, "c": {"shape": [2, 8]},
                                        "k": {"shape": [8], "kind": "constant",
                                         "value": [1, 2, 3, 4, 5, 6, 7, 0.125]},
                                         "y": {"shape": [2, 8]}},
                            "nodes": [{"op": "dropout", "in": ["x"], "out": ["a"],
                             "attrs": {"p": 0.1, "seed": 1}},
                             {"op": "dropout", "in": ["x"], "out": ["b"], "attrs": {"p": 0.1}},
                                      {"op": "add", "in": ["a", "b"], "out": ["c"]},
                                       {"op": "mul", "in": ["c", "k"], "out": ["y"]}]}],
                            "lineage": [{"tensor": "x", "role": "input",
                             "shards": [{"box": [[0, 2], [0, 8]], "step": {"dp": [2, 0]},
                             "parts": [{"local": "x"}]}]},
                                        {"tensor": "y", "role": "output",
                                         "shards": [{"box": [[0, 2], [0, 8]],
                                         "step": {"dp": [2, 0]}, "parts": [{"local": "y"}]}]}]})");
  d.model["nodes"][1]["attrs"]["seed"] = modelSeed;
  d.node(0, 1)["attrs"]["seed"] = planSeed;
  return d;
}

// What a verdict is, without names and times. Empty where the stage must be cut without collapsed
// axes.
struct Decision {
  bool needsRefinement = false;
  StageVerdict verdict = StageVerdict::kUndecided;
  StoredProof proof;
  std::int32_t claim = -1;
};
Decision decide(const Stage& stage, Checker checker) {
  CheckOptions options;
  options.checker = checker;
  options.timeoutSeconds = 5;
  const StageOutcome outcome = checkStage(stage, options);
  if (outcome.needsRefinement) return {true, StageVerdict::kUndecided, {}, -1};
  return {false, outcome.verdict(), storedProof(stage, outcome.method(), outcome.reducedShapes),
          outcome.claim};
}

// The reduced shapes of tensors that both list (stages with made-up names list more).
void expectSame(const Decision& read, const Decision& cut, const std::string& what) {
  EXPECT_EQ(read.needsRefinement, cut.needsRefinement) << what;
  EXPECT_EQ(read.verdict, cut.verdict) << what;
  EXPECT_EQ(read.proof.method, cut.proof.method) << what;
  EXPECT_EQ(read.claim, cut.claim) << what;
  std::map<std::int32_t, Shape> shapes;
  for (const auto& s : read.proof.shapes) shapes.emplace(s.tensor, s.shape);
  for (const auto& s : cut.proof.shapes) {
    if (const auto it = shapes.find(s.tensor); it != shapes.end()) {
      EXPECT_EQ(it->second, s.shape) << what;
    }
  }
}

// Every class of the problem. Returns how many were compared.
std::size_t expectForms(const Problem& problem, const std::vector<bool>& collapsedAxes,
                        std::size_t most = SIZE_MAX) {
  const PlanIndex planIndex(problem);
  std::set<std::string> seen;
  for (std::size_t e = 0; e < problem.plan.lineage.size(); ++e) {
    if (problem.plan.lineage[e].role == Role::kInput) continue;
    for (const bool collapsed : collapsedAxes) {
      CutOptions cut;
      cut.collapse = collapsed;
      const Stage stage = cutStage(planIndex, EntryId(e), cut);
      const std::string form = canonicalForm(stage);
      if (seen.size() >= most || !seen.insert(form).second) continue;
      const Stage read = readCanonicalForm(form);
      EXPECT_EQ(canonicalForm(read), form) << "entry " << e;
      expectSame(decide(read, Checker::kAuto), decide(stage, Checker::kAuto),
                 "entry " + std::to_string(e));
    }
  }
  return seen.size();
}

TEST(CanonicalReader, AStageAndItsFormAreDecidedAlike) {
  for (const auto& [model, plan] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 2}, {1, 2}, {2, 1}}) {
    const auto c = test::cut(dropouts(model, plan), 1);
    const std::string form = canonicalForm(c.stage);
    const Stage read = readCanonicalForm(form);
    EXPECT_EQ(canonicalForm(read), form);
    for (const Checker checker : {Checker::kAuto, Checker::kZ3}) {
      const Decision of = decide(c.stage, checker);
      EXPECT_EQ(of.verdict == StageVerdict::kProved, model == plan) << model << " " << plan;
      expectSame(decide(read, checker), of,
                 "seeds " + std::to_string(model) + " " + std::to_string(plan));
    }
  }
}

// A mask that two nodes share is another thing than two masks.
TEST(CanonicalReader, SharedDropoutMasksCount) {
  const auto form = [](int model, int plan) {
    const auto c = test::cut(dropouts(model, plan), 1);
    return canonicalForm(c.stage);
  };
  std::set<std::string> forms{form(1, 1), form(2, 2), form(1, 2), form(2, 1)};
  EXPECT_EQ(forms.size(), 4u);
}

TEST(CanonicalReader, EveryStageOfTheFirstPlanIsDecidedAlike) {
  const auto problem = test::readShared(test::kFirstPlan);
  if (!problem) GTEST_SKIP() << "no shared plans";
  EXPECT_GT(expectForms(*problem, {true, false}), 100u);
}

TEST(CanonicalReader, StagesWithCollapsedAxesAreDecidedAlike) {
  const auto problem = test::readShared(test::kLargestPlan);
  if (!problem) GTEST_SKIP() << "no shared plans";
  EXPECT_GT(expectForms(*problem, {true}, 150), 100u);
}

TEST(CanonicalReader, NoPartOfAFormIsAForm) {
  const auto c = test::cut(dropouts(2, 2), 1);
  const std::string form = canonicalForm(c.stage);
  for (std::size_t n = 0; n < form.size(); ++n)
    EXPECT_THROW(readCanonicalForm(form.substr(0, n)), DamagedForm) << n;
  EXPECT_THROW(readCanonicalForm(form + '\0'), DamagedForm);
}

// Damaged bytes are refused, or are a stage that can be handled like any other.
TEST(CanonicalReader, DamagedBytesAreRefusedOrAnotherStage) {
  const auto c = test::cut(dropouts(2, 2), 1);
  const std::string form = canonicalForm(c.stage);
  std::mt19937 random(7);
  std::size_t refused = 0, read = 0;
  for (std::size_t i = 0; i < 4000; ++i) {
    std::string damaged = form;
    damaged[i < form.size() ? i : random() % form.size()] ^= static_cast<char>(1U << random() % 8);
    try {
      const Stage stage = readCanonicalForm(damaged);
      ++read;
      EXPECT_NE(canonicalForm(stage), form) << i;
    } catch (const DamagedForm&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000u);
  EXPECT_GT(read, 100u);
}

TEST(CanonicalReader, LengthsAreNotBelieved) {
  std::string huge(1, '\0');                                       // no collapsed axes
  huge += std::string("\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", 9);  // so many tensors
  EXPECT_THROW(readCanonicalForm(huge), DamagedForm);
  EXPECT_THROW(readCanonicalForm(""), DamagedForm);
}

// Found by tests/fuzz: whatever runs an operator trusts the shapes of its tensors.
TEST(CanonicalReader, ResultsThatTheirOperatorDoesNotProduceAreRefused) {
  for (const Shape& shape : {Shape{}, Shape{2}, Shape{2, 7}, Shape{2, 8, 1}}) {
    auto c = test::cut(dropouts(1, 1), 1);
    const auto computed = std::find_if(c.stage.nodes.begin(), c.stage.nodes.end(),
                                       [](const StageNode& n) { return !n.logical; });
    ASSERT_NE(computed, c.stage.nodes.end());
    c.stage.tensors[static_cast<std::size_t>(computed->out[0])].info.shape = shape;
    EXPECT_THROW(readCanonicalForm(canonicalForm(c.stage)), DamagedForm);
    auto other = test::cut(dropouts(1, 1), 1);
    other.stage.tensors[static_cast<std::size_t>(computed->out[0])].info.element =
        ElementKind::kComplex;
    EXPECT_THROW(readCanonicalForm(canonicalForm(other.stage)), DamagedForm);
  }
}

// Ranks scale their shards and gather them.
Draft gathered() {
  return test::draft(
      R"({"tensors": {"x": {"shape": [4], "kind": "input"}, "y": {"shape": [4]}}, "outputs": ["y"],
          "nodes": [{"op": "mul", "in": ["x"], "out": ["y"], "attrs": {"scalar": 2}}]})",
      R"({"mesh": [["tp", 2]], "programs": [{"tensors": {"x": {"shape": [2], "kind": "input"},
          "a": {"shape": [2]}, "y": {"shape": [4]}},
                         "nodes": [{"op": "mul", "in": ["x"], "out": ["a"], "attrs": {"scalar": 2}},
                          {"op": "all_gather", "in": ["a"], "out": ["y"], "attrs": {"dim": 0},
                          "comm": "c", "group": ["tp"]}]}],
                         "lineage": [{"tensor": "x", "role": "input",
                          "shards": [{"box": [[0, 2]], "step": {"tp": [2]},
                          "parts": [{"local": "x"}]}]},
                                     {"tensor": "y", "role": "output",
                                      "shards": [{"box": [[0, 4]],
                                       "parts": [{"local": "y"}]}]}]})");
}

// Ranks add up what each of them has, and each keeps its half.
Draft scattered() {
  return test::draft(
      R"({"tensors": {"x": {"shape": [2, 4], "kind": "input"}, "y": {"shape": [4]}},
          "outputs": ["y"], "nodes": [{"op": "sum", "in": ["x"], "out": ["y"],
          "attrs": {"dim": 0}}]})",
      R"({"mesh": [["tp", 2]], "programs": [{"tensors": {"x": {"shape": [1, 4], "kind": "input"},
          "a": {"shape": [4]}, "y": {"shape": [2]}},
                         "nodes": [{"op": "view", "in": ["x"], "out": ["a"],
                          "attrs": {"size": [4]}}, {"op": "reduce_scatter", "in": ["a"],
                          "out": ["y"], "attrs": {"dim": 0}, "comm": "c", "group": ["tp"]}]}],
                         "lineage": [{"tensor": "x", "role": "input",
                          "shards": [{"box": [[0, 1], [0, 4]], "step": {"tp": [1, 0]},
                          "parts": [{"local": "x"}]}]},
                                     {"tensor": "y", "role": "output",
                                      "shards": [{"box": [[0, 2]], "step": {"tp": [2]},
                                      "parts": [{"local": "y"}]}]}]})");
}

TEST(CanonicalReader, APartOfWhatIsCombined) {
  const auto c = test::cut(scattered(), 1);
  const std::string form = canonicalForm(c.stage);
  const Stage read = readCanonicalForm(form);
  EXPECT_EQ(canonicalForm(read), form);
  for (const Checker checker : {Checker::kAuto, Checker::kZ3}) {
    const Decision of = decide(c.stage, checker);
    EXPECT_EQ(of.verdict, StageVerdict::kProved);
    expectSame(decide(read, checker), of, "a part");
  }
  const auto refused = [](const char* what, const std::function<void(Stage&, StageNode&)>& damage) {
    auto damaged = test::cut(scattered(), 1);
    auto& nodes = damaged.stage.nodes;
    damage(damaged.stage, *std::find_if(nodes.begin(), nodes.end(), [](const StageNode& n) {
             return n.communication == Communication::kPart;
           }));
    EXPECT_THROW(readCanonicalForm(canonicalForm(damaged.stage)), DamagedForm) << what;
  };
  const auto shape = [](Stage& stage, std::int32_t t) -> Shape& {
    return stage.tensors[static_cast<std::size_t>(t)].info.shape;
  };
  refused("of a plan only",
          [](Stage&, StageNode& n) { n.communication = Communication::kScatter; });
  refused("of several", [](Stage&, StageNode& n) {
    n.in.push_back(n.in[0]);
    n.weight.push_back(1);
  });
  refused("no such part", [](Stage&, StageNode& n) { n.member = 2; });
  refused("no such dimension", [](Stage&, StageNode& n) { n.dim = 1; });
  refused("parts that do not make the whole",
          [&](Stage& s, StageNode& n) { shape(s, n.out[0]) = {3}; });
  refused("a part that is longer than the whole",
          [&](Stage& s, StageNode& n) { shape(s, n.out[0]) = {5}; });
  refused("a part of no elements", [&](Stage& s, StageNode& n) { shape(s, n.out[0]) = {0}; });
  refused("a part with more dimensions", [&](Stage& s, StageNode& n) {
    shape(s, n.out[0]) = {2, 1};
  });
}

// Found by tests/fuzz: whatever runs a stage trusts that each side's tensors are given as its
// tensors are, that members of a communication agree, and that lineage fits its tensors.
TEST(CanonicalReader, WhatNoPlanHasIsRefused) {
  const auto refused = [](const char* what, const std::function<void(Stage&)>& damage) {
    auto c = test::cut(gathered(), 1);
    damage(c.stage);
    const std::string form = canonicalForm(c.stage);
    if (std::string_view(what).empty()) EXPECT_NO_THROW(readCanonicalForm(form));
    else EXPECT_THROW(readCanonicalForm(form), DamagedForm) << what;
  };
  const auto first = [](Stage& stage, Origin origin) -> StageTensor& {
    return *std::find_if(stage.tensors.begin(), stage.tensors.end(),
                         [&](const StageTensor& t) { return t.origin == origin; });
  };
  const auto gather = [](Stage& stage) -> StageNode& {
    return *std::find_if(stage.nodes.begin(), stage.nodes.end(), [&](const StageNode& n) {
      return n.communication == Communication::kAllGather;
    });
  };
  refused("", [](Stage&) {});
  refused("no elements", [&](Stage& s) { first(s, Origin::kVariable).info.shape = {0}; });
  refused("more than 2^63 elements", [&](Stage& s) {
    first(s, Origin::kVariable).info.shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  });
  refused("a local variable",
          [&](Stage& s) { first(s, Origin::kBoundary).origin = Origin::kVariable; });
  refused("a logical boundary",
          [&](Stage& s) { first(s, Origin::kVariable).origin = Origin::kBoundary; });
  refused("an assumption about what is computed", [&](Stage& s) {
    s.assumptions[0].parts[0].first = s.claims[0].parts[0].first,
    s.assumptions[0].box = s.claims[0].box;
  });
  refused("a part that does not fit its box",
          [&](Stage& s) { s.assumptions[0].box[0].second -= 1; });
  refused("members of different shapes",
          [&](Stage& s) { s.tensors[static_cast<std::size_t>(gather(s).in[1])].info.shape = {1}; });
  refused("a result of another shape",
          [&](Stage& s) { gather(s).in.pop_back(), gather(s).weight.pop_back(); });
  refused("no such member", [&](Stage& s) { gather(s).member = 2; });
  refused("a member that stands for none", [&](Stage& s) { gather(s).weight[0] = 0; });
  refused("a member that stands for two", [&](Stage& s) { gather(s).weight[0] = 2; });
  refused("no such dimension", [&](Stage& s) { gather(s).dim = 1; });
}

// Found by tests/fuzz: a text whose length counts the bytes of the length itself reached beyond the
// end.
TEST(CanonicalReader, ALengthDoesNotCountItself) {
  const auto c = test::cut(dropouts(1, 1), 1);
  const std::string form = canonicalForm(c.stage);
  const std::size_t name = form.find("dropout");
  ASSERT_NE(name, std::string::npos);
  std::string cut = form.substr(0, name + 7);
  cut[name - 1] = static_cast<char>(2 * 8);  // one byte more than there is
  EXPECT_THROW(readCanonicalForm(cut), DamagedForm);
}

}  // namespace
}  // namespace shardproof
