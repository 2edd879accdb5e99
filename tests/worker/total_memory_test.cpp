// SPDX-License-Identifier: Apache-2.0
#include "worker/total_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "worker/pool.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMegabyte = 1 << 20;

// Memory that is there, from the system: an allocator might keep it.
class Filled {
 public:
  explicit Filled(std::size_t megabytes)
      : bytes_(megabytes * kMegabyte),
        at_(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    for (std::size_t i = 0; i < bytes_; i += 4096) static_cast<volatile char*>(at_)[i] = 1;
  }
  ~Filled() { ::munmap(at_, bytes_); }
  Filled(const Filled&) = delete;
  Filled& operator=(const Filled&) = delete;
  // All of it, so that a page that was given away comes back.
  void read() const {
    for (std::size_t i = 0; i < bytes_; i += 4096) (void)static_cast<volatile char*>(at_)[i];
  }

 private:
  std::size_t bytes_;
  void* at_;
};

std::size_t ownBytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string name; rollup >> name; std::getline(rollup, name)) {
    std::size_t kilobytes = 0;
    if (name == "Pss:" && rollup >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

struct Ended {
  std::map<std::size_t, TaskResult> results;
  PoolStatistics statistics;
};

Ended runFour(std::size_t spareMegabytes, const std::function<void(std::size_t)>& work) {
  PoolOptions options;
  options.jobs = 4;
  options.totalBytes = ownBytes() + spareMegabytes * kMegabyte;
  Ended ended;
  ended.statistics = runPool(
      {0, 1, 2, 3},
      [&](std::size_t task) {
        work(task);
        return std::to_string(task);
      },
      [&](std::size_t task, const TaskResult& result) { ended.results[task] = result; }, options);
  return ended;
}

void hold(std::size_t megabytes, int milliseconds = 600) {
  const Filled filled(megabytes);
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

class TotalMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (ownBytes() == 0) GTEST_SKIP() << "this system does not tell proportional set sizes";
  }
};

TEST_F(TotalMemoryTest, TasksThatDoNotFitTogetherRunOneAfterTheOther) {
  // Long enough to be seen together on a busy machine, too.
  const Ended ended = runFour(450, [](std::size_t) { hold(200, 2000); });
  ASSERT_EQ(ended.results.size(), 4);
  for (const auto& [task, result] : ended.results) {
    EXPECT_EQ(result.outcome, TaskOutcome::kDone) << result.reason;
    EXPECT_EQ(result.payload, std::to_string(task));
    EXPECT_EQ(result.attempts, 1);  // being stopped is no failure
  }
  EXPECT_GE(ended.statistics.stopped, 1);
  EXPECT_EQ(ended.statistics.workersLost, 0);
}

TEST_F(TotalMemoryTest, ATaskThatDoesNotFitByItselfIsOutOfMemory) {
  const Ended ended = runFour(200, [](std::size_t task) {
    if (task == 2) hold(400, 60'000);
    else hold(10);
  });
  for (const auto& [task, result] : ended.results) {
    if (task != 2) {
      EXPECT_EQ(result.outcome, TaskOutcome::kDone) << result.reason;
      continue;
    }
    EXPECT_EQ(result.outcome, TaskOutcome::kOutOfMemory);
    EXPECT_NE(result.reason.find("that all processes may have together (--memory-limit)"),
              std::string::npos)
        << result.reason;
  }
  EXPECT_EQ(ended.statistics.workersLost, 1);
}

TEST_F(TotalMemoryTest, SharedPagesCountOnce) {
  const Filled inherited(300);
  const Ended ended = runFour(100, [&](std::size_t) {
    inherited.read();
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
  });
  for (const auto& [task, result] : ended.results)
    EXPECT_EQ(result.outcome, TaskOutcome::kDone) << result.reason;
  EXPECT_EQ(ended.statistics.stopped, 0);
}

TEST_F(TotalMemoryTest, OwnMemoryStaysExceeded) {
  const OwnMemory before;
  EXPECT_FALSE(before.exceeded());
  const OwnMemory memory;
  limitTotalMemory(ownBytes() + 100 * kMegabyte);
  {
    const Filled filled(300);
    EXPECT_TRUE(memory.exceeded());
  }
  EXPECT_TRUE(memory.exceeded());
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  EXPECT_FALSE(before.exceeded());
  limitTotalMemory(kNoMemoryLimit);
}

class ControlGroupTest : public testing::Test {
 protected:
  ControlGroupTest() : root_(testing::TempDir() + "control_groups_" + std::to_string(::getpid())) {}
  ~ControlGroupTest() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }

  std::string root_;
};

TEST_F(ControlGroupTest, TheLeastOfAllGroupsAbove) {
  put("/a/memory.max", "1000");
  put("/a/memory.current", "700");
  put("/a/memory.stat", "anon 500\ninactive_file 100");
  put("/a/b/memory.max", "2000");
  put("/a/b/memory.current", "600");
  put("/a/b/memory.stat", "inactive_file 0");
  EXPECT_EQ(controlGroupBytes("0::/a/b\n", root_), 400);
  EXPECT_EQ(controlGroupBytes("0::/c\n", root_), std::nullopt);
}

TEST_F(ControlGroupTest, NoLimit) {
  put("/memory.max", "max");
  put("/memory.current", "700");
  EXPECT_EQ(controlGroupBytes("0::/\n", root_), std::nullopt);
}

// In a container its own group is the root, whatever the path is.
TEST_F(ControlGroupTest, VersionOneInAContainer) {
  put("/memory/memory.limit_in_bytes", "1000");
  put("/memory/memory.usage_in_bytes", "1200");
  put("/memory/memory.stat", "total_inactive_file 300");
  EXPECT_EQ(controlGroupBytes("12:cpu,cpuacct:/x\n4:memory:/docker/x\n0::/x\n", root_), 100);
}

TEST(FreeMemory, IsLessThanTheMachineHas) {
  const auto free = freeMemoryBytes();
  ASSERT_TRUE(free);
  EXPECT_GT(*free, 0);
  EXPECT_LE(*free, static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
}

}  // namespace
}  // namespace shardproof
