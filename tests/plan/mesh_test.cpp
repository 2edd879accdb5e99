// SPDX-License-Identifier: Apache-2.0
// Ranks and coordinates: row-major, slowest axis first.
#include "plan/mesh.h"

#include <gtest/gtest.h>

namespace shardproof {
namespace {

TEST(Mesh, RanksAreRowMajorIndicesOfTheirCoordinates) {
  const MeshView mesh({{"dp", 2}, {"pp", 3}, {"tp", 4}});
  EXPECT_EQ(mesh.axes(), 3);
  EXPECT_EQ(mesh.ranks(), 24);
  Rank rank(0);
  for (std::int32_t dp = 0; dp < 2; ++dp) {
    for (std::int32_t pp = 0; pp < 3; ++pp) {
      for (std::int32_t tp = 0; tp < 4; ++tp, ++rank) {
        EXPECT_EQ(mesh.coordinate(rank, 0), dp);
        EXPECT_EQ(mesh.coordinate(rank, 1), pp);
        EXPECT_EQ(mesh.coordinate(rank, 2), tp);
        EXPECT_EQ(mesh.with(Rank(0), {{0, dp}, {1, pp}, {2, tp}}), rank);
        EXPECT_EQ(mesh.with(rank, 1, pp), rank);
      }
    }
  }
}

TEST(Mesh, ChangesOnlyTheNamedAxes) {
  const MeshView mesh({{"dp", 2}, {"pp", 3}, {"tp", 4}});
  EXPECT_EQ(mesh.with(Rank(23), 0, 0), 11);
  EXPECT_EQ(mesh.with(Rank(23), 2, 1), 21);
  EXPECT_EQ(mesh.with(Rank(23), Coordinates{}), 23);
  EXPECT_EQ(mesh.with(Rank(23), {{2, 0}, {0, 0}}), 8);
}

TEST(Mesh, WithoutAxesThereIsOneRank) {
  const MeshView mesh({});
  EXPECT_EQ(mesh.axes(), 0);
  EXPECT_EQ(mesh.ranks(), 1);
  EXPECT_EQ(mesh.with(Rank(0), Coordinates{}), 0);
}

}  // namespace
}  // namespace shardproof
