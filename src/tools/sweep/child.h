// SPDX-License-Identifier: Apache-2.0
// Work in a process of its own: what takes it down (a crash, the system out of memory) leaves the
// others as they are, its memory is given back, and its peak is its own.
#pragma once

#include <functional>
#include <string>

namespace shardproof::sweep {

struct ChildEnd {
  std::string answer;
  std::string failure;  // empty: the answer is complete; otherwise how the child ended
};

// Forks, runs `work` in the child and returns what that returned. `signal` is asked several times a
// second; the first number other than 0 is sent on to the child, once, which is expected to come to
// an end. The child dies with its parent. To be called while there is one thread only.
ChildEnd runInChild(const std::function<std::string()>& work, const std::function<int()>& signal);

}  // namespace shardproof::sweep
