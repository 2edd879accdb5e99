// SPDX-License-Identifier: Apache-2.0
#include "sweep/input_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <vector>

namespace shardproof::sweep {
namespace {

std::int64_t nanoseconds(const timespec& time) {
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

std::optional<InputFile> describeFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  struct Close {
    int fd;
    ~Close() { ::close(fd); }
  } const close{fd};
  struct stat before {
  }, after{};
  if (::fstat(fd, &before) != 0 || !S_ISREG(before.st_mode)) return std::nullopt;
  InputFile file{.path = path, .bytes = 0, .modified = nanoseconds(before.st_mtim), .crc = 0};
  std::vector<unsigned char> buffer(1 << 18);
  for (;;) {
    const ssize_t n = ::read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return std::nullopt;
    if (n == 0) break;
    file.crc =
        static_cast<std::uint32_t>(::crc32_z(file.crc, buffer.data(), static_cast<z_size_t>(n)));
    file.bytes += static_cast<std::uint64_t>(n);
  }
  if (::fstat(fd, &after) != 0 || nanoseconds(after.st_mtim) != file.modified) return std::nullopt;
  return file;
}

}  // namespace shardproof::sweep
