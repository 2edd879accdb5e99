// SPDX-License-Identifier: Apache-2.0
#include "report/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace shardproof {
namespace {

namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "shardproof-file-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  static std::string content(const std::string& file) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(dir_), {}));
  }
  // Otherwise what a signal ends while it writes stays, under its temporary name.
  bool hasUnnamedFiles() const {
    const int file = ::open(dir_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (file >= 0) ::close(file);
    return file >= 0;
  }
  static std::string failure(const std::string& file, const std::string& text = "x") {
    try {
      writeFileAtomically(file, text);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }

  fs::path dir_;
};

TEST_F(FileTest, WritesAndReplaces) {
  const std::string large(3'000'000, 'z');
  writeFileAtomically(path("r.json"), large);
  EXPECT_EQ(content(path("r.json")), large);
  writeFileAtomically(path("r.json"), "short");
  EXPECT_EQ(content(path("r.json")), "short");
  EXPECT_EQ(entries(), 1u);
}

TEST_F(FileTest, UsualPermissions) {
  const mode_t mask = ::umask(022);
  writeFileAtomically(path("r"), "x");
  ::umask(mask);
  EXPECT_EQ(fs::status(path("r")).permissions(), fs::perms(0644));
  fs::permissions(path("r"), fs::perms(0600));
  writeFileAtomically(path("r"), "y");
  EXPECT_EQ(fs::status(path("r")).permissions(), fs::perms(0600));
}

TEST_F(FileTest, FollowsSymbolicLinks) {
  fs::create_directory(path("real"));
  writeFileAtomically(path("real/r"), "old");
  fs::create_symlink("real/r", path("link"));
  writeFileAtomically(path("link"), "new");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(content(path("real/r")), "new");
}

TEST_F(FileTest, RelativePath) {
  const fs::path old = fs::current_path();
  fs::current_path(dir_);
  writeFileAtomically("r", "x");
  EXPECT_NO_THROW(checkWritable("r"));
  fs::current_path(old);
  EXPECT_EQ(content(path("r")), "x");
}

TEST_F(FileTest, MissingDirectory) {
  EXPECT_EQ(failure(path("no/r")),
            path("no/r") + ": cannot create a file in its directory: No such file or directory");
  EXPECT_THROW(checkWritable(path("no/r")), std::runtime_error);
}

TEST_F(FileTest, Directory) {
  EXPECT_EQ(failure(dir_.string()), dir_.string() + ": cannot write: Is a directory");
  EXPECT_THROW(checkWritable(dir_.string()), std::runtime_error);
  EXPECT_EQ(entries(), 0u);
}

// A full disk, as far as a test can have one: the old content stays and the temporary file goes.
TEST_F(FileTest, FailingWriteKeepsTheOldFile) {
  writeFileAtomically(path("r"), "old");
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 100;
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = failure(path("r"), std::string(5000, 'x'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(message, path("r") + ": cannot write: File too large");
  EXPECT_EQ(content(path("r")), "old");
  EXPECT_EQ(entries(), 1u);
}

// Two files are replaced again and again by a process that a signal ends at some moment: they
// belong together, and nothing is left beside them.
TEST_F(FileTest, ASignalBetweenTwoFilesIsHeld) {
  const std::string first = path("a"), second = path("b");
  for (int round = 0; round < 60; ++round) {
    writeFilesAtomically(std::vector<FileText>{{first, "0"}, {second, "0"}});
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int i = 1;; ++i) {
        const std::string text = std::to_string(i);
        writeFilesAtomically(std::vector<FileText>{{first, text}, {second, text}});
      }
    }
    ::usleep(static_cast<useconds_t>(2000 + 37 * round));
    ::kill(child, round % 2 ? SIGTERM : SIGHUP);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == (round % 2 ? SIGTERM : SIGHUP))
        << status;
    EXPECT_EQ(content(first), content(second));
    if (hasUnnamedFiles()) {
      EXPECT_EQ(entries(), 2u);
    }
  }
}

TEST_F(FileTest, APipeThatNobodyReadsCanBeInterrupted) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    writeFileAtomically(path("pipe"), "x");
    ::_exit(0);
  }
  ::usleep(20'000);
  ::kill(child, SIGTERM);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST_F(FileTest, DevicesAreWrittenNotReplaced) {
  EXPECT_NO_THROW(checkWritable("/dev/null"));
  writeFileAtomically("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_EQ(failure("/dev/full"), "/dev/full: cannot write: No space left on device");
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

}  // namespace
}  // namespace shardproof
