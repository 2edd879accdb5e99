// SPDX-License-Identifier: Apache-2.0
// What stores keep, and what a verification that uses one reports.
#include "cache/proof_store.h"
#include "check/checker.h"

#include <gtest/gtest.h>

#include "report/json.h"
#include "shardproof/verify.h"
#include "small_stage.h"

namespace shardproof {
namespace {

using test::Draft;

Report verifyWith(const Draft& d, ProofStore* proofs, bool shareClasses = true,
                  Checker checker = Checker::kAuto) {
  const auto problem = test::read(d);
  VerifyOptions options;
  options.jobs = 1;
  options.proofs = proofs;
  options.shareClasses = shareClasses;
  options.checker = checker;
  return verify(*problem, options);
}

// The report without what may differ between two runs.
nlohmann::ordered_json lasting(Report report) {
  for (StageReport& s : report.stages) s.seconds = 0;
  report.model = report.plan = "";
  auto json = toJson(report);
  json.erase("statistics");
  return json;
}

class CountingStore : public MemoryStore {
 public:
  std::optional<StoredProof> find(const std::string& form, Checker checker) override {
    ++asked;
    return MemoryStore::find(form, checker);
  }
  void add(const std::string& form, Checker checker, const StoredProof& proof) override {
    ++added;
    MemoryStore::add(form, checker, proof);
  }
  int asked = 0, added = 0;
};

TEST(ProofStore, TheSecondRunReportsTheSameWithoutProving) {
  CountingStore store;
  const Report cold = verifyWith(test::smallDraft(), &store);
  EXPECT_EQ(cold.verdict, Verdict::kEquivalent);
  EXPECT_EQ(cold.statistics.classes, 2u);
  EXPECT_EQ(cold.statistics.classesFromCache, 0u);
  EXPECT_EQ(store.added, 2);
  const Report warm = verifyWith(test::smallDraft(), &store);
  EXPECT_EQ(warm.statistics.classes, 2u);
  EXPECT_EQ(warm.statistics.classesFromCache, 2u);
  EXPECT_EQ(store.added, 2);
  EXPECT_EQ(lasting(warm), lasting(cold));
  EXPECT_FALSE(warm.stages[0].reducedShapes.empty());
}

TEST(ProofStore, NamesInTheReportAreThoseOfThePlanAtHand) {
  MemoryStore store;
  verifyWith(test::smallDraft(), &store);
  std::string model = test::smallDraft().model.dump(), plan = test::smallDraft().plan.dump();
  for (std::string* text : {&model, &plan}) {
    for (std::size_t at = 0; (at = text->find("\"w\"", at)) != std::string::npos;)
      text->replace(at, 3, "\"weight\"");
  }
  const Report renamed = verifyWith(test::draft(model, plan), &store);
  EXPECT_EQ(renamed.statistics.classesFromCache, 2u);
  bool weight = false;
  for (const auto& s : renamed.stages[0].reducedShapes) {
    EXPECT_NE(s.tensor, "w");
    EXPECT_EQ(s.full.size(), s.reduced.size());
    weight = weight || s.tensor == "weight";
  }
  EXPECT_TRUE(weight);
}

TEST(ProofStore, OnlyWhatChangedIsProvedAgain) {
  MemoryStore store;
  verifyWith(test::smallDraft(8), &store);
  const Report wider =
      verifyWith(test::smallDraft(16), &store);  // another linear, the same sum of its result
  EXPECT_EQ(wider.verdict, Verdict::kEquivalent);
  EXPECT_EQ(wider.statistics.classesFromCache, 1u);
}

TEST(ProofStore, AWrongPlanIsRefutedWhateverIsStored) {
  CountingStore store;
  verifyWith(test::smallDraft(), &store);
  const int before = store.added;
  for (int run = 0; run < 2; ++run) {
    const Report report = verifyWith(test::wrongDraft(), &store);
    EXPECT_EQ(report.verdict, Verdict::kNotEquivalent);
    EXPECT_EQ(report.statistics.classesFromCache, 1u);  // the linear is right
    EXPECT_EQ(lasting(report), lasting(verifyWith(test::wrongDraft(), nullptr)));
  }
  EXPECT_EQ(store.added, before) << "a refutation was stored";
}

TEST(ProofStore, OnlyProofsOfTheFormAreKept) {
  const auto c = test::cut(test::smallDraft(), 3);
  const std::string form = test::formOf(c);
  const StageOutcome outcome = checkStage(c.stage, {});
  ASSERT_TRUE(outcome.proof);
  MemoryStore store;
  EXPECT_THROW(store.remember(form + "x", Checker::kAuto, c.stage, *outcome.proof, {}),
               std::logic_error);
  EXPECT_EQ(store.find(form + "x", Checker::kAuto), std::nullopt);
  store.remember(form, Checker::kZ3, c.stage, *outcome.proof, {});
  EXPECT_EQ(store.find(form, Checker::kZ3), std::nullopt) << "no proof of the solver";
  store.remember(form, Checker::kAuto, c.stage, *outcome.proof, outcome.reducedShapes);
  const auto recalled = store.recall(form, Checker::kAuto, c.stage);
  ASSERT_TRUE(recalled);
  EXPECT_TRUE(recalled->proof.isOf(form));
  EXPECT_FALSE(recalled->proof.isOf(form + "x"));
}

// What a damaged or foreign store may hold is no proof.
TEST(ProofStore, AMethodThatProvesNothingIsNotRecalled) {
  const auto c = test::cut(test::smallDraft(), 3);
  const std::string form = test::formOf(c);
  for (const Method method : {Method::kNone, Method::kNumeric}) {
    MemoryStore store;
    store.add(form, Checker::kAuto, {method, {}});
    EXPECT_FALSE(store.recall(form, Checker::kAuto, c.stage));
  }
}

TEST(ProofStore, TheSolverIsNotAnsweredByNormalForms) {
  CountingStore store;
  verifyWith(test::smallDraft(), &store);
  const Report solved = verifyWith(test::smallDraft(), &store, true, Checker::kZ3);
  EXPECT_EQ(solved.statistics.classesFromCache, 0u);
  for (const StageReport& s : solved.stages) EXPECT_EQ(s.method, Method::kSolver);
  EXPECT_EQ(verifyWith(test::smallDraft(), &store, true, Checker::kZ3).statistics.classesFromCache,
            2u);
  const Report automatic = verifyWith(test::smallDraft(), &store);
  for (const StageReport& s : automatic.stages) EXPECT_EQ(s.method, Method::kNormalForm);
}

TEST(ProofStore, IsNotAskedWhereEveryStageIsToBeProved) {
  CountingStore store;
  EXPECT_EQ(verifyWith(test::smallDraft(), &store, false).verdict, Verdict::kEquivalent);
  EXPECT_EQ(store.asked, 0);
  EXPECT_EQ(store.added, 0);
}

TEST(ProofStore, MemoryStandsBeforeAnother) {
  CountingStore behind;
  const std::string form = "form";
  const StoredProof proof{Method::kPolynomial, {{3, {2, 1}}}};
  {
    MemoryStore front(&behind);
    front.add(form, Checker::kAuto, proof);
  }
  EXPECT_EQ(behind.added, 1);
  MemoryStore front(&behind);
  EXPECT_EQ(front.find(form, Checker::kAuto), proof);
  EXPECT_EQ(front.find(form, Checker::kAuto), proof);
  EXPECT_EQ(behind.asked, 1);
  EXPECT_EQ(front.find(form, Checker::kZ3), std::nullopt);
  EXPECT_EQ(front.find("other", Checker::kAuto), std::nullopt);
}

}  // namespace
}  // namespace shardproof
