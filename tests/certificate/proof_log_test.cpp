// SPDX-License-Identifier: Apache-2.0
// The file of a proof log: written, read back, and refused where it is none.
#include "certificate/proof_log.h"

#include <gtest/gtest.h>

#include "certificate/proof_record.h"
#include "reader/reader.h"
#include "shardproof/error.h"
#include "support/problems.h"

namespace shardproof {
namespace {

ProofLog smallLog(const std::string& file) {
  ProofLog log;
  log.file = file;
  log.program = "0.1.0";
  log.version = "operators 1, checker 1, Z3 4";
  log.checker = Checker::kZ3;
  log.model = {"m.json", "aa"};
  log.plan = {"../p.json", "bb"};
  log.classes = {{Method::kSolver, "cc", std::string("\0\xff form", 7)},
                 {Method::kPolynomial, "dd", ""}};
  log.lineage = {{"x \"quoted\"", Role::kInput, {}},
                 {"h", Role::kCutPoint, {}},
                 {"h", Role::kCutPoint, {true, 0, {}, 1, 7, false}},
                 {"o", Role::kOutput, {true, 1, {EntryId(2)}, 0, 9, true}}};
  log.positioning = {EntryId(2), EntryId(0), EntryId(2)};
  log.forbidden = {{}, {EntryId(0), EntryId(1)}};
  log.outputs = {{"o", {EntryId(3)}}};
  return log;
}

class ProofLogFile : public testing::Test {
 protected:
  ProofLog readText(const std::string& text) {
    return readProofLog(directory_.write("log.json", text));
  }
  // The message of the error, which must be one of the input.
  std::string errorOf(const std::string& text) {
    try {
      readText(text);
    } catch (const InputError& error) {
      return error.what();
    }
    ADD_FAILURE() << "no error: " << text;
    return {};
  }
  std::string replaced(const std::string& from, const std::string& to) {
    std::string text = proofLogText(smallLog("log.json"));
    const auto at = text.find(from);
    if (at == std::string::npos) throw std::logic_error("the log does not have " + from);
    return text.replace(at, from.size(), to);
  }
  void expectRefused(const std::string& from, const std::string& to, const std::string& why) {
    const std::string error = errorOf(replaced(from, to));
    EXPECT_NE(error.find(why), std::string::npos) << error;
  }
  test::TemporaryDirectory directory_;
};

TEST_F(ProofLogFile, WhatIsWrittenIsRead) {
  for (const std::string name : {"log.json", "log.json.gz"}) {
    const ProofLog log = smallLog(name);
    const ProofLog again = readProofLog(directory_.write(name, proofLogText(log)));
    EXPECT_EQ(again.program, log.program);
    EXPECT_EQ(again.version, log.version);
    EXPECT_EQ(again.checker, log.checker);
    EXPECT_EQ(again.plan.path, log.plan.path);
    EXPECT_EQ(again.model.sha256, log.model.sha256);
    ASSERT_EQ(again.classes.size(), 2u);
    EXPECT_EQ(again.classes[0].form, log.classes[0].form);
    EXPECT_EQ(again.classes[1].method, Method::kPolynomial);
    ASSERT_EQ(again.lineage.size(), 4u);
    EXPECT_EQ(again.lineage[0].tensor, log.lineage[0].tensor);
    EXPECT_FALSE(again.lineage[1].proof.proved);
    EXPECT_EQ(again.lineage[2].proof.key, 7);
    EXPECT_EQ(again.lineage[2].proof.forbidden, 1);
    EXPECT_EQ(again.forbidden, log.forbidden);
    EXPECT_FALSE(again.lineage[2].proof.collapse);
    EXPECT_EQ(again.lineage[3].proof.assumes, std::vector{EntryId(2)});
    EXPECT_EQ(again.positioning, log.positioning);
    EXPECT_EQ(again.outputs[0].entries, std::vector{EntryId(3)});
    EXPECT_EQ(proofLogText(again).size() > 0, true);
  }
  const std::string text = proofLogText(smallLog("log.json"));
  EXPECT_EQ(proofLogText(readText(text)), text);
}

TEST_F(ProofLogFile, NoBeginningOfALogIsALog) {
  const std::string text = proofLogText(smallLog("log.json"));
  for (std::size_t n = 0; n + 2 < text.size(); n += 7) errorOf(text.substr(0, n));
  errorOf(text.substr(0, text.size() - 2));
}

TEST_F(ProofLogFile, WhatIsNoLog) {
  expectRefused("shardproof-proof-log", "shardproof-report", "shardproof-proof-log");
  expectRefused("\"version\": 1", "\"version\": 0", "version 1");
  expectRefused("\"verdict\": \"equivalent\"", "\"verdict\": \"not-equivalent\"",
                "nothing else is certified");
  expectRefused("\"verdict\": \"equivalent\",", "", "\"verdict\" is missing");
  expectRefused("\"positioning\": [2,0,2],", "", "\"positioning\" is missing");
  expectRefused("\"assumes\":[2]", "\"assumes\":[9]",
                "assumes an entry that the log does not have");
  expectRefused("\"assumes\":[2]", "\"assumes\":[2,2]", "ascending");
  expectRefused("\"assumes\":[2]", "\"assumes\":[-1]", "/lineage/3/assumes/0");
  expectRefused("\"class\":1,\"assumes\"", "\"class\":2,\"assumes\"",
                "of a class that the log does not have");
  expectRefused("[[],[0,1]]", "[[],[0,9]]", "names an entry");
  expectRefused("[[],[0,1]]", "[[]]", "was cut without a set");
  expectRefused("\"entries\":[3]", "\"entries\":[4]", "names an entry");
  expectRefused("\"entry\":\"/lineage/1\"", "\"entry\":\"/lineage/2\"", "/lineage/1/entry");
  expectRefused("\"class\":1,\"method\"", "\"class\":0,\"method\"", "/classes/1/class");
  expectRefused("\"method\":\"z3\"", "\"method\":\"numeric\"", "a method of proof");
  expectRefused("\"role\":\"input\"", "\"role\":\"input\",\"proved\":true", "unknown field");
  expectRefused("\"proved\":false", "\"proved\":false,\"class\":0", "unknown field");
  expectRefused("\"proved\":false", "\"proved\":true", "\"class\"");
  expectRefused("\"form\":\"AP8", "\"form\":\"*P8", "base64");
  expectRefused("\"form\":\"AP8", "\"form\":\"A P8", "base64");
}

TEST(ProofLog, PathsAreRelativeToTheLog) {
  const test::TemporaryDirectory directory;
  auto problem = test::read(test::pipeline());
  problem->plan.file = directory.write("p.json", "");
  problem->model.file = "/no/such/m.json";
  ProofRecord record;
  record.entries.resize(problem->plan.lineage.size());
  const std::string parent = std::filesystem::path(problem->plan.file).parent_path();
  EXPECT_EQ(makeProofLog(*problem, record, Checker::kAuto, "1", parent + "/log.json").plan.path,
            "p.json");
  EXPECT_EQ(makeProofLog(*problem, record, Checker::kAuto, "1", parent + "/sub/log.json").plan.path,
            "../p.json");
}

}  // namespace
}  // namespace shardproof
