// SPDX-License-Identifier: Apache-2.0
// Modules that are wrong by themselves, in runs in which modules took a reference's numbers.
#include "compare/modules.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "compare/compare.h"
#include "shardproof/error.h"
#include "trace_files.h"

namespace shardproof::compare {
namespace {

using nlohmann::json;

constexpr std::size_t kSize = 100;

// One tensor of both sides. `factor`: what the candidate has, as a multiple of the reference's.
struct Both {
  std::string name, kind, module, replaced;
  float factor = 1;
  bool isUnknown = false;  // the candidate's layout along dp, of its two ranks
};

std::vector<float> values(float factor) {
  std::vector<float> list(kSize);
  for (std::size_t i = 0; i < kSize; ++i) list[i] = factor * static_cast<float>(i % 7 + 1);
  return list;
}

// A layer `a` and a layer `b` behind it, each with a weight.
std::vector<Both> layers() {
  return {{"model.in", "batch", "", ""},
          {"a.in", "input", "a", "numbers"},
          {"a.out", "output", "a", "numbers"},
          {"b.in", "input", "b", "numbers"},
          {"b.out", "output", "b", "numbers"},
          {"loss", "result", "", ""},
          {"b.out.grad", "output gradient", "b", "numbers"},
          {"b.in.grad", "input gradient", "b", "numbers"},
          {"a.out.grad", "output gradient", "a", "numbers"},
          {"a.in.grad", "input gradient", "a", "numbers"},
          {"a.weight.grad", "gradient", "", ""},
          {"b.weight.grad", "gradient", "", ""},
          {"a.weight.new", "parameter", "", ""},
          {"b.weight.new", "parameter", "", ""}};
}

Both& named(std::vector<Both>& tensors, const std::string& name) {
  for (Both& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw std::runtime_error("no tensor " + name);
}

Comparison compared(const std::vector<Both>& tensors) {
  const Folder folder;
  for (int draw = 0; draw < 2; ++draw) {
    std::vector<Local> reference;
    for (const Both& tensor : tensors) {
      json described = {{"kind", tensor.kind}};
      if (!tensor.module.empty()) described["module"] = tensor.module;
      reference.push_back(
          floats(tensor.name, {kSize}, values(draw == 0 ? 1 : 1 + 1e-6F), described));
    }
    writeRank(folder.path("r") + (draw > 0 ? "/draw1" : ""), 0, {}, reference);
  }
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<Local> candidate;
    for (const Both& tensor : tensors) {
      json described = {{"kind", tensor.kind}};
      if (!tensor.module.empty()) described["module"] = tensor.module;
      if (!tensor.replaced.empty()) described["replaced"] = tensor.replaced;
      if (tensor.isUnknown) described["unknown"] = {"dp"};
      candidate.push_back(floats(tensor.name, {kSize}, values(tensor.factor), described));
    }
    writeRank(folder.path("c"), rank, {{"dp", 2}}, candidate, {{"isolated", true}});
  }
  return compareTraces(folder.path("r"), folder.path("c"), {});
}

std::vector<std::string> namesOf(const std::vector<ModuleFinding>& findings) {
  std::vector<std::string> names;
  for (const ModuleFinding& finding : findings) names.push_back(finding.module);
  return names;
}

using Names = std::vector<std::string>;

TEST(Modules, NothingWrongIsNoAgreement) {
  const Comparison found = compared(layers());
  EXPECT_EQ(found.verdict, Agreement::kUndecided);
  ASSERT_TRUE(found.modules.has_value());
  EXPECT_TRUE(found.modules->wrong.empty());
  EXPECT_TRUE(found.modules->suspected.empty());
  EXPECT_TRUE(found.modules->notJudged.empty());
  EXPECT_EQ(found.modules->right, 4U);  // a, b, the model, the optimizer
}

TEST(Modules, AnOutputThatDiffersNamesItsModule) {
  std::vector<Both> tensors = layers();
  named(tensors, "a.out").factor = 2;
  const Comparison found = compared(tensors);
  EXPECT_EQ(found.verdict, Agreement::kDiffers);
  EXPECT_EQ(namesOf(found.modules->wrong), Names{"a"});
  EXPECT_EQ(found.modules->wrong[0].tensors, Names{"a.out (output)"});
}

TEST(Modules, WhatFollowsFromAMistakeIsNotJudged) {
  std::vector<Both> tensors = layers();
  for (const char* name : {"a.out", "b.in", "b.out"}) named(tensors, name).factor = 2;
  named(tensors, "a.out").replaced = named(tensors, "b.in").replaced = "";
  const Comparison found = compared(tensors);
  EXPECT_EQ(namesOf(found.modules->wrong), Names{"a"});
  EXPECT_EQ(namesOf(found.modules->notJudged),
            (Names{"the model itself, or the step around it", "b"}));
}

TEST(Modules, AGuessOfALayoutBlamesNobody) {
  std::vector<Both> tensors = layers();
  for (const char* name : {"b.in", "b.out", "b.weight.grad"}) named(tensors, name).factor = 2;
  named(tensors, "b.in").replaced = "shape";
  named(tensors, "b.in").isUnknown = true;
  const Comparison found = compared(tensors);
  EXPECT_EQ(found.verdict, Agreement::kUndecided);
  EXPECT_TRUE(found.modules->wrong.empty());
  EXPECT_EQ(namesOf(found.modules->notJudged), Names{"b"});
}

// Its layout may be one that is not tried.
TEST(Modules, AnOutputThatFitsNoLayoutIsASuspicion) {
  std::vector<Both> tensors = layers();
  named(tensors, "b.out").factor = 3;
  named(tensors, "b.out").isUnknown = true;
  const Comparison found = compared(tensors);
  EXPECT_EQ(found.verdict, Agreement::kUndecided);
  EXPECT_TRUE(found.modules->wrong.empty());
  EXPECT_EQ(namesOf(found.modules->suspected), Names{"b"});
}

TEST(Modules, InputsBelongToTheCodeAround) {
  std::vector<Both> tensors = layers();
  named(tensors, "b.in").factor = 3;
  const Comparison found = compared(tensors);
  EXPECT_EQ(namesOf(found.modules->wrong), Names{"the model itself, or the step around it"});
  EXPECT_EQ(namesOf(found.modules->suspected), Names{});
}

TEST(Modules, GradientsOfParametersNameTheirModuleAndUpdatesTheOptimizer) {
  std::vector<Both> tensors = layers();
  named(tensors, "b.weight.new").factor = 2;
  EXPECT_EQ(namesOf(compared(tensors).modules->wrong), Names{"the optimizer"});
  named(tensors, "a.weight.grad").factor = 2;  // an update follows from it
  EXPECT_EQ(namesOf(compared(tensors).modules->wrong), Names{"a"});
}

TEST(Modules, OneFactorOfMostGradientsIsNoModules) {
  std::vector<Both> tensors = layers();
  tensors.push_back({"c.weight.grad", "gradient", "", ""});
  tensors.push_back({"d.weight.grad", "gradient", "", ""});
  for (const char* name : {"b.weight.grad", "c.weight.grad", "d.weight.grad"})
    named(tensors, name).factor = 0.5F;
  named(tensors, "a.weight.grad").factor = 3;
  const Comparison found = compared(tensors);
  EXPECT_EQ(namesOf(found.modules->wrong), (Names{"a", "the loss, or the reduction of gradients"}));
  EXPECT_EQ(found.modules->wrong[1].tensors,
            Names{"b.weight.grad (it is 0.5 times the reference's) and 2 other gradients by the "
                  "same factor"});
}

// What depends on a guess shows nothing of the loss.
TEST(Modules, OneFactorBehindAGuessIsNotJudged) {
  std::vector<Both> tensors = layers();
  for (const char* name : {"a.weight.grad", "b.weight.grad", "b.in"})
    named(tensors, name).factor = 3;  // 0.5 would be a sum of the two ranks
  named(tensors, "b.in").replaced = "shape";
  named(tensors, "b.in").isUnknown = true;
  EXPECT_TRUE(compared(tensors).modules->wrong.empty());
}

TEST(Modules, AnIsolatedRunIsNoReference) {
  const Folder folder;
  for (const char* draw : {"", "/draw1"})
    writeRank(folder.path("r") + draw, 0, {}, {floats("w", {kSize}, values(1))},
              {{"isolated", true}});
  EXPECT_THROW(compareTraces(folder.path("r"), folder.path("r"), {}), InputError);
}

TEST(Modules, AnotherWordForHowItWasReplacedIsAnError) {
  std::vector<Both> tensors = layers();
  named(tensors, "a.in").replaced = "luck";
  EXPECT_THROW(compared(tensors), InputError);
}

}  // namespace
}  // namespace shardproof::compare
