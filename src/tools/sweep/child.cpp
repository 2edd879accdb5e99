// SPDX-License-Identifier: Apache-2.0
#include "sweep/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string_view>

#include "util/write_all.h"

namespace shardproof::sweep {
namespace {

constexpr int kFailed = 1;

[[noreturn]] void fail(const char* doing) {
  throw std::runtime_error(std::string(doing) + ": " + std::strerror(errno));
}

[[noreturn]] void runWork(const std::function<std::string()>& work, int fd, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kFailed);  // the parent died before the line above
  try {
    // The length comes first: an answer that was cut off must not pass for one.
    const std::string answer = work();
    const std::uint64_t length = answer.size();
    if (!writeAll(fd, bytesOf(length)) || !writeAll(fd, answer)) ::_exit(kFailed);
  } catch (...) {
    ::_exit(kFailed);
  }
  ::_exit(0);
}

std::string howItEnded(int status) {
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    std::string text = "its process was ended by signal " + std::to_string(number) + " (" +
                       ::strsignal(number) + ")";
    if (number == SIGKILL) text += "; the system may be out of memory";
    return text;
  }
  return "its process ended with code " + std::to_string(WEXITSTATUS(status)) +
         " and without a result";
}

// Everything that was written until the answer is complete or nobody is left who could write.
std::string receive(int fd, pid_t child, const std::function<int()>& signal, bool& complete) {
  std::string bytes;
  bool told = false;
  std::array<char, 1 << 16> buffer;
  std::uint64_t length = 0;
  complete = false;
  for (;;) {
    if (const int number = told ? 0 : signal(); number != 0) {
      ::kill(child, number);
      told = true;
    }
    pollfd ready{fd, POLLIN, 0};
    if (const int n = ::poll(&ready, 1, 100); n == 0 || (n < 0 && errno == EINTR)) continue;
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return bytes;
    bytes.append(buffer.data(), static_cast<std::size_t>(n));
    if (bytes.size() < sizeof length) continue;
    std::memcpy(&length, bytes.data(), sizeof length);
    if (bytes.size() - sizeof length < length) continue;
    complete = true;
    return bytes.substr(sizeof length, length);
  }
}

}  // namespace

ChildEnd runInChild(const std::function<std::string()>& work, const std::function<int()>& signal) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail("cannot create a pipe");
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    const int error = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    errno = error;
    fail("cannot start a process");
  }
  if (child == 0) {
    ::close(ends[0]);
    runWork(work, ends[1], parent);
  }
  ::close(ends[1]);
  bool complete = false;
  ChildEnd end;
  end.answer = receive(ends[0], child, signal, complete);
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!complete || status != 0) {
    end.answer.clear();
    end.failure = howItEnded(status);
  }
  return end;
}

}  // namespace shardproof::sweep
