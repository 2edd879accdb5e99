// SPDX-License-Identifier: Apache-2.0
// Small families of plans: right at all sizes, at none, and at the sizes that are read only.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "families/prove_family.h"
#include "shardproof/error.h"
#include "shardproof/read.h"
#include "shardproof/verify.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::Json;

struct Texts {
  Json model, plan;
};

// y = mean over rows of x, 2 rows on each of n ranks: local means are added up and scaled.
Texts mean(std::int64_t n) {
  const std::string rows = std::to_string(2 * n), ranks = std::to_string(n);
  return {
      Json::parse(R"({"format": "shardproof-model", "version": 1,
              "tensors": {"x": {"shape": [)" +
                  rows + R"(, 3], "kind": "input"},
                "y": {"shape": [3]}},
              "nodes": [{"op": "mean", "in": ["x"], "out": ["y"], "attrs": {"dim": [0]}}],
              "outputs": ["y"]})"),
      Json::parse(R"({"format": "shardproof-plan", "version": 1, "model": "m", "mesh": [["dp", )" +
                  ranks + R"(]], "programs": [{
              "tensors": {"lx": {"shape": [2, 3], "kind": "input"}, "part": {"shape": [3]},
                          "all": {"shape": [3]}, "ly": {"shape": [3]}},
              "nodes": [{"op": "mean", "in": ["lx"], "out": ["part"], "attrs": {"dim": [0]}},
                        {"op": "all_reduce", "in": ["part"], "out": ["all"], "comm": "c",
                         "group": ["dp"]},
                        {"op": "div", "in": ["all"], "out": ["ly"], "attrs": {"scalar": )" +
                  ranks + R"(}}]}],
              "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2], [0, 3]],
                           "step": {"dp": [2, 0]}, "parts": [{"local": "lx"}]}]},
                          {"tensor": "y", "role": "output", "shards": [{"box": [[0, 3]],
                           "parts": [{"local": "ly"}]}]}]})")};
}

using Maker = std::function<Texts(std::int64_t)>;

FamilyMember member(const Maker& make, std::int64_t n) {
  const Texts texts = make(n);
  return {n, readProblemText(texts.model.dump(), texts.plan.dump())};
}

FamilyChain chainOf(const Maker& make, const std::vector<std::int64_t>& sizes,
                    std::int64_t unit = 1) {
  std::vector<FamilyMember> members;
  for (const std::int64_t n : sizes) members.push_back(member(make, n));
  return FamilyChain(std::move(members), unit);
}

FamilyReport proved(FamilyChain& chain) {
  VerifyOptions options;
  options.inProcess = true;
  return proveFamily(chain, options, Budget());
}

TEST(Family, IsProvedForAllSizesAndHasThePlansOfOthers) {
  FamilyChain chain = chainOf(mean, {4, 5, 7});
  const FamilyReport report = proved(chain);
  EXPECT_EQ(report.verdict, Verdict::kEquivalent)
      << (report.open.empty() ? "" : report.open[0].reason);
  EXPECT_EQ(report.least, 4);
  EXPECT_EQ(report.withSize, 1u);
  for (const std::int64_t n : {4, 6, 8, 9, 10, 16, 31, 64, 100, 1000, 4096}) {
    EXPECT_EQ(chain.differs(member(mean, n), {}), "") << n;
    VerifyOptions options;
    options.inProcess = true;
    EXPECT_EQ(verify(*member(mean, n).problem, options).verdict, Verdict::kEquivalent) << n;
  }
  EXPECT_NE(chain.differs(member(mean, 3), {}), "");  // three ranks are not taken together
}

// The divisor is what it has to be at one size, or at those that are read.
TEST(Family, IsNotProvedWhereItIsRightAtSomeSizesOnly) {
  const std::vector<std::function<std::int64_t(std::int64_t)>> divisors{
      [](std::int64_t) { return 4; },
      [](std::int64_t n) { return n + 1; },
      [](std::int64_t n) { return 2 * n; },
      [](std::int64_t n) { return 12 - 2 * n; },
      [](std::int64_t n) { return n <= 7 ? n : 7; },
      [](std::int64_t n) { return n + (n - 4) * (n - 5) * (n - 7); }};
  for (std::size_t k = 0; k < divisors.size(); ++k) {
    const Maker make = [&](std::int64_t n) {
      Texts texts = mean(n);
      texts.plan["programs"][0]["nodes"][2]["attrs"]["scalar"] = divisors[k](n);
      return texts;
    };
    FamilyChain chain = chainOf(make, {4, 5, 7});
    const FamilyReport report = proved(chain);
    // The last two are right at all three: the family that is read off is the right one, and other
    // plans are not in it.
    const bool rightWhereRead = k >= 4;
    EXPECT_EQ(report.verdict, rightWhereRead ? Verdict::kEquivalent : Verdict::kUndecided) << k;
    if (rightWhereRead) {
      EXPECT_NE(chain.differs(member(make, 8), {}), "") << k;
    }
    VerifyOptions options;
    options.inProcess = true;
    EXPECT_EQ(verify(*member(make, 8).problem, options).verdict, Verdict::kNotEquivalent) << k;
  }
}

TEST(Family, NumbersThatAreNoSimpleFunctionsAreRefused) {
  const Maker squares = [](std::int64_t n) {
    Texts texts = mean(n);
    texts.plan["programs"][0]["nodes"][2]["attrs"]["scalar"] = n * n;
    return texts;
  };
  FamilyChain chain = chainOf(squares, {4, 5, 7});
  const FamilyReport report = proved(chain);
  EXPECT_EQ(report.verdict, Verdict::kUndecided);
  ASSERT_EQ(report.open.size(), 1u);
  EXPECT_NE(report.open[0].reason.find("16, 25, 49"), std::string::npos) << report.open[0].reason;
}

TEST(Family, OtherOperatorsAreAnotherFamily) {
  const Maker make = [](std::int64_t n) {
    Texts texts = mean(n);
    if (n == 7) texts.plan["programs"][0]["nodes"][0]["op"] = "sum";
    return texts;
  };
  FamilyChain chain = chainOf(make, {4, 5, 7});
  const FamilyReport report = proved(chain);
  EXPECT_EQ(report.verdict, Verdict::kUndecided);
  ASSERT_EQ(report.open.size(), 1u);
  EXPECT_EQ(report.open[0].reason, "the stage is made of other operators at other sizes");
}

TEST(Family, NeedsTheSameEntriesAndThreeSizes) {
  EXPECT_THROW(chainOf(mean, {4, 5}), std::logic_error);
  const Maker make = [](std::int64_t n) {
    Texts texts = mean(n);
    if (n == 5)
      texts.plan["lineage"].insert(texts.plan["lineage"].begin() + 1, Json::parse(R"(
        {"tensor": "y", "role": "cut_point", "shards": [{"box": [[0, 3]],
         "parts": [{"local": "ly"}]}]})"));
    return texts;
  };
  EXPECT_THROW(chainOf(make, {4, 5, 7}), InputError);
}

TEST(Family, AProofIsOneOfItsStagesOnly) {
  FamilyChain chain = chainOf(mean, {4, 5, 7}), other = chainOf(mean, {4, 6, 7});
  EXPECT_EQ(proved(chain).verdict, Verdict::kEquivalent);
  for (const EntryId e : other.order()) other.cut(e, true, nullptr);
  const StageFamily family = chain.family(KindId(0));
  const FamilyProof proof =
      proveForAllSizes(family, {}, [](const Stage&) { return std::unique_ptr<ValueWitness>(); });
  EXPECT_TRUE(proof.isOf(family));
  EXPECT_FALSE(proof.isOf(other.family(KindId(0))));
  EXPECT_THROW(other.prove(KindId(0), proof), std::logic_error);
  EXPECT_TRUE(FamilyProof::fromBytes(proof.bytes()).isOf(family));
  EXPECT_THROW(FamilyProof::fromBytes("x"), std::invalid_argument);
  EXPECT_EQ(other.result({}), std::nullopt);
}

}  // namespace
}  // namespace shardproof
