// SPDX-License-Identifier: Apache-2.0
#include "sweep/child.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>

namespace shardproof::sweep {
namespace {

int none() { return 0; }

TEST(ChildTest, BringsAnAnswerOfAnySize) {
  const std::string large(5'000'000, 'x');
  const pid_t parent = ::getpid();
  const ChildEnd end =
      runInChild([&] { return (::getpid() != parent ? "child " : "parent ") + large; }, none);
  EXPECT_EQ(end.failure, "");
  EXPECT_EQ(end.answer, "child " + large);
  EXPECT_EQ(runInChild([] { return std::string(); }, none).failure, "");
}

TEST(ChildTest, SaysHowItEndedWithoutAnAnswer) {
  const ChildEnd killed = runInChild(
      [] {
        ::raise(SIGKILL);
        return std::string("x");
      },
      none);
  EXPECT_EQ(killed.answer, "");
  EXPECT_NE(killed.failure.find("signal 9"), std::string::npos) << killed.failure;
  EXPECT_NE(runInChild([]() -> std::string { ::_exit(0); }, none).failure.find("without a result"),
            std::string::npos);
  EXPECT_NE(runInChild([]() -> std::string { throw std::runtime_error("x"); }, none)
                .failure.find("code 1"),
            std::string::npos);
}

TEST(ChildTest, SendsASignalOn) {
  const ChildEnd end = runInChild(
      [] {
        for (;;) ::pause();
        return std::string();
      },
      [] { return SIGTERM; });
  EXPECT_NE(end.failure.find("signal 15"), std::string::npos) << end.failure;
}

}  // namespace
}  // namespace shardproof::sweep
