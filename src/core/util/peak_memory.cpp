// SPDX-License-Identifier: Apache-2.0
#include "util/peak_memory.h"

#include <sys/resource.h>

#include <fstream>
#include <string>

namespace shardproof {

std::size_t peakMemoryBytes() {
  constexpr std::size_t kKilobyte = 1024;
  std::ifstream status("/proc/self/status");
  for (std::string field; status >> field; std::getline(status, field)) {
    std::size_t kilobytes = 0;
    if (field == "VmHWM:" && status >> kilobytes) return kilobytes * kKilobyte;
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * kKilobyte;
}

}  // namespace shardproof
