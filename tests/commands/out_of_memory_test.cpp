// SPDX-License-Identifier: Apache-2.0
// Whatever memory the process may have: it ends by itself, with a result, or with an exit code and
// a message that say what was missing.
#include "command.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace {

using shardproof::test::CommandTest;
using shardproof::test::has;

class OutOfMemoryTest : public CommandTest {
 protected:
  void SetUp() override {
#ifdef SHARDPROOF_SANITIZED
    GTEST_SKIP() << "a sanitizer needs address space without a limit";
#endif
    CommandTest::SetUp();
    makeDemo();
  }

  // The exit code, or minus the signal.
  int limited(int megabytes, const std::string& arguments) const {
    const std::string command = "cd '" + dir_.string() + "' && ulimit -c 0 && ulimit -v " +
                                std::to_string(megabytes * 1024) +
                                " && exec '" SHARDPROOF_BINARY "' " + arguments + " >out 2>err";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  // With ever less memory, down to where the system cannot load the program.
  void never(const std::string& arguments, int expected) const {
    bool done = false, failed = false;
    for (int megabytes = 1000; megabytes > 40; megabytes -= megabytes > 170 ? 120 : 10) {
      const int code = limited(megabytes, arguments);
      if (code == 127 && has(content("err"), "shared lib")) break;
      // With a limit a proof may stay undecided, and an execution be left out.
      EXPECT_TRUE(code == expected || code == 5 || code == 7)
          << arguments << " with " << megabytes << " MB: " << code << "\n"
          << content("out") << content("err");
      EXPECT_TRUE(code != 7 || has(content("err") + content("out"), "out of memory"))
          << content("err");
      done = done || code == expected;
      failed = failed || code == 7;
    }
    EXPECT_TRUE(done) << arguments;
    EXPECT_TRUE(failed) << arguments;
  }
};

TEST_F(OutOfMemoryTest, Verify) { never("verify mlp.plan.json --json r.json", 0); }
TEST_F(OutOfMemoryTest, VerifyAWrongPlanWithThreads) {
  never("verify mlp_dropped_all_reduce.plan.json -j 4 --html r.html --checker z3", 10);
}
TEST_F(OutOfMemoryTest, VerifySeveral) { never("verify . -m mlp.model.json", 10); }
TEST_F(OutOfMemoryTest, Run) { never("run mlp.plan.json", 0); }
TEST_F(OutOfMemoryTest, Generate) { never("generate llama3 --size 8B --tp 8 --dp 8 -o big", 0); }
TEST_F(OutOfMemoryTest, LintInferAndShrink) {
  never("lint mlp.plan.json", 0);
  never("infer mlp.plan.json -o i.plan.json", 0);
  never("shrink mlp.plan.json -o small", 0);
}
TEST_F(OutOfMemoryTest, Version) { never("--version", 0); }

}  // namespace
