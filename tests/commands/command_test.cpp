// SPDX-License-Identifier: Apache-2.0
// The program as a user runs it: exit codes, streams, files.
#include "command.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace {

namespace fs = std::filesystem;
using shardproof::test::CommandTest;
using shardproof::test::has;

TEST_F(CommandTest, VersionIsTheProjects) {
  const auto r = run("--version");
  EXPECT_EQ(r.code, 0);
  EXPECT_EQ(r.out, "shardproof " SHARDPROOF_VERSION "\n");
}

TEST_F(CommandTest, HelpTellsTheExitCodes) {
  for (const char* arguments : {"--help", "verify --help"}) {
    const auto r = run(arguments);
    EXPECT_EQ(r.code, 0);
    EXPECT_TRUE(has(r.out, "not equivalent: the plan is wrong"));
    EXPECT_EQ(r.err, "");
  }
}

TEST_F(CommandTest, WrongUsage) {
  for (const char* arguments :
       {"", "frobnicate", "verify", "verify --plan", "verify --plan x --unknown",
        "verify --plan x --jobs -1", "verify --plan x --jobs 2000", "verify --plan x --timeout 0",
        "verify --plan x --timeout nan", "verify --plan x --timeout inf",
        "verify --plan x --memory 1", "verify --plan x --memory lots",
        "verify --plan x --checker cvc5", "verify --plan x --json - --sarif -",
        "verify x y --html r.html", "verify - y", "help frobnicate"}) {
    const auto r = run(arguments);
    EXPECT_EQ(r.code, 1) << arguments;
    EXPECT_EQ(r.out, "") << arguments;
    EXPECT_TRUE(has(r.err, "shardproof: ")) << arguments;
  }
}

TEST_F(CommandTest, FilesThatCannotBeRead) {
  const auto r = run("verify --model no.model.json --plan no.plan.json");
  EXPECT_EQ(r.code, 2);
  EXPECT_EQ(r.out, "");
  EXPECT_TRUE(has(r.err, "no.")) << r.err;
}

TEST_F(CommandTest, DemoIsEquivalent) {
  makeDemo();
  const auto r = run("verify --model mlp.model.json --plan mlp.plan.json --json r.json");
  EXPECT_EQ(r.code, 0) << r.out << r.err;
  EXPECT_TRUE(
      has(r.out,
          "EQUIVALENT: plan mlp.plan.json computes what model mlp.model.json computes, for every "
          "input"))
      << r.out;
  EXPECT_EQ(r.err, "");
  const auto json = nlohmann::json::parse(content("r.json"));
  EXPECT_EQ(json["verdict"], "equivalent");
  EXPECT_EQ(json["outputs"], 5);
  EXPECT_TRUE(json["statistics"]["seconds_by_phase"].contains("read"));
}

TEST_F(CommandTest, AnAssumptionThatCouldHideABugMakesAConditionalVerdict) {
  makeDemo();
  auto plan = nlohmann::ordered_json::parse(content("mlp.plan.json"));
  plan["capture"] = nlohmann::ordered_json::parse(
      R"({"compared": {"loss": ["loss"]},
          "not_compared": [{"what": "leaf[0]", "because": "rank 1 has none"}],
          "assumptions": [{"name": "initial-values", "class": "risk", "text": "buffers are equal"},
                          {"name": "ranks", "class": "checkable", "text": "ranks run alike"}]})");
  std::ofstream(path("c.plan.json")) << plan.dump();
  const std::string verify = "verify --model mlp.model.json c.plan.json ";
  const auto r = run(verify + "--json r.json --certify log.json");
  EXPECT_EQ(r.code, 4) << r.out << r.err;
  EXPECT_EQ(r.out.rfind("CONDITIONAL: plan c.plan.json computes what model mlp.model.json "
                        "computes",
                        0),
            0u)
      << r.out;
  EXPECT_TRUE(has(r.out, "\nCompared: loss, 4 outputs\n")) << r.out;
  EXPECT_TRUE(has(r.out, "\nNot compared: leaf[0] because rank 1 has none\n")) << r.out;
  EXPECT_TRUE(has(r.out, "\nRun:    the plan itself")) << r.out;
  EXPECT_TRUE(has(r.err, "a proof log has no conditions")) << r.err;
  EXPECT_FALSE(fs::exists(path("log.json")));
  const auto json = nlohmann::json::parse(content("r.json"));
  EXPECT_EQ(json["verdict"], "conditional");
  EXPECT_EQ(json["exit_code"], 4);
  EXPECT_EQ(run(verify + "--accept initial-values").code, 4);
  EXPECT_EQ(run(verify + "--allow-uncompared 'leaf*'").code, 4);
  const auto accepted = run(verify + "--accept initial-values --allow-uncompared 'leaf[0]'");
  EXPECT_EQ(accepted.code, 0) << accepted.out;
  EXPECT_EQ(accepted.err, "");
  const auto several = run("verify --model mlp.model.json c.plan.json mlp.plan.json --accept x");
  EXPECT_EQ(several.code, 4) << several.out;
  EXPECT_TRUE(has(several.out, "1 equivalent, 1 conditional")) << several.out;
  EXPECT_TRUE(has(several.err, "note: --accept x: no plan has this assumption")) << several.err;
}

TEST_F(CommandTest, ModelIsFoundBesideThePlan) {
  makeDemo();
  EXPECT_EQ(run("verify --plan mlp.plan.json --quiet").code, 0);
}

TEST_F(CommandTest, DemoWithoutItsAllReduceIsNot) {
  makeDemo();
  const auto r =
      run("verify --model mlp.model.json --plan mlp_dropped_all_reduce.plan.json --json r.json");
  EXPECT_EQ(r.code, 10) << r.out << r.err;
  EXPECT_EQ(r.out.rfind("NOT EQUIVALENT: ", 0), 0u) << r.out;
  EXPECT_TRUE(has(r.out, "\nDefect 1 of ")) << r.out;
  EXPECT_EQ(nlohmann::json::parse(content("r.json"))["verdict"], "not-equivalent");
}

TEST_F(CommandTest, QuietPrintsOneLine) {
  makeDemo();
  const auto r = run("verify --plan mlp.plan.json --quiet");
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 1);
}

TEST_F(CommandTest, ResultsThatCannotBeWritten) {
  makeDemo();
  const std::string demo = "verify --plan mlp.plan.json ";
  EXPECT_EQ(run(demo, ">/dev/full").code, 6);
  EXPECT_EQ(run(demo, ">&-").code, 6);
  EXPECT_EQ(run("--help", ">&-").code, 6);
  EXPECT_EQ(run(demo + "--json no/r.json").code, 6);
  EXPECT_EQ(run(demo + "--json .").code, 6);
}

// With descriptor 1 closed, the JSON file could get its number and the text would end up inside.
TEST_F(CommandTest, ClosedOutputDoesNotSpoilTheJsonFile) {
  makeDemo();
  EXPECT_EQ(run("verify --plan mlp.plan.json --json r.json", ">&- 2>&-").code, 6);
  EXPECT_TRUE(nlohmann::json::accept(content("r.json")));
}

TEST_F(CommandTest, ReaderThatGoesAway) {
  makeDemo();
  const std::string command = "cd '" + dir_.string() +
                              "' && { '" SHARDPROOF_BINARY
                              "' verify --plan mlp.plan.json 2>err; echo $? >code; } | true";
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_TRUE(content("code") == "6\n" || content("code") == "0\n")
      << content("code");  // 0: it was written before the reader went
}

// ---- obligations for other solvers ----

TEST_F(CommandTest, EveryObligationIsWrittenAndListed) {
  makeDemo();
  for (const char* plan : {"mlp.plan.json", "mlp_dropped_all_reduce.plan.json"}) {
    ASSERT_NE(run(std::string("verify -q --plan ") + plan + " --smt2 made/here --json r.json").code,
              6);
    const auto index = nlohmann::json::parse(content("made/here/index.json")),
               report = nlohmann::json::parse(content("r.json"));
    EXPECT_EQ(index["complete"], true);
    EXPECT_EQ(index["obligations"].size(), report["statistics"]["classes"]);
    std::size_t files = 0, stages = 0;
    for (const auto& o : index["obligations"]) {
      const std::string text = content("made/here/" + o["file"].get<std::string>());
      EXPECT_EQ(text.size(), o["bytes"]);
      EXPECT_TRUE(has(text, "(set-info :status " + o["status"].get<std::string>() + ")"));
      EXPECT_TRUE(has(text, "(check-sat)"));
      EXPECT_TRUE(
          has(text, "; stage: /lineage/" + std::to_string(o["stages"][0]["entry"].get<int>())));
      stages += o["stages"].size();
      ++files;
    }
    // What an earlier run left is gone: nothing is there but what is listed.
    EXPECT_EQ(files + 1, static_cast<std::size_t>(std::distance(
                             fs::directory_iterator(path("made/here")), fs::directory_iterator())));
    EXPECT_EQ(stages + index["stages_without_obligation"].size(), report["stages"].size());
  }
}

TEST_F(CommandTest, ObligationsDoNotDependOnTheNumberOfJobs) {
  makeDemo();
  ASSERT_EQ(run("verify -q --plan mlp.plan.json --smt2 one --jobs 1").code, 0);
  ASSERT_EQ(run("verify -q --plan mlp.plan.json --smt2 three --jobs 3").code, 0);
  for (const auto& entry : fs::directory_iterator(path("one"))) {
    const std::string name = entry.path().filename().string();
    EXPECT_EQ(content("one/" + name), content("three/" + name)) << name;
  }
}

TEST_F(CommandTest, DirectoriesThatObligationsMustNotGoTo) {
  makeDemo();
  fs::create_directory(path("other"));
  std::ofstream(path("other/class_00000.smt2")) << "mine";
  auto r = run("verify -q --plan mlp.plan.json --smt2 other");
  EXPECT_EQ(r.code, 6);
  EXPECT_TRUE(has(r.err, "holds files that no earlier run left")) << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_EQ(content("other/class_00000.smt2"), "mine");
  EXPECT_FALSE(fs::exists(path("other/index.json")));

  r = run("verify -q --plan mlp.plan.json --smt2 mlp.plan.json");
  EXPECT_EQ(r.code, 6);
  EXPECT_TRUE(has(r.err, "is no directory")) << r.err;
  r = run("verify -q --plan mlp.plan.json --smt2 /proc/none/at/all");
  EXPECT_EQ(r.code, 6);
  EXPECT_TRUE(has(r.err, "/proc/none/at/all")) << r.err;
  r = run("verify -q --plan mlp.plan.json --plan mlp.plan.json --smt2 d");
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.err, "--smt2 takes one plan")) << r.err;
}

// An index names files to be removed: none outside of the directory, and none that a run would not
// have made.
TEST_F(CommandTest, AnIndexRemovesNothingElse) {
  makeDemo();
  fs::create_directory(path("d"));
  std::ofstream(path("victim.smt2")) << "mine";
  std::ofstream(path("d/notes.txt")) << "mine";
  std::ofstream(path("d/index.json")) << R"({"format": "shardproof-obligations", "version": 1,
             "obligations": [{"file": "../victim.smt2"}, {"file": "class_/../../victim.smt2"},
                                             {"file": "notes.txt"}, {"file": 3}, 4, {}]})";
  EXPECT_EQ(run("verify -q --plan mlp.plan.json --smt2 d").code, 0);
  EXPECT_EQ(content("victim.smt2"), "mine");
  EXPECT_EQ(content("d/notes.txt"), "mine");
  EXPECT_EQ(nlohmann::json::parse(content("d/index.json"))["complete"], true);
}

TEST_F(CommandTest, MutateListsBugsAndTheirPlaces) {
  makeDemo();
  const auto all = run("mutate --list");
  EXPECT_EQ(all.code, 0);
  EXPECT_TRUE(has(all.out, "missing_all_reduce "));
  EXPECT_TRUE(has(all.out, "[TrainVerify]"));
  const auto counted = run("mutate mlp.plan.json --list");
  EXPECT_EQ(counted.code, 0);
  EXPECT_TRUE(has(counted.out, " 1 places"));
  EXPECT_TRUE(has(counted.out, " 0 places"));
}

TEST_F(CommandTest, AMutatedPlanIsRefutedWhereItWasMutated) {
  makeDemo();
  const auto made = run("mutate mlp.plan.json --bug missing_all_reduce -o wrong.plan.json.gz");
  EXPECT_EQ(made.code, 0) << made.err;
  const auto first = made.out.find('\n') + 1;
  const std::string pointer = made.out.substr(first, made.out.find(' ', first) - first);
  EXPECT_TRUE(pointer.starts_with("/programs/0/nodes/")) << made.out;
  const auto verdict = run("verify --model mlp.model.json --plan wrong.plan.json.gz");
  EXPECT_EQ(verdict.code, 10);
  EXPECT_TRUE(has(verdict.out, pointer)) << verdict.out;
}

TEST_F(CommandTest, WhatCannotBeMutatedIsSaid) {
  makeDemo();
  const auto fails = [&](const std::string& arguments, int code, const std::string& message) {
    const auto r = run("mutate " + arguments);
    EXPECT_EQ(r.code, code) << arguments;
    EXPECT_EQ(r.out, "") << arguments;
    EXPECT_TRUE(has(r.err, message)) << r.err;
    EXPECT_FALSE(fs::exists(dir_ / "o.json")) << arguments;
  };
  fails("mlp.plan.json --bug rope_offset -o o.json", 3, "does not apply anywhere in this plan");
  fails("mlp.plan.json --bug missing_all_reduce --at /programs/0/nodes/0 -o o.json", 3,
        "does not apply at /programs/0/nodes/0");
  fails("mlp.plan.json --bug missing_all_reduec -o o.json", 1,
        "did you mean \"missing_all_reduce\"");
  fails("mlp.plan.json --bug no_such_bug -o o.json", 1, "there is no bug 'no_such_bug'");
  fails("mlp.plan.json --bug missing_all_reduce", 1, "required");
  fails("mlp.plan.json --bug missing_all_reduce --seed 1 --at x -o o.json", 1, "--");
  fails("mlp.model.json --bug missing_all_reduce -o o.json", 2, "shardproof-plan");
  fails("none.json --bug missing_all_reduce -o o.json", 2, "cannot open");
}

}  // namespace
