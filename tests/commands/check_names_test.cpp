// SPDX-License-Identifier: Apache-2.0
// scripts/check_names finds what documents and comments name and what is not there.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace {

namespace fs = std::filesystem;

// What the script says of a repository with these two files, and its exit code's truth.
class CheckNames : public ::testing::Test {
 protected:
  void SetUp() override {
    // One for each test: they run at the same time.
    root_ = fs::path(::testing::TempDir()) /
            (std::string("check_names_") +
             ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(root_);
    fs::create_directories(root_ / "docs");
    fs::create_directories(root_ / "src" / "plan");
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string run(const std::string& document, const std::string& source) {
    std::ofstream(root_ / "docs" / "page.md") << document;
    std::ofstream(root_ / "src" / "plan" / "source.cpp") << source;
    const fs::path said = root_ / "said";
    const std::string command = SHARDPROOF_PYTHON " '" SHARDPROOF_SOURCE_DIR
                                                  "/scripts/check_names' '" +
                                root_.string() + "' > '" + said.string() + "'";
    accepted_ = std::system(command.c_str()) == 0;
    std::ostringstream text;
    text << std::ifstream(said).rdbuf();
    return text.str();
  }

  fs::path root_;
  bool accepted_ = false;
};

TEST_F(CheckNames, WhatIsThere) {
  const std::string said = run("# Page\n\n`src/plan/source.cpp`, `src/plan/*`, [it](page.md)\n",
                               "// As plan/source.cpp and docs/page.md,\n// \"Page\", say.\n");
  EXPECT_TRUE(accepted_) << said;
}

TEST_F(CheckNames, WhatIsNot) {
  const auto refused = [&](const std::string& document, const std::string& source,
                           const std::string& part) {
    const std::string said = run(document, source);
    EXPECT_FALSE(accepted_) << part;
    EXPECT_NE(said.find(part), std::string::npos) << said;
  };
  refused("# Page\n\nSee `src/plan/gone.cpp`.\n", "", "docs/page.md:3: names src/plan/gone.cpp");
  refused("# Page\n\nSee [it](gone.html).\n", "", "links to gone.html");
  refused("# Page\n", "int x;  // as plan/gone.h says\n",
          "src/plan/source.cpp:1: names plan/gone.h");
  refused("# Page\n", "// docs/page.md, \"No\n// such\"\n", "the section \"No such\" of page.md");
  refused("# Page\n", "// all of src/plan/gone*\n", "names src/plan/gone*");
}

}  // namespace
