// SPDX-License-Identifier: Apache-2.0
// Plans over an axis that nothing names, of which only some coordinates are looked at. Each wrong
// plan here is right at coordinate 0, so it passes unless the stage is found not to be symmetric in
// the axis.
#include <random>

#include <gtest/gtest.h>

#include "shardproof/verify.h"
#include "support/problems.h"

namespace shardproof {
namespace {

using test::Draft;
using test::Json;

Verdict verdictOf(const Draft& d) {
  const auto problem = test::read(d);
  VerifyOptions options;
  options.jobs = 1;
  return verify(*problem, options).verdict;
}

std::string number(int n) { return std::to_string(n); }

// x [4 dp] is cut into blocks of 4 over dp, o [dp, 4] by rows. The plan's nodes make o [1, 4] from
// the rank's block.
Draft blocks(int dp, const std::string& modelTensors, const std::string& modelNodes,
             const std::string& planTensors, const std::string& planNodes) {
  const std::string n = number(4 * dp), m = number(dp);
  return test::draft(R"({"tensors": {"x": {"shape": [)" + n +
                         R"(], "kind": "input"}, "z": {"shape": [)" + m +
                         R"(, 4]}, "o": {"shape": [)" + m + R"(, 4]})" + modelTensors +
                         R"(}, "nodes": [)" + modelNodes + R"(], "outputs": ["o"]})",
                     R"({"mesh": [["dp", )" + m +
                         R"(]], "programs": [{"tensors": {"x": {"shape": [4], "kind": "input"},
              "z": {"shape": [1, 4]}, "o": {"shape": [1, 4]})" +
                         planTensors + R"(}, "nodes": [)" + planNodes + R"(]}],
                         "lineage": [{"tensor": "x", "role": "input",
                          "shards": [{"box": [[0, 4]], "step": {"dp": [4]},
                          "parts": [{"local": "x"}]}]},
                                     {"tensor": "o", "role": "output",
                                      "shards": [{"box": [[0, 1], [0, 4]], "step": {"dp": [1, 0]},
                                      "parts": [{"local": "o"}]}]}]})");
}
std::string viewOf(const std::string& from, const std::string& to, int rows) {
  return R"({"op": "view", "in": [")" + from + R"("], "out": [")" + to +
         R"("], "attrs": {"size": [)" + number(rows) + ", 4]}}";
}
const char* const kAddOwn = R"(, {"op": "add", "in": ["z", "x"], "out": ["o"]})";
const char* const kAddTaken = R"(, {"op": "add", "in": ["z", "y"], "out": ["o"]})";

class UnnamedAxis : public testing::TestWithParam<int> {};

TEST_P(UnnamedAxis, ARightPlanIsProved) {
  const int dp = GetParam();
  EXPECT_EQ(verdictOf(blocks(
                dp, "", viewOf("x", "z", dp) + R"(, {"op": "square", "in": ["z"], "out": ["o"]})",
                "", viewOf("x", "z", 1) + R"(, {"op": "mul", "in": ["z", "z"], "out": ["o"]})")),
            Verdict::kEquivalent);
}

// The last rank has the first block.
TEST_P(UnnamedAxis, ARightPlanWithTheBlocksBackwardIsProved) {
  const int dp = GetParam();
  Draft d =
      blocks(dp, "", viewOf("x", "z", dp) + R"(, {"op": "square", "in": ["z"], "out": ["o"]})", "",
             viewOf("x", "z", 1) + R"(, {"op": "mul", "in": ["z", "z"], "out": ["o"]})");
  Json& in = d.plan["lineage"][0]["shards"][0];
  in["box"] = {{4 * dp - 4, 4 * dp}};
  in["step"] = {{"dp", {-4}}};
  EXPECT_EQ(verdictOf(d), Verdict::kNotEquivalent);
  Json& out = d.plan["lineage"][1]["shards"][0];
  out["box"] = {{dp - 1, dp}, {0, 4}};
  out["step"] = {{"dp", {-1, 0}}};
  EXPECT_EQ(verdictOf(d), Verdict::kEquivalent);
}

// Rank 0 receives once for each microbatch, rank 1 names each of them and sends b in the last one:
// two tensors that are no microbatch's own.
TEST(UnnamedMicrobatches, APartnerThatSendsSomethingElseInOne) {
  for (const std::string last : {"a", "b"}) {
    std::string sends;
    for (int k = 0; k < 8; ++k) {
      sends += (k > 0 ? ", " : "") +
               std::string(R"({"op": "send", "comm": "c", "to": {"pp": 0}, "out": [], "in": [")") +
               (k == 7 ? last : "a") + R"("], "mb": )" + number(k) + "}";
    }
    const Draft d = test::draft(
        R"({"tensors": {"a": {"shape": [4], "kind": "input"}, "b": {"shape": [4], "kind": "input"},
            "u": {"shape": [1, 4]}, "o": {"shape": [8, 4]}},
                                    "nodes": [{"op": "unsqueeze", "in": ["a"], "out": ["u"],
                                     "attrs": {"dim": 0}},
                                     {"op": "expand", "in": ["u"], "out": ["o"],
                                     "attrs": {"size": [8, 4]}}],
                                    "outputs": ["o"]})",
        R"({"mesh": [["pp", 2]], "microbatches": 8,
                                    "programs": [{"at": {"pp": 0},
                                     "tensors": {"r": {"shape": [4], "per_mb": true},
                                     "o": {"shape": [1, 4], "per_mb": true}},
                                                  "nodes": [{"op": "recv", "comm": "c",
                                                   "from": {"pp": 1}, "in": [], "out": ["r"],
                                                   "mb": "*"},
                                                            {"op": "unsqueeze", "in": ["r"],
                                                             "out": ["o"], "attrs": {"dim": 0},
                                                             "mb": "*"}]},
                                                 {"at": {"pp": 1},
                                                  "tensors": {"a": {"shape": [4], "kind": "input"},
                                                  "b": {"shape": [4], "kind": "input"}},
                                                   "nodes": [)" +
            sends + R"(]}],
                                    "lineage": [{"tensor": "a", "role": "input",
                                     "shards": [{"box": [[0, 4]],
                                     "parts": [{"local": "a", "at": {"pp": 1}}]}]},
                                                {"tensor": "b", "role": "input",
                                                 "shards": [{"box": [[0, 4]],
                                                 "parts": [{"local": "b", "at": {"pp": 1}}]}]},
                                                {"tensor": "o", "role": "output",
                                                 "shards": [{"box": [[0, 1], [0, 4]],
                                                 "step": {"mb": [1, 0]},
                                                 "parts": [{"local": "o", "at": {"pp": 0}}]}]}]})");
    EXPECT_EQ(verdictOf(d), last == "a" ? Verdict::kEquivalent : Verdict::kNotEquivalent);
  }
}

// The model adds block 0 to every block, the plan each rank's own.
TEST_P(UnnamedAxis, SliceOfOneBlock) {
  const int dp = GetParam();
  for (const char* bounds : {R"("start": 0, "stop": 4)", R"("stop": 4, "step": 1)"}) {
    const std::string take =
        std::string(R"(, {"op": "slice", "in": ["x"], "out": ["y"], "attrs": {"dim": 0, )") +
        bounds + "}}";
    EXPECT_EQ(
        verdictOf(blocks(dp, R"(, "y": {"shape": [4]})", viewOf("x", "z", dp) + take + kAddTaken,
                         "", viewOf("x", "z", 1) + kAddOwn)),
        Verdict::kNotEquivalent);
  }
}

TEST_P(UnnamedAxis, ChunkOfOneBlock) {
  const int dp = GetParam();
  for (const int index : {0, 1, 2, dp - 1}) {
    const std::string take =
        R"(, {"op": "chunk", "in": ["x"], "out": ["y"], "attrs": {"dim": 0, "parts": )" +
        number(dp) + R"(, "index": )" + number(index) + "}}";
    EXPECT_EQ(
        verdictOf(blocks(dp, R"(, "y": {"shape": [4]})", viewOf("x", "z", dp) + take + kAddTaken,
                         "", viewOf("x", "z", 1) + kAddOwn)),
        Verdict::kNotEquivalent)
        << index;
  }
}

TEST_P(UnnamedAxis, SelectOfOnePosition) {
  const int dp = GetParam();
  const std::string take =
      R"(, {"op": "select", "in": ["x"], "out": ["y"], "attrs": {"dim": 0, "index": 0}})";
  EXPECT_EQ(verdictOf(blocks(dp, R"(, "y": {"shape": []})", viewOf("x", "z", dp) + take + kAddTaken,
                             R"(, "y": {"shape": []})", viewOf("x", "z", 1) + take + kAddTaken)),
            Verdict::kNotEquivalent);
}

TEST_P(UnnamedAxis, SelectOfOneRowOfTheView) {
  const int dp = GetParam();
  const std::string take =
      R"(, {"op": "select", "in": ["z"], "out": ["y"], "attrs": {"dim": 0, "index": 0}})";
  EXPECT_EQ(
      verdictOf(blocks(dp, R"(, "y": {"shape": [4]})", viewOf("x", "z", dp) + take + kAddTaken, "",
                       viewOf("x", "z", 1) + kAddOwn)),
      Verdict::kNotEquivalent);
}

// Everything moves on by one block: block 0 becomes block 0 again, every other one its neighbour.
TEST_P(UnnamedAxis, CatThatShiftsBlocks) {
  const int dp = GetParam();
  const std::string n = number(4 * dp), longer = number(4 * dp + 4);
  const std::string model =
      R"({"op": "slice", "in": ["x"], "out": ["f"], "attrs": {"dim": 0, "stop": 4}},
          {"op": "cat", "in": ["f", "x"], "out": ["c"], "attrs": {"dim": 0}},
                              {"op": "slice", "in": ["c"], "out": ["y"],
                               "attrs": {"dim": 0, "stop": )" +
      n + "}}, " + viewOf("y", "z", dp) + R"(, {"op": "square", "in": ["z"], "out": ["o"]})";
  EXPECT_EQ(
      verdictOf(blocks(dp,
                       R"(, "f": {"shape": [4]}, "c": {"shape": [)" + longer +
                           R"(]}, "y": {"shape": [)" + n + "]}",
                       model, "",
                       viewOf("x", "z", 1) + R"(, {"op": "square", "in": ["z"], "out": ["o"]})")),
      Verdict::kNotEquivalent);
}

// Block 0 becomes zeros, every other one its neighbour; the plan has zeros everywhere.
TEST_P(UnnamedAxis, PadThatShiftsBlocks) {
  const int dp = GetParam();
  const std::string n = number(4 * dp), longer = number(4 * dp + 4);
  const std::string model =
      R"({"op": "pad", "in": ["x"], "out": ["p"], "attrs": {"pad": [4, 0]}},
          {"op": "slice", "in": ["p"], "out": ["y"], "attrs": {"dim": 0, "stop": )" +
      n + "}}, " + viewOf("y", "z", dp) + R"(, {"op": "square", "in": ["z"], "out": ["o"]})";
  EXPECT_EQ(
      verdictOf(blocks(
          dp, R"(, "p": {"shape": [)" + longer + R"(]}, "y": {"shape": [)" + n + "]}", model, "",
          viewOf("x", "z", 1) +
              R"(, {"op": "mul", "in": ["z"], "out": ["o"], "attrs": {"scalar": 0}})")),
      Verdict::kNotEquivalent);
}

// o = x + c with another number in each block of c; each rank adds its first block's.
TEST_P(UnnamedAxis, ConstantsListedElementByElement) {
  const int dp = GetParam();
  for (const int block : {1, 4}) {
    Draft d = test::draft(
        R"({"tensors": {"x": {"kind": "input"}, "c": {"kind": "constant"}, "o": {}},
            "nodes": [{"op": "add", "in": ["x", "c"], "out": ["o"]}], "outputs": ["o"]})",
        R"({"mesh": [], "programs": [{"tensors": {"x": {"kind": "input"}, "o": {}},
            "nodes": [{"op": "add", "in": ["x"], "out": ["o"], "attrs": {"scalar": 1}}]}],
            "lineage": []})");
    Json value = Json::array(), same = Json::array();
    for (int i = 0; i < dp * block; ++i) value.push_back(1 + i / block), same.push_back(1);
    for (const char* name : {"x", "c", "o"}) d.model["tensors"][name]["shape"] = {dp * block};
    d.model["tensors"]["c"]["value"] = value;
    d.plan["mesh"].push_back({"dp", dp});
    for (const char* name : {"x", "o"}) {
      d.tensor(0, name)["shape"] = {block};
      d.plan["lineage"].push_back({{"tensor", name},
                                   {"role", name[0] == 'x' ? "input" : "output"},
                                   {"shards",
                                    {{{"box", {{0, block}}},
                                      {"step", {{"dp", {block}}}},
                                      {"parts", {{{"local", name}}}}}}}});
    }
    EXPECT_EQ(verdictOf(d), Verdict::kNotEquivalent) << block;
    d.model["tensors"]["c"]["value"] = same;  // the same number everywhere: right
    EXPECT_EQ(verdictOf(d), Verdict::kEquivalent) << block;
  }
}

// ---- programs that name coordinates ----

const char* const kSquares = R"(, {"op": "square", "in": ["z"], "out": ["o"]})";
const char* const kSameSquares = R"(, {"op": "mul", "in": ["z", "z"], "out": ["o"]})";
const char* const kCubes = R"(, {"op": "pow", "in": ["z"], "out": ["o"], "attrs": {"scalar": 3}})";

// o = z^2; each coordinate of dp has a program of its own, made of the nodes given for it.
Draft programEach(const std::vector<const char*>& nodes) {
  const int dp = static_cast<int>(nodes.size());
  Draft d = blocks(dp, "", viewOf("x", "z", dp) + kSquares, "", "");
  const Json empty = d.program(0);
  for (int r = 0; r < dp; ++r) {
    const auto p = static_cast<std::size_t>(r);
    if (r > 0) d.plan["programs"].push_back(empty);
    d.program(p)["at"]["dp"] = r;
    d.program(p)["nodes"] = Json::parse("[" + viewOf("x", "z", 1) + nodes[p] + "]");
  }
  return d;
}

TEST_P(UnnamedAxis, OneCoordinateWithAnotherProgram) {
  const int dp = GetParam();
  for (int other = 0; other < dp; ++other) {
    std::vector<const char*> nodes(static_cast<std::size_t>(dp), kSquares);
    nodes[static_cast<std::size_t>(other)] = kSameSquares;
    EXPECT_EQ(verdictOf(programEach(nodes)), Verdict::kEquivalent) << other;
    nodes[static_cast<std::size_t>(other)] = kCubes;
    EXPECT_EQ(verdictOf(programEach(nodes)), Verdict::kNotEquivalent) << other;
  }
}

TEST_P(UnnamedAxis, SeveralClassesOfPrograms) {
  const int dp = 2 * GetParam();
  std::mt19937 random(17);
  for (int round = 0; round < 12; ++round) {
    std::vector<const char*> nodes;
    for (int r = 0; r < dp; ++r) nodes.push_back(random() % 2 == 0 ? kSquares : kSameSquares);
    EXPECT_EQ(verdictOf(programEach(nodes)), Verdict::kEquivalent) << round;
    nodes[random() % nodes.size()] = kCubes;
    EXPECT_EQ(verdictOf(programEach(nodes)), Verdict::kNotEquivalent) << round;
  }
}

// All programs are equal, but a lineage part names one coordinate and says that its tensor is
// something else.
TEST_P(UnnamedAxis, ALineagePartThatNamesOneCoordinate) {
  const int dp = GetParam();
  Draft d = programEach(std::vector<const char*>(static_cast<std::size_t>(dp), kSquares));
  Json shards = Json::array();
  for (int r = 0; r < dp; ++r) {
    shards.push_back(
        {{"box", {{r, r + 1}, {0, 4}}}, {"parts", {{{"local", "o"}, {"at", {{"dp", r}}}}}}});
  }
  d.plan["lineage"][1]["shards"] = shards;
  EXPECT_EQ(verdictOf(d), Verdict::kEquivalent);
  for (const std::size_t r : {std::size_t{0}, static_cast<std::size_t>(dp) - 1}) {
    Draft swapped = d;  // two coordinates trade places
    std::swap(swapped.plan["lineage"][1]["shards"][r]["parts"],
              swapped.plan["lineage"][1]["shards"][1]["parts"]);
    EXPECT_EQ(verdictOf(swapped), Verdict::kNotEquivalent) << r;
  }
}

// t = sum of x over all ranks; what one rank adds is doubled or not.
TEST_P(UnnamedAxis, ASumToWhichOneRankAddsSomethingElse) {
  const int dp = GetParam();
  for (int other = 0; other < dp; ++other) {
    for (const char* scalar : {"1", "2"}) {
      Draft d = test::draft(
          R"({"tensors": {"x": {"shape": [)" + number(4 * dp) +
              R"(], "kind": "input"}, "o": {"shape": []}}, "nodes": [{"op": "sum", "in": ["x"],
                  "out": ["o"]}], "outputs": ["o"]})",
          R"({"mesh": [["dp", )" + number(dp) +
              R"(]], "programs": [{"tensors": {"x": {"shape": [4], "kind": "input"},
                  "t": {"shape": []}, "s": {"shape": []}, "o": {"shape": []}}, "nodes": []}],
                                "lineage": [{"tensor": "x", "role": "input",
                                 "shards": [{"box": [[0, 4]], "step": {"dp": [4]},
                                 "parts": [{"local": "x"}]}]},
                                            {"tensor": "o", "role": "output",
                                             "shards": [{"box": [],
                                              "parts": [{"local": "o"}]}]}]})");
      const Json empty = d.program(0);
      for (int r = 0; r < dp; ++r) {
        const auto p = static_cast<std::size_t>(r);
        if (r > 0) d.plan["programs"].push_back(empty);
        d.program(p)["at"]["dp"] = r;
        d.program(p)["nodes"] = Json::parse(
            R"([{"op": "sum", "in": ["x"], "out": ["t"]}, {"op": "mul", "in": ["t"], "out": ["s"],
                "attrs": {"scalar": )" +
            std::string(r == other ? scalar : "1") +
            R"(}}, {"op": "all_reduce", "in": ["s"], "out": ["o"], "comm": "r",
                "group": ["dp"]}])");
      }
      EXPECT_EQ(verdictOf(d), scalar[0] == '1' ? Verdict::kEquivalent : Verdict::kNotEquivalent)
          << other;
    }
  }
}

// Each rank has its own block, and besides a copy of all blocks that is not the whole dimension:
// the copy keeps what the collapsed blocks drop.
TEST_P(UnnamedAxis, ABoxThatHoldsAllBlocks) {
  const int dp = GetParam();
  const std::string n = number(4 * dp), longer = number(4 * dp + 4);
  for (const char* op : {"square", "neg"}) {
    const Draft d = test::draft(
        R"({"tensors": {"x": {"shape": [)" + longer + R"(], "kind": "input"}, "o": {"shape": [)" +
            longer +
            R"(]}}, "nodes": [{"op": "square", "in": ["x"], "out": ["o"]}], "outputs": ["o"]})",
        R"({"mesh": [["dp", )" + number(dp) + R"(]], "programs": [{"tensors": {
                                      "x": {"shape": [4], "kind": "input"}, "y": {"shape": [)" +
            n + R"(], "kind": "input"}, "o": {"shape": [4]}, "p": {"shape": [)" + n + R"(]}},
                                      "nodes": [{"op": "square", "in": ["x"], "out": ["o"]},
                                                {"op": ")" +
            op + R"(", "in": ["y"], "out": ["p"]}]}],
                                    "lineage": [{"tensor": "x", "role": "input",
                                     "shards": [{"box": [[4, 8]], "step": {"dp": [4]},
                                     "parts": [{"local": "x"}]}, {"box": [[0, )" +
            n + R"(]], "parts": [{"local": "y"}]}]},
                                                {"tensor": "o", "role": "output",
                                                 "shards": [{"box": [[4, 8]], "step": {"dp": [4]},
                                                 "parts": [{"local": "o"}]}, {"box": [[0, )" +
            n + R"(]], "parts": [{"local": "p"}]}]}]})");
    EXPECT_EQ(verdictOf(d), op[0] == 's' ? Verdict::kEquivalent : Verdict::kNotEquivalent);
  }
}

// Blocks of tp within those of dp. One lineage cuts along both axes, the other along dp alone.
TEST_P(UnnamedAxis, ABoxThatHoldsTheInnerBlocks) {
  const int dp = GetParam();
  const std::string n = number(2 * dp * 4);
  for (const char* op : {"square", "neg"}) {
    const Draft d = test::draft(
        R"({"tensors": {"x": {"shape": [)" + n + R"(], "kind": "input"}, "o": {"shape": [)" + n +
            R"(]}}, "nodes": [{"op": "square", "in": ["x"], "out": ["o"]}], "outputs": ["o"]})",
        R"({"mesh": [["dp", )" + number(dp) + R"(], ["tp", 4]], "programs": [{"tensors": {
                                      "x": {"shape": [2], "kind": "input"},
                                       "y": {"shape": [8], "kind": "input"}, "o": {"shape": [2]},
                                       "p": {"shape": [8]}},
                                      "nodes": [{"op": "square", "in": ["x"], "out": ["o"]},
                                                {"op": ")" +
            op + R"(", "in": ["y"], "out": ["p"]}]}],
                                    "lineage": [{"tensor": "x", "role": "input",
                                     "shards": [{"box": [[0, 2]], "step": {"dp": [8], "tp": [2]},
                                     "parts": [{"local": "x"}]},
                                     {"box": [[0, 8]], "step": {"dp": [8]},
                                     "parts": [{"local": "y"}]}]},
                                                {"tensor": "o", "role": "output",
                                                 "shards": [{"box": [[0, 2]],
                                                 "step": {"dp": [8], "tp": [2]},
                                                 "parts": [{"local": "o"}]},
                                                 {"box": [[0, 8]], "step": {"dp": [8]},
                                                 "parts": [{"local": "p"}]}]}]})");
    EXPECT_EQ(verdictOf(d), op[0] == 's' ? Verdict::kEquivalent : Verdict::kNotEquivalent);
  }
}

// x [2 * 4 dp] is cut over tp, of which there are two, and each half over dp: the blocks of dp lie
// inside those of tp. The plan makes o by `node` and, on tp rank 1, by `other`.
Draft halves(int dp, const std::string& node, const std::string& other,
             const std::string& output = R"({"dp": [4], "tp": [#]})") {
  const std::string n = number(2 * 4 * dp), half = number(4 * dp);
  std::string step = output;
  step.replace(step.find('#'), 1, half);
  const auto program = [&](const char* at, const std::string& nodes) {
    return R"({"at": {"tp": )" + std::string(at) +
           R"(}, "tensors": {"x": {"shape": [4], "kind": "input"}, "s": {"shape": []},
               "t": {"shape": []}, "o": {"shape": [4]}}, "nodes": [)" +
           nodes + "]}";
  };
  return test::draft(
      R"({"tensors": {"x": {"shape": [)" + n +
          R"(], "kind": "input"}, "s": {"shape": []}, "o": {"shape": [)" + n +
          R"(]}}, "nodes": [{"op": "sum", "in": ["x"], "out": ["s"]},
              {"op": "mul", "in": ["x", "s"], "out": ["o"]}], "outputs": ["o"]})",
      R"({"mesh": [["dp", )" + number(dp) + R"(], ["tp", 2]], "programs": [)" + program("0", node) +
          ", " + program("1", other) +
          R"(], "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 4]],
              "step": {"dp": [4], "tp": [)" +
          half +
          R"(]}, "parts": [{"local": "x"}]}]}, {"tensor": "o", "role": "output",
              "shards": [{"box": [[0, 4]], "step": )" +
          step + R"(, "parts": [{"local": "o"}]}]}]})");
}

std::string timesSumOver(const std::string& axes, const std::string& by) {
  return R"({"op": "sum", "in": ["x"], "out": ["s"]}, {"op": "all_reduce", "in": ["s"],
             "out": ["t"], "comm": "c", "group": [)" +
         axes + R"(]}, {"op": "mul", "in": [")" + by + R"(", "t"], "out": ["o"]})";
}

TEST_P(UnnamedAxis, BlocksInsideAnotherAxis) {
  const int dp = GetParam();
  const std::string all = timesSumOver(R"("dp", "tp")", "x");
  EXPECT_EQ(verdictOf(halves(dp, all, all)), Verdict::kEquivalent);
  // Of one half only.
  const std::string own = timesSumOver(R"("dp")", "x");
  EXPECT_EQ(verdictOf(halves(dp, own, own)), Verdict::kNotEquivalent);
  // Of the other half alone: what it adds up is twice too much.
  const std::string twice =
      R"({"op": "sum", "in": ["x"], "out": ["s"], "attrs": {}},
          {"op": "add", "in": ["s", "s"], "out": ["u"]},
          {"op": "all_reduce", "in": ["u"], "out": ["t"], "comm": "c", "group": ["dp", "tp"]},
          {"op": "mul", "in": ["x", "t"], "out": ["o"]})";
  Draft d = halves(dp, all, twice);
  d.program(1)["tensors"]["u"] = Json::parse(R"({"shape": []})");
  EXPECT_EQ(verdictOf(d), Verdict::kNotEquivalent);
  // The halves are exchanged: right at no coordinate, but with the very same blocks.
  d = halves(dp, all, all);
  for (auto& shard : d.entry(1)["shards"]) {
    shard["box"] = {{4 * dp, 4 * dp + 4}};
    shard["step"] = {{"dp", {4}}, {"tp", {-4 * dp}}};
  }
  EXPECT_EQ(verdictOf(d), Verdict::kNotEquivalent);
  // Within the second half the blocks are those of the next rank.
  d = halves(dp, all, all);
  Json shards = Json::array();
  for (int tp : {0, 1}) {
    for (int c = 0; c < dp; ++c) {
      const int low = tp * 4 * dp + (tp == 0 ? c : (c + 1) % dp) * 4;
      shards.push_back(
          {{"box", {{low, low + 4}}},
           {"parts", Json::array({{{"local", "o"}, {"at", {{"dp", c}, {"tp", tp}}}}})}});
    }
  }
  d.entry(1)["shards"] = shards;
  EXPECT_EQ(verdictOf(d), Verdict::kNotEquivalent);
}

// 2 and 3 coordinates are never collapsed; 4 leaves one block out, which is where an off-by-one
// would hide.
INSTANTIATE_TEST_SUITE_P(Sizes, UnnamedAxis, testing::Values(3, 4, 5, 8));

}  // namespace
}  // namespace shardproof
