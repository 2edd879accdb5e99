// SPDX-License-Identifier: Apache-2.0
#include "worker/total_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <sstream>

#include "util/field_of_file.h"

namespace shardproof {
namespace {

constexpr std::size_t kKilobyte = 1024;
constexpr auto kLookEvery = std::chrono::milliseconds(100);
constexpr int kExactShare = 20;  // exact looks take at most one part in so many of the time

std::atomic<std::size_t> totalLimit = kNoMemoryLimit;

std::string directoryOf(pid_t pid) { return "/proc/" + std::to_string(pid); }

// The number that is all of a file; nothing for "max".
std::optional<std::size_t> numberIn(const std::string& path) {
  std::size_t number = 0;
  if (std::ifstream(path) >> number) return number;
  return std::nullopt;
}

// What a process has in memory that is no file's, shared pages included.
std::size_t anonymousBytes(pid_t pid) {
  std::size_t size = 0, resident = 0, ofFiles = 0;
  if (!(std::ifstream(directoryOf(pid) + "/statm") >> size >> resident >> ofFiles)) return 0;
  return (resident - std::min(resident, ofFiles)) *
         static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// A page that n processes share is an n-th of a page here.
std::optional<std::size_t> proportionalBytes(pid_t pid) {
  const auto kilobytes = fieldOfFile(directoryOf(pid) + "/smaps_rollup", "Pss:");
  return kilobytes ? std::optional(*kilobytes * kKilobyte) : std::nullopt;
}

// One version of control groups: the names of its files.
struct GroupFiles {
  const char *most, *used, *statistics, *cached;
};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat",
                               "total_inactive_file"};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", "memory.stat", "inactive_file"};

std::optional<std::size_t> roomIn(const std::string& directory, const GroupFiles& files) {
  const auto most = numberIn(directory + "/" + files.most);
  const auto used = numberIn(directory + "/" + files.used);
  if (!most || !used) return std::nullopt;
  // Pages of files that nobody uses are given back when memory is wanted.
  const std::size_t cached =
      fieldOfFile(directory + "/" + files.statistics, files.cached).value_or(0);
  const std::size_t taken = *used - std::min(*used, cached);
  return *most - std::min(*most, taken);
}

void lower(std::optional<std::size_t>& least, std::optional<std::size_t> other) {
  if (other) least = least ? std::min(*least, *other) : *other;
}

}  // namespace

std::optional<std::size_t> controlGroupBytes(const std::string& memberships,
                                             const std::string& root) {
  std::optional<std::size_t> least;
  std::istringstream lines(memberships);
  // HIERARCHY:CONTROLLERS:PATH; version 2 has no controllers there.
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool version1 = controllers.find(",memory,") != std::string::npos;
    if (!version1 && controllers != ",,") continue;
    const std::string mount = root + (version1 ? "/memory" : "");
    const GroupFiles& files = version1 ? kVersion1 : kVersion2;
    // The limits of all groups above hold, too. In a container the path may not be there: its own
    // group is the mount's root then.
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      lower(least, roomIn(mount + path, files));
      if (path.find('/') == std::string::npos) break;
    }
  }
  return least;
}

std::optional<std::size_t> freeMemoryBytes() {
  std::optional<std::size_t> least = fieldOfFile("/proc/meminfo", "MemAvailable:");
  if (least) *least *= kKilobyte;
  std::ostringstream memberships;
  memberships << std::ifstream("/proc/self/cgroup").rdbuf();
  lower(least, controlGroupBytes(memberships.str(), "/sys/fs/cgroup"));
  return least;
}

std::size_t totalMemoryLimit() { return totalLimit; }

void limitTotalMemory(std::size_t bytes) { totalLimit = bytes; }

std::string totalMemoryText(std::size_t bytes) {
  return "the " + std::to_string(bytes >> 20) +
         " MB that all processes may have together (--memory-limit)";
}

bool MemoryWatch::exceeded(const std::vector<pid_t>& workers) {
  if (bytes_ == kNoMemoryLimit) return false;
  const auto now = Clock::now();
  if (now < nextLook_) return false;
  nextLook_ = now + kLookEvery;
  // Shared pages count several times: no less than what there is, but for pages of files, which
  // can be given back.
  last_ =
      std::accumulate(workers.begin(), workers.end(), anonymousBytes(::getpid()),
                      [](std::size_t sum, pid_t worker) { return sum + anonymousBytes(worker); });
  if (last_ <= bytes_ || now < nextExactLook_) return false;
  auto exact = proportionalBytes(::getpid());
  for (const pid_t worker : workers) {
    const auto part = proportionalBytes(worker);
    // Not told (a process that has just ended, an old system): nothing is known.
    if (!part || !exact) return false;
    *exact += *part;
  }
  nextExactLook_ = Clock::now() + kExactShare * (Clock::now() - now);
  if (!exact) return false;
  last_ = *exact;
  return last_ > bytes_;
}

bool OwnMemory::exceeded() const {
  const std::size_t most = totalMemoryLimit();
  if (exceeded_ || most == kNoMemoryLimit) return exceeded_;
  const auto nanoseconds = [](auto duration) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
  };
  const std::int64_t now = nanoseconds(std::chrono::steady_clock::now().time_since_epoch());
  std::int64_t next = nextLook_;
  if (now < next || !nextLook_.compare_exchange_strong(next, now + nanoseconds(kLookEvery)))
    return false;
  if (anonymousBytes(::getpid()) > most) exceeded_ = true;
  return exceeded_;
}

}  // namespace shardproof
