// SPDX-License-Identifier: Apache-2.0
// docs/design.md, "Layers", is what CMakeLists.txt declares, and the check of the build finds what
// it is there for.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

namespace {

namespace fs = std::filesystem;

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

// Folder -> folders that it needs.
using Layers = std::map<std::string, std::set<std::string>>;

Layers declared() {
  std::map<std::string, std::string> folders;
  Layers layers;
  std::ifstream file(SHARDPROOF_LAYERS);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> fields = split(line, '|');
    if (fields.size() < 2) continue;
    folders[fields[0]] = fields[1];
    auto& needs = layers[fields[1]];
    if (fields.size() > 2)
      for (const std::string& name : split(fields[2], ',')) needs.insert(folders.at(name));
  }
  return layers;
}

Layers documented() {
  Layers layers;
  std::ifstream file(fs::path(SHARDPROOF_SOURCE_DIR) / "docs" / "design.md");
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) inside = line == "## Layers";
    if (!inside || !line.starts_with("| `")) continue;
    const std::vector<std::string> cells = split(line, '|');
    const auto quoted = [](const std::string& cell) {
      std::vector<std::string> names;
      const std::vector<std::string> parts = split(cell, '`');
      for (std::size_t i = 1; i < parts.size(); i += 2) names.push_back(parts[i]);
      return names;
    };
    const std::vector<std::string> needs = quoted(cells.at(2));
    layers[quoted(cells.at(1)).at(0)] = {needs.begin(), needs.end()};
  }
  return layers;
}

TEST(Layers, AreDocumented) {
  const Layers layers = declared();
  EXPECT_GT(layers.size(), 15u);
  EXPECT_EQ(layers, documented());
}

class CheckOfLayers : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / (std::string("layers-") + std::to_string(::getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_ / "src" / "low");
    fs::create_directories(root_ / "high");
    write("src/low/low.h", "#include \"shardproof/error.h\"\n");
    write("high/high.cpp", "#include \"low/low.h\"\n#include <vector>\n");
    write("layers.txt", "low|src/low||trusted\nhigh|high|low|untrusted\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& file, const std::string& text) {
    std::ofstream(root_ / file) << text;
  }
  bool passes() const {
    const std::string command = SHARDPROOF_CMAKE " -DROOT=" + root_.string() +
                                " -DLAYERS=" + (root_ / "layers.txt").string() + " -P " +
                                SHARDPROOF_SOURCE_DIR "/scripts/check_layers.cmake 2>/dev/null";
    return std::system(command.c_str()) == 0;
  }
  fs::path root_;
};

TEST_F(CheckOfLayers, IncludesOfWhatIsNeeded) { EXPECT_TRUE(passes()); }

TEST_F(CheckOfLayers, AnIncludeUpwards) {
  write("src/low/low.h", "#include \"high/high.h\"\n");
  EXPECT_FALSE(passes());
}

TEST_F(CheckOfLayers, AFolderThatIsNoLayer) {
  write("high/high.cpp", "#include \"elsewhere/x.h\"\n");
  EXPECT_FALSE(passes());
}

TEST_F(CheckOfLayers, ATrustedLayerThatNeedsAnUntrustedOne) {
  write("layers.txt", "low|src/low||untrusted\nhigh|high|low|trusted\n");
  EXPECT_FALSE(passes());
}

TEST_F(CheckOfLayers, ACycle) {
  write("layers.txt", "low|src/low|high|trusted\nhigh|high|low|trusted\n");
  EXPECT_FALSE(passes());
}

}  // namespace
