// SPDX-License-Identifier: Apache-2.0
// docs/soundness.md, "Trusted base": its first table names the folders that a proof rests on, its
// second one the others, as CMakeLists.txt has them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

std::string textOf(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

std::string section() {
  const std::string all = textOf(fs::path(SHARDPROOF_SOURCE_DIR) / "docs" / "soundness.md");
  const std::size_t begin = all.find("\n## Trusted base\n");
  return begin == std::string::npos ? "" : all.substr(begin, all.find("\n## ", begin + 4) - begin);
}

// The folders in the first column of each table of the section. `a/b`, `c` stands for a/b and a/c.
std::vector<std::vector<std::string>> tables() {
  std::vector<std::vector<std::string>> found;
  std::istringstream lines(section());
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    const bool row = line.starts_with("| ");
    if (row && !inside) found.emplace_back();
    inside = row;
    if (!row) continue;
    const std::string cell = line.substr(0, line.find(" |", 2));
    fs::path parent;
    for (std::size_t at = cell.find('`'); at != std::string::npos;) {
      const std::size_t end = cell.find('`', at + 1);
      fs::path name = cell.substr(at + 1, end - at - 1);
      if (name.has_parent_path()) parent = name.parent_path();
      else if (!parent.empty()) name = parent / name;
      found.back().push_back(name.string());
      at = cell.find('`', end + 1);
    }
  }
  return found;
}

bool covers(const std::vector<std::string>& table, const std::string& folder) {
  return std::any_of(table.begin(), table.end(), [&](const std::string& name) {
    return folder == name || folder.starts_with(name + "/");
  });
}

// Folder -> "trusted" or "untrusted".
std::map<std::string, std::string> layers() {
  std::map<std::string, std::string> all;
  std::ifstream file(SHARDPROOF_LAYERS);
  for (std::string line; std::getline(file, line);) {
    std::vector<std::string> fields;
    std::istringstream parts(line);
    for (std::string part; std::getline(parts, part, '|');) fields.push_back(part);
    if (fields.size() == 4) all[fields[1]] = fields[3];
  }
  return all;
}

TEST(TrustedBase, EveryFolderIsInTheTableOfItsKind) {
  const auto found = tables();
  ASSERT_EQ(found.size(), 2u);
  std::size_t trusted = 0, untrusted = 0;
  for (const auto& [folder, trust] : layers()) {
    const bool isTrusted = trust == "trusted";
    EXPECT_EQ(covers(found[0], folder), isTrusted) << folder;
    EXPECT_EQ(covers(found[1], folder), !isTrusted) << folder;
    ++(isTrusted ? trusted : untrusted);
  }
  EXPECT_GT(trusted, 10u);
  EXPECT_GT(untrusted, 10u);
}

TEST(TrustedBase, EverySourceFileIsInALayer) {
  const auto all = layers();
  const fs::path root = SHARDPROOF_SOURCE_DIR;
  std::size_t files = 0;
  for (const char* directory : {"src", "ops", "stages", "shape_reduction"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / directory)) {
      if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
      const std::string file = fs::relative(entry.path(), root).string();
      const bool inLayer = std::any_of(all.begin(), all.end(), [&](const auto& layer) {
        return file.starts_with(layer.first + "/");
      });
      EXPECT_TRUE(inLayer || file.starts_with("src/commands/")) << file;
      ++files;
    }
  }
  EXPECT_GT(files, 100u);
}

}  // namespace
