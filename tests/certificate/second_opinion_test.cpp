// SPDX-License-Identifier: Apache-2.0
// Independent evidence: there is some for each class of a right plan, none for a class that is
// wrong, and what execution refutes makes the log wrong.
#include "certificate/second_opinion.h"

#include <gtest/gtest.h>

#include "certificate/check_log.h"
#include "certificate/log_check_text.h"
#include "certificate/proof_record.h"
#include "prover/model_facts.h"
#include "shardproof/verify.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::Draft;
using test::Json;

constexpr SecondMethod kAll[] = {SecondMethod::kNormalForm, SecondMethod::kExpandedForm,
                                 SecondMethod::kZ3, SecondMethod::kCvc5};

struct Logged {
  std::unique_ptr<Problem> problem;
  std::unique_ptr<PlanIndex> planIndex;
  ProofLog log;
  std::vector<ClassEvidence> evidence(const SecondOpinionOptions& options) const {
    std::vector<std::size_t> classes;
    for (std::size_t c = 0; c < log.classes.size(); ++c) classes.push_back(c);
    PoolOptions pool;
    pool.jobs = 1;
    return secondOpinions(log, *problem, *planIndex, classes, options, pool, nullptr);
  }
};

Logged logged(std::unique_ptr<Problem> problem, const ProofRecord& record) {
  Logged l{std::move(problem), nullptr, {}};
  l.planIndex = std::make_unique<PlanIndex>(*l.problem);
  l.log = makeProofLog(*l.problem, record, Checker::kAuto, "test", "log.json");
  return l;
}

Logged certified(const Draft& d) {
  auto problem = test::read(d);
  ProofRecord record;
  VerifyOptions options;
  options.jobs = 1;
  options.record = &record;
  const Report report = verify(*problem, options);
  if (report.verdict != Verdict::kEquivalent)
    throw std::logic_error("the test's plan is not equivalent: " + report.reason);
  return logged(std::move(problem), record);
}

// Every stage cut as it should be and called proved by normal forms, whether it holds or not.
Logged forged(const Draft& d) {
  auto problem = test::read(d);
  const PlanIndex planIndex(*problem);
  ProofRecord record;
  const ModelFacts facts = modelFacts(*problem);
  CutOptions informed;
  informed.facts = &facts;
  for (std::size_t e = 0; e < problem->plan.lineage.size(); ++e) {
    ProofRecord::Entry entry;
    if (problem->plan.lineage[e].role != Role::kInput) {
      const Stage stage = cutStage(planIndex, EntryId(e), informed);
      entry = {true,
               static_cast<std::int32_t>(record.classes.size()),
               stage.usedEntries,
               0,
               planIndex.entryKey(EntryId(e)),
               true};
      record.classes.push_back({canonicalForm(stage), Method::kNormalForm});
    }
    record.entries.push_back(std::move(entry));
  }
  return logged(std::move(problem), record);
}

SecondOpinionOptions patient() {
  SecondOpinionOptions options;
  options.timeoutSeconds = 20;
  return options;
}

TEST(SecondOpinion, EachClassOfARightPlanHasBothKinds) {
  const Logged l = certified(test::pipeline());
  const auto evidence = l.evidence(patient());
  ASSERT_EQ(evidence.size(), l.log.classes.size());
  for (const ClassEvidence& e : evidence) {
    EXPECT_TRUE(e.provedBy) << e.classId;
    EXPECT_TRUE(e.attempted);
    EXPECT_GT(e.executed.asked, 0);
    EXPECT_EQ(e.executed.agreed, e.executed.asked) << e.executed.reason;
    EXPECT_FALSE(e.executed.difference);
  }
}

// Interchangeable axes are collapsed in the stages that are proved; executed is what has all
// coordinates.
TEST(SecondOpinion, ExecutionHasEveryCoordinate) {
  Draft d = test::pipeline();
  d.model["tensors"]["x"]["shape"][0] = 64;
  d.model["tensors"]["y"]["shape"][0] = 64;
  d.plan["microbatches"] = 16;
  d.program(1)["nodes"][2] = Json::parse(R"({"op": "add", "in": ["t#0", "t#1"], "out": ["a1"]})");
  Json nodes = Json::array();
  for (const auto& n : d.program(1)["nodes"]) {
    nodes.push_back(n);
    if (n["op"] != "add") continue;
    for (int k = 2; k < 16; ++k) {
      const std::string out = k == 15 ? "s0" : "a" + std::to_string(k);
      nodes.push_back({{"op", "add"},
                       {"in", {"a" + std::to_string(k - 1), "t#" + std::to_string(k)}},
                       {"out", {out}}});
      d.program(1)["tensors"]["a" + std::to_string(k - 1)] = {{"shape", Json::array()}};
    }
  }
  d.program(1)["nodes"] = nodes;
  for (const ClassEvidence& e : certified(d).evidence(patient()))
    EXPECT_EQ(e.executed.agreed, e.executed.asked) << e.executed.reason;
}

TEST(SecondOpinion, AWrongClassIsRefutedByExecutionAndProvedByNoMethod) {
  Draft d = test::pipeline();
  d.node(1, 3)["attrs"] = {{"reduce", "mean"}};
  const Logged l = forged(d);
  const auto wrong = static_cast<std::size_t>(l.log.lineage[5].proof.classId);
  const auto evidence = l.evidence(patient());
  EXPECT_TRUE(evidence[wrong].executed.difference);
  EXPECT_EQ(evidence[wrong].executed.agreed, 0);
  EXPECT_FALSE(evidence[wrong].any());
  for (const SecondMethod method : kAll) {
    SecondOpinionOptions options = patient();
    options.execution = false;
    options.only = method;
    for (const ClassEvidence& e : l.evidence(options)) {
      EXPECT_EQ(e.provedBy.has_value(), e.classId != wrong) << toString(method) << " " << e.classId;
      EXPECT_FALSE(e.attempted);
    }
  }
}

// erf(-x) = -erf(x): true, and known to no proof, but numbers agree.
TEST(SecondOpinion, WhatNoMethodProvesIsExecuted) {
  const Logged l = forged(test::oneRank(
      R"("x": {"shape": [], "kind": "input"})", R"("o": {"shape": []})",
      R"({"op": "erf", "in": ["x"], "out": ["o"]})",
      R"("n": {"shape": []}, "t": {"shape": []}, "o": {"shape": []})",
      R"({"op": "neg", "in": ["x"], "out": ["n"]}, {"op": "erf", "in": ["n"], "out": ["t"]},
          {"op": "neg", "in": ["t"], "out": ["o"]})"));
  const auto evidence = l.evidence(patient());
  ASSERT_EQ(evidence.size(), 1u);
  EXPECT_FALSE(evidence[0].provedBy);
  EXPECT_EQ(evidence[0].failed.size(), 3u);
  EXPECT_EQ(evidence[0].executed.agreed, evidence[0].executed.asked);
  EXPECT_EQ(evidence[0].executed.agreedInField, 0);
}

TEST(SecondOpinion, CheckLogSaysWhatThereIs) {
  const Logged l = certified(test::pipeline());
  CheckLogOptions options;
  options.second = patient();
  const CheckLogResult all = checkLog(l.log, *l.problem, options);
  EXPECT_TRUE(all.holds());
  EXPECT_EQ(all.evidence.size(), l.log.classes.size());
  const std::string text = evidenceText(l.log, all);
  EXPECT_NE(text.find("Independent evidence: " + std::to_string(l.log.classes.size()) + " proofs"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("proved by normal forms; again by Z3, executed at full size"),
            std::string::npos)
      << text;
  const Json j = Json::parse(logCheckJson(l.log, all));
  EXPECT_EQ(j["format"], "shardproof-log-check");
  EXPECT_TRUE(j["holds"].get<bool>());
  ASSERT_EQ(j["classes"].size(), l.log.classes.size());
  for (const auto& c : j["classes"]) {
    EXPECT_EQ(c["method"], "normal-form");
    EXPECT_EQ(c["proved_again_by"], "z3");
    EXPECT_EQ(c["execution"]["agreed"], c["execution"]["positions"]);
  }
  // Evidence is looked for where proofs are made again, and is nothing that a log needs.
  options.sample = 1;
  EXPECT_EQ(checkLog(l.log, *l.problem, options).evidence.size(), 1u);
  options.sample = std::nullopt;
  options.second = std::nullopt;
  const CheckLogResult none = checkLog(l.log, *l.problem, options);
  EXPECT_TRUE(none.holds());
  EXPECT_TRUE(none.evidence.empty());
  EXPECT_TRUE(evidenceText(l.log, none).empty());
}

TEST(SecondOpinion, WithoutItsTimeThereIsNoEvidenceAndTheLogStillHolds) {
  const Logged l = certified(test::pipeline());
  CheckLogOptions options;
  options.second = SecondOpinionOptions{};
  options.second->sample.mostElements = 0;
  options.second->methods = false;
  const CheckLogResult r = checkLog(l.log, *l.problem, options);
  EXPECT_TRUE(r.holds());
  for (const ClassEvidence& e : r.evidence) EXPECT_FALSE(e.any());
  EXPECT_NE(evidenceText(l.log, r).find("no independent evidence"), std::string::npos);
}

}  // namespace
}  // namespace shardproof
