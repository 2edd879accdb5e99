// SPDX-License-Identifier: Apache-2.0
#include "compare/trace.h"

#include <gtest/gtest.h>

#include "shardproof/error.h"
#include "trace_files.h"

namespace shardproof::compare {
namespace {

const Axes kMesh = {{"dp", 2}, {"tp", 2}};

Local cut(nlohmann::json described) { return floats("w", {1, 2}, {1, 2}, std::move(described)); }

std::string messageOf(const Axes& mesh, const std::vector<Local>& tensors) {
  const Folder folder;
  writeRank(folder.path("t"), 0, mesh, tensors);
  try {
    readTrace(folder.path("t"));
  } catch (const InputError& error) {
    return error.inFile();
  }
  return "no error";
}

TEST(Trace, LayoutsAreRead) {
  const Folder folder;
  for (int rank = 0; rank < 4; ++rank)
    writeRank(folder.path("t"), rank, kMesh,
              {cut({{"shape", {2, 2}},
                    {"parts", {{0, {rank % 2, 0}, {1, 2}}}},
                    {"sum", {"dp"}},
                    {"kind", "state"}})});
  const Trace trace = readTrace(folder.path("t"));
  EXPECT_EQ(trace.world, 4);
  EXPECT_EQ(trace.coordinate(3, 0), 1);
  EXPECT_EQ(trace.coordinate(1, 1), 1);
  EXPECT_EQ(trace.coordinate(2, 1), 0);
  const Tensor& w = trace.tensors.at("w");
  EXPECT_EQ(w.kind, Kind::kState);
  ASSERT_EQ(w.pieces.size(), 4U);
  EXPECT_EQ(w.pieces[1].parts[0].low, (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(w.pieces[1].sum, (std::vector<std::size_t>{0}));
}

TEST(Trace, ARankWithoutAFile) {
  const Folder folder;
  writeRank(folder.path("t"), 0, {{"dp", 2}}, {});
  try {
    readTrace(folder.path("t"));
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.inFile(), "has no file of rank 1, expected files of 2 ranks");
  }
}

TEST(Trace, FilesOfSeveralRuns) {
  const Folder folder;
  writeRank(folder.path("t"), 0, {{"dp", 2}}, {});
  writeRank(folder.path("t"), 1, {{"tp", 2}}, {});
  EXPECT_THROW(readTrace(folder.path("t")), InputError);
}

TEST(Trace, DescriptionsThatCannotBe) {
  const Axes one;
  EXPECT_EQ(messageOf(one, {cut({{"shape", {2, 2}}})}),
            "trace/tensors/w#0/shape: has not as many elements as the local tensor: parts are "
            "missing");
  EXPECT_EQ(messageOf(one, {cut({{"shape", {2, 2}}, {"parts", {{0, {2, 0}, {1, 2}}}}})}),
            "trace/tensors/w#0/parts: found [0,[2,0],[1,2]], which is outside of the whole tensor "
            "of shape [2,2]");
  EXPECT_EQ(messageOf(one, {cut({{"shape", {2, 2}}, {"parts", {{1, {0, 0}, {1, 2}}}}})}),
            "trace/tensors/w#0/parts: found [1,[0,0],[1,2]], which is more than the 2 elements of "
            "the local tensor");
  EXPECT_EQ(messageOf(one, {cut({{"sum", {"pp"}}})}),
            "trace/tensors/w#0/sum: found the axis pp, which the mesh does not have");
  EXPECT_EQ(messageOf(one, {cut({{"kind", "gradients"}})}),
            "trace/tensors/w#0/kind: found gradients, expected one of those of docs/numbers.md");
  EXPECT_EQ(messageOf(one, {cut({{"order", -1}})}),
            "trace/tensors/w#0/order: found -1, expected an integer that is not negative");
  EXPECT_EQ(messageOf({{"dp", 0}}, {}),
            "trace/mesh: expected sizes of at least 1, and at most 2^20 ranks");
  EXPECT_EQ(messageOf({{"dp", 1 << 20}, {"tp", 2}}, {}),
            "trace/mesh: expected sizes of at least 1, and at most 2^20 ranks");
}

TEST(Trace, FilesOfOthers) {
  const Folder folder;
  writeFile(folder.path("t/a.safetensors"), safetensorsText(nlohmann::json::object(), ""));
  try {
    readTrace(folder.path("t"));
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.inFile(),
              "header/__metadata__/format: is missing, expected shardproof-trace 1: a file that "
              "shardproof.torch.trace has written");
  }
  EXPECT_THROW(readTrace(folder.path("none")), InputError);
}

TEST(Trace, PerturbedOnesAreCounted) {
  const Folder folder;
  writeRank(folder.path("t/draw1"), 0, {}, {});
  writeRank(folder.path("t/draw2"), 0, {}, {});
  writeRank(folder.path("t/draw4"), 0, {}, {});
  EXPECT_EQ(perturbedOf(folder.path("t")).size(), 2U);
}

}  // namespace
}  // namespace shardproof::compare
