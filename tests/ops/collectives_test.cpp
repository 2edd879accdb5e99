#include "ops/collectives.h"

#include <gtest/gtest.h>

#include "shardproof/error.h"

namespace shardproof::ops {
namespace {

CommunicationSpec spec(Communication kind, std::int32_t dim = 0, std::int32_t odim = 0) {
  CommunicationSpec s;
  s.kind = kind;
  s.dim = dim;
  s.odim = odim;
  return s;
}

TEST(Collectives, NamesAreFoundAgain) {
  for (const Collective& c : collectives()) {
    EXPECT_EQ(findCommunication(c.name), c.kind);
    EXPECT_STREQ(communicationName(c.kind), c.name);
    EXPECT_EQ(&collectiveOf(c.kind), &c);
  }
  EXPECT_EQ(findCommunication("matmul"), Communication::kNone);
  EXPECT_EQ(findCommunication("part"), Communication::kNone);  // of stages only
  EXPECT_EQ(findCommunication("none"), Communication::kNone);
  EXPECT_THROW(collectiveOf(Communication::kNone), std::logic_error);
  for (const Reduction r : {Reduction::kSum, Reduction::kMean, Reduction::kMax, Reduction::kMin})
    EXPECT_EQ(findReduction(reductionName(r)), r);
  EXPECT_EQ(findReduction("product"), std::nullopt);
}

TEST(Collectives, ShapesOfResults) {
  const Shape in{8, 6};
  EXPECT_EQ(communicationShape(spec(Communication::kAllReduce), in, 4), in);
  EXPECT_EQ(communicationShape(spec(Communication::kReduce), in, 4), in);
  EXPECT_EQ(communicationShape(spec(Communication::kAllGather, -1), in, 4), (Shape{8, 24}));
  EXPECT_EQ(communicationShape(spec(Communication::kGather, 0), in, 4), (Shape{32, 6}));
  EXPECT_EQ(communicationShape(spec(Communication::kReduceScatter, 0), in, 4), (Shape{2, 6}));
  EXPECT_EQ(communicationShape(spec(Communication::kScatter, 1), in, 3), (Shape{8, 2}));
  EXPECT_EQ(communicationShape(spec(Communication::kPart, 1), in, 3), (Shape{8, 2}));
  EXPECT_EQ(communicationShape(spec(Communication::kAllToAll, 0, 1), in, 4), (Shape{2, 24}));
  EXPECT_EQ(communicationShape(spec(Communication::kAllToAll, 0, 0), in, 4), in);
  EXPECT_THROW(communicationShape(spec(Communication::kScatter, 1), in, 4), ShapeError);
  EXPECT_THROW(communicationShape(spec(Communication::kGather, 2), in, 4), ShapeError);
  EXPECT_THROW(communicationShape(spec(Communication::kGather, -3), in, 4), ShapeError);
}

TEST(Collectives, WhoGivesAndWhoGets) {
  const auto counts = [](Communication kind, bool root) {
    const Collective& c = collectiveOf(kind);
    return std::pair(c.operands(root), c.results(root));
  };
  using Counts = std::pair<std::size_t, std::size_t>;
  EXPECT_EQ(counts(Communication::kAllReduce, false), Counts(1, 1));
  EXPECT_EQ(counts(Communication::kBroadcast, true), Counts(1, 0));
  EXPECT_EQ(counts(Communication::kBroadcast, false), Counts(0, 1));
  EXPECT_EQ(counts(Communication::kGather, true), Counts(1, 1));
  EXPECT_EQ(counts(Communication::kGather, false), Counts(1, 0));
  EXPECT_EQ(counts(Communication::kScatter, true), Counts(1, 1));
  EXPECT_EQ(counts(Communication::kScatter, false), Counts(0, 1));
  EXPECT_EQ(counts(Communication::kSend, false), Counts(1, 0));
  EXPECT_EQ(counts(Communication::kReceive, false), Counts(0, 1));
  EXPECT_EQ(counts(Communication::kBarrier, false), Counts(0, 0));
}

}  // namespace
}  // namespace shardproof::ops
