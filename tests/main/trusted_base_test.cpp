// docs/soundness.md says of every source file whether a proof rests on it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
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

// `name`, `name.cpp` or `name.h`, which stand for both, by itself or at the end of a path; or
// `directory/*`.
bool names(const std::string& text, const fs::path& file) {
  const std::string stem = file.stem().string();
  for (const std::string& end : {stem + "`", stem + ".cpp`", stem + ".h`"}) {
    if (text.find("`" + end) != std::string::npos || text.find("/" + end) != std::string::npos)
      return true;
  }
  return text.find("`" + file.parent_path().string() + "/*`") != std::string::npos;
}

TEST(TrustedBase, EverySourceFileIsListed) {
  const std::string text = section();
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
  EXPECT_FALSE(names(text, "src/checker/no_such_file.cpp"));
}

}  // namespace
