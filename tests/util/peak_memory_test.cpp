// SPDX-License-Identifier: Apache-2.0
#include "util/peak_memory.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace shardproof {
namespace {

constexpr std::size_t kLarge = std::size_t{256} << 20;

constexpr char kStarted[] = "SHARDPROOF_TEST_STARTED";  // set for the process that the test starts

// What this process has is counted, and is not what a process begins with that it starts.
TEST(PeakMemory, IsThisProgramsOwn) {
  if (std::getenv(kStarted) != nullptr) {
    std::cout << "bytes " << peakMemoryBytes() << std::endl;
    return;
  }
  const std::vector<char> large(kLarge, 1);
  EXPECT_GT(peakMemoryBytes(), large.size());
  std::string command = kStarted;
  command += "=1 ";
  command += std::filesystem::read_symlink("/proc/self/exe").string();
  command += " --gtest_filter=PeakMemory.IsThisProgramsOwn";
  const std::unique_ptr<FILE, int (*)(FILE*)> other(popen(command.c_str(), "r"), pclose);
  ASSERT_NE(other, nullptr);
  std::size_t bytes = 0;
  for (char line[256]; std::fgets(line, sizeof line, other.get()) != nullptr;)
    if (unsigned long found = 0; std::sscanf(line, "bytes %lu", &found) == 1) bytes = found;
  EXPECT_GT(bytes, 0U);
  EXPECT_LT(bytes, kLarge / 2);
}

}  // namespace
}  // namespace shardproof
