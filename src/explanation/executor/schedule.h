// SPDX-License-Identifier: Apache-2.0
// Runs the ranks' programs: each until it blocks on a communication, then others. What computing
// and communicating mean is the host's affair, so that the same schedule serves every arithmetic,
// and the estimate of memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "executor/programs.h"
#include "util/index.h"

namespace shardproof::executor {

// Names the communications that wait for one another.
[[noreturn]] void reportDeadlock(const Programs& programs,
                                 const std::vector<std::vector<std::int32_t>>& waitsFor,
                                 const std::vector<char>& waiting);

// host.compute(rank, instance) and host.communicate(rendezvous), each once, when what it needs is
// there. Throws CannotRun where the ranks wait for each other.
template <class Host>
void runSchedule(const Programs& programs, Host& host) {
  const auto ranks = static_cast<std::size_t>(programs.mesh().ranks());
  using Ready = std::priority_queue<std::int32_t, std::vector<std::int32_t>, std::greater<>>;
  std::vector<Ready> ready(ranks);
  std::vector<std::vector<std::int32_t>> waitsFor(ranks);
  std::vector<std::int32_t> missing;  // by rendezvous: members that have not arrived
  std::vector<char> waiting(programs.rendezvous().size(), 0);
  for (const Rendezvous& m : programs.rendezvous())
    missing.push_back(static_cast<std::int32_t>(m.members.size()));
  std::vector<std::size_t> runnable;
  std::int64_t left = 0;
  for (std::size_t r = ranks; r-- > 0;) {
    waitsFor[r] = programs.layout(Rank(r)).waitsFor;
    const auto inGroups = programs.groupOrder().find(Rank(r));
    if (inGroups != programs.groupOrder().end())
      for (const auto& [before, after] : inGroups->second) ++waitsFor[r][at(after)];
    left += static_cast<std::int64_t>(waitsFor[r].size());
    for (std::size_t i = 0; i < waitsFor[r].size(); ++i)
      if (waitsFor[r][i] == 0) ready[r].push(static_cast<std::int32_t>(i));
    runnable.push_back(r);
  }
  const auto done = [&](std::size_t r, std::int32_t instance) {
    --left;
    const ProgramLayout& layout = programs.layout(Rank(r));
    const auto i = static_cast<std::size_t>(instance);
    for (std::uint32_t e = layout.firstNext[i]; e < layout.firstNext[i + 1]; ++e)
      if (--waitsFor[r][layout.next[e]] == 0) ready[r].push(layout.next[e]);
    const auto inGroups = programs.groupOrder().find(Rank(r));
    if (inGroups == programs.groupOrder().end()) return;
    const auto next = std::lower_bound(inGroups->second.begin(), inGroups->second.end(),
                                       std::pair(instance, std::int32_t{0}));
    if (next != inGroups->second.end() && next->first == instance &&
        --waitsFor[r][at(next->second)] == 0)
      ready[r].push(next->second);
  };
  while (!runnable.empty()) {
    const std::size_t r = runnable.back();
    runnable.pop_back();
    while (!ready[r].empty()) {
      const std::int32_t instance = ready[r].top();
      ready[r].pop();
      const auto rank = static_cast<std::int64_t>(r);
      const std::int32_t rendezvous = programs.rendezvousOf(Rank(rank), instance);
      if (rendezvous < 0) {
        host.compute(Rank(rank), instance);
        done(r, instance);
        continue;
      }
      const auto m = static_cast<std::size_t>(rendezvous);
      waiting[m] = 1;
      if (--missing[m] > 0) continue;
      waiting[m] = 0;
      host.communicate(programs.rendezvous()[m]);
      for (const Member& member : programs.rendezvous()[m].members) {
        const auto other = static_cast<std::size_t>(member.rank);
        const bool idle = ready[other].empty();
        done(other, member.instance);
        if (other != r && idle && !ready[other].empty()) runnable.push_back(other);
      }
    }
  }
  if (left > 0) reportDeadlock(programs, waitsFor, waiting);
}

}  // namespace shardproof::executor
