// SPDX-License-Identifier: Apache-2.0
// The program as a user runs it, in a directory of its own.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace shardproof::test {

namespace fs = std::filesystem;

struct Outcome {
  int code = -1;
  std::string out, err;
};

class CommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "shardproof-command-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  std::string content(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path(name)).rdbuf();
    return text.str();
  }

  // Runs `shardproof ARGUMENTS`; `redirection` comes last, so that it can override.
  Outcome run(const std::string& arguments, const std::string& redirection = "") const {
    const std::string command = "cd '" + dir_.string() + "' && '" SHARDPROOF_BINARY "' " +
                                arguments + " >out 2>err " + redirection;
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content("out"), content("err")};
  }

  void makeDemo() const {
    const std::string command = "'" SHARDPROOF_PYTHON "' '" SHARDPROOF_SOURCE_DIR
                                "/scripts/make_demo_plan.py' '" +
                                dir_.string() + "' >/dev/null";
    ASSERT_EQ(std::system(command.c_str()), 0);
  }

  fs::path dir_;
};

inline bool has(const std::string& all, const std::string& part) {
  return all.find(part) != std::string::npos;
}

}  // namespace shardproof::test
