#include "util/peak_memory.h"

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace shardproof {
namespace {

constexpr std::size_t kLarge = std::size_t{256} << 20;

TEST(PeakMemory, DISABLED_IsPrinted) { std::cout << "bytes " << peakMemoryBytes() << std::endl; }

// What this process has is counted, and is not what a process begins with that it starts.
TEST(PeakMemory, IsThisProgramsOwn) {
  const std::vector<char> large(kLarge, 1);
  EXPECT_GT(peakMemoryBytes(), large.size());
  const std::string command =
      std::filesystem::read_symlink("/proc/self/exe").string() +
      " --gtest_also_run_disabled_tests --gtest_filter=PeakMemory.DISABLED_IsPrinted";
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
