#include "main/streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "util/write_all.h"

namespace shardproof {

void claimStandardStreams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() takes the lowest free number, which is this one.
    (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void writeStandardOutput(const std::string& text) {
  if (!writeAll(STDOUT_FILENO, text))
    throw std::runtime_error(std::string("standard output: cannot write: ") + std::strerror(errno));
}

void writeDiagnostic(const std::string& message) {
  (void)writeAll(STDERR_FILENO, "shardproof: " + message + "\n");
}

}  // namespace shardproof
