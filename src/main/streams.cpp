#include "main/streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string_view>

namespace shardproof {
namespace {

bool writeAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

void claimStandardStreams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() takes the lowest free number, which is this one.
    (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void writeStandardOutput(const std::string& text) {
  if (!writeAll(STDOUT_FILENO, text)) throw std::runtime_error(std::string("standard output: cannot write: ") + std::strerror(errno));
}

void writeDiagnostic(const std::string& message) { (void)writeAll(STDERR_FILENO, "shardproof: " + message + "\n"); }

}  // namespace shardproof
