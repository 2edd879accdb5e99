// SPDX-License-Identifier: Apache-2.0
#include "reader/plan_files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace shardproof::reader {
namespace {

TEST(PlanFilesTest, PlansOfADirectoryInOrder) {
  std::string directory =
      (std::filesystem::temp_directory_path() / "shardproof-plan-files-XXXXXX").string();
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  for (const char* name :
       {"b.plan.json", "a.plan.json.gz", "a.model.json", "plan.json", "c.plan.json.bak"})
    std::ofstream(directory + "/" + name) << "x";
  std::filesystem::create_directory(directory + "/d.plan.json");
  EXPECT_EQ(plansIn(directory),
            (std::vector<std::string>{directory + "/a.plan.json.gz", directory + "/b.plan.json"}));
  EXPECT_TRUE(plansIn(directory + "/no").empty());
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace shardproof::reader
