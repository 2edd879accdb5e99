// SPDX-License-Identifier: Apache-2.0
#include "executor/schedule.h"

#include <algorithm>

namespace shardproof::executor {

void reportDeadlock(const Programs& programs,
                    const std::vector<std::vector<std::int32_t>>& waitsFor,
                    const std::vector<char>& waiting) {
  std::string message = "no rank can go on: ";
  int listed = 0;
  for (std::size_t m = 0; m < waiting.size() && listed < 4; ++m) {
    if (!waiting[m]) continue;
    const Rendezvous& rendezvous = programs.rendezvous()[m];
    // Who has arrived waits for no other instance; who has not, does.
    const auto arrived = [&](const Member& member) {
      return waitsFor[member.rank][static_cast<std::size_t>(member.instance)] == 0;
    };
    const auto here = std::find_if(rendezvous.members.begin(), rendezvous.members.end(), arrived);
    const auto away =
        std::find_if_not(rendezvous.members.begin(), rendezvous.members.end(), arrived);
    if (here == rendezvous.members.end() || away == rendezvous.members.end()) continue;
    message += (listed > 0 ? "; " : "") + programs.place(here->rank, here->instance) +
               " waits for " + programs.rankText(away->rank);
    ++listed;
  }
  if (listed == 0) message += "operators wait for their own results";
  throw CannotRun(message);
}

}  // namespace shardproof::executor
