// SPDX-License-Identifier: Apache-2.0
// Lineage of parts of local tensors: what it becomes, and what is no such part.
#include "ir/local_parts.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "ir/clone.h"
#include "ops/registry.h"
#include "shardproof/builder.h"
#include "shardproof/error.h"
#include "shardproof/read.h"
#include "shardproof/verify.h"
#include "writer/write_problem.h"

namespace shardproof {
namespace {

using Json = nlohmann::ordered_json;

Json caseOf(const std::string& name) {
  std::ifstream file(std::string(SHARDPROOF_SOURCE_DIR) + "/tests/plans/small/" + name + ".json");
  return Json::parse(file);
}

std::unique_ptr<Problem> read(const Json& small) {
  return readProblemText(small.at("model").dump(), small.at("plan").dump());
}

const Tensor* tensorNamed(const Problem& problem, std::size_t program, const std::string& name) {
  for (const Tensor& t : problem.plan.programs[program].graph.tensors)
    if (problem.names.text(t.name) == name) return &t;
  return nullptr;
}

std::vector<std::string> operatorsOf(const Problem& problem, std::size_t program) {
  std::vector<std::string> names;
  for (const Node& node : problem.plan.programs[program].graph.nodes)
    names.push_back(node.communication >= 0
                        ? "communication"
                        : std::string(ops::Registry::instance().at(node.op).name));
  return names;
}

TEST(LocalParts, AnInputIsPutTogetherOfWhatIsGivenInItsPlace) {
  const auto problem = read(caseOf("parts_zigzag"));
  const Tensor* x = tensorNamed(*problem, 0, "x");
  EXPECT_EQ(x->kind, TensorKind::kProduced);
  EXPECT_EQ(x->kindInFile, TensorKind::kInput);
  const Tensor* chunk = tensorNamed(*problem, 0, "x[2:4, 0:4]");
  ASSERT_NE(chunk, nullptr);
  EXPECT_EQ(chunk->kind, TensorKind::kInput);
  EXPECT_EQ(chunk->shape, (Shape{2, 4}));
  EXPECT_TRUE(chunk->added);
  // cat and identity make x; after linear makes h, its parts are taken out and put together.
  EXPECT_EQ(operatorsOf(*problem, 0),
            (std::vector<std::string>{"cat", "identity", "linear", "slice", "slice", "cat",
                                      "identity", "silu", "slice", "slice", "cat", "identity",
                                      "square", "sum", "communication"}));
}

TEST(LocalParts, NodesKeepTheirPlacesInTheFile) {
  const auto problem = read(caseOf("parts_zigzag"));
  const Plan& plan = problem->plan;
  EXPECT_EQ(plan.nodePointer(ProgramId(0), NodeId(2)), "/programs/0/nodes/0");
  EXPECT_EQ(plan.nodePointer(ProgramId(0), NodeId(7)), "/programs/0/nodes/1");
  EXPECT_EQ(plan.nodePointer(ProgramId(0), NodeId(0)), "/lineage/0/shards/0/parts/0");
  EXPECT_EQ(plan.nodePointer(ProgramId(0), NodeId(3)), "/lineage/2/shards/0/parts/0");
  for (std::int64_t place = 0; place < 5; ++place)
    EXPECT_EQ(plan.nodePointer(ProgramId(0), plan.nodeAt(ProgramId(0), place)),
              "/programs/0/nodes/" + std::to_string(place));
  EXPECT_FALSE(plan.nodeAt(ProgramId(0), 5).valid());
}

TEST(LocalParts, RanksWithOtherPartsOfAnInputGetProgramsOfTheirOwn) {
  const auto problem = read(caseOf("parts_padded_vocabulary"));
  ASSERT_EQ(problem->plan.programs.size(), 2u);
  for (const Program& program : problem->plan.programs) EXPECT_EQ(program.inFile, ProgramId(0));
  EXPECT_EQ(tensorNamed(*problem, 0, "w[2:3, 0:4], zeros"), nullptr);
  EXPECT_NE(tensorNamed(*problem, 1, "w[2:3, 0:4], zeros"), nullptr);
}

TEST(LocalParts, ANameOfTheFileIsNotTakenTwice) {
  Json small = caseOf("parts_zigzag");
  Json& program = small["plan"]["programs"][0];
  program["tensors"]["x[0:2, 0:4]"] = {{"shape", {4, 3}}};
  program["nodes"].push_back({{"op", "relu"}, {"in", {"y"}}, {"out", {"x[0:2, 0:4]"}}});
  const auto problem = read(small);
  EXPECT_NE(tensorNamed(*problem, 0, "x[0:2, 0:4]'"), nullptr);
  EXPECT_EQ(verify(*problem, {}).verdict, Verdict::kEquivalent);
}

// What is written is what was read; and as the plan's own, in version 1, it is the same plan.
TEST(LocalParts, AreWrittenAsTheyWere) {
  for (const char* name :
       {"parts_zigzag", "parts_fused_query_key_value", "parts_padded_vocabulary",
        "parts_sequence_before_batch", "parts_rows_of_sequence_and_batch", "parts_multiples",
        "parts_zigzag_of_microbatches_in_issue_order", "parts_of_microbatches_that_differ"}) {
    const Json small = caseOf(name);
    const auto problem = read(small);
    const std::string model = modelText(*problem), plan = planText(*problem, "m.json");
    const Json text = Json::parse(plan);
    EXPECT_EQ(text.at("version"), 2) << name;
    const auto again = readProblemText(model, plan);
    EXPECT_EQ(planText(*again, "m.json"), plan) << name;
    for (std::size_t e = 0; e < text.at("lineage").size(); ++e)
      for (std::size_t s = 0; s < text["lineage"][e]["shards"].size(); ++s) {
        const Json& written = text["lineage"][e]["shards"][s]["parts"][0];
        const Json& own = small["plan"]["lineage"][e]["shards"][s]["parts"][0];
        for (const char* field : {"local", "local_box", "view", "permute", "scale", "padding"})
          EXPECT_EQ(written.value(field, Json()), own.value(field, Json())) << name << ' ' << field;
      }
    ir::makePartsOwn(*problem);
    const std::string own = planText(*problem, "m.json");
    EXPECT_EQ(Json::parse(own).at("version"), 1) << name;
    EXPECT_EQ(verify(*readProblemText(model, own), {}).verdict, Verdict::kEquivalent) << name;
  }
}

// An input of which lineage leaves out a microbatch, or a rank, is anything there.
TEST(LocalParts, WhatLineageDoesNotSpeakOfStaysUnknown) {
  Json small = caseOf("parts_of_microbatches_that_differ");
  auto& shards = small["plan"]["lineage"][0]["shards"];
  for (std::size_t s = shards.size(); s-- > 0;)
    if (shards[s]["parts"][0]["mb"] == 1) shards.erase(s);
  EXPECT_EQ(verify(*read(small), {}).verdict, Verdict::kNotEquivalent);
}

TEST(LocalParts, MayBeStatedWithoutAFile) {
  ProblemBuilder b;
  b.model().input("x", {2, 3});
  b.model().produced("y", {2, 3});
  b.model().node("relu", {"x"}, {"y"});
  b.output("y");
  ProgramBuilder& p = b.program();
  p.input("x", {3, 2});
  p.produced("y", {3, 2});
  p.node("relu", {"x"}, {"y"});
  LocalPart part;
  part.permute = {1, 0};
  b.lineage("x", Role::kInput).shard({{0, 2}, {0, 3}}).part("x", {}, Microbatch::none(), part);
  b.lineage("y", Role::kOutput).shard({{0, 2}, {0, 3}}).part("y", {}, Microbatch::none(), part);
  EXPECT_EQ(verify(*std::move(b).build(), {}).verdict, Verdict::kEquivalent);
}

struct Mistake {
  const char *small, *place;
  Json value;  // null: the field goes
  const char *pointer, *message;
};
void PrintTo(const Mistake& m, std::ostream* out) { *out << m.place << ": " << m.message; }

class LocalPartsMistakes : public testing::TestWithParam<Mistake> {};

TEST_P(LocalPartsMistakes, AreErrorsWithTheirPlace) {
  const Mistake& m = GetParam();
  Json small = caseOf(m.small);
  const Json::json_pointer place(m.place);
  if (m.value.is_null()) small["plan"][place.parent_pointer()].erase(place.back());
  else small["plan"][place] = m.value;
  try {
    read(small);
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_EQ(error.pointer(), m.pointer) << error.what();
    EXPECT_NE(std::string(error.what()).find(m.message), std::string::npos) << error.what();
  }
}

const Mistake kMistakes[] = {
    {"parts_sequence_before_batch", "/lineage/0/shards/0/parts/0/permute", Json::array({0}),
     "/lineage/0/shards/0/parts/0/permute", "found 1 dimensions"},
    {"parts_zigzag", "/programs/0/tensors/x/buffer", "b", "/lineage/0/shards/0/parts/0",
     "\"buffer\", expected lineage of whole local tensors there"},
    {"parts_zigzag", "/version", 1, "/lineage/0/shards/0/parts/0/local_box",
     "a field of version 2 in a plan of version 1"},
    {"parts_zigzag", "/version", 3, "/version", "expected version 1 or 2"},
    {"parts_zigzag",
     "/lineage/0/shards/0/parts/0/local_box",
     {{0, 2}},
     "/lineage/0/shards/0/parts/0/local_box",
     "expected 2, as the local shape is [4, 4]"},
    {"parts_zigzag",
     "/lineage/0/shards/0/parts/0/local_box/0",
     {2, 2},
     "/lineage/0/shards/0/parts/0/local_box/0",
     "not empty inside [0, 4)"},
    {"parts_zigzag",
     "/lineage/0/shards/1/parts/0/local_box/0",
     {3, 5},
     "/lineage/0/shards/1/parts/0/local_box/0",
     "found the range [3, 5)"},
    {"parts_zigzag",
     "/lineage/0/shards/1/parts/0/local_box/0",
     {1, 3},
     "/lineage/0/shards/1/parts/0/local_box",
     "overlaps with that at /lineage/0/shards/0/parts/0"},
    {"parts_zigzag",
     "/lineage/0/shards/1/parts/0/local_box/1",
     {0, 2},
     "/lineage/0/shards/0/parts/0",
     "leave out its elements [2:4, 2:4]"},
    {"parts_zigzag", "/lineage/0/shards/1/parts/0/local_box", nullptr,
     "/lineage/0/shards/1/parts/0", "overlaps with"},
    {"parts_zigzag", "/lineage/0/shards/2",
     Json::parse(
         R"({"box": [[4, 6], [0, 4]], "parts": [{"local": "x", "local_box": [[0, 2], [0, 4]]}]})"),
     "/lineage/0/shards/2", "already is the input piece stated at /lineage/0/shards/0"},
    {"parts_zigzag",
     "/lineage/2/shards/1/parts/0/local_box/0",
     {1, 4},
     "/lineage/2/shards/1/parts/0/local",
     "the box holds [2, 3] elements"},
    {"parts_zigzag", "/lineage/0/shards/0/parts/0/local", "z", "/lineage/0/shards/0/parts/0/local",
     "has none of that name"},
    {"parts_sequence_before_batch", "/lineage/0/shards/0/parts/0/local", "h",
     "/lineage/0/shards/0/parts/0/local", "a node of /programs/0 produces it"},
    {"parts_zigzag",
     "/lineage/0/shards/0/parts/0/at",
     {{"cp", 2}},
     "/lineage/0/shards/0/parts/0/at/cp",
     "from 0 to 1"},
    {"parts_padded_vocabulary", "/lineage/1/shards/1/parts/0/padding", nullptr,
     "/lineage/1/shards/1/parts/0", "or \"padding\": 0 where the rest is 0"},
    {"parts_padded_vocabulary", "/lineage/1/shards/1/parts/0/padding", 1,
     "/lineage/1/shards/1/parts/0/padding", "the only padding there is"},
    {"parts_padded_vocabulary", "/lineage/2/shards/1/parts/0/padding", 0,
     "/lineage/2/shards/1/parts/0/padding", "padding of what is no input"},
    {"parts_sequence_before_batch",
     "/lineage/0/shards/0/parts/0/permute",
     {1, 1, 2},
     "/lineage/0/shards/0/parts/0/permute",
     "expected a permutation of the dimensions from 0 to 2"},
    {"parts_sequence_before_batch",
     "/lineage/0/shards/0/parts/0/permute",
     {1, 0},
     "/lineage/0/shards/0/parts/0/permute",
     "expected a permutation"},
    {"parts_sequence_before_batch",
     "/lineage/0/shards/0/parts/0/permute",
     {1, 0, 3},
     "/lineage/0/shards/0/parts/0/permute",
     "expected a permutation"},
    {"parts_sequence_before_batch",
     "/lineage/0/shards/0/parts/0/permute",
     {0, 2, 1},
     "/lineage/0/shards/0/parts/0/local",
     "the box holds [2, 4, 3] elements"},
    {"parts_rows_of_sequence_and_batch",
     "/lineage/0/shards/0/parts/0/view",
     {4, 3, 3},
     "/lineage/0/shards/0/parts/0/view",
     "expected one of as many elements as [8, 3]"},
    {"parts_rows_of_sequence_and_batch",
     "/lineage/0/shards/0/parts/0/view",
     {-4, -2, 3},
     "/lineage/0/shards/0/parts/0/view",
     "expected one of as many elements"},
    {"parts_multiples", "/lineage/1/shards/0/parts/0/scale", 0, "/lineage/1/shards/0/parts/0/scale",
     "a number other than 0"},
    {"parts_multiples",
     "/lineage/1/shards/0/parts/0/scale",
     {1, 0},
     "/lineage/1/shards/0/parts/0/scale/1",
     "at least 1"},
    {"parts_multiples",
     "/lineage/1/shards/0/parts/0/scale",
     {1, 2, 3},
     "/lineage/1/shards/0/parts/0/scale",
     "a pair of a numerator and a denominator"},
    {"parts_multiples", "/lineage/1/shards/0/parts/0/scale", "1/3",
     "/lineage/1/shards/0/parts/0/scale", "expected a number"},
    {"parts_multiples", "/lineage/1/shards/0/parts/0/offset", 1,
     "/lineage/1/shards/0/parts/0/offset", "unknown field"},
};
INSTANTIATE_TEST_SUITE_P(, LocalPartsMistakes, testing::ValuesIn(kMistakes));

// Four boxes around a fifth: no cut through the whole tensor separates them.
Json pinwheel(const char* role) {
  Json small = caseOf("parts_zigzag");
  Json shards = Json::array();
  const int boxes[5][4] = {{0, 1, 0, 2}, {0, 2, 2, 3}, {2, 3, 1, 3}, {1, 3, 0, 1}, {1, 2, 1, 2}};
  for (const auto& b : boxes) {
    const Json box = {{b[0], b[1]}, {b[2], b[3]}};
    shards.push_back({{"box", box}, {"parts", {{{"local", "v"}, {"local_box", box}}}}});
  }
  small["model"]["tensors"]["v"] = {{"shape", {3, 3}}};
  Json& tensors = small["plan"]["programs"][0]["tensors"];
  tensors["v"] = {{"shape", {3, 3}}};
  if (std::string(role) == "input") {
    small["model"]["tensors"]["v"]["kind"] = tensors["v"]["kind"] = "input";
  } else {
    tensors["v2"] = {{"shape", {3, 3}}};
    small["model"]["nodes"].push_back({{"op", "linear"}, {"in", {"w", "w"}}, {"out", {"v"}}});
    small["plan"]["programs"][0]["nodes"].push_back(
        {{"op", "linear"}, {"in", {"w", "w"}}, {"out", {"v"}}});
    small["plan"]["programs"][0]["nodes"].push_back(
        {{"op", "relu"}, {"in", {"v"}}, {"out", {"v2"}}});
  }
  small["plan"]["lineage"].push_back({{"tensor", "v"}, {"role", role}, {"shards", shards}});
  return small;
}

TEST(LocalParts, ThatNoCutsSeparateAreNoInputButMayBeChecked) {
  try {
    read(pinwheel("input"));
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_EQ(error.pointer(), "/lineage/5/shards/0/parts/0");
    EXPECT_NE(std::string(error.what()).find("no cut through all of \"v\""), std::string::npos)
        << error.what();
  }
  const Report report = verify(*read(pinwheel("cut_point")), {});
  EXPECT_EQ(report.verdict, Verdict::kEquivalent);
}

TEST(LocalParts, IntegersHaveNoMultiples) {
  Json small = {{"model",
                 {{"format", "shardproof-model"},
                  {"version", 1},
                  {"tensors",
                   {{"i", {{"shape", {4}}, {"kind", "input"}, {"dtype", "int64"}}},
                    {"w", {{"shape", {6, 2}}, {"kind", "parameter"}}},
                    {"e", {{"shape", {4, 2}}}}}},
                  {"nodes", {{{"op", "embedding"}, {"in", {"i", "w"}}, {"out", {"e"}}}}},
                  {"outputs", {"e"}}}},
                {"plan",
                 {{"format", "shardproof-plan"},
                  {"version", 2},
                  {"mesh", Json::array()},
                  {"programs",
                   {{{"tensors",
                      {{"i", {{"shape", {4}}, {"kind", "input"}, {"dtype", "int64"}}},
                       {"w", {{"shape", {6, 2}}, {"kind", "parameter"}}},
                       {"e", {{"shape", {4, 2}}}}}},
                     {"nodes", {{{"op", "embedding"}, {"in", {"i", "w"}}, {"out", {"e"}}}}}}}},
                  {"lineage", Json::array()}}}};
  const auto box = [](int low, int high) { return Json::array({Json::array({low, high})}); };
  const auto shard = [&](const Json& at, const Json& part) {
    return Json{{"box", at}, {"parts", Json::array({part})}};
  };
  Json& lineage = small["plan"]["lineage"];
  Json first = {{"local", "i"}, {"local_box", box(0, 2)}};
  lineage.push_back(
      {{"tensor", "i"},
       {"role", "input"},
       {"shards",
        {shard(box(2, 4), first), shard(box(0, 2), {{"local", "i"}, {"local_box", box(2, 4)}})}}});
  const Json rows = {{0, 6}, {0, 2}};
  lineage.push_back(
      {{"tensor", "w"}, {"role", "input"}, {"shards", {shard(rows, {{"local", "w"}})}}});
  const auto half = [](int low) { return Json{{low, low + 2}, {0, 2}}; };
  lineage.push_back({{"tensor", "e"},
                     {"role", "output"},
                     {"shards",
                      {shard(half(2), {{"local", "e"}, {"local_box", half(0)}}),
                       shard(half(0), {{"local", "e"}, {"local_box", half(2)}})}}});
  EXPECT_EQ(verify(*read(small), {}).verdict, Verdict::kEquivalent);
  lineage[0]["shards"][0]["parts"][0]["scale"] = 2;
  try {
    read(small);
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_EQ(error.pointer(), "/lineage/0/shards/0/parts/0/scale");
  }
}

}  // namespace
}  // namespace shardproof
