// SPDX-License-Identifier: Apache-2.0
// One worker of the pool: what it does in its own process, and the protocol that it speaks. Task
// numbers (std::uint64_t) come in; for each a MessageHeader and its payload go out.
//
// What `work` may not do: use OpenMP or any other thread of the parent. fork copies the calling
// thread alone; a parallel region in the child would wait for team members that exist only in the
// parent. The parent may have used OpenMP before.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace shardproof {

// Exit codes of a worker that reported nothing: a library called exit(), or std::terminate was
// called. Both are what happens when there is no memory.
constexpr int kWorkerExited = 3, kWorkerTerminated = 71;

enum class MessageKind : std::uint64_t { kResult, kOutOfMemory, kException };

struct MessageHeader {
  MessageKind kind = MessageKind::kResult;
  std::uint64_t length = 0;
};
static_assert(sizeof(MessageHeader) == 16, "sent as bytes: no padding");

// Takes tasks until the pipe is closed. For a fork of `parent`, which has the other ends of both
// pipes; `memoryMegabytes` is what it may allocate beyond what it was forked with. An error is sent
// and ends it.
[[noreturn]] void runWorker(int tasks, int results, pid_t parent, std::size_t memoryMegabytes,
                            const std::function<std::string(std::size_t)>& work);

}  // namespace shardproof
