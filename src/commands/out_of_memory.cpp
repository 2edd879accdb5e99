// SPDX-License-Identifier: Apache-2.0
#include "commands/out_of_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <string_view>
#include <system_error>

#include "report/exit_codes.h"
#include "util/write_all.h"

namespace shardproof {
namespace {

void say(std::string_view text) { (void)writeAll(STDERR_FILENO, text); }

bool saysSo(const char* text) {
  return std::strstr(text, "out of memory") != nullptr ||
         std::strstr(text, "Cannot allocate memory") != nullptr;
}

}  // namespace

bool isOutOfMemory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (const auto* system = dynamic_cast<const std::system_error*>(&error))
    return system->code() == std::errc::not_enough_memory ||
           system->code() == std::errc::resource_unavailable_try_again;
  return saysSo(error.what());  // Z3's, and what the system said of a file
}

std::string outOfMemoryText() {
  rlimit limit{};
  std::string text = "out of memory";
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    text += ": this process may have " + std::to_string(limit.rlim_cur >> 20) +
            " MB of address space (ulimit -v)";
  return text;
}

void endAfterTerminate() noexcept {
  int code = kExitOutOfMemory;
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
    // No exception: there was no memory for it.
    say("shardproof: out of memory\n");
  } catch (const std::exception& error) {
    if (isOutOfMemory(error)) {
      say("shardproof: out of memory\n");
    } else {
      code = kExitInternal;
      say("shardproof: internal error: ");
      say(error.what());
      say("\n");
    }
  } catch (...) {
    code = kExitInternal;
    say("shardproof: internal error of unknown kind\n");
  }
  ::_exit(code);
}

void endAfterExit() noexcept {
  say("shardproof: out of memory: a library ended the program, as it got no memory or no thread\n");
  ::_exit(kExitOutOfMemory);
}

void reserveStack() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  constexpr rlim_t kMost = 8 << 20, kUsed = 512 << 10;  // of the stack until here, and to spare
  rlimit limit{};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0) return;
  const rlim_t size = std::min(limit.rlim_cur, kMost);
  if (size <= 2 * kUsed) return;
  // Growing the stack where there is no room would be a SIGSEGV: whether there is, is tried first.
  void* const room = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  ::munmap(room, size);
  // One page: the system takes all that is between it and the stack as it is.
  volatile std::byte here{};
  volatile std::byte* const end = &here - (size - kUsed);
  *end = std::byte{0};
#endif
}

}  // namespace shardproof
