// SPDX-License-Identifier: Apache-2.0
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

CommunicationSpec uneven(Communication kind, std::vector<std::int64_t> sizes, std::int32_t dim = 0,
                         std::int32_t odim = 0) {
  CommunicationSpec s = spec(kind, dim, odim);
  s.sizes = std::move(sizes);
  return s;
}

std::vector<std::vector<std::int64_t>> windows(const CommunicationSpec& s, std::int64_t place) {
  std::vector<std::vector<std::int64_t>> found;
  for (const Window& w : windowsOf(s, place)) found.push_back({w.member, w.begin, w.size});
  return found;
}

using Windows = std::vector<std::vector<std::int64_t>>;

TEST(Collectives, WindowsOfUnevenPieces) {
  const auto gathered = uneven(Communication::kAllGather, {2, 0, 3});
  EXPECT_EQ(membersOf(gathered), 3);
  for (std::int64_t place = 0; place < 3; ++place)
    EXPECT_EQ(windows(gathered, place), (Windows{{0, 0, 2}, {2, 0, 3}}));
  EXPECT_EQ(lengthGiven(gathered, 1), 0);
  const auto scattered = uneven(Communication::kReduceScatter, {2, 0, 3});
  EXPECT_EQ(windows(scattered, 0), (Windows{{0, 0, 2}}));
  EXPECT_EQ(windows(scattered, 1), (Windows{}));
  EXPECT_EQ(windows(scattered, 2), (Windows{{0, 2, 3}}));
  EXPECT_EQ(lengthGiven(scattered, 1), 5);
  const auto exchanged = uneven(Communication::kAllToAll, {1, 2, 0, 0, 0, 1, 0, 4, 0});
  EXPECT_EQ(membersOf(exchanged), 3);
  EXPECT_EQ(lengthGiven(exchanged, 0), 3);
  EXPECT_EQ(windows(exchanged, 0), (Windows{{0, 0, 1}}));
  EXPECT_EQ(windows(exchanged, 1), (Windows{{0, 1, 2}, {2, 0, 4}}));
  EXPECT_EQ(windows(exchanged, 2), (Windows{{1, 0, 1}}));
}

TEST(Collectives, ShapesOfUnevenPieces) {
  const Shape two{2, 4}, three{3, 4}, five{5, 4}, wide{2, 5};
  using Operands = std::vector<const Shape*>;
  const auto gathered = uneven(Communication::kAllGather, {2, 0, 3});
  EXPECT_EQ(unevenShape(gathered, {&two, nullptr, &three}, 1), five);
  EXPECT_THROW(unevenShape(gathered, {&three, nullptr, &two}, 1), ShapeError);
  EXPECT_THROW(unevenShape(gathered, {&wide, nullptr, &three}, 1), ShapeError);
  EXPECT_THROW(unevenShape(gathered, {&two, nullptr, nullptr}, 1), ShapeError);
  const auto scattered = uneven(Communication::kReduceScatter, {2, 0, 3});
  EXPECT_EQ(unevenShape(scattered, Operands(3, &five), 2), three);
  EXPECT_THROW(unevenShape(scattered, Operands(3, &five), 1), ShapeError);
  EXPECT_THROW(unevenShape(scattered, Operands(3, &three), 2), ShapeError);
  // Rows of different numbers, columns cut unevenly.
  const auto exchanged = uneven(Communication::kAllToAll, {3, 1, 3, 1}, 1, 0);
  EXPECT_EQ(unevenShape(exchanged, {&two, &three}, 0), (Shape{5, 3}));
  EXPECT_EQ(unevenShape(exchanged, {&two, &three}, 1), (Shape{5, 1}));
  const auto unequal = uneven(Communication::kAllToAll, {3, 1, 1, 3}, 1, 0);
  EXPECT_THROW(unevenShape(unequal, {&two, &three}, 0), ShapeError);
  EXPECT_EQ(unevenShape(uneven(Communication::kAllToAll, {1, 1, 0, 3}), {&two, &three}, 1),
            (Shape{4, 4}));
}

}  // namespace
}  // namespace shardproof::ops
