// SPDX-License-Identifier: Apache-2.0
// Verdicts: each tensor has its own tolerance, from what perturbed references do to it.
#include "compare/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "compare/report.h"
#include "shardproof/error.h"
#include "trace_files.h"

namespace shardproof::compare {
namespace {

using Values = std::vector<float>;

// A reference of one rank that two draws move by `noise` of each element, up and down in turn.
class Reference {
 public:
  explicit Reference(const Folder& folder) : directory_(folder.path("reference")) {}

  void add(const std::string& name, const Values& values, float noise,
           const nlohmann::json& described = {}) {
    const auto size = static_cast<std::int64_t>(values.size());
    for (int draw = 0; draw < 3; ++draw) {
      Values moved = values;
      for (std::size_t i = 0; i < moved.size(); ++i)
        if (draw > 0)
          moved[i] *= 1 + noise * ((static_cast<int>(i) + draw) % 2 == 0 ? 1.0F : -1.0F);
      draws_[draw].push_back(floats(name, {size}, moved, described));
    }
  }

  std::string written() const {
    for (int draw = 0; draw < 3; ++draw)
      writeRank(directory_ + (draw > 0 ? "/draw" + std::to_string(draw) : ""), 0, {}, draws_[draw]);
    return directory_;
  }

 private:
  std::string directory_;
  std::vector<Local> draws_[3];
};

Values counted(std::size_t n) {
  Values values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 7) + 1;
  return values;
}

Values times(Values values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

const TensorReport& reportOf(const Comparison& comparison, const std::string& name) {
  for (const TensorReport& report : comparison.tensors)
    if (report.name == name) return report;
  throw std::runtime_error("no tensor " + name);
}

std::string textOf(const Comparison& comparison) {
  std::ostringstream text;
  writeText(text, comparison, {});
  return laidOut(text.str(), {});
}

// Three draws of one number say less than three of a hundred.
TEST(Compare, OneNumberHasALargerTolerance) {
  const Folder folder;
  Reference reference(folder);
  reference.add("loss", {2.0F}, 1e-4F, {{"kind", "result"}});
  reference.add("many", counted(6400), 1e-4F, {{"kind", "result"}});
  for (const auto& [factor, differs] : {std::pair(1.0008F, false), std::pair(1.002F, true)}) {
    writeRank(folder.path("c"), 0, {},
              {floats("loss", {1}, {2.0F * factor}, {{"kind", "result"}}),
               floats("many", {6400}, counted(6400), {{"kind", "result"}})});
    const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
    EXPECT_EQ(found.verdict, differs ? Agreement::kDiffers : Agreement::kAgrees) << factor;
  }
  writeRank(folder.path("c"), 0, {},
            {floats("loss", {1}, {2.0F}, {{"kind", "result"}}),
             floats("many", {6400}, times(counted(6400), 1.0008F), {{"kind", "result"}})});
  EXPECT_EQ(compareTraces(reference.written(), folder.path("c"), {}).verdict, Agreement::kDiffers);
}

// A perturbed reference of another precision is one of another run.
TEST(Compare, APerturbedReferenceOfAnotherDtypeIsNotUsed) {
  const Folder folder;
  writeRank(folder.path("r"), 0, {}, {floats("w", {64}, counted(64), {{"kind", "parameter"}})});
  Local other = floats("w", {64}, counted(64), {{"kind", "parameter"}});
  other.dtype = "BF16";
  other.bytes.resize(128);
  writeRank(folder.path("r/draw1"), 0, {}, {other});
  const Comparison found = compareTraces(folder.path("r"), folder.path("r"), {});
  EXPECT_EQ(found.verdict, Agreement::kUndecided);
  EXPECT_EQ(reportOf(found, "w").status, Status::kNotCompared);
}

// A loss that comes of bf16 has no digits that a small perturbation moves, and another rounding
// moves it by a step.
TEST(Compare, ANumberOfACoarsePrecision) {
  for (const bool coarse : {false, true}) {
    const Folder folder;
    for (int draw = 0; draw < 3; ++draw) {
      Local logits = floats("logits", {64}, counted(64), {{"kind", "output"}});
      if (coarse) {
        logits.dtype = "BF16";
        logits.bytes.resize(128);
      }
      writeRank(folder.path("r") + (draw > 0 ? "/draw" + std::to_string(draw) : ""), 0, {},
                {logits, floats("loss", {1}, {2.0F}, {{"kind", "result"}})});
    }
    writeRank(folder.path("c"), 0, {}, {floats("loss", {1}, {2.01F}, {{"kind", "result"}})});
    const Comparison found = compareTraces(folder.path("r"), folder.path("c"), {});
    EXPECT_EQ(reportOf(found, "loss").status, coarse ? Status::kAgrees : Status::kDiffers);
    writeRank(folder.path("c"), 0, {}, {floats("loss", {1}, {2.03F}, {{"kind", "result"}})});
    const Comparison far = compareTraces(folder.path("r"), folder.path("c"), {});
    EXPECT_EQ(reportOf(far, "loss").status, Status::kDiffers);
  }
}

TEST(Compare, EachTensorHasItsOwnTolerance) {
  const Folder folder;
  Reference reference(folder);
  reference.add("quiet", counted(100), 1e-6F);
  reference.add("loud", counted(100), 1e-3F);
  // The same error: beyond the tolerance of the one, within that of the other.
  writeRank(folder.path("c"), 0, {},
            {floats("quiet", {100}, times(counted(100), 1.001F)),
             floats("loud", {100}, times(counted(100), 1.001F))});
  const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
  EXPECT_EQ(found.verdict, Agreement::kDiffers);
  EXPECT_EQ(reportOf(found, "quiet").status, Status::kDiffers);
  EXPECT_EQ(reportOf(found, "loud").status, Status::kAgrees);
  EXPECT_NEAR(reportOf(found, "loud").perturbed, 1e-3, 1e-6);
  EXPECT_NEAR(reportOf(found, "loud").tolerance, 4e-3, 1e-5);
  EXPECT_NEAR(reportOf(found, "quiet").error, 1e-3, 1e-5);
  EXPECT_TRUE(textOf(found).starts_with("DIFFERS: ")) << textOf(found);
  EXPECT_NE(textOf(found).find("(1 of 2 tensors); first: quiet (gradient)"), std::string::npos);
}

TEST(Compare, TheFirstByDataFlowIsNamedFirst) {
  const Folder folder;
  Reference reference(folder);
  reference.add("z", counted(100), 1e-6F);
  reference.add("a", counted(100), 1e-6F);
  writeRank(
      folder.path("c"), 0, {},
      {floats("a", {100}, times(counted(100), 3)), floats("z", {100}, times(counted(100), 2))});
  const std::string text = textOf(compareTraces(reference.written(), folder.path("c"), {}));
  EXPECT_NE(text.find("first: z"), std::string::npos) << text;
  EXPECT_LT(text.find("    z ("), text.find("    a (")) << text;
}

TEST(Compare, CopiesThatDifferAreAFinding) {
  const Folder folder;
  Reference reference(folder);
  reference.add("w", counted(100), 1e-6F);
  Values other = counted(100);
  other[3] += 1;
  writeRank(folder.path("c"), 0, {{"dp", 2}}, {floats("w", {100}, counted(100))});
  writeRank(folder.path("c"), 1, {{"dp", 2}}, {floats("w", {100}, other)});
  const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
  EXPECT_EQ(found.verdict, Agreement::kDiffers);
  ASSERT_EQ(reportOf(found, "w").replicas.size(), 1U);
  EXPECT_EQ(reportOf(found, "w").error, 0);
  EXPECT_NE(textOf(found).find("rank 1 has other numbers than rank 0"), std::string::npos);
}

TEST(Compare, CopiesThatDifferByRoundingAreNotedOnly) {
  const Folder folder;
  Reference reference(folder);
  reference.add("w", counted(100), 1e-5F);
  writeRank(folder.path("c"), 0, {{"dp", 2}}, {floats("w", {100}, counted(100))});
  writeRank(folder.path("c"), 1, {{"dp", 2}}, {floats("w", {100}, times(counted(100), 1.00001F))});
  const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
  EXPECT_EQ(found.verdict, Agreement::kAgrees);
  EXPECT_EQ(reportOf(found, "w").replicasWithin, 1U);
}

TEST(Compare, AGapNamesItsPlace) {
  const Folder folder;
  Reference reference(folder);
  reference.add("w", counted(100), 1e-6F);
  writeRank(folder.path("c"), 0, {},
            {floats("w", {98}, Values(98, 1),
                    {{"shape", {100}}, {"parts", {{0, {0}, {50}}, {50, {52}, {48}}}}})});
  const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
  EXPECT_EQ(found.verdict, Agreement::kDiffers);
  EXPECT_EQ(reportOf(found, "w").message,
            "has a gap: no rank has the element at [50] (2 elements)");
}

TEST(Compare, WhereRoundingMovesAsMuchAsAMistakeNothingIsShown) {
  const Folder folder;
  Reference reference(folder);
  reference.add("w", counted(100), 1e-6F);
  reference.add("v", counted(100), 1e-6F);
  reference.add("router.grad", counted(100), 0.3F);
  writeRank(folder.path("c"), 0, {},
            {floats("w", {100}, counted(100)), floats("v", {100}, counted(100)),
             floats("router.grad", {100}, times(counted(100), 1.2F))});
  const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
  EXPECT_EQ(found.verdict, Agreement::kUndecided);
  EXPECT_EQ(reportOf(found, "router.grad").status, Status::kUncertain);
  EXPECT_TRUE(textOf(found).starts_with("UNDECIDED: no difference between ")) << textOf(found);
  EXPECT_NE(textOf(found).substr(0, textOf(found).find('\n')).find("that shows little"),
            std::string::npos);
}

TEST(Compare, ATensorThatIsZeroButForRoundingIsCompared) {
  const Folder folder;
  Reference reference(folder);
  for (const char* name : {"a", "b", "c"}) reference.add(name, counted(100), 1e-6F);
  reference.add("key.bias.grad", times(counted(100), 1e-8F), 1);
  const auto written = [&](float factor) {
    std::vector<Local> all;
    for (const char* name : {"a", "b", "c"}) all.push_back(floats(name, {100}, counted(100)));
    all.push_back(floats("key.bias.grad", {100}, times(counted(100), factor)));
    writeRank(folder.path("c"), 0, {}, all);
    return folder.path("c");
  };
  EXPECT_EQ(compareTraces(reference.written(), written(-1e-8F), {}).verdict, Agreement::kAgrees);
  EXPECT_EQ(compareTraces(reference.written(), written(1e-6F), {}).verdict, Agreement::kDiffers);
}

TEST(Compare, CopiesThatDifferAreAFindingWhereTheReferenceIsNotFinite) {
  const Folder folder;
  Reference reference(folder);
  Values values = counted(100);
  values[0] = NAN;
  reference.add("w", values, 0);
  Values other = values;
  other[3] += 1;
  writeRank(folder.path("c"), 0, {{"dp", 2}}, {floats("w", {100}, values)});
  writeRank(folder.path("c"), 1, {{"dp", 2}}, {floats("w", {100}, other)});
  EXPECT_EQ(compareTraces(reference.written(), folder.path("c"), {}).verdict, Agreement::kDiffers);
}

// Of one rank, and its only perturbed trace.
void writeDoubles(const std::string& directory, const std::vector<double>& values) {
  const auto size = static_cast<std::int64_t>(values.size());
  const std::string bytes(reinterpret_cast<const char*>(values.data()),
                          values.size() * sizeof(double));
  for (const char* draw : {"", "/draw1"})
    writeRank(directory + draw, 0, {}, {{"w#0", "F64", {size}, bytes, {{"name", "w"}}}});
}

TEST(Compare, NumbersWhoseSquaresDoublesDoNotHoldNeverAgreeWithOthers) {
  const std::vector<std::pair<std::vector<double>, std::vector<double>>> sides = {
      {{1e200, 2e200}, {-5e200, 7e190}}, {{1e200, 2e200}, {NAN, INFINITY}}, {{1e-200}, {-5e-170}}};
  for (const auto& [here, there] : sides) {
    const Folder folder;
    writeDoubles(folder.path("r"), here);
    writeDoubles(folder.path("c"), there);
    EXPECT_NE(compareTraces(folder.path("r"), folder.path("c"), {}).verdict, Agreement::kAgrees);
  }
}

TEST(Compare, CopiesThatDifferInTheReferenceAreNoAgreement) {
  const Folder folder;
  for (const char* draw : {"", "/draw1"})
    for (std::int64_t rank = 0; rank < 2; ++rank)
      writeRank(folder.path("r") + draw, rank, {{"dp", 2}},
                {floats("w", {100}, times(counted(100), rank == 0 ? 1 : 2))});
  writeRank(folder.path("c"), 0, {}, {floats("w", {100}, counted(100))});
  EXPECT_EQ(compareTraces(folder.path("r"), folder.path("c"), {}).verdict, Agreement::kUndecided);
}

TEST(Compare, ARankThatHasRecordedNothingIsNoAgreement) {
  const Folder folder;
  Reference reference(folder);
  reference.add("w", counted(100), 1e-6F);
  writeRank(folder.path("c"), 0, {{"dp", 2}}, {floats("w", {100}, counted(100))});
  writeRank(folder.path("c"), 1, {{"dp", 2}}, {});
  EXPECT_EQ(compareTraces(reference.written(), folder.path("c"), {}).verdict,
            Agreement::kUndecided);
}

TEST(Compare, WhatOneSideDoesNotHave) {
  const Folder folder;
  Reference reference(folder);
  reference.add("w", counted(100), 1e-6F);
  reference.add("bias.grad", counted(100), 1e-6F);
  writeRank(folder.path("c"), 0, {},
            {floats("w", {100}, counted(100)), floats("frozen.grad", {100}, counted(100))});
  const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
  EXPECT_EQ(found.verdict, Agreement::kDiffers);
  EXPECT_EQ(reportOf(found, "bias.grad").message, "is in no trace of the candidate");
  EXPECT_EQ(reportOf(found, "frozen.grad").message, "is not in the reference");
}

// The reference has a batch, a parameter that the step changes, and a learning rate.
TEST(Compare, WhatACandidateDidNotRecordIsNoAgreement) {
  const std::vector<std::pair<std::string, std::string>> all = {{"model.in", "batch"},
                                                                {"w", "initial"},
                                                                {"w.new", "parameter"},
                                                                {"groups.0.lr.new", "optimizer"}};
  for (const auto& [missing, kind] : all) {
    const Folder folder;
    Reference reference(folder);
    std::vector<Local> candidate;
    for (const auto& [name, ofName] : all) {
      reference.add(name, counted(100), 1e-6F, {{"kind", ofName}});
      if (name != missing || kind == "parameter")
        candidate.push_back(floats(name, {100}, counted(100), {{"kind", ofName}}));
    }
    writeRank(folder.path("c"), 0, {}, candidate);
    const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
    if (kind == "parameter") {
      EXPECT_EQ(found.verdict, Agreement::kAgrees);
      continue;
    }
    EXPECT_EQ(found.verdict, Agreement::kUndecided) << missing;
    EXPECT_EQ(found.reason,
              "the candidate did not record " + missing + ", which the reference has");
  }
}

TEST(Compare, ARankThatHasAParameterBeforeTheStepHasItAfterwards) {
  const Folder folder;
  Reference reference(folder);
  reference.add("w", counted(100), 1e-6F, {{"kind", "initial"}});
  reference.add("w.new", counted(100), 1e-6F, {{"kind", "parameter"}});
  const Local before = floats("w", {100}, counted(100), {{"kind", "initial"}});
  const Local after = floats("w.new", {100}, counted(100), {{"kind", "parameter"}});
  writeRank(folder.path("c"), 0, {{"dp", 2}}, {before, after});
  writeRank(folder.path("c"), 1, {{"dp", 2}}, {before});
  const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
  EXPECT_EQ(found.verdict, Agreement::kDiffers);
  EXPECT_EQ(reportOf(found, "w.new").message, "rank 1 has it before the step, and not after it");
}

TEST(Compare, OneFactorOfManyTensorsIsStated) {
  const Folder folder;
  Reference reference(folder);
  std::vector<Local> local;
  for (const std::string name : {"a", "b", "c", "d"}) {
    reference.add(name, counted(100), 1e-6F);
    const float factor = name == "a" ? 1.0F : name == "b" ? 3.0F : 0.5F;
    local.push_back(floats(name, {100}, times(counted(100), factor)));
  }
  writeRank(folder.path("c"), 0, {}, local);
  const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
  const std::string text = textOf(found);
  EXPECT_NE(text.find("Same factor: 2 of 3 different tensors of kind gradient are 0.5 times"),
            std::string::npos)
      << text;
}

TEST(Compare, AMultipleIsReported) {
  const Folder folder;
  Reference reference(folder);
  reference.add("a", counted(100), 1e-6F);
  reference.add("b", counted(100), 1e-6F);
  Values other = times(counted(100), 2);
  other[0] += 1;
  writeRank(folder.path("c"), 0, {},
            {floats("a", {100}, times(counted(100), 2)), floats("b", {100}, other)});
  const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
  EXPECT_EQ(reportOf(found, "a").message, "it is 2 times the reference's");
  EXPECT_EQ(reportOf(found, "a").ratio, 2);
  EXPECT_FALSE(reportOf(found, "b").ratio.has_value());
}

TEST(Compare, TensorsOfModulesDecideNothingWhereTheirLayoutIsNotKnown) {
  const Folder folder;
  Reference reference(folder);
  reference.add("x.out", counted(100), 1e-6F, {{"kind", "output"}});
  reference.add("w", counted(100), 1e-6F);
  const nlohmann::json unknown = {{"kind", "output"}, {"unknown", {"dp"}}};
  Values shuffled = counted(50);
  std::reverse(shuffled.begin(), shuffled.end());
  for (int rank = 0; rank < 2; ++rank)
    writeRank(folder.path("c"), rank, {{"dp", 2}},
              {floats("x.out", {50}, shuffled, unknown), floats("w", {100}, counted(100))});
  const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
  EXPECT_EQ(found.verdict, Agreement::kAgrees);
  EXPECT_EQ(reportOf(found, "x.out").status, Status::kUnplaced);
  EXPECT_NE(textOf(found).find("1 tensor of modules fit no layout; they decide nothing"),
            std::string::npos)
      << textOf(found);
}

TEST(Compare, ALayoutIsFoundByNumbers) {
  const Folder folder;
  Reference reference(folder);
  reference.add("x.out", counted(100), 1e-6F, {{"kind", "output"}});
  reference.add("w", counted(100), 1e-6F);
  const nlohmann::json unknown = {{"kind", "output"}, {"unknown", {"dp"}}};
  const Values all = counted(100);
  for (int rank = 0; rank < 2; ++rank)
    writeRank(folder.path("c"), rank, {{"dp", 2}},
              {floats("x.out", {50}, Values(all.begin() + 50 * rank, all.begin() + 50 * rank + 50),
                      unknown),
               floats("w", {100}, all)});
  const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
  EXPECT_EQ(reportOf(found, "x.out").layout, "cut over dp in dimension 0");
  EXPECT_EQ(reportOf(found, "x.out").status, Status::kAgrees);
}

// Without a reduction each rank has a summand of the gradient. A layout "sum over dp" would fit it:
// a gradient has the layout of its parameter, and none that its own numbers suggest.
TEST(Compare, AGradientHasTheLayoutOfItsParameter) {
  const Folder folder;
  Reference reference(folder);
  reference.add("w", counted(100), 1e-7F, {{"kind", "initial"}});
  reference.add("w.grad", counted(100), 1e-6F);
  const nlohmann::json own = {{"kind", "initial"}, {"unknown", {"dp"}}};
  const nlohmann::json like = {{"unknown", {"dp"}}, {"like", "w"}};
  const auto verdict = [&](float first, float second) {
    for (int rank = 0; rank < 2; ++rank)
      writeRank(folder.path("c"), rank, {{"dp", 2}},
                {floats("w", {100}, counted(100), own),
                 floats("w.grad", {100}, times(counted(100), rank == 0 ? first : second), like)});
    return compareTraces(reference.written(), folder.path("c"), {}).verdict;
  };
  EXPECT_EQ(verdict(1, 1), Agreement::kAgrees);
  EXPECT_EQ(verdict(0.25F, 0.75F), Agreement::kDiffers);
  EXPECT_EQ(verdict(0.5F, 0.5F), Agreement::kDiffers);
}

TEST(Compare, NothingOfKnownLayoutIsNoAgreement) {
  const Folder folder;
  Reference reference(folder);
  reference.add("x.out", counted(100), 1e-6F, {{"kind", "output"}});
  for (int rank = 0; rank < 2; ++rank)
    writeRank(folder.path("c"), rank, {{"dp", 2}},
              {floats("x.out", {100}, counted(100), {{"kind", "output"}, {"unknown", {"dp"}}})});
  const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
  EXPECT_EQ(found.verdict, Agreement::kUndecided);
  EXPECT_EQ(found.reason, "no tensor of known layout could be compared");
}

TEST(Compare, AReferenceWithoutPerturbedTraces) {
  const Folder folder;
  writeRank(folder.path("r"), 0, {}, {floats("w", {1}, {1})});
  EXPECT_THROW(compareTraces(folder.path("r"), folder.path("r"), {}), InputError);
}

TEST(Compare, GrowthOverLayers) {
  const Folder folder;
  Reference reference(folder);
  reference.add("layers.0.ffn.out", counted(100), 1e-6F, {{"kind", "output"}});
  reference.add("layers.1.ffn.out", counted(100), 4e-6F, {{"kind", "output"}});
  reference.add("layers.0.w.grad", counted(100), 1e-5F);
  writeRank(folder.path("c"), 0, {},
            {floats("layers.0.ffn.out", {100}, counted(100), {{"kind", "output"}}),
             floats("layers.1.ffn.out", {100}, counted(100), {{"kind", "output"}}),
             floats("layers.0.w.grad", {100}, counted(100))});
  const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
  ASSERT_EQ(found.growth.size(), 2U);
  EXPECT_EQ(found.growth[0].layer, "layers.0");
  EXPECT_NEAR(found.growth[0].forwardPerturbed.value(), 1e-6 / epsilon(Dtype::kF32), 1);
  EXPECT_NEAR(found.growth[1].forwardPerturbed.value(), 4e-6 / epsilon(Dtype::kF32), 2);
  EXPECT_TRUE(found.growth[0].backward.has_value());
  EXPECT_FALSE(found.growth[1].backward.has_value());
}

TEST(CompareReport, WhatAProofAndNumbersMeanTogether) {
  const Folder folder;
  Reference reference(folder);
  reference.add("w", counted(100), 1e-6F);
  const std::string of = reference.written();
  const auto meaning = [&](const char* proof, float factor) {
    writeRank(folder.path("c"), 0, {}, {floats("w", {100}, times(counted(100), factor))});
    Comparison found = compareTraces(of, folder.path("c"), {});
    found.proof = proof;
    found.proofFile = "plan.json";
    const auto json = nlohmann::json::parse(jsonText(found, 0));
    EXPECT_NE(textOf(found).find("With the proof: plan.json is "), std::string::npos);
    return json["proof"]["meaning"].get<std::string>();
  };
  EXPECT_EQ(meaning("equivalent", 1), "nothing was found");
  EXPECT_EQ(meaning("equivalent", 2),
            "the plan is right, and what runs is not: look at kernels, precision and races at w "
            "(gradient); or the recorder is wrong");
  EXPECT_NE(meaning("conditional", 2).find("or a condition of the verdict does not hold"),
            std::string::npos);
  EXPECT_EQ(meaning("not-equivalent", 2), "the causes are in this report");
  EXPECT_EQ(meaning("not-equivalent", 1),
            "the mistake is smaller than rounding with these inputs: compare in fp32");
  EXPECT_EQ(meaning("undecided", 2), "the plan is not decided, so the numbers stand alone");
}

TEST(CompareReport, JsonAndJUnit) {
  const Folder folder;
  Reference reference(folder);
  reference.add("a<b", counted(100), 1e-6F);
  reference.add("w", counted(100), 1e-6F);
  writeRank(folder.path("c"), 0, {},
            {floats("a<b", {100}, times(counted(100), 2)), floats("w", {100}, counted(100))});
  const Comparison found = compareTraces(reference.written(), folder.path("c"), {});
  const auto json = nlohmann::json::parse(jsonText(found, 10));
  EXPECT_EQ(json["verdict"], "differs");
  EXPECT_EQ(json["exit_code"], 10);
  EXPECT_EQ(json["first"], "a<b");
  EXPECT_EQ(json["tensors"][0]["status"], "differs");
  EXPECT_NEAR(json["tensors"][0]["error"].get<double>(), 1, 1e-6);
  EXPECT_EQ(json["bytes"], 800 + 800);
  const std::string junit = junitText(found);
  EXPECT_NE(junit.find("name=\"a&lt;b\""), std::string::npos);
  EXPECT_NE(junit.find("tests=\"2\" failures=\"1\" errors=\"0\""), std::string::npos);
}

}  // namespace
}  // namespace shardproof::compare
