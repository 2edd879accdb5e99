// SPDX-License-Identifier: Apache-2.0
#include "report/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "util/write_all.h"

namespace shardproof {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& doing, int error) {
  throw std::runtime_error(path + ": " + doing + ": " + std::strerror(error));
}

class OutputFile {
 public:
  OutputFile() = default;
  OutputFile(const std::string& path, int flags)
      : fd_(::open(path.c_str(), flags | O_WRONLY | O_CLOEXEC, 0666)) {}
  OutputFile(OutputFile&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OutputFile& operator=(OutputFile&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OutputFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  bool isOpen() const { return fd_ >= 0; }
  int get() const { return fd_; }

  // These return false with errno set.
  bool write(std::string_view text) const { return writeAll(fd_, text); }
  bool close() {
    const int fd = std::exchange(fd_, -1);
    return ::close(fd) == 0 || errno == EINTR;
  }

 private:
  int fd_ = -1;
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

// While one lives, a signal that would end the process does so only afterwards: between the moments
// in which a file gets its names, it would leave one with a temporary name, or the first of several
// that belong together. Only what ends the process by default is held, and handlers rather than a
// mask, as other threads may exist, which would take a process's signal. To be made by one thread
// at a time.
class HeldSignals {
 public:
  HeldSignals() {
    struct sigaction hold {};
    hold.sa_handler = [](int number) { arrived_ = number; };
    hold.sa_flags = SA_RESTART;
    sigfillset(&hold.sa_mask);
    arrived_ = 0;
    for (std::size_t i = 0; i < kNumbers.size(); ++i) {
      held_[i] = ::sigaction(kNumbers[i], nullptr, &before_[i]) == 0 &&
                 (before_[i].sa_flags & SA_SIGINFO) == 0 && before_[i].sa_handler == SIG_DFL &&
                 ::sigaction(kNumbers[i], &hold, nullptr) == 0;
    }
  }
  ~HeldSignals() {
    for (std::size_t i = 0; i < kNumbers.size(); ++i)
      if (held_[i]) ::sigaction(kNumbers[i], &before_[i], nullptr);
    if (arrived_ != 0) ::raise(arrived_);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

 private:
  static constexpr std::array kNumbers = {SIGHUP, SIGINT, SIGQUIT, SIGTERM};
  static inline volatile std::sig_atomic_t arrived_ = 0;
  std::array<struct sigaction, kNumbers.size()> before_{};
  std::array<bool, kNumbers.size()> held_{};
};

// The new content of one file: written in full by the constructor, put in its place by commit().
class Replacement {
 public:
  explicit Replacement(const FileText& file) : path_(file.path), text_(file.text) {
    struct stat existing {};
    exists_ = ::stat(path_.c_str(), &existing) == 0;
    mode_ = existing.st_mode;
    if (exists_ && S_ISDIR(mode_)) fail(path_, "cannot write", EISDIR);
    direct_ = exists_ && !S_ISREG(mode_);
    target_ = exists_ && !direct_ ? resolve(path_) : path_;
    if (direct_ || writeUnnamed()) return;
    writeNamed();
  }
  ~Replacement() {
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  bool isDirect() const { return direct_; }
  void commit() {
    if (direct_) return writeDirectly(path_, text_);
    if (!unnamed_.isOpen() || exists_ || !link(target_)) takePlace();
    // The new name survives a crash of the machine once its directory is written; some file systems
    // cannot do that, which loses nothing now.
    const int directory = ::open(directoryOf(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory >= 0) {
      (void)::fsync(directory);
      ::close(directory);
    }
  }

 private:
  void fill(const OutputFile& file) const {
    if (exists_) (void)::fchmod(file.get(), mode_ & 07777);  // best effort: only the owner may
    if (!file.write(text_) || ::fsync(file.get()) != 0) fail(path_, "cannot write", errno);
  }

  // A file that is in no directory yet, and is gone if this process is killed. False where the file
  // system has none.
  bool writeUnnamed() {
    unnamed_ = OutputFile(directoryOf(target_), O_TMPFILE);
    if (!unnamed_.isOpen()) return false;
    fill(unnamed_);
    return true;
  }

  std::string temporaryName(int i) const {
    return target_ + "." + std::to_string(::getpid()) + "." + std::to_string(i) + ".tmp";
  }

  // By way of a temporary name, as a link cannot replace a file.
  void takePlace() {
    if (unnamed_.isOpen() && !giveTemporaryName()) writeNamed();
    if (::rename(temporary_.c_str(), target_.c_str()) != 0)
      fail(path_, "cannot rename the finished file to it", errno);
    temporary_.clear();
  }

  // Gives the unnamed file a name that is not taken. False, with errno set, where it is, or where
  // there is no /proc.
  bool link(const std::string& name) const {
    const std::string from = "/proc/self/fd/" + std::to_string(unnamed_.get());
    return ::linkat(AT_FDCWD, from.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
  }

  bool giveTemporaryName() {
    for (int i = 0; i < kMostNames; ++i) {
      if (link(temporaryName(i))) {
        temporary_ = temporaryName(i);
        return true;
      }
      if (errno != EEXIST) break;
    }
    return false;
  }

  void writeNamed() {
    for (int i = 0;; ++i) {
      OutputFile file(temporaryName(i), O_CREAT | O_EXCL);
      if (!file.isOpen()) {
        if (errno == EEXIST && i < kMostNames) continue;
        fail(path_, "cannot create a file in its directory", errno);
      }
      temporary_ = temporaryName(i);
      fill(file);
      if (!file.close()) fail(path_, "cannot write", errno);
      return;
    }
  }

  static constexpr int kMostNames = 100;
  const std::string& path_;
  const std::string& text_;
  bool exists_ = false, direct_ = false;
  mode_t mode_ = 0;
  std::string target_, temporary_;  // temporary_: to be removed, if there is one
  OutputFile unnamed_;
};

}  // namespace

void writeFileAtomically(const std::string& path, const std::string& text) {
  const FileText file{path, text};
  writeFilesAtomically({&file, 1});
}

void writeFilesAtomically(std::span<const FileText> files) {
  std::vector<std::unique_ptr<Replacement>> replacements;
  for (const FileText& file : files) replacements.push_back(std::make_unique<Replacement>(file));
  {
    const HeldSignals held;
    for (const auto& replacement : replacements)
      if (!replacement->isDirect()) replacement->commit();
  }
  // These may wait for whoever reads a pipe, so signals must end them.
  for (const auto& replacement : replacements)
    if (replacement->isDirect()) replacement->commit();
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
  // By trying: permissions are not all that there is (full disks, directories of the system, file
  // systems that may only be read).
  const std::string target = exists ? resolve(path) : path;
  if (OutputFile(directoryOf(target), O_TMPFILE).isOpen()) return;
  const std::string name = target + "." + std::to_string(::getpid()) + ".tmp";
  if (!OutputFile(name, O_CREAT | O_EXCL).isOpen())
    fail(path, "cannot create a file in its directory", errno);
  ::unlink(name.c_str());
}

}  // namespace shardproof
