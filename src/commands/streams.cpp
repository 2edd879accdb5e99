// SPDX-License-Identifier: Apache-2.0
#include "commands/streams.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
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

void writeStandardError(const std::string& text) {
  if (!writeAll(STDERR_FILENO, text))
    throw std::runtime_error(std::string("standard error: cannot write: ") + std::strerror(errno));
}

bool isTerminal(int descriptor) {
  const char* term = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && !(term && std::strcmp(term, "dumb") == 0);
}

std::size_t terminalWidth(int descriptor) {
  if (::isatty(descriptor) != 1) return 0;
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

TextStyle errorStyle() {
  TextStyle style;
  style.width = terminalWidth(STDERR_FILENO);
  return style;
}

void writeDiagnostic(const std::string& message) {
  (void)writeAll(STDERR_FILENO, "shardproof: " + message + "\n");
}

}  // namespace shardproof
