#include "report/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace shardproof {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& doing, int error) {
  throw std::runtime_error(path + ": " + doing + ": " + std::strerror(error));
}

class OutputFile {
 public:
  OutputFile(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_WRONLY | O_CLOEXEC, 0666)) {}
  ~OutputFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  bool isOpen() const { return fd_ >= 0; }
  int get() const { return fd_; }

  // These return false with errno set.
  bool write(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t n = ::write(fd_, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return false;
      text.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  bool close() {
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd) == 0 || errno == EINTR;
  }

 private:
  int fd_;
};

// Removes the file unless it has been renamed.
struct TemporaryFile {
  std::string path;
  bool kept = false;
  ~TemporaryFile() {
    if (!kept && !path.empty()) ::unlink(path.c_str());
  }
};

std::string directoryOf(const std::string& path) {
  const auto parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

// Follows symbolic links of a file that exists.
std::string resolve(const std::string& path) {
  std::error_code error;
  const auto resolved = std::filesystem::canonical(path, error);
  return error ? path : resolved.string();
}

void writeDirectly(const std::string& path, const std::string& text) {
  OutputFile file(path, O_NOCTTY);
  if (!file.isOpen()) fail(path, "cannot open", errno);
  if (!file.write(text) || !file.close()) fail(path, "cannot write", errno);
}

}  // namespace

void writeFileAtomically(const std::string& path, const std::string& text) {
  struct stat existing {};
  const bool exists = ::stat(path.c_str(), &existing) == 0;
  if (exists && S_ISDIR(existing.st_mode)) fail(path, "cannot write", EISDIR);
  if (exists && !S_ISREG(existing.st_mode)) return writeDirectly(path, text);

  const std::string target = exists ? resolve(path) : path;
  TemporaryFile temporary;
  for (int i = 0;; ++i) {
    const std::string name = target + "." + std::to_string(::getpid()) + "." + std::to_string(i) + ".tmp";
    OutputFile file(name, O_CREAT | O_EXCL);
    if (!file.isOpen()) {
      if (errno == EEXIST && i < 100) continue;
      fail(path, "cannot create a file in its directory", errno);
    }
    temporary.path = name;
    if (exists) (void)::fchmod(file.get(), existing.st_mode & 07777);  // best effort: only the owner may
    if (!file.write(text) || ::fsync(file.get()) != 0 || !file.close()) fail(path, "cannot write", errno);
    break;
  }
  if (::rename(temporary.path.c_str(), target.c_str()) != 0) fail(path, "cannot rename the finished file to it", errno);
  temporary.kept = true;
  // The new name survives a crash of the machine once its directory is written; some file systems cannot do that, which loses nothing now.
  const int directory = ::open(directoryOf(target).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    (void)::fsync(directory);
    ::close(directory);
  }
}

void checkWritable(const std::string& path) {
  struct stat status {};
  const bool exists = ::stat(path.c_str(), &status) == 0;
  if (exists) {
    if (S_ISDIR(status.st_mode)) fail(path, "cannot write", EISDIR);
    if (!S_ISREG(status.st_mode)) {
      if (::access(path.c_str(), W_OK) != 0) fail(path, "cannot write", errno);
      return;
    }
  }
  if (::access(directoryOf(exists ? resolve(path) : path).c_str(), W_OK | X_OK) != 0) fail(path, "cannot create a file in its directory", errno);
}

}  // namespace shardproof
