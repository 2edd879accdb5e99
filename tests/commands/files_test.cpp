// SPDX-License-Identifier: Apache-2.0
// No output of any command is one of its inputs, or another of its outputs; and every command takes
// its plan in the same ways.
#include "command.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using shardproof::test::CommandTest;
using shardproof::test::has;

class FilesTest : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
    makeDemo();
    plan_ = content("mlp.plan.json");
    model_ = content("mlp.model.json");
  }

  // Exit code 1, a message with all of `names`, nothing printed, and all inputs as they were.
  void refuses(const std::string& arguments, const std::vector<std::string>& names) {
    const auto r = run(arguments);
    EXPECT_EQ(r.code, 1) << arguments << "\n" << r.err;
    EXPECT_EQ(r.out, "") << arguments;
    for (const std::string& name : names)
      EXPECT_TRUE(has(r.err, name)) << arguments << "\n" << r.err;
    EXPECT_EQ(content("mlp.plan.json"), plan_) << arguments;
    EXPECT_EQ(content("mlp.model.json"), model_) << arguments;
  }

  std::string plan_, model_;
};

TEST_F(FilesTest, NoOutputOfVerifyIsAnInput) {
  for (const char* option :
       {"--json", "--html", "--junit", "--sarif", "--certify", "--fix", "--cache"}) {
    const std::string o = option;
    refuses("verify mlp.plan.json " + o + " mlp.plan.json",
            {o + " mlp.plan.json", "PLAN mlp.plan.json"});
    refuses("verify -p mlp.plan.json " + o + "=./mlp.plan.json", {o, "--plan mlp.plan.json"});
    refuses("verify -m mlp.model.json mlp.plan.json " + o + " mlp.model.json",
            {o + " mlp.model.json", "--model mlp.model.json"});
    // The model that only the plan names.
    refuses("verify mlp.plan.json " + o + " mlp.model.json",
            {o + " mlp.model.json", "the model of PLAN mlp.plan.json"});
  }
}

TEST_F(FilesTest, TheFileCountsNotItsName) {
  fs::create_symlink("mlp.plan.json", dir_ / "soft.json");
  fs::create_hard_link(dir_ / "mlp.plan.json", dir_ / "hard.json");
  fs::create_directory_symlink(dir_, dir_ / "again");
  for (const std::string name :
       {"soft.json", "hard.json", "./mlp.plan.json", "again/mlp.plan.json", "again/soft.json"}) {
    refuses("verify mlp.plan.json --json " + name, {"--json " + name, "PLAN mlp.plan.json"});
    refuses("verify " + name + " --json mlp.plan.json", {"--json", "PLAN " + name});
  }
  refuses("verify '" + path("mlp.plan.json") + "' --html mlp.plan.json", {"--html", "PLAN"});
}

TEST_F(FilesTest, NoTwoOutputsAreOneFile) {
  refuses("verify mlp.plan.json --json r --html r", {"--json r", "--html r"});
  refuses("verify mlp.plan.json --json r --sarif ./r", {"--json r", "--sarif ./r"});
  fs::create_directory_symlink(dir_, dir_ / "again");
  refuses("verify mlp.plan.json --junit r --fix again/r", {"--junit r", "--fix again/r"});
  refuses("verify mlp.plan.json --cache r --certify r", {"--cache r", "--certify r"});
  refuses("verify mlp.plan.json --smt2 d --json d/index.json", {});
  EXPECT_FALSE(fs::exists(path("r")));
  // Nothing is replaced where an output is none.
  EXPECT_EQ(run("verify mlp.plan.json --json /dev/null --sarif /dev/null").code, 0);
}

TEST_F(FilesTest, DirectoriesOfPlansAndStandardStreams) {
  refuses("verify . -m mlp.model.json --json mlp_dropped_all_reduce.plan.json",
          {"--json", "mlp_dropped_all_reduce.plan.json"});
  // Appending would destroy it, too.
  auto r = run("verify mlp.plan.json", ">>mlp.plan.json");
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(has(r.err, "standard output and PLAN mlp.plan.json")) << r.err;
  EXPECT_EQ(content("mlp.plan.json"), plan_);
  r = run("verify - -m mlp.model.json --json mlp.plan.json", "<mlp.plan.json");
  EXPECT_EQ(r.code, 1) << r.err;
  EXPECT_TRUE(has(r.err, "PLAN -")) << r.err;
  r = run("verify - --json mlp.model.json", "<mlp.plan.json");
  EXPECT_EQ(r.code, 1) << r.err;
  r = run("verify mlp.plan.json --json both", ">both");
  EXPECT_EQ(r.code, 1) << r.err;
  EXPECT_TRUE(has(r.err, "standard output")) << r.err;
  EXPECT_EQ(content("mlp.plan.json"), plan_);
}

// A plan that comes through a pipe says only once which model it is of.
TEST_F(FilesTest, ModelOfAPlanInAPipe) {
  ASSERT_EQ(std::system(("mkfifo '" + path("pipe") + "'").c_str()), 0);
  for (const std::string& plan : {std::string("-"), std::string("pipe")}) {
    const std::string feed =
        plan == "-" ? "cat mlp.plan.json | " : "(cat mlp.plan.json > pipe &) ; ";
    const std::string command = "cd '" + dir_.string() + "' && " + feed +
                                "'" SHARDPROOF_BINARY "' verify -q " + plan +
                                " --json mlp.model.json 2>err >out";
    const int status = std::system(command.c_str());
    EXPECT_EQ(WEXITSTATUS(status), 1) << content("err");
    EXPECT_TRUE(has(content("err"), "the plan's model")) << content("err");
    EXPECT_EQ(content("mlp.model.json"), model_);
  }
}

TEST_F(FilesTest, OtherCommands) {
  refuses("run mlp.plan.json --json mlp.plan.json", {"--json", "PLAN"});
  refuses("run mlp.plan.json --outputs mlp.model.json", {"--outputs", "the model of PLAN"});
  refuses("run mlp.plan.json --inputs i.npz --outputs i.npz",
          {"--inputs i.npz", "--outputs i.npz"});
  refuses("infer mlp.plan.json -o mlp.plan.json", {"--output", "PLAN"});
  refuses("infer mlp.plan.json -o mlp.model.json", {"--output", "the model of PLAN"});
  refuses("shrink mlp.plan.json -o mlp", {"--output mlp.", "mlp"});
  refuses("shrink -p mlp.plan.json -o ./mlp", {"--output", "mlp"});
  refuses("mutate mlp.plan.json --bug missing_all_reduce -o mlp.plan.json", {"--output", "PLAN"});
  refuses("mutate mlp.plan.json --bug missing_all_reduce -o mlp.model.json",
          {"--output", "the model of PLAN"});
  fs::copy_file(path("mlp.model.json"), path("c.model.json"));
  refuses("convert mlp.plan.json -m c.model.json -o . --name c",
          {"--output", "--model c.model.json"});
  ASSERT_EQ(run("verify -q mlp.plan.json --certify log.json").code, 0);
  const std::string log = content("log.json");
  refuses("check-log log.json --json log.json", {"--json", "LOG"});
  refuses("check-log log.json --json mlp.plan.json", {"--json", "the log's plan"});
  refuses("check-log log.json --json mlp.model.json", {"--json", "the log's model"});
  EXPECT_EQ(content("log.json"), log);
}

TEST_F(FilesTest, Sweeps) {
  std::ofstream(path("sweep.json"))
      << R"({"format": "shardproof-sweep", "version": 1, "plans": ["mlp.plan.json"]})";
  refuses("sweep sweep.json --json sweep.json", {"--json", "CONFIG"});
  refuses("sweep sweep.json --json mlp.plan.json", {"--json", "a plan of CONFIG"});
  refuses("sweep sweep.json --junit mlp.model.json", {"--junit"});
  refuses("sweep sweep.json --json r --junit r", {"--json r", "--junit r"});
  refuses("sweep sweep.json --json b --baseline b", {"--json b", "--baseline b"});
  EXPECT_EQ(run("sweep sweep.json --json r.json --keep kept").code, 0);
}

TEST_F(FilesTest, OneConventionForThePlan) {
  struct Command {
    std::string words;
    int code;
  };
  for (const auto& [words, code] : std::vector<Command>{{"verify -q", 0},
                                                        {"lint", 0},
                                                        {"run", 0},
                                                        {"infer -o i.plan.json", 0},
                                                        {"shrink -o small", 0},
                                                        {"mutate --list", 0}}) {
    for (const char* plan : {"mlp.plan.json", "-p mlp.plan.json", "--plan=mlp.plan.json"}) {
      auto r = run(words + " " + plan);
      EXPECT_EQ(r.code, code) << words << " " << plan << r.out << r.err;
      if (words.starts_with("mutate")) continue;
      r = run(words + " -m mlp.model.json " + plan);
      EXPECT_EQ(r.code, code) << words << " " << plan << r.out << r.err;
      fs::remove(path("i.plan.json"));
    }
    if (words.starts_with("mutate")) continue;
    const auto r = run(words);
    EXPECT_EQ(r.code, 1) << words;
    EXPECT_TRUE(has(r.err, "no plan is given")) << r.err;
  }
  for (const std::string words : {"run", "infer -o i.json", "shrink -o s"}) {
    const auto r = run(words + " mlp.plan.json -p mlp_dropped_all_reduce.plan.json");
    EXPECT_EQ(r.code, 1);
    EXPECT_TRUE(has(r.err, "takes one plan, but 2 were given")) << r.err;
  }
}

TEST_F(FilesTest, ExplainOfAReportWithoutCauses) {
  ASSERT_EQ(run("verify -q mlp.plan.json --json right.json").code, 0);
  auto r = run("explain right.json");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "No causes: plan mlp.plan.json is equivalent")) << r.out;
  ASSERT_EQ(run("verify -q mlp_dropped_all_reduce.plan.json --diagnose off --json wrong.json").code,
            10);
  r = run("explain wrong.json");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_TRUE(has(r.out, "not-equivalent")) << r.out;
  EXPECT_EQ(run("explain right.json --cause 1").code, 1);
  r = run("explain right.json --format dot");
  EXPECT_EQ(r.code, 0);
  EXPECT_EQ(r.out, "");
  EXPECT_TRUE(has(r.err, "nothing to draw")) << r.err;
  ASSERT_EQ(run("verify -q . -m mlp.model.json --json two.json").code, 10);
  r = run("explain two.json");
  EXPECT_EQ(r.code, 2);
  EXPECT_TRUE(has(r.err, "several plans")) << r.err;
}

TEST_F(FilesTest, ExplainOfWhatIsNoReport) {
  std::ofstream(path("text.json")) << "equivalent";
  std::ofstream(path("list.json")) << "[1]";
  std::ofstream(path("old.json")) << R"({"format": "other"})";
  std::ofstream(path("numbers.json")) << R"({"format": "shardproof-comparison"})";
  for (const auto& [words, found] : std::map<std::string, std::string>{
           {"explain text.json", "found no JSON"},
           {"explain list.json", "without a format"},
           {"explain old.json", "found \"other\", expected"},
           {"explain mlp.plan.json", "verify --json or compare --json"},
           {"compare --proof numbers.json . .", "verify --json"}}) {
    const auto r = run(words);
    EXPECT_EQ(r.code, 2) << words;
    EXPECT_TRUE(has(r.err, found)) << words << ": " << r.err;
    EXPECT_FALSE(has(r.err, "exception")) << r.err;
  }
  for (const std::string options : {"--cause 1", "--format dot"}) {
    const auto r = run("explain numbers.json " + options);
    EXPECT_EQ(r.code, 1) << options;
    EXPECT_TRUE(has(r.err, "has numbers")) << r.err;
  }
}

}  // namespace
