// SPDX-License-Identifier: Apache-2.0
#include "sweep/config.h"

#include "fakes.h"
#include "shardproof/error.h"

namespace shardproof::sweep {
namespace {

class ConfigTest : public InDirectory {
 protected:
  std::vector<Configuration> read(const std::string& fields) const {
    return readConfig(
        write("c.json", R"({"format": "shardproof-sweep", "version": 1, )" + fields + "}"),
        FewOptions());
  }
  std::vector<std::string> names(const std::string& fields) const {
    std::vector<std::string> list;
    for (const Configuration& c : read(fields)) list.push_back(c.name);
    return list;
  }
  // The message without the file's name.
  std::string refusal(const std::string& fields) const {
    try {
      read(fields);
    } catch (const InputError& error) {
      return std::string(error.what()).substr((dir_ / "c.json").string().size() + 2);
    }
    return "accepted";
  }
  void expectRefusal(const std::string& fields, const std::string& beginning) const {
    const std::string message = refusal(fields);
    EXPECT_EQ(message.substr(0, beginning.size()), beginning) << fields << "\n" << message;
  }
};

using Names = std::vector<std::string>;

TEST_F(ConfigTest, AGridHasAllCombinationsAndTheLastOptionVariesFastest) {
  EXPECT_EQ(names(R"("configurations": [{"arch": "mlp", "dp": [1, 2], "tp": [1, 4]}])"),
            (Names{"mlp dp=1 tp=1", "mlp dp=1 tp=4", "mlp dp=2 tp=1", "mlp dp=2 tp=4"}));
  const auto all =
      read(R"("configurations": [{"arch": "mlp", "dp": [1, 2], "vocab-parallel": false}])");
  EXPECT_EQ(all[1].settings, (Settings{{"arch", "mlp"}, {"dp", "2"}}));
  EXPECT_EQ(all[1].options->dp, 2);
  EXPECT_TRUE(all[1].invalid.empty());
}

TEST_F(ConfigTest, DefaultsAreReplacedAndMayVary) {
  const std::string defaults =
      R"("defaults": {"arch": "mlp", "layers": 4, "pp": [1, 2], "lr": 0.10}, )";
  EXPECT_EQ(names(defaults + R"("configurations": [{"dp": 2}, {"dp": 2, "pp": 4}])"),
            (Names{"mlp pp=1 dp=2", "mlp pp=2 dp=2", "mlp dp=2 pp=4"}));
  const auto all = read(defaults + R"("configurations": [{"dp": 2}])");
  EXPECT_EQ(all[0].options->layers, 4);
  EXPECT_EQ(all[0].options->learningRate,
            "0.10");  // decimals reach the generator as they are written
}

TEST_F(ConfigTest, NamedEntriesAreCalledByTheirNameAndWhatVaries) {
  EXPECT_EQ(names(R"("configurations": [{"name": "wide", "arch": "mlp", "layers": 8, "dp": 2}])"),
            Names{"wide"});
  EXPECT_EQ(
      names(R"("configurations": [{"name": "wide", "arch": "mlp", "layers": 8, "dp": [2, 4]}])"),
      (Names{"wide dp=2", "wide dp=4"}));
  EXPECT_EQ(
      names(R"("configurations": [{"arch": ["mlp", "llama3"], "vocab-parallel": [false, true]}])"),
      (Names{"mlp", "mlp vocab-parallel", "llama3", "llama3 vocab-parallel"}));
}

TEST_F(ConfigTest, WhatDoesNotFitTogetherIsNamedNotDropped) {
  const std::string grid = R"("configurations": [{"arch": "mlp", "dp": [1, 2], "zero": [0, 1])";
  for (const bool skip : {false, true}) {
    const auto all = read(grid + (skip ? R"(, "skip_invalid": true}])" : "}]"));
    ASSERT_EQ(all.size(), 4u);
    EXPECT_EQ(all[1].name, "mlp dp=1 zero=1");
    EXPECT_EQ(all[1].invalid, "--zero 1 needs --dp of at least 2");
    EXPECT_EQ(all[1].skipInvalid, skip);
    EXPECT_EQ(all[3].invalid, "");
  }
  EXPECT_TRUE(read(R"("skip_invalid": true, )" + grid + "}]")[1].skipInvalid);
  expectRefusal(R"("skip_invalid": true, "configurations": [{"arch": "mlp", "zero": [1, 2]}])",
                "/configurations/0: none of the 2 combinations can be generated, the last because: "
                "--zero 2 needs --dp");
}

TEST_F(ConfigTest, PlansAreFilesDirectoriesAndPatternsBesideTheConfig) {
  write("a/x.plan.json", "{}");
  write("a/y.plan.json.gz", "");
  write("a/y.model.json", "{}");
  EXPECT_EQ(names(R"("plans": ["a"])"), (Names{"a/x.plan.json", "a/y.plan.json.gz"}));
  EXPECT_EQ(names(R"("plans": ["a/*.plan.json"])"), Names{"a/x.plan.json"});
  EXPECT_EQ(
      names(R"("plans": [{"plan": "a/x.plan.json", "name": "x"}, {"plan": "a", "name": "all"}])"),
      (Names{"x", "all a/x.plan.json", "all a/y.plan.json.gz"}));
  const auto one = read(
                       R"("plans": [{"plan": "a/x.plan.json", "model": "a/y.model.json",
              "expect": "not-equivalent"}])")
                       .at(0);
  EXPECT_EQ(one.plan, (dir_ / "a/x.plan.json").string());
  EXPECT_EQ(one.model, (dir_ / "a/y.model.json").string());
  EXPECT_EQ(one.expect, Verdict::kNotEquivalent);
  EXPECT_FALSE(one.options);
  // What is not there is a configuration all the same.
  for (const char* missing : {"no.plan.json", "no/*.json", "b"}) {
    write("b/other.txt", "");
    const auto all = read(std::string(R"("plans": [")") + missing + R"("])");
    ASSERT_EQ(all.size(), 1u);
    EXPECT_FALSE(all[0].invalid.empty()) << missing;
  }
}

TEST_F(ConfigTest, BugsArePutInOneByOne) {
  const auto all = read(
      R"("configurations": [{"name": "k", "arch": "mlp",
          "mutate": [{"bug": "norm_weight_not_reduced"},
          {"bug": "norm_weight_not_reduced", "seed": 3}]}])");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1].name, "k bug=norm_weight_not_reduced@seed3");
  EXPECT_EQ(all[1].bug->choice.seed, 3u);
}

TEST_F(ConfigTest, WrongConfigsAreRefusedWithTheirPlace) {
  expectRefusal(R"("configurations": [])", "there is nothing to run");
  expectRefusal(R"("plan": [])", "/plan: unknown field \"plan\"");
  expectRefusal(R"("configurations": {})", "/configurations: found an object, expected a list");
  expectRefusal(
      R"("configurations": [{"arch": "mlp", "ddp": 2}])",
      "/configurations/0/ddp: unknown field \"ddp\", expected only \"name\", \"expect\", ");
  expectRefusal(R"("defaults": {"name": "x"}, "configurations": [{"arch": "mlp"}])",
                "/defaults/name: unknown field");
  expectRefusal(R"("configurations": [{"arch": "mlp", "dp": []}])",
                "/configurations/0/dp: found an empty list, expected at least one value");
  expectRefusal(R"("configurations": [{"arch": "mlp", "dp": [2, 2]}])",
                "/configurations/0/dp/1: found the number 2 a second time");
  expectRefusal(R"("configurations": [{"arch": "mlp", "dp": [[2]]}])",
                "/configurations/0/dp/0: found a list of length 1, expected a number or a string");
  expectRefusal(R"("configurations": [{"arch": "mlp", "dp": null}])",
                "/configurations/0/dp: found null");
  expectRefusal(R"("configurations": [{"arch": "mlp", "dp": true}])",
                "/configurations/0/dp: found true");
  expectRefusal(R"("configurations": [{"arch": "mlp", "vocab-parallel": 1}])",
                "/configurations/0/vocab-parallel: found the number 1, expected true or false");
  expectRefusal(R"("configurations": [{"arch": "mlp", "dp": [1, "many"], "tp": 2}])",
                "/configurations/0/dp/1: --dp: no number: many");
  expectRefusal(R"("defaults": {"dp": "many"}, "configurations": [{"arch": "mlp"}])",
                "/defaults/dp: --dp: no number: many");
  expectRefusal(R"("configurations": [{"dp": 2}])", "/configurations/0: arch is required");
  expectRefusal(
      R"("configurations": [{"arch": "mlp", "expect": "undecided"}])",
      "/configurations/0/expect: found the string \"undecided\", expected \"equivalent\"");
  expectRefusal(R"("configurations": [{"arch": "mlp", "mutate": {"bug": "no_such"}}])",
                "/configurations/0/mutate/bug: there is no bug 'no_such'");
  expectRefusal(
      R"("configurations": [{"arch": "mlp", "mutate": {"bug": "norm_weight_not_reduced", "at": "/x",
          "seed": 1}}])",
      "/configurations/0/mutate/seed: \"seed\" beside \"at\"");
  expectRefusal(R"("configurations": [{"arch": "mlp", "dp": 2}, {"arch": "mlp", "dp": 2}])",
                "/configurations/1: there is another configuration of the name \"mlp dp=2\"");
  expectRefusal(R"("plans": [{"model": "m"}])", "/plans/0: the field \"plan\" is missing");
  expectRefusal(R"("plans": [1])", "/plans/0: found the number 1");
}

TEST_F(ConfigTest, AGridWithoutBoundsIsRefused) {
  std::string numbers = "1";
  for (int i = 2; i < 2000; ++i) numbers += ", " + std::to_string(i);
  expectRefusal(R"("configurations": [{"arch": "mlp", "dp": [)" + numbers + R"(], "layers": [)" +
                    numbers + "]}]",
                "/configurations/0: more than 100000 configurations");
}

TEST_F(ConfigTest, FormatAndVersionMustBeThere) {
  EXPECT_THROW(readConfig(write("d.json", R"({"version": 1, "plans": ["x"]})"), FewOptions()),
               InputError);
  EXPECT_THROW(
      readConfig(write("d.json", R"({"format": "shardproof-sweep", "version": 2, "plans": ["x"]})"),
                 FewOptions()),
      InputError);
  EXPECT_THROW(readConfig(write("d.json", "[]"), FewOptions()), InputError);
  EXPECT_THROW(readConfig((dir_ / "no.json").string(), FewOptions()), InputError);
}

}  // namespace
}  // namespace shardproof::sweep
