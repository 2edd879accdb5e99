// SPDX-License-Identifier: Apache-2.0
// A proof log is believed for what can be made again from model and plan, and for nothing else.
#include "certificate/check_log.h"

#include <gtest/gtest.h>

#include <functional>

#include "cache/proof_store.h"
#include "certificate/log_check_text.h"
#include "certificate/proof_log.h"
#include "certificate/proof_record.h"
#include "prover/model_facts.h"
#include "shardproof/error.h"
#include "shardproof/verify.h"
#include "support/problems.h"
#include "util/sha256.h"

namespace shardproof {
namespace {

using test::Draft;
using test::Json;

struct Certified {
  std::unique_ptr<Problem> problem;
  ProofLog log;
};

ProofLog logOf(const Problem& problem, const ProofRecord& record,
               Checker checker = Checker::kAuto) {
  return makeProofLog(problem, record, checker, "test", "log.json");
}

Certified certified(const Draft& d, Checker checker = Checker::kAuto) {
  Certified made{test::read(d), {}};
  ProofRecord record;
  VerifyOptions options;
  options.jobs = 1;
  options.checker = checker;
  options.record = &record;
  const Report report = verify(*made.problem, options);
  if (report.verdict != Verdict::kEquivalent)
    throw std::logic_error("the test's plan is not equivalent: " + report.reason);
  made.log = logOf(*made.problem, record, checker);
  return made;
}

// What somebody would write who wants a plan to pass that does not: every stage cut as it should
// be, and called proved.
Certified forged(const Draft& d) {
  Certified made{test::read(d), {}};
  const PlanIndex planIndex(*made.problem);
  ProofRecord record;
  const Plan& plan = made.problem->plan;
  const ModelFacts facts = modelFacts(*made.problem);
  CutOptions informed;
  informed.facts = &facts;
  for (std::size_t e = 0; e < plan.lineage.size(); ++e) {
    ProofRecord::Entry entry;
    if (plan.lineage[e].role != Role::kInput) {
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
  made.log = logOf(*made.problem, record);
  return made;
}

CheckLogResult check(const Certified& c, const CheckLogOptions& options = {}) {
  return checkLog(c.log, *c.problem, options);
}

void expectRejected(const Certified& c, const std::string& place, const std::string& why,
                    const CheckLogOptions& options = {}) {
  const CheckLogResult r = check(c, options);
  EXPECT_FALSE(r.holds());
  EXPECT_TRUE(r.anyWrong());
  ASSERT_FALSE(r.findings.empty());
  EXPECT_EQ(r.findings[0].place, place) << r.findings[0].why;
  EXPECT_NE(r.findings[0].why.find(why), std::string::npos) << r.findings[0].why;
}

// pipeline(): entries 2 and 3 y on both pipeline stages, 4 the sums, 5 the output; each rests on
// the one before.
class PipelineLog : public testing::Test {
 protected:
  ProofRecord::Entry& proof(std::size_t e) { return c.log.lineage[e].proof; }
  Certified c = certified(test::pipeline());
};

TEST_F(PipelineLog, ATrueLogHolds) {
  const CheckLogResult r = check(c);
  EXPECT_TRUE(r.holds()) << r.findings[0].place << ": " << r.findings[0].why;
  EXPECT_EQ(r.lemmas, 4u);
  EXPECT_EQ(r.proofs, c.log.classes.size());
  EXPECT_EQ(r.provedAgain, r.proofs);
  EXPECT_EQ(proof(5).assumes, (test::ids<EntryId>({4})));
}

TEST(ApprovedLog, AnApprovedDifferenceIsGivenAndReported) {
  Certified c = certified(test::approvedPipeline());
  EXPECT_NE(proofLogText(c.log).find(R"({"entry":"/lineage/4","tensor":"s","role":"assumed"})"),
            std::string::npos);
  const CheckLogResult r = check(c);
  EXPECT_TRUE(r.holds()) << r.findings[0].place << ": " << r.findings[0].why;
  EXPECT_EQ(r.approved, (test::ids<EntryId>({4})));
  EXPECT_EQ(r.lemmas, 3u);
  EXPECT_NE(logCheckJson(c.log, r).find("\"approved_differences\": [\n  {\n   \"entry\": "
                                        "\"/lineage/4\""),
            std::string::npos);
  c.log.lineage[5].proof.assumes = {EntryId(4)};
  expectRejected(c, "/lineage/5/assumes", "names 4, which is given and not to be proved");
  c.log.lineage[4].role = Role::kCutPoint;
  expectRejected(c, "/lineage/4/role", "is \"cut_point\", but \"assumed\" in the plan");
}

TEST_F(PipelineLog, TheOtherCheckerMayMakeTheProofs) {
  CheckLogOptions options;
  options.checker = Checker::kZ3;
  EXPECT_TRUE(check(c, options).holds());
  const Certified z3 = certified(test::pipeline(), Checker::kZ3);
  EXPECT_TRUE(check(z3).holds());
  options.checker = Checker::kAuto;
  EXPECT_TRUE(check(z3, options).holds());
}

TEST_F(PipelineLog, AnAssumptionIsDropped) {
  proof(5).assumes = {};
  expectRejected(c, "/lineage/5", "its stage assumes 4, but none in the log");
  c.log.forbidden.push_back(test::ids<EntryId>({2, 3, 4}));
  proof(5).forbidden = 1;
  expectRejected(c, "/lineage/5", "another than that of /classes/");
}

TEST_F(PipelineLog, AnAssumptionIsAdded) {
  proof(5).assumes = {EntryId(3), EntryId(4)};
  expectRejected(c, "/lineage/5", "its stage assumes 4, but 3, 4 in the log");
}

TEST_F(PipelineLog, TwoClassesAreSwapped) {
  std::swap(proof(2).classId, proof(3).classId);
  expectRejected(c, "/lineage/2", "another than that of /classes/");
}

TEST_F(PipelineLog, AnEntryIsLeftOut) {
  c.log.lineage.pop_back();
  expectRejected(c, "/lineage", "has 5 entries, but the plan's lineage 6");
}

TEST_F(PipelineLog, LemmasInACycle) {
  proof(3).assumes = {EntryId(4)};
  proof(4).assumes = {EntryId(3)};
  const CheckLogResult r = check(c);
  ASSERT_EQ(r.findings.size(), 1u);
  EXPECT_EQ(r.findings[0].why, "leads back to the entry itself");
  proof(3).assumes = {EntryId(3)};
  proof(4).assumes = {};
  expectRejected(c, "/lineage/3/assumes", "leads back");
}

TEST_F(PipelineLog, WhatIsNotProvedIsNotAssumed) {
  proof(4) = {};
  expectRejected(c, "/lineage/5/assumes", "does not call proved");
  proof(5).assumes = {EntryId(0)};
  expectRejected(c, "/lineage/5/assumes", "is given");
}

TEST_F(PipelineLog, AnOutputIsNotProved) {
  proof(5) = {};
  expectRejected(c, "/outputs/0/entries", "is not proved");
  c.log.outputs[0].entries = {};
  expectRejected(c, "/outputs/0/entries", "do not cover");
  c.log.outputs[0].entries = {EntryId(4)};
  expectRejected(c, "/outputs/0/entries", "no output lineage of this tensor");
  c.log.outputs = {};
  expectRejected(c, "/outputs", "has 0 outputs, but the model 1");
}

TEST_F(PipelineLog, OtherFiles) {
  c.problem->plan.sha256[5] ^= 1;
  expectRejected(c, "/plan/sha256", "another content");
  c = certified(test::pipeline());
  Draft d = test::pipeline();
  d.model["name"] = "another";
  c.problem = test::read(d);
  expectRejected(c, "/model/sha256", "another content");
}

TEST_F(PipelineLog, AnotherPlace) {
  ++proof(4).key;
  expectRejected(c, "/lineage/4/key", "in the indexed plan");
  c = certified(test::pipeline());
  c.log.lineage[2].tensor = "s";
  expectRejected(c, "/lineage/2/tensor", "but \"y\" in the plan");
  c = certified(test::pipeline());
  c.log.lineage[5].role = Role::kCutPoint;
  expectRejected(c, "/lineage/5/role", "but \"output\" in the plan");
}

TEST_F(PipelineLog, AnotherForm) {
  const auto id = static_cast<std::size_t>(proof(5).classId);
  c.log.classes[id].form += 'x';
  expectRejected(c, "/classes/" + std::to_string(id) + "/sha256", "not the digest");
  c.log.classes[id].sha256 = sha256Hex(c.log.classes[id].form);
  expectRejected(c, "/lineage/5", "another than that of");
}

TEST_F(PipelineLog, AClassThatNobodyUses) {
  c.log.classes.push_back(c.log.classes[0]);
  expectRejected(c, "/classes/" + std::to_string(c.log.classes.size() - 1),
                 "no entry is of this class");
}

TEST_F(PipelineLog, AnotherMethod) {
  c.log.classes[0].method = Method::kPolynomial;
  expectRejected(c, "/classes/0", "not by polynomial");
}

TEST_F(PipelineLog, OtherRules) {
  c.log.version = "operators 0, checker 0, Z3 0";
  EXPECT_THROW(check(c), InputError);
}

TEST_F(PipelineLog, ACollapsedAxisOrNot) {
  // One row of ranks, more of them than are told apart.
  Draft d = test::pipeline();
  d.plan["microbatches"] = 4;
  for (Json* tensors : {&d.program(0)["tensors"], &d.program(1)["tensors"]}) {
    for (const char* name : {"x", "y"}) {
      if (tensors->contains(name)) (*tensors)[name]["shape"][0] = 2;
    }
  }
  for (const std::size_t e : {0, 2, 3})
    d.entry(e)["shards"][0]["box"][0] = {0, 2}, d.entry(e)["shards"][0]["step"]["mb"][0] = 2;
  d.program(1)["tensors"]["s1"] = d.program(1)["tensors"]["s2"] = {{"shape", Json::array()}};
  d.program(1)["nodes"] = Json::parse(
      R"([{"op": "recv", "in": [], "out": ["y"], "comm": "p2p", "from": {"pp": 0}, "mb": "*"},
          {"op": "sum", "in": ["y"], "out": ["t"], "mb": "*"},
      {"op": "add", "in": ["t#0", "t#1"], "out": ["s1"]},
       {"op": "add", "in": ["t#2", "t#3"], "out": ["s2"]},
       {"op": "add", "in": ["s1", "s2"], "out": ["s0"]},
      {"op": "all_reduce", "in": ["s0"], "out": ["s"], "comm": "ar", "group": ["tp"]}])");
  c = certified(d);
  EXPECT_TRUE(check(c).holds());
  proof(2).collapse = !proof(2).collapse;
  expectRejected(c, "/lineage/2", "another than that of");
}

TEST(CheckLog, ARefutedStageThatIsCalledProved) {
  Draft d = test::pipeline();
  d.node(1, 3)["attrs"] = {{"reduce", "mean"}};
  const Certified c = forged(d);
  const std::string place = "/classes/" + std::to_string(c.log.lineage[5].proof.classId);
  expectRejected(c, place, "refuted");
  // Who makes no proof again, or only a sample, takes the log's word for the others; the caller
  // says so.
  CheckLogOptions options;
  options.sample = 0;
  const CheckLogResult r = check(c, options);
  EXPECT_TRUE(r.holds());
  EXPECT_EQ(r.provedAgain, 0u);
  options.sample = 1;
  std::size_t found = 0;
  for (options.seed = 0; options.seed < 20; ++options.seed) found += !check(c, options).holds();
  EXPECT_TRUE(found > 0 && found < 20) << found;
}

TEST(CheckLog, AForgedLogOfATruePlanHolds) { EXPECT_TRUE(check(forged(test::pipeline())).holds()); }

TEST(CheckLog, AnUndecidedStageThatIsCalledProved) {
  // erf(-x) = -erf(x) is true, but no proof knows.
  const Draft d = test::oneRank(
      R"("x": {"shape": [], "kind": "input"})", R"("h": {"shape": []}, "o": {"shape": []})",
      R"({"op": "erf", "in": ["x"], "out": ["o"]})",
      R"("n": {"shape": []}, "t": {"shape": []}, "o": {"shape": []})",
      R"({"op": "neg", "in": ["x"], "out": ["n"]}, {"op": "erf", "in": ["n"], "out": ["t"]},
          {"op": "neg", "in": ["t"], "out": ["o"]})");
  Certified c = forged(d);
  expectRejected(c, "/classes/0", "not proved");
  // Called a proof of Z3, it might be a matter of time: not confirmed, and not believed either.
  c.log.classes[0].method = Method::kSolver;
  const CheckLogResult r = check(c);
  EXPECT_FALSE(r.holds());
  EXPECT_FALSE(r.anyWrong());
}

TEST(CheckLog, APlanThatCannotRun) {
  Certified c = certified(test::pipeline());
  Draft d = test::pipeline();
  d.program(0)["nodes"].push_back(d.node(0, 0));
  c.problem = test::read(d);
  c.log.plan.sha256 = c.problem->plan.sha256;
  expectRejected(c, "/plan", "");
}

TEST(CheckLog, OutputsAreCoveredByWhatTheLogNames) {
  Draft d = test::oneRank(
      R"("x": {"shape": [4], "kind": "input"})", R"("o": {"shape": [4]})",
      R"({"op": "neg", "in": ["x"], "out": ["o"]})",
      R"("o": {"shape": [4]}, "a": {"shape": [2]}, "b": {"shape": [2]})",
      R"({"op": "neg", "in": ["x"], "out": ["o"]}, {"op": "slice", "in": ["o"], "out": ["a"],
          "attrs": {"dim": 0, "start": 0, "stop": 2}},
                             {"op": "slice", "in": ["o"], "out": ["b"],
                              "attrs": {"dim": 0, "start": 2, "stop": 4}})");
  d.plan["lineage"][1] = Json::parse(
      R"({"tensor": "o", "role": "output", "shards": [{"box": [[0, 2]],
          "parts": [{"local": "a"}]}]})");
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "o", "role": "output", "shards": [{"box": [[2, 4]],
          "parts": [{"local": "b"}]}]})"));
  Certified c = certified(d);
  EXPECT_EQ(c.log.outputs[0].entries, (test::ids<EntryId>({1, 2})));
  EXPECT_TRUE(check(c).holds());
  c.log.outputs[0].entries = {EntryId(1)};
  expectRejected(c, "/outputs/0/entries", "do not cover");
  // That what is named covers the output is not enough: the theorem speaks of every output entry.
  c.log.outputs[0].entries = {EntryId(1), EntryId(2)};
  c.log.lineage[2].proof = {};
  expectRejected(c, "/outputs/0/entries", "not proved");
}

// What a failed cut point was assumed for is proved without it, and the log says how.
TEST(CheckLog, WrongLineageIsLeftOutOfTheChain) {
  Draft d = test::pipeline();
  d.entry(4)["shards"][0]["sum"] = {"tp"};
  d.entry(4)["shards"][0]["parts"][0]["mb"] = 0;
  const Certified c = certified(d);
  EXPECT_FALSE(c.log.lineage[4].proof.proved);
  EXPECT_EQ(c.log.lineage[5].proof.assumes, (test::ids<EntryId>({3})));
  EXPECT_TRUE(check(c).holds());
  // The stage is the one that was cut because the sums had failed.
  ASSERT_EQ(c.log.forbidden.size(), 2u);
  // The output's own stage had failed too, and was cut again without them.
  EXPECT_EQ(c.log.forbidden[1], (test::ids<EntryId>({4})));
  EXPECT_EQ(c.log.lineage[5].proof.forbidden, 1);
  EXPECT_EQ(c.log.lineage[2].proof.forbidden, 0);
  Certified changed = certified(d);
  changed.log.lineage[5].proof.forbidden = 0;
  expectRejected(changed, "/lineage/5", "its stage assumes 3, 4, but 3 in the log");
}

// A lemma about one rank tells the coordinates of its axis apart, wherever a stage meets it.
TEST(CheckLog, LineageAboutOneRank) {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [8], "kind": "input"}, "h": {"shape": [8]},
          "o": {"shape": [8]}},
      "nodes": [{"op": "square", "in": ["x"], "out": ["h"]},
       {"op": "neg", "in": ["h"], "out": ["o"]}], "outputs": ["o"]})",
      R"({"mesh": [["dp", 8]], "programs": [{"tensors": {"x": {"shape": [1], "kind": "input"},
          "h": {"shape": [1]}, "o": {"shape": [1]}},
        "nodes": [{"op": "square", "in": ["x"], "out": ["h"]},
         {"op": "neg", "in": ["h"], "out": ["o"]}]}],
       "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 1]],
        "step": {"dp": [1]}, "parts": [{"local": "x"}]}]},
                   {"tensor": "h", "role": "cut_point", "shards": [{"box": [[5, 6]],
                    "parts": [{"local": "h", "at": {"dp": 5}}]}]},
                   {"tensor": "h", "role": "cut_point", "shards": [{"box": [[0, 1]],
                    "step": {"dp": [1]}, "parts": [{"local": "h"}]}]},
                   {"tensor": "o", "role": "output", "shards": [{"box": [[0, 1]],
                    "step": {"dp": [1]}, "parts": [{"local": "o"}]}]}]})");
  const Certified c = certified(d);
  const CheckLogResult r = check(c);
  EXPECT_TRUE(r.holds()) << r.findings[0].place << ": " << r.findings[0].why;
}

TEST(CheckLog, WhatPlacesADropoutIsProved) {
  const std::string dropout =
      R"({"op": "neg", "in": ["x"], "out": ["y"]}, {"op": "dropout", "in": ["y"], "out": ["o"],
          "attrs": {"p": 0.5, "seed": 1}})";
  Draft d = test::oneRank(R"("x": {"shape": [4], "kind": "input"})",
                          R"("y": {"shape": [4]}, "o": {"shape": [4]})", dropout,
                          R"("y": {"shape": [4]}, "o": {"shape": [4]})", dropout);
  d.plan["lineage"].push_back(Json::parse(
      R"({"tensor": "y", "role": "cut_point", "shards": [{"box": [[0, 4]],
          "parts": [{"local": "y"}]}]})"));
  Certified c = certified(d);
  EXPECT_EQ(c.log.positioning, (test::ids<EntryId>({2})));
  EXPECT_EQ(c.log.lineage.size(), 4u);  // with the mask's own
  EXPECT_TRUE(check(c).holds());
  Certified other = certified(d);
  other.log.positioning = {};
  expectRejected(other, "/positioning", "is none, but 2 in the plan");
  // An output that rests on nothing but the mask, and a mask whose place nobody proved.
  c.log.lineage[1].proof.assumes = {};
  c.log.lineage[2].proof = {};
  expectRejected(c, "/lineage/2", "dropout's mask");
}

// Every value of a log, changed a little: refused, unless it is only there for people or names
// where the files are.
TEST(CheckLog, EveryFieldCounts) {
  const Certified c = certified(test::pipeline());
  const Json whole = Json::parse(proofLogText(c.log));
  const test::TemporaryDirectory directory;
  const auto holds = [&](const Json& log) {
    Certified changed{test::read(test::pipeline()), {}};
    try {
      changed.log = readProofLog(directory.write("log.json", log.dump()));
      return check(changed).holds();
    } catch (const InputError&) {
      return false;
    }
  };
  ASSERT_TRUE(holds(whole));
  std::size_t changes = 0;
  const std::function<void(const Json::json_pointer&)> visit = [&](const Json::json_pointer& at) {
    const Json& value = whole[at];
    const std::string name = at.to_string();
    if (value.is_structured()) {
      for (const auto& [key, child] : value.items())
        visit(value.is_array() ? at / std::stoul(key) : at / key);
      for (const auto& [key, child] : value.items()) {  // without one
        Json log = whole;
        if (value.is_array()) log[at].erase(std::stoul(key));
        else log[at].erase(key);
        EXPECT_FALSE(holds(log)) << "without " << key << " of " << name;
        ++changes;
      }
      return;
    }
    if (name == "/program" || name == "/model/file" || name == "/plan/file") return;
    if (name.ends_with("/lumped"))
      return;  // this plan has no axis that could be: ACollapsedAxisOrNot
    Json log = whole;
    if (value.is_boolean()) log[at] = !value.get<bool>();
    else if (value.is_number()) log[at] = value.get<std::int64_t>() + 1;
    else if (name == "/checker") log[at] = "z3";
    else if (name.ends_with("/method")) log[at] = "polynomial";
    else
      log[at] =
          (value.get<std::string>()[0] == 'A' ? "B" : "A") + value.get<std::string>().substr(1);
    EXPECT_FALSE(holds(log)) << name;
    ++changes;
  };
  visit(Json::json_pointer());
  EXPECT_GT(changes, 80u);
}

}  // namespace
}  // namespace shardproof
