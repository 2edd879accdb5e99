// SPDX-License-Identifier: Apache-2.0
#include "util/peak_memory.h"

#include <sys/resource.h>

#include "util/field_of_file.h"

namespace shardproof {

std::size_t peakMemoryBytes() {
  constexpr std::size_t kKilobyte = 1024;
  if (const auto kilobytes = fieldOfFile("/proc/self/status", "VmHWM:"))
    return *kilobytes * kKilobyte;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * kKilobyte;
}

}  // namespace shardproof
