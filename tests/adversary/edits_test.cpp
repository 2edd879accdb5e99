// SPDX-License-Identifier: Apache-2.0
// Edits and the shrinker by themselves, on plans of the families; nothing is verified or executed.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "adversary/edits.h"
#include "adversary/run.h"
#include "adversary/shrink.h"
#include "adversary/stretches.h"
#include "executor/interpret.h"
#include "generate/generate.h"
#include "ir/attribute_steps.h"
#include "reader/reader.h"
#include "shardproof/error.h"

namespace shardproof::adversary {
namespace {

constexpr std::uint64_t kSome = 12;
const char* const kFamilies[] = {"graphs", "lookups", "definedness", "microbatches"};

bool reads(const Case& made) {
  try {
    readProblemText(made.model.dump(), made.plan.dump());
    return true;
  } catch (const InputError&) {
    return false;
  }
}

bool holds(const Json& list, const std::string& op) {
  for (const Json& node : list)
    if (node["op"] == op) return true;
  return false;
}

Case small() {
  Case c;
  c.model = Json::parse(
      R"({"format": "shardproof-model", "version": 1, "tensors": {"x": {"shape": [4],
          "kind": "input"}, "w": {"shape": [4], "kind": "input"}, "a": {"shape": [4]},
          "y": {"shape": [4]}, "z": {"shape": [4]}},
    "nodes": [{"op": "neg", "in": ["x"], "out": ["a"]}, {"op": "exp", "in": ["a"], "out": ["y"]},
     {"op": "tanh", "in": ["w"], "out": ["z"]}], "outputs": ["y", "z"]})");
  c.plan = Json::parse(
      R"({"format": "shardproof-plan", "version": 1, "model": "m.model.json", "mesh": [["dp", 2]],
          "microbatches": 1, "programs": [{
    "tensors": {"x": {"shape": [2], "kind": "input"}, "w": {"shape": [4], "kind": "input"},
     "a": {"shape": [2]}, "y": {"shape": [2]}, "z": {"shape": [4]}},
    "nodes": [{"op": "neg", "in": ["x"], "out": ["a"]}, {"op": "exp", "in": ["a"], "out": ["y"]},
     {"op": "tanh", "in": ["w"], "out": ["z"]}]}],
    "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2]], "step": {"dp": [2]},
     "parts": [{"local": "x"}]}]}, {"tensor": "w", "role": "input",
     "shards": [{"box": [[0, 4]], "parts": [{"local": "w"}]}]},
                {"tensor": "y", "role": "output", "shards": [{"box": [[0, 2]], "step": {"dp": [2]},
                 "parts": [{"local": "y"}]}]}, {"tensor": "z", "role": "output",
                 "shards": [{"box": [[0, 4]], "parts": [{"local": "z"}]}]}]})");
  return c;
}

TEST(Families, PlansAreReadAndTheSameAgain) {
  for (const char* family : kFamilies) {
    std::set<std::string> seen;
    for (std::uint64_t i = 0; i < kSome; ++i) {
      const Case made = makeCase(family, 7, i), again = makeCase(family, 7, i);
      EXPECT_EQ(made.model, again.model) << family << " " << i;
      EXPECT_EQ(made.plan, again.plan) << family << " " << i;
      EXPECT_EQ(made.edit, again.edit);
      EXPECT_TRUE(!made.edit.empty() || reads(made)) << family << " " << i;
      seen.insert(made.plan.dump());
    }
    EXPECT_GT(seen.size(), kSome / 2) << family;
  }
  EXPECT_THROW(makeCase("nothing", 1, 1), std::invalid_argument);
  EXPECT_THROW(makeCase("cache", 1, 1), std::invalid_argument);
}

TEST(Families, OthersOfAnotherSeed) {
  for (const char* family : kFamilies)
    EXPECT_NE(makeCase(family, 1, 3).plan, makeCase(family, 2, 3).plan) << family;
}

TEST(Edits, SayWhatTheyChangeAndChangeNothingElse) {
  std::set<std::string> said;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const Case before = small();
    Case after = before;
    Random random("edits", 3, i);
    const std::string what = edit(after, random);
    EXPECT_EQ(what.empty(), after.model == before.model && after.plan == before.plan) << what;
    EXPECT_NE(after.edit.find(what), std::string::npos) << after.edit;
    EXPECT_EQ(after.plan["format"], before.plan["format"]);
    said.insert(what);
  }
  EXPECT_GT(said.size(), 40u);
}

TEST(Edits, TheSameForTheSameNumbers) {
  for (std::uint64_t i = 0; i < 30; ++i) {
    Case a = makeCase("graphs", 5, i), b = a;
    Random first("again", 1, i), second("again", 1, i);
    EXPECT_EQ(edit(a, first), edit(b, second));
    EXPECT_EQ(a.plan, b.plan);
  }
}

// The same programs and lineage for each coordinate, whatever the stretches are.
TEST(Stretches, SayTheSame) {
  int cut = 0, ended = 0;
  for (std::uint64_t i = 0; i < 60; ++i) {
    Random random("stretch", 1, i);
    Case made = small();
    made.plan["mesh"][0][1] = 4;
    for (Json& entry : made.plan["lineage"])
      for (Json& shard : entry["shards"])
        if (shard.contains("step")) shard["step"]["dp"][0] = 1;
    for (const char* tensor : {"x", "y"})
      for (Json& entry : made.plan["lineage"])
        if (entry["tensor"] == tensor) entry["shards"][0]["box"][0] = {0, 1};
    for (auto& [name, tensor] : made.plan["programs"][0]["tensors"].items())
      if (name != "w" && name != "z") tensor["shape"] = {1};
    const auto before = readProblemText(made.model.dump(), made.plan.dump());
    stretch(made, random);
    const auto after = readProblemText(made.model.dump(), made.plan.dump());
    cut += after->plan.hasStretches();
    const ir::FixedAttributes fixed(*after);
    EXPECT_EQ(executor::execute(fixed.problem(), {}).outputs(fixed.problem().plan),
              executor::Agreement::kAgrees)
        << made.plan;
    EXPECT_EQ(executor::execute(*before, {}).outputs(before->plan), executor::Agreement::kAgrees);
    const Json whole = made.plan;
    ended += !moveEnd(made, random).empty() && made.plan != whole;
  }
  EXPECT_GT(cut, 30);
  EXPECT_GT(ended, 30);
}

TEST(Shrink, KeepsWhatIsAskedForAndNoMore) {
  const Case c = shrink(
      small(),
      [](const Case& tried) {
        return reads(tried) && holds(tried.plan["programs"][0]["nodes"], "exp");
      },
      30);
  EXPECT_TRUE(reads(c));
  EXPECT_TRUE(holds(c.plan["programs"][0]["nodes"], "exp"));
  EXPECT_FALSE(holds(c.plan["programs"][0]["nodes"], "tanh"));
  EXPECT_FALSE(c.model["tensors"].contains("w"));
  EXPECT_EQ(c.model["outputs"].size(), 1u);
}

TEST(Shrink, NothingThatStaysIsNothingThatGoes) {
  const Case before = small();
  int asked = 0;
  const Case after = shrink(
      before,
      [&](const Case&) {
        ++asked;
        return false;
      },
      30);
  EXPECT_EQ(after.model, before.model);
  EXPECT_EQ(after.plan, before.plan);
  EXPECT_GT(asked, 10);
}

TEST(Shrink, TimeIsKept) {
  const Case before = small();
  const Case after = shrink(
      before, [](const Case&) { return true; }, 0);
  EXPECT_EQ(after.plan, before.plan);
}

// Every architecture that `generate` knows, with options that go together.
TEST(Architectures, AreAllDrawn) {
  std::set<std::string> drawn;
  for (std::uint64_t i = 0; i < 40; ++i) {
    Random random("architectures", 1, i);
    const Case made = architectures(random);
    EXPECT_TRUE(reads(made)) << i;
    drawn.insert(made.model["name"].get<std::string>());
  }
  const std::vector<std::string> all = generate::architectures();
  EXPECT_EQ(drawn, std::set<std::string>(all.begin(), all.end()));
}

// Smaller in every measure, as far as it is let.
TEST(Shrink, EndsWhereNothingCanGo) {
  for (std::uint64_t i = 0; i < 4; ++i) {
    const auto any = [](const Case& tried) { return reads(tried); };
    const Case made = makeCase("microbatches", 11, i);
    if (!reads(made)) continue;
    const Case c = shrink(made, any, 30), again = shrink(c, any, 30);
    EXPECT_LE(c.plan.dump().size(), made.plan.dump().size());
    EXPECT_TRUE(reads(c));
    EXPECT_EQ(again.plan, c.plan);
  }
}

TEST(Random, IsTheSameEverywhere) {
  Random r(1);
  EXPECT_EQ(r.next(), 0x910a2dec89025cc1ULL);  // splitmix64's first output for the state 1
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t n = r.between(-3, 5);
    EXPECT_TRUE(n >= -3 && n <= 5);
  }
}

}  // namespace
}  // namespace shardproof::adversary
