// SPDX-License-Identifier: Apache-2.0
#include "worker/worker_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <limits>
#include <new>
#include <string_view>

#include "util/write_all.h"
#include "worker/coverage.h"
#include "worker/file_descriptor.h"

namespace shardproof {
namespace {

constexpr int kWorkerFailed = 1;  // exit code after an error that was reported through the pipe

// Blocks until everything is through; false when the other side is gone.
bool readAll(int fd, void* data, std::size_t size) {
  auto* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = ::read(fd, bytes, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

// Allocates nothing: called when there is no memory left.
void sendMessage(int fd, MessageKind kind, std::string_view payload) {
  keepCoverage();
  const MessageHeader header{kind, payload.size()};
  if (!writeAll(fd, bytesOf(header)) || !writeAll(fd, payload)) ::_exit(kWorkerFailed);
}

// False when the limit cannot be set.
bool limitMemory(std::size_t megabytes) {
  std::uint64_t pages = 0;
  if (!(std::ifstream("/proc/self/statm") >> pages)) return false;
  const auto inherited = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  constexpr std::uint64_t kMegabyte = 1024 * 1024;
  const std::uint64_t most = std::numeric_limits<std::int64_t>::max() - inherited;
  const std::uint64_t allowed = megabytes > most / kMegabyte ? most : megabytes * kMegabyte;
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0) return false;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, inherited + allowed);
  return ::setrlimit(RLIMIT_AS, &limit) == 0;
}

// If the machine itself runs out of memory, the kernel should take a worker and not the run.
void volunteerForOutOfMemoryKiller() {
  const FileDescriptor file(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  if (file.get() >= 0) (void)writeAll(file.get(), "500");  // best effort
}

}  // namespace

void runWorker(int tasks, int results, pid_t parent, std::size_t memoryMegabytes,
               const std::function<std::string(std::size_t)>& work) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kWorkerFailed);  // the parent died before the line above
  // Ctrl-C reaches the whole process group; it is the parent that decides what becomes of the
  // workers.
  std::signal(SIGINT, SIG_IGN);
  std::signal(SIGTERM, SIG_DFL);
  // If a library calls exit(), the parent's handlers and buffered output must not run a second time
  // here. Handlers run last first.
  std::atexit([] { ::_exit(kWorkerExited); });
  volunteerForOutOfMemoryKiller();
  if (!limitMemory(memoryMegabytes)) {
    sendMessage(results, MessageKind::kException, "the worker's memory limit cannot be set");
    ::_exit(kWorkerFailed);
  }
  // An exception that nothing may catch, or for which there is no memory itself.
  std::set_terminate([] { ::_exit(kWorkerTerminated); });
  for (;;) {
    std::uint64_t task = 0;
    if (!readAll(tasks, &task, sizeof task)) ::_exit(0);
    try {
      sendMessage(results, MessageKind::kResult, work(task));
    } catch (const std::bad_alloc&) {
      sendMessage(results, MessageKind::kOutOfMemory, {});
      ::_exit(kWorkerFailed);
    } catch (const std::exception& error) {
      sendMessage(results, MessageKind::kException, error.what());
      ::_exit(kWorkerFailed);
    } catch (...) {
      sendMessage(results, MessageKind::kException, "an exception of unknown type");
      ::_exit(kWorkerFailed);
    }
  }
}

}  // namespace shardproof
