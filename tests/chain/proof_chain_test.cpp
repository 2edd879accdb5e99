// SPDX-License-Identifier: Apache-2.0
// What the chain accepts: stages that it has cut itself, once, and proofs of their forms.
#include "chain/proof_chain.h"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <vector>

#include "check/checker.h"
#include "prover/stage_prover.h"
#include "support/columns.h"
#include "support/problems.h"

namespace shardproof {
namespace {

struct Chained {
  std::unique_ptr<Problem> problem = test::read(test::columns("relu", true));
  PlanIndex index{*problem};
  ProofChain chain{index};
  EntryId output{2}, cutPoint{3};

  // Cuts, enters and proves.
  std::optional<Proof> prove(EntryId entry) {
    CutStage cut = chain.cut(entry, {});
    const StageOutcome outcome = checkStage(cut.stage(), {});
    const auto id = chain.enter(cut, true).first;
    if (outcome.proof) chain.prove(id, *outcome.proof);
    return outcome.proof;
  }
};

TEST(ProofChain, IsProvedWhenAllThatAnOutputRestsOnIs) {
  Chained c;
  EXPECT_EQ(c.chain.order(), (std::vector<EntryId>{c.cutPoint, c.output}));
  EXPECT_FALSE(c.chain.verdict({}));
  ASSERT_TRUE(c.prove(c.output));
  EXPECT_TRUE(c.chain.holds(c.output));
  EXPECT_EQ(c.chain.assumed(c.output), std::vector<EntryId>{c.cutPoint});
  EXPECT_FALSE(c.chain.verdict({})) << "the checkpoint is not proved";
  ASSERT_TRUE(c.prove(c.cutPoint));
  EXPECT_EQ(c.chain.verdict({}), Verdict::kEquivalent);
  c.chain.withdraw(c.cutPoint);
  EXPECT_FALSE(c.chain.verdict({}));
}

TEST(ProofChain, AStageIsEnteredOnceAndInItsOwnChain) {
  Chained c, other;
  CutStage cut = c.chain.cut(c.output, {});
  EXPECT_THROW(other.chain.enter(cut, true), std::logic_error);
  c.chain.enter(cut, true);
  EXPECT_THROW(c.chain.enter(cut, true), std::logic_error);
  EXPECT_EQ(c.chain.assumed(c.output), std::vector<EntryId>{c.cutPoint});
  CutStage again = c.chain.cut(c.output, {});
  const CutStage moved = std::move(again);
  EXPECT_THROW(c.chain.enter(again, true), std::logic_error);
}

TEST(ProofChain, AProofOfAnotherStageIsRefused) {
  Chained c;
  const auto proof = c.prove(c.cutPoint);
  ASSERT_TRUE(proof);
  CutStage cut = c.chain.cut(c.output, {});
  const auto id = c.chain.enter(cut, true).first;
  EXPECT_THROW(c.chain.prove(id, *proof), std::logic_error);
  EXPECT_FALSE(c.chain.holds(c.output));
}

TEST(ProofChain, ASnapshotIsOfItsOwnChain) {
  Chained c, other;
  const ProofChain::Snapshot before = c.chain.snapshot();
  c.prove(c.cutPoint);
  c.prove(c.output);
  EXPECT_THROW(other.chain.restore(c.chain.snapshot()), std::logic_error);
  EXPECT_THROW(c.chain.restore({}), std::logic_error);
  EXPECT_TRUE(c.chain.verdict({}));
  c.chain.restore(before);
  EXPECT_FALSE(c.chain.verdict({}));
}

// Methods go on with what others have made, or refuse.
TEST(StageProver, ItsMethodsKeepTheirOrder) {
  class Never : public ValueWitness {
    std::optional<ClaimedElement> withoutValue(const ReducedStage&,
                                               std::set<ClaimedElement> elements) override {
      return *elements.begin();
    }
  } witness;
  Chained c;
  const CutStage cut = c.chain.cut(c.cutPoint, {});
  StageProver prover(cut.stage(), {}, witness);
  EXPECT_THROW(prover.byNormalForm(), std::logic_error);
  EXPECT_THROW(prover.byFractions(), std::logic_error);
  EXPECT_THROW(prover.bySolver(true), std::logic_error);
  prover.reduce();
  EXPECT_THROW(prover.byExpansion(), std::logic_error);
  EXPECT_THROW(prover.bySolver(true), std::logic_error)
      << "nothing is known of where it is defined";
  EXPECT_TRUE(prover.byNormalForm());
  EXPECT_TRUE(prover.byExpansion());
  EXPECT_TRUE(prover.bySolver(true).proof);
  EXPECT_THROW(prover.byExpansion(), std::logic_error) << "the reduction is another";
}

}  // namespace
}  // namespace shardproof
