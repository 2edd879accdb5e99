// SPDX-License-Identifier: Apache-2.0
// docs/soundness.md says of every source file whether a proof rests on it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace {

namespace fs = std::filesystem;

std::string section() {
  std::ostringstream text;
  text << std::ifstream(fs::path(SHARDPROOF_SOURCE_DIR) / "docs" / "soundness.md").rdbuf();
  const std::string all = text.str();
  const std::size_t begin = all.find("\n## Trusted base\n");
  return begin == std::string::npos ? "" : all.substr(begin, all.find("\n## ", begin + 4) - begin);
}

// The files that the section names, as paths without an extension, and `directory/*` for all of
// one. A name without a directory is in that of the name before it; `name`, `name.h` and `name.cpp`
// all stand for both files.
std::set<std::string> listed(const std::string& text) {
  std::set<std::string> paths;
  fs::path directory;
  for (std::size_t at = text.find('`'); at != std::string::npos;) {
    const std::size_t end = text.find('`', at + 1);
    if (end == std::string::npos) break;
    fs::path name = text.substr(at + 1, end - at - 1);
    if (name.has_parent_path()) directory = name.parent_path();
    else name = directory / name;
    paths.insert(name.replace_extension().string());
    at = text.find('`', end + 1);
  }
  return paths;
}

bool names(const std::set<std::string>& paths, const fs::path& file) {
  return paths.contains(fs::path(file).replace_extension().string()) ||
         paths.contains((file.parent_path() / "*").string());
}

TEST(TrustedBase, EverySourceFileIsListed) {
  const std::set<std::string> text = listed(section());
  ASSERT_FALSE(text.empty());
  const fs::path root = SHARDPROOF_SOURCE_DIR;
  std::size_t files = 0;
  for (const char* directory : {"src", "include", "ops", "stages", "shape_reduction"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / directory)) {
      if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
      const fs::path file = fs::relative(entry.path(), root);
      EXPECT_TRUE(names(text, file))
          << file.string() << " is in neither list of docs/soundness.md, \"Trusted base\"";
      ++files;
    }
  }
  EXPECT_GT(files, 100u);
  EXPECT_FALSE(names(text, "src/core/prover/no_such_file.cpp"));
  EXPECT_FALSE(names(text, "src/core/prover/plan_index.cpp"));  // src/core/plan/plan_index is there
}

}  // namespace
