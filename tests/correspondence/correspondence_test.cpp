// SPDX-License-Identifier: Apache-2.0
#include "correspondence/correspondence.h"

#include <gtest/gtest.h>

namespace shardproof {
namespace {

using Outline = Correspondence::Outline;
enum Operation : std::int32_t { kMul, kAdd, kCat };

TensorId t(int number) { return TensorId(number); }
NodeRef at(int program, int node) { return {ProgramId(program), NodeId(node)}; }

// mul(x0, x1) -> x2 for microbatches 0 and 1 (one line), add(x2, x1) -> x3; tensors are numbered
// from the end where `reversed`.
Outline program(bool reversed, std::int32_t kindOfSum = 0) {
  const auto x = [&](int number) { return t(reversed ? 3 - number : number); };
  Outline outline;
  outline.nodes = {{kMul, Microbatch::of(0), 7, {x(0), x(1)}, {x(2)}},
                   {kMul, Microbatch::of(1), 7, {x(0), x(1)}, {x(2)}},
                   {kAdd, Microbatch::none(), -1, {x(2), x(1)}, {x(3)}}};
  outline.kinds.assign(4, 0);
  outline.kinds[x(3).index()] = kindOfSum;
  return outline;
}

TEST(Correspondence, ProgramsThatRunTheSameByPlace) {
  const Correspondence c({program(false), program(true)});
  EXPECT_TRUE(c.alike(ProgramId(0), ProgramId(1)));
  EXPECT_EQ(c.programsLike(ProgramId(1)), (std::vector{ProgramId(0), ProgramId(1)}));
  EXPECT_EQ(c.tensor(ProgramId(0), t(3), ProgramId(1)), t(0));
  EXPECT_EQ(c.tensor(ProgramId(0), t(1), ProgramId(1)), t(2)) << "given: by who reads it";
  EXPECT_EQ(c.result(ProgramId(0), t(3), ProgramId(1)), t(0));
  EXPECT_FALSE(c.result(ProgramId(0), t(1), ProgramId(1)).valid()) << "given: no result";
  EXPECT_EQ(c.producer(ProgramId(1), t(1)), NodeId(0));
  EXPECT_FALSE(c.producer(ProgramId(1), t(2)).valid());
}

TEST(Correspondence, ALineIsOfAllMicrobatchesAndProgramsAlike) {
  const Correspondence c({program(false), program(true)});
  EXPECT_EQ(c.microbatchesOf(at(0, 1)), (std::vector{at(0, 1), at(0, 0)}));
  EXPECT_EQ(c.line(at(1, 0)), (std::vector{at(1, 0), at(1, 1), at(0, 0), at(0, 1)}));
  EXPECT_EQ(c.line(at(0, 2)), (std::vector{at(0, 2), at(1, 2)}));
}

TEST(Correspondence, ResultsOfOtherKindsDoNotCorrespond) {
  const Correspondence c({program(false), program(false, 1)});
  EXPECT_EQ(c.tensor(ProgramId(0), t(3), ProgramId(1)), t(3));
  EXPECT_FALSE(c.result(ProgramId(0), t(3), ProgramId(1)).valid());
}

// One more node in front: what was made by equally many nodes corresponds, nothing else.
TEST(Correspondence, ProgramsThatDifferByKind) {
  Outline more = program(true);
  more.kinds.push_back(0);
  more.nodes.insert(more.nodes.begin(), {kCat, Microbatch::none(), -1, {t(0)}, {t(4)}});
  const Correspondence c({program(false), more});
  EXPECT_FALSE(c.alike(ProgramId(0), ProgramId(1)));
  EXPECT_EQ(c.line(at(0, 2)), std::vector{at(0, 2)});
  EXPECT_FALSE(c.tensor(ProgramId(0), t(3), ProgramId(1)).valid());
  EXPECT_EQ(c.result(ProgramId(0), t(3), ProgramId(1)), t(0));
  more.nodes.push_back({kAdd, Microbatch::none(), -1, {t(0), t(0)}, {t(4)}});
  const Correspondence twice({program(false), more});
  EXPECT_FALSE(twice.result(ProgramId(0), t(3), ProgramId(1)).valid());
}

// Not the order alone: for the same microbatches.
TEST(Correspondence, MicrobatchesInAnotherOrderAreAnotherProgram) {
  Outline other = program(false);
  std::swap(other.nodes[0], other.nodes[1]);
  const Correspondence c({program(false), other});
  EXPECT_FALSE(c.alike(ProgramId(0), ProgramId(1)));
}

}  // namespace
}  // namespace shardproof
