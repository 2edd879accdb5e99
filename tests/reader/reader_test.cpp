// SPDX-License-Identifier: Apache-2.0
// Reading a problem: a good one completely, then one defect at a time, each with the place and the
// message that must come of it.
#include "reader/reader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "ops/registry.h"
#include "shardproof/error.h"
#include "util/sha256.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

const char* const kModelText = R"({"format": "shardproof-model", "version": 1, "name": "small",
"tensors": {"x": {"shape": [8, 4], "kind": "input"},
 "w": {"shape": [6, 4], "kind": "parameter"},
 "c": {"shape": [8, 6], "kind": "constant", "value": 1.5e-1},
 "y/~": {"shape": [8, 6]},
 "z": {"shape": [8, 6], "dtype": "bfloat16"}},
"nodes": [{"op": "linear", "in": ["x", "w"], "out": ["y/~"], "loc": "small.py:1"},
 {"op": "add", "in": ["y/~", "c"], "out": ["z"], "attrs": {"alpha": 2}}],
"outputs": ["z"]})";

const char* const kPlanText =
    R"({"format": "shardproof-plan", "version": 1, "name": "small", "model": "small.model.json",
"mesh": [["dp", 2], ["tp", 2]], "microbatches": 2,
"programs": [{"at": {"tp": 0}, "tensors": {
  "x": {"shape": [2, 4], "kind": "input", "per_mb": true},
  "w": {"shape": [3, 4], "kind": "parameter"},
  "c": {"shape": [2, 6], "kind": "constant", "value": [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 0.1]]},
  "y": {"shape": [2, 3], "per_mb": true}, "g": {"shape": [2, 6], "per_mb": true},
   "z": {"shape": [2, 6], "per_mb": true},
  "n": {"shape": [2, 3]}, "a#0": {"shape": []}},
 "nodes": [{"op": "linear", "in": ["x", "w"], "out": ["y"], "mb": "*"},
  {"op": "all_gather", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
   "attrs": {"dim": -1}, "mb": "*"},
  {"op": "add", "in": ["g", "c"], "out": ["z"], "attrs": {"alpha": 2}, "mb": "*"},
  {"op": "add", "in": ["y#0", "y#1"], "out": ["n"]},
  {"op": "all_reduce", "in": ["n"], "out": [ "n"], "comm": "ar", "group_at": [{"tp": 1}, {"tp": 0}],
   "attrs": {"reduce": "mean"}, "tag": 7}]},
 {"nodes": [{"in": ["x", "w"], "mb": "*", "out": ["y"], "op": "linear"},
  {"op": "all_gather", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
   "attrs": {"dim": 1}, "mb": "*"},
  {"op": "add", "in": ["g", "c"], "out": ["z"], "attrs": {"alpha": 2}, "mb": 1}],
  "tensors": {
  "x": {"shape": [2, 4], "kind": "input", "per_mb": true},
  "w": {"shape": [3, 4], "kind": "parameter"},
  "c": {"shape": [2, 6], "kind": "constant", "value": 0.15},
  "y": {"shape": [2, 3], "per_mb": true}, "g": {"shape": [2, 6], "per_mb": true},
   "z": {"shape": [2, 6], "per_mb": true}},
  "at": {"tp": 1}}],
"lineage": [
 {"tensor": "x", "role": "input", "shards": [{"box": [[0, 2], [0, 4]],
  "step": {"dp": [4, 0], "mb": [2, 0], "tp": [0, 0]}, "parts": [{"local": "x"}]}]},
 {"tensor": "w", "role": "input", "shards": [{"box": [[0, 3], [0, 4]], "step": {"tp": [3, 0]},
  "parts": [{"local": "w"}]}]},
 {"tensor": "y/~", "role": "cut_point", "shards": [
  {"box": [[0, 2], [0, 3]], "step": {"dp": [4, 0]}, "parts": [{"local": "y", "at": {"tp": 0},
   "mb": 0}]},
  {"box": [[0, 2], [3, 6]], "sum": ["mb"], "parts": [{"local": "y", "at": {"tp": 1, "dp": 0}}]}]},
 {"shards": [{"parts": [{"local": "z"}], "step": {"dp": [4, 0], "mb": [2, 0]},
  "box": [[0, 2], [0, 6]]}], "role": "output", "tensor": "z"}]})";

class ReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "shardproof-reader-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string write(const std::string& name, const std::string& text) const {
    const std::string file = (directory_ / name).string();
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }
  std::string writeGzip(const std::string& name, const std::string& text) const {
    const std::string file = (directory_ / name).string();
    gzFile out = gzopen(file.c_str(), "wb");
    gzwrite(out, text.data(), static_cast<unsigned>(text.size()));
    gzclose(out);
    return file;
  }
  std::unique_ptr<Problem> read(const std::string& model, const std::string& plan) const {
    write("small.model.json", model);
    return readProblem(std::nullopt, write("small.plan.json", plan));
  }

  fs::path directory_;
};

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const std::size_t at = text.find(what);
  if (at == std::string::npos)
    throw std::logic_error("the test replaces what is not there: " + what);
  return text.replace(at, what.size(), with);
}

TEST_F(ReaderTest, ReadsTheModel) {
  const auto problem = read(kModelText, kPlanText);
  const Model& m = problem->model;
  EXPECT_EQ(m.name, "small");
  ASSERT_EQ(m.graph.tensors.size(), 5u);
  ASSERT_EQ(m.graph.nodes.size(), 2u);
  EXPECT_EQ(m.graph.tensors[0].kind, TensorKind::kInput);
  EXPECT_EQ(m.graph.tensors[3].shape, (Shape{8, 6}));
  EXPECT_EQ(m.tensorPointer(TensorId(3), problem->names), "/tensors/y~1~0");
  ASSERT_EQ(m.graph.tensors[2].constant, 0);
  EXPECT_TRUE(m.graph.constants[0]->fill);
  EXPECT_EQ(m.graph.constants[0]->elements.at(0),
            Rational(3, 20));  // exact, not the nearest double
  EXPECT_EQ(m.graph.in(m.graph.nodes[1])[0].tensor, 3);
  EXPECT_EQ(m.graph.out(m.graph.nodes[1])[0], 4);
  EXPECT_EQ(m.outputs, std::vector{TensorId(4)});
  EXPECT_EQ(problem->names.text(m.graph.nodes[0].location), "small.py:1");
  EXPECT_EQ(problem->attributes.canonicalText(m.graph.nodes[1].attributes), "{\"alpha\":2}");
}

TEST_F(ReaderTest, ReadsPrograms) {
  const auto problem = read(kModelText, kPlanText);
  const Plan& plan = problem->plan;
  EXPECT_EQ(plan.ranks(), 4);
  EXPECT_EQ(plan.microbatches, 2);
  ASSERT_EQ(plan.programs.size(), 2u);
  const Program& p = plan.programs[0];
  EXPECT_EQ(p.at, (Coordinates{{1, 0}}));
  EXPECT_EQ(plan.programs[1].at, (Coordinates{{1, 1}}));
  ASSERT_EQ(p.graph.nodes.size(), 5u);
  EXPECT_EQ(p.graph.nodes[0].op, ops::Registry::instance().find("linear"));
  EXPECT_EQ(p.graph.nodes[0].op, problem->model.graph.nodes[0].op);
  EXPECT_EQ(p.graph.nodes[0].microbatch, Microbatch::each());
  EXPECT_EQ(p.graph.nodes[3].microbatch, Microbatch::none());
  EXPECT_EQ(plan.programs[1].graph.nodes[2].microbatch, Microbatch::of(1));
  EXPECT_EQ(p.graph.nodes[2].attributes, problem->model.graph.nodes[1].attributes);
  EXPECT_EQ(p.graph.in(p.graph.nodes[3])[1].tensor, 3);
  EXPECT_EQ(p.graph.in(p.graph.nodes[3])[1].microbatch, Microbatch::of(1));
  EXPECT_EQ(p.graph.constants[0]->elements.size(), 12u);
  EXPECT_EQ(p.graph.constants[0]->elements[11], Rational(1, 10));
}

TEST_F(ReaderTest, ReadsCommunication) {
  const auto problem = read(kModelText, kPlanText);
  const Program& p = problem->plan.programs[0];
  ASSERT_EQ(p.communications.size(), 2u);
  const CommunicationSpec& gather = p.communications[0];
  EXPECT_EQ(p.graph.nodes[1].communication, 0);
  EXPECT_FALSE(p.graph.nodes[1].op.valid());
  EXPECT_EQ(gather.kind, Communication::kAllGather);
  EXPECT_EQ(gather.groupAxes, std::vector<std::int32_t>{1});
  EXPECT_EQ(gather.dim, 1);  // -1 of a matrix
  EXPECT_EQ(gather.comm, problem->plan.programs[1].communications[0].comm);
  const CommunicationSpec& reduce = p.communications[1];
  EXPECT_EQ(reduce.reduction, Reduction::kMean);
  EXPECT_EQ(reduce.tag, 7);
  EXPECT_EQ(reduce.groupAt, (std::vector<Coordinates>{{{1, 1}}, {{1, 0}}}));  // in group order
}

TEST_F(ReaderTest, ReadsLineage) {
  const auto problem = read(kModelText, kPlanText);
  const Plan& plan = problem->plan;
  ASSERT_EQ(plan.lineage.size(), 4u);
  const Shard& x = plan.lineage[0].shards.at(0);
  EXPECT_EQ(plan.lineage[0].tensor, 0);
  EXPECT_EQ(plan.lineage[0].role, Role::kInput);
  using Steps = std::vector<std::pair<std::int32_t, Shape>>;
  EXPECT_EQ(x.step,
            (Steps{{0, {4, 0}}, {kMicrobatchAxis, {2, 0}}}));  // the step of 0 along tp is gone
  EXPECT_EQ(plan.lineage[2].shards.at(0).parts.at(0).microbatch, Microbatch::of(0));
  EXPECT_EQ(plan.lineage[2].shards.at(1).sum, std::vector<std::int32_t>{kMicrobatchAxis});
  EXPECT_EQ(plan.lineage[2].shards.at(1).parts.at(0).at, (Coordinates{{0, 0}, {1, 1}}));
  EXPECT_EQ(plan.lineage[3].tensor, 4);
}

TEST_F(ReaderTest, TextsInMemoryAreReadAsFilesAre) {
  const auto fromFiles = read(kModelText, kPlanText);
  const auto problem = readProblemText(kModelText, kPlanText);
  EXPECT_EQ(problem->model.sha256, fromFiles->model.sha256);
  EXPECT_EQ(problem->plan.sha256, fromFiles->plan.sha256);
  EXPECT_EQ(problem->plan.lineage.size(), fromFiles->plan.lineage.size());
  EXPECT_EQ(problem->plan.file, "the plan");
  EXPECT_THROW(readProblemText("", kPlanText), InputError);
  EXPECT_THROW(readProblemText(kModelText, std::string_view(kPlanText).substr(0, 100)), InputError);
}

TEST_F(ReaderTest, KeysComeInAnyOrder) {
  std::string plan = kPlanText;
  const std::string mesh = R"("mesh": [["dp", 2], ["tp", 2]], "microbatches": 2,)";
  plan = replaced(plan, mesh, "");
  plan = plan.substr(0, plan.size() - 1) + "," + mesh.substr(0, mesh.size() - 1) + "}";
  EXPECT_EQ(read(kModelText, plan)->plan.lineage[0].shards[0].step.size(), 2u);
}

TEST_F(ReaderTest, ANameWithANumberSignIsItselfFirst) {
  const auto problem =
      read(kModelText, replaced(kPlanText, R"("in": ["y#0", "y#1"])", R"("in": ["a#0", "y#1"])"));
  const Graph& g = problem->plan.programs[0].graph;
  EXPECT_EQ(g.in(g.nodes[3])[0].tensor, 7);
  EXPECT_EQ(g.in(g.nodes[3])[0].microbatch, Microbatch::none());
}

TEST_F(ReaderTest, AFullReductionMayBeDeclaredWithOneElement) {
  // z = sum(y), declared [1] where the operator produces [].
  std::string model = replaced(kModelText, R"("z": {"shape": [8, 6], "dtype": "bfloat16"})",
                               R"("z": {"shape": [8, 6]}, "s": {"shape": [1]})");
  model = replaced(model, R"("attrs": {"alpha": 2}}])",
                   R"("attrs": {"alpha": 2}}, {"op": "sum", "in": ["z"], "out": ["s"]}])");
  EXPECT_EQ(read(model, kPlanText)->model.graph.tensors[5].shape, Shape{1});
  EXPECT_THROW(read(replaced(model, R"("s": {"shape": [1]})", R"("s": {"shape": [2]})"), kPlanText),
               InputError);
  // Only a reduction: the other operators cannot be executed with another shape than theirs.
  model = replaced(model, R"("s": {"shape": [1]})", R"("s": {"shape": []}, "n": {"shape": []})");
  model = replaced(model, R"("out": ["s"]}])",
                   R"("out": ["s"]}, {"op": "neg", "in": ["s"], "out": ["n"]}])");
  EXPECT_NO_THROW(read(model, kPlanText));
  EXPECT_THROW(read(replaced(model, R"("n": {"shape": []})", R"("n": {"shape": [1]})"), kPlanText),
               InputError);
}

TEST_F(ReaderTest, ReadsGzip) {
  const std::string model = writeGzip("m.json.gz", kModelText);
  EXPECT_EQ(readProblem(model, writeGzip("p.json.gz", kPlanText))->plan.programs.size(), 2u);
}

// To the last byte, also those after the outermost value: a proof log names files so.
TEST_F(ReaderTest, DigestsAreOfTheWholeText) {
  const auto plain = read(kModelText, std::string(kPlanText) + " \n");
  EXPECT_EQ(plain->model.sha256, sha256Hex(kModelText));
  EXPECT_EQ(plain->plan.sha256, sha256Hex(std::string(kPlanText) + " \n"));
  const auto compressed =
      readProblem(writeGzip("m.json.gz", kModelText), writeGzip("p.json.gz", kPlanText));
  EXPECT_EQ(compressed->model.sha256, plain->model.sha256);
  EXPECT_EQ(compressed->plan.sha256, sha256Hex(kPlanText));
}

TEST_F(ReaderTest, TruncatedGzipIsAnError) {
  const std::string file = writeGzip("p.json.gz", kPlanText);
  fs::resize_file(file, fs::file_size(file) / 2);
  try {
    readProblem(std::nullopt, file);
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_EQ(error.file(), file);
    EXPECT_NE(std::string(error.what()).find("cut off"), std::string::npos) << error.what();
  }
}

// What comes after it would neither be read nor refused.
TEST_F(ReaderTest, ANulByteIsAnError) {
  using std::literals::operator""s;
  const std::string more = kPlanText + "\0}} not JSON"s,
                    late = kPlanText + std::string(1 << 19, ' ') + "\0"s;
  for (const std::string& text : {more, late}) {
    for (const std::string& file : {write("p.json", text), writeGzip("p.json.gz", text)}) {
      try {
        readProblem(write("m.json", kModelText), file);
        FAIL() << "no error";
      } catch (const InputError& error) {
        EXPECT_NE(std::string(error.what()).find("found a NUL byte after "), std::string::npos)
            << error.what();
      }
    }
    EXPECT_THROW(readProblemText(kModelText, text), InputError);
  }
}

TEST_F(ReaderTest, PlainTextUnderAGzipNameIsAnError) {
  const std::string file = write("p.json.gz", kPlanText);
  EXPECT_THROW(readProblem(std::nullopt, file), InputError);
}

TEST_F(ReaderTest, AMissingFileIsAnError) {
  EXPECT_THROW(readProblem(std::nullopt, (directory_ / "none.json").string()), InputError);
}

TEST_F(ReaderTest, AMissingModelSaysWhatToDo) {
  try {
    readProblem(std::nullopt, write("small.plan.json", kPlanText));
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_EQ(error.pointer(), "/model");
    EXPECT_NE(std::string(error.what()).find("--model"), std::string::npos) << error.what();
  }
}

TEST_F(ReaderTest, EveryTruncationIsAnError) {
  const std::string model = write("small.model.json", kModelText);
  const std::string plan = kPlanText;
  for (std::size_t length = 0; length < plan.size(); length += 37) {
    EXPECT_THROW(readProblem(model, write("cut.plan.json", plan.substr(0, length))), InputError)
        << length;
  }
}

// --- one defect at a time ---

enum class In { kModel, kPlan };
struct Defect {
  In file;
  const char* replace;
  const char* with;
  const char* pointer;
  const char* message;  // a part of it
};
void PrintTo(const Defect& d, std::ostream* out) { *out << d.replace << " -> " << d.with; }

TEST_F(ReaderTest, AModelInThePlaceOfAPlanIsOneError) {
  try {
    read(kModelText, kModelText);
    FAIL() << "no error";
  } catch (const InputErrors& errors) {
    FAIL() << errors.all().size() << " errors";
  } catch (const InputError& error) {
    EXPECT_EQ(error.pointer(), "/format");
  }
}

class ReaderDefectTest : public ReaderTest, public testing::WithParamInterface<Defect> {};

TEST_P(ReaderDefectTest, IsReportedAtItsPlace) {
  const Defect& d = GetParam();
  const std::string model =
      d.file == In::kModel ? replaced(kModelText, d.replace, d.with) : kModelText;
  const std::string plan = d.file == In::kPlan ? replaced(kPlanText, d.replace, d.with) : kPlanText;
  try {
    read(model, plan);
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_EQ(error.pointer(), d.pointer) << error.what();
    EXPECT_NE(std::string(error.what()).find(d.message), std::string::npos) << error.what();
    EXPECT_EQ(fs::path(error.file()).filename(),
              d.file == In::kModel ? "small.model.json" : "small.plan.json");
  }
}

const Defect kModelDefects[] = {
    {In::kModel, "shardproof-model", "shardproof-plan", "/format", "expected \"shardproof-model\""},
    {In::kModel, "\"version\": 1", "\"version\": 2", "/version", "expected version 1"},
    {In::kModel, "\"version\": 1,", "", "", "\"version\" is missing"},
    {In::kModel, "\"name\": \"small\"", "\"nam\": \"small\"", "/nam", "unknown field \"nam\""},
    {In::kModel, "[8, 4]", "[8, 4", "/tensors/x/shape/2", "not valid JSON at byte 103"},
    {In::kModel, "\"kind\": \"input\"", "\"kind\": \"data\"", "/tensors/x/kind",
     "found the string \"data\", expected \"input\""},
    {In::kModel, "\"kind\": \"input\"", "\"kind\": \"input\", \"per_mb\": true",
     "/tensors/x/per_mb", "unknown field"},
    {In::kModel, "\"kind\": \"input\"", "\"kind\": \"input\", \"kind\": \"input\"",
     "/tensors/x/kind", "twice"},
    {In::kModel, "\"w\": {", "\"x\": {", "/tensors/x", "twice"},
    {In::kModel, "[8, 4]", "[8, -4]", "/tensors/x/shape/1",
     "expected a size: shapes are not dynamic"},
    {In::kModel, "[8, 4]", "[8, 4.5]", "/tensors/x/shape/1", "found the number 4.5"},
    {In::kModel, "[8, 4]", "[8, 0]", "/tensors/x/shape/1", "not supported"},
    {In::kModel, "[8, 4]", "[9223372036854775807, 4]", "/tensors/x/shape/1", "exceeds 64 bits"},
    {In::kModel, "[8, 4]", "[18446744073709551615, 4]", "/tensors/x/shape/0", "64 bits"},
    {In::kModel, "\"shape\": [8, 4], ", "", "/tensors/x", "\"shape\" is missing"},
    {In::kModel, "bfloat16", "bfloat61", "/tensors/z/dtype", "bfloat61"},
    {In::kModel, "bfloat16", "int64", "/tensors/z/dtype", "expected real"},
    {In::kModel, "\"value\": 1.5e-1", "\"value\": [1, 2]", "/tensors/c/value",
     "expected a list of length 8"},
    {In::kModel, "\"value\": 1.5e-1", "\"value\": \"1\"", "/tensors/c/value", "expected a number"},
    {In::kModel, "\"value\": 1.5e-1", "\"value\": 1.5, \"dtype\": \"int8\"", "/tensors/c/value",
     "expected an integer"},
    {In::kModel, "\"value\": 1.5e-1", "\"dtype\": \"float16\"", "/tensors/c",
     "\"value\" is missing"},
    {In::kModel, "\"kind\": \"input\"", "\"kind\": \"input\", \"value\": 1", "/tensors/x/value",
     "\"constant\""},
    {In::kModel, "\"dtype\": \"bfloat16\"", "\"grad_of\": \"x\"", "/tensors/z/grad_of",
     "expected a tensor of kind \"parameter\""},
    {In::kModel, "\"dtype\": \"bfloat16\"", "\"grad_of\": \"v\"", "/tensors/z/grad_of",
     "found \"v\""},
    {In::kModel, "\"kind\": \"input\"", "\"kind\": \"input\", \"known\": {}", "/tensors/x/known",
     "expected one of"},
    {In::kModel, "\"kind\": \"input\"", "\"kind\": \"input\", \"known\": {\"numbers\": [1]}",
     "/tensors/x/known/numbers", "expected null or a list of 32 numbers"},
    {In::kModel, "\"kind\": \"input\"", "\"kind\": \"input\", \"known\": {\"number_of\": \"w\"}",
     "/tensors/x/known/number_of", "of integers and of the same shape"},
    {In::kModel, "\"kind\": \"input\"", "\"kind\": \"input\", \"known\": {\"number_of\": \"v\"}",
     "/tensors/x/known/number_of", "found \"v\""},
    {In::kModel, "\"kind\": \"input\"", "\"kind\": \"input\", \"known\": {\"within\": [[0, 1]]}",
     "/tensors/x/known", "only of a tensor of integers"},
    {In::kModel, "\"kind\": \"input\"",
     "\"kind\": \"input\", \"dtype\": \"int8\", \"known\": {\"within\": [[0, 2], [2, 3]]}",
     "/tensors/x/known/within/1", "apart from the stretch before"},
    {In::kModel, "\"value\": 1.5e-1", "\"value\": 1.5e-1, \"known\": {\"numbers\": null}",
     "/tensors/c/known", "neither \"input\" nor \"parameter\""},
    {In::kModel, "\"op\": \"linear\"", "\"op\": \"linaer\"", "/nodes/0/op",
     "did you mean \"linear\""},
    {In::kModel, "\"op\": \"linear\"", "\"op\": \"all_reduce\"", "/nodes/0/op", "only in a plan"},
    {In::kModel, "\"loc\"", "\"mb\": 0, \"loc\"", "/nodes/0/mb", "unknown field \"mb\""},
    {In::kModel, "\"loc\": \"small.py:1\"", "\"loc\": 1", "/nodes/0/loc", "expected a string"},
    {In::kModel, "\"alpha\"", "\"beta\"", "/nodes/1", "beta"},
    {In::kModel, "\"alpha\": 2", "\"alpha\": null", "/nodes/1/attrs/alpha", "found null"},
    {In::kModel, "\"alpha\": 2", "\"alpha\": [1, [2]]", "/nodes/1/attrs/alpha/1",
     "expected an integer"},
    {In::kModel, "\"in\": [\"x\", \"w\"]", "\"in\": [\"x\"]", "/nodes/0", "linear"},
    {In::kModel, "\"in\": [\"x\", \"w\"]", "\"in\": [\"x\", \"v\"]", "/nodes/0/in/1",
     "found \"v\""},
    {In::kModel, "\"in\": [\"x\", \"w\"]", "\"in\": [\"x\", 3]", "/nodes/0/in/1",
     "found the number 3"},
    {In::kModel, "\"in\": [\"x\", \"w\"]", "\"in\": [\"z\", \"w\"]", "/nodes/0/in/0",
     "before any node produces it"},
    {In::kModel, "\"in\": [\"x\", \"w\"]", "\"in\": [\"x\", \"c\"]", "/nodes/0", "does not fit"},
    {In::kModel, "\"out\": [\"z\"]", "\"out\": [\"y/~\"]", "/nodes/1/out/0",
     "already produced by /nodes/0"},
    {In::kModel, "\"out\": [\"z\"]", "\"out\": [\"w\"]", "/nodes/1/out/0",
     "declared as an input, a parameter or a constant"},
    {In::kModel, "\"z\": {\"shape\": [8, 6]", "\"z\": {\"shape\": [6, 8]", "/tensors/z/shape",
     "expected [8, 6]"},
    {In::kModel, "\"outputs\": [\"z\"]", "\"outputs\": []", "/outputs", "at least one"},
    {In::kModel, "\"outputs\": [\"z\"]", "\"outputs\": [\"q\"]", "/outputs/0", "found \"q\""},
    {In::kModel, "\"outputs\": [\"z\"]", "\"outputs\": [\"z\", \"z\"]", "/outputs/1", "twice"},
    {In::kModel, "\"outputs\": [\"z\"]", "\"output\": [\"z\"]", "/output", "unknown field"},
    {In::kModel, "\"outputs\": [\"z\"]", "\"outputs\": [\"z\"], \"arguments\": [\"x\"]",
     "/arguments/0", "expected one of \"outputs\""},
    {In::kModel, "\"outputs\": [\"z\"]", "\"outputs\": [\"z\"], \"arguments\": [\"q\"]",
     "/arguments/0", "found \"q\""},
    {In::kModel, "\"nodes\": [", "\"nodes\": {}, \"x\": [", "/nodes", "expected a list"},
};

TEST_F(ReaderTest, ReadsTheCapture) {
  EXPECT_TRUE(read(kModelText, kPlanText)->plan.capture.empty());
  const auto problem =
      read(kModelText, replaced(kPlanText, "\"mesh\"", R"("capture": {"source": "train.py",
        "compared": {"loss": ["z"], "buffers": []}, "not_compared": [{"what": "w", "because": ""}],
        "assumptions": [{"name": "n", "class": "harmless", "text": "t"},
                        {"name": "m", "class": "checkable", "text": "u"}]}, "mesh")"));
  const Capture& capture = problem->plan.capture;
  EXPECT_EQ(capture.source, "train.py");
  EXPECT_EQ(capture.compared, (std::vector<ComparedOutputs>{{"loss", {"z"}}, {"buffers", {}}}));
  EXPECT_EQ(capture.notCompared, (std::vector<NotCompared>{{"w", ""}}));
  EXPECT_EQ(capture.assumptions,
            (std::vector<Assumption>{{"n", AssumptionClass::kHarmless, "t"},
                                     {"m", AssumptionClass::kCheckable, "u"}}));
}

const Defect kPlanDefects[] = {
    {In::kPlan, "\"mesh\"", "\"capture\": [], \"mesh\"", "/capture", "expected an object"},
    {In::kPlan, "\"mesh\"", "\"capture\": {\"assumption\": []}, \"mesh\"", "/capture/assumption",
     "unknown field"},
    {In::kPlan, "\"mesh\"",
     R"("capture": {"assumptions": [{"name": "n", "class": "risky", "text": "t"}]}, "mesh")",
     "/capture/assumptions/0/class",
     "found the string \"risky\", expected \"harmless\", \"checkable\" or \"risk\""},
    {In::kPlan, "\"mesh\"", R"("capture": {"assumptions": [{"name": "n", "text": "t"}]}, "mesh")",
     "/capture/assumptions/0", "\"class\" is missing"},
    {In::kPlan, "\"mesh\"",
     R"("capture": {"assumptions": [{"name": "", "class": "risk", "text": "t"}]}, "mesh")",
     "/capture/assumptions/0/name", "expected"},
    {In::kPlan, "\"mesh\"", R"("capture": {"not_compared": [{"what": 3, "because": ""}]}, "mesh")",
     "/capture/not_compared/0/what", "found the number 3"},
    {In::kPlan, "\"mesh\"", R"("capture": {"compared": {"loss": "z"}}, "mesh")",
     "/capture/compared/loss", "expected a list"},
    {In::kPlan, "\"mesh\"", R"("capture": {"compared": {"loss": ["z"], "other": ["z"]}}, "mesh")",
     "/capture/compared/other/0", "found \"z\" a second time, it is among the \"loss\" already"},
    {In::kPlan, "\"mesh\"", R"("capture": {"compared": {"a/b": ["zz"]}}, "mesh")",
     "/capture/compared/a~1b/0", "found \"zz\", expected an output of the model"},
    {In::kPlan, "shardproof-plan", "shardproof-model", "/format", "expected \"shardproof-plan\""},
    {In::kPlan, "small.model.json", "../small.model.json", "/model", "inside the plan's directory"},
    {In::kPlan, "small.model.json", "/etc/passwd", "/model", "inside the plan's directory"},
    {In::kPlan, "\"model\": \"small.model.json\",", "", "/model", "names no model"},
    {In::kPlan, "[\"dp\", 2]", "[\"mb\", 2]", "/mesh/0/0", "another name"},
    {In::kPlan, "[\"dp\", 2]", "[\"tp\", 2]", "/mesh/1/0", "twice"},
    {In::kPlan, "[\"dp\", 2]", "[\"dp\", 0]", "/mesh/0/1", "from 1"},
    {In::kPlan, "[\"dp\", 2]", "[\"dp\"]", "/mesh/0", "expected a pair"},
    {In::kPlan, "[\"dp\", 2]", "[\"dp\", 2147483647]", "/mesh/0/1", "ranks"},
    {In::kPlan, "\"microbatches\": 2", "\"microbatches\": 0", "/microbatches", "from 1"},
    {In::kPlan, "\"microbatches\": 2", "\"microbatches\": 1", "/programs/0/nodes/3/in/1",
     "from 0 to 0"},
    {In::kPlan, "{\"at\": {\"tp\": 0}", "{\"at\": {\"pp\": 0}", "/programs/0/at/pp",
     "expected an axis of the mesh"},
    {In::kPlan, "{\"at\": {\"tp\": 0}", "{\"at\": {\"tp\": 2}", "/programs/0/at/tp", "from 0 to 1"},
    {In::kPlan, "{\"at\": {\"tp\": 0}", "{\"at\": {\"tp\": 1}", "/programs/1/at",
     "also covered by /programs/0"},
    {In::kPlan, "{\"at\": {\"tp\": 0}", "{\"at\": {}", "/programs/1/at",
     "{\"dp\": 0, \"tp\": 1} is also covered"},
    {In::kPlan, "{\"at\": {\"tp\": 0}", "{\"at\": {\"tp\": 0, \"dp\": 0}", "/programs",
     "no program covers the rank at {\"dp\": 1, \"tp\": 0}"},
    {In::kPlan, "{\"at\": {\"tp\": 0}", "{\"order\": \"any\", \"at\": {\"tp\": 0}",
     "/programs/0/order", "expected \"issue\""},
    {In::kPlan, "{\"at\": {\"tp\": 0}", "{\"order\": \"issue\", \"at\": {\"tp\": 0}",
     "/programs/0/nodes/0/mb", "\"issue\""},
    {In::kPlan, "\"per_mb\": true", "\"per_mb\": 1", "/programs/0/tensors/x/per_mb",
     "true or false"},
    {In::kPlan, "\"kind\": \"input\"", "\"kind\": \"input\", \"known\": {\"numbers\": null}",
     "/programs/0/tensors/x/known", "known"},
    {In::kPlan, "\"kind\": \"input\"", "\"grad_of\": \"w\"", "/programs/0/tensors/x/grad_of",
     "unknown field"},
    {In::kPlan, "5, 0.1]", "5]", "/programs/0/tensors/c/value/1", "expected a list of length 6"},
    {In::kPlan, "\"mb\": \"*\"", "\"mb\": \"all\"", "/programs/0/nodes/0/mb", "expected \"*\""},
    {In::kPlan, "\"mb\": \"*\"", "\"mb\": 2", "/programs/0/nodes/0/mb", "from 0 to 1"},
    {In::kPlan, ", \"mb\": \"*\"", "", "/programs/0/nodes/0/in/0", "expected \"x#k\""},
    {In::kPlan, "\"y#0\", \"y#1\"", "\"y#0\", \"y#2\"", "/programs/0/nodes/3/in/1", "from 0 to 1"},
    {In::kPlan, "\"y#0\", \"y#1\"", "\"y#0\", \"y#x\"", "/programs/0/nodes/3/in/1",
     "found \"y#x\""},
    {In::kPlan, "\"y#0\", \"y#1\"", "\"w#0\", \"y#1\"", "/programs/0/nodes/3/in/0",
     "not \"per_mb\""},
    {In::kPlan, "\"out\": [\"n\"]", "\"out\": [\"y\"]", "/programs/0/nodes/3/out/0",
     "without \"mb\""},
    {In::kPlan, "\"out\": [\"n\"]", "\"out\": [\"y#0\"]", "/programs/0/nodes/3/out/0",
     "without \"#\""},
    {In::kPlan, "\"out\": [\"n\"]", "\"out\": [\"q\"]", "/programs/0/nodes/3/out/0", "found \"q\""},
    {In::kPlan, "\"out\": [\"n\"]", "\"out\": [\"n\"], \"comm\": \"c\"", "/programs/0/nodes/3/comm",
     "unknown field \"comm\""},
    {In::kPlan, "\"op\": \"add\"", "\"op\": \"ad\"", "/programs/0/nodes/2/op", "did you mean"},
    // What no program can run, whatever the sizes are.
    {In::kPlan, R"({"op": "add", "in": ["y#0", "y#1"], "out": ["n"]})",
     R"({"op": "cat", "in": ["y#0", "y#1"], "out": ["n"], "attrs": {"dim": 2}})",
     "/programs/0/nodes/3/attrs/dim", "found dimension 2, expected -2 to 1"},
    {In::kPlan, R"({"op": "add", "in": ["y#0", "y#1"], "out": ["n"]})",
     R"({"op": "transpose", "in": ["y#0"], "out": ["n"], "attrs": {"dim0": 0, "dim1": -3}})",
     "/programs/0/nodes/3/attrs/dim1", "found dimension -3"},
    {In::kPlan, R"({"op": "add", "in": ["y#0", "y#1"], "out": ["n"]})",
     R"({"op": "permute", "in": ["y#0"], "out": ["n"], "attrs": {"dims": [0, 0]}})",
     "/programs/0/nodes/3/attrs/dims", "expected a permutation of 2 dimensions"},
    {In::kPlan, R"({"op": "add", "in": ["y#0", "y#1"], "out": ["n"]})",
     R"({"op": "sum", "in": ["y#0"], "out": ["n"], "attrs": {"dim": [1, -1]}})",
     "/programs/0/nodes/3/attrs/dim", "dimension 1 is listed twice"},
    {In::kPlan, "\"comm\": \"ag\", ", "", "/programs/0/nodes/1", "\"comm\" is missing"},
    {In::kPlan, "\"group\": [\"tp\"], ", "", "/programs/0/nodes/1", "neither"},
    {In::kPlan, "\"group\": [\"tp\"]", "\"group\": [\"tp\"], \"group_at\": [{}]",
     "/programs/0/nodes/1", "both"},
    {In::kPlan, "\"group\": [\"tp\"]", "\"group\": [\"tp\", \"tp\"]", "/programs/0/nodes/1/group/1",
     "twice"},
    {In::kPlan, "\"group\": [\"tp\"]", "\"group\": [\"pp\"]", "/programs/0/nodes/1/group/0",
     "expected an axis of the mesh"},
    {In::kPlan, "\"attrs\": {\"dim\": -1}", "\"attrs\": {\"dim\": -1}, \"sizes\": [3, 3, 0]",
     "/programs/0/nodes/1/sizes", "found 3 sizes, expected 2, one for each member of the group"},
    {In::kPlan, "\"attrs\": {\"dim\": -1}", "\"attrs\": {\"dim\": -1}, \"sizes\": [3, -3]",
     "/programs/0/nodes/1/sizes/1", "-3"},
    {In::kPlan, "\"attrs\": {\"dim\": -1}", "\"attrs\": {\"dim\": -1}, \"sizes\": []",
     "/programs/0/nodes/1/sizes", "expected at least one size"},
    {In::kPlan, "\"attrs\": {\"dim\": -1}", "\"attrs\": {\"dim\": -1}, \"sizes\": [0, 0]",
     "/programs/0/nodes/1/sizes", "found only empty pieces"},
    {In::kPlan, "\"attrs\": {\"dim\": -1}",
     "\"attrs\": {\"dim\": -1}, \"sizes\": [9223372036854775807, 1]", "/programs/0/nodes/1/sizes/1",
     "exceed 64 bits"},
    {In::kPlan, "\"attrs\": {\"dim\": -1}", "\"attrs\": {\"dim\": -1}, \"sizes\": [[3], [3]]",
     "/programs/0/nodes/1/sizes/0", "integer"},
    {In::kPlan, "\"attrs\": {\"dim\": -1}", "\"attrs\": {\"dim\": -1}, \"pairs\": [[0, 1]]",
     "/programs/0/nodes/1/pairs", "unknown field"},
    {In::kPlan, "\"attrs\": {\"reduce\": \"mean\"}",
     "\"attrs\": {\"reduce\": \"mean\"}, \"sizes\": [1, 1]", "/programs/0/nodes/4/sizes",
     "unknown field"},
    {In::kPlan,
     R"("op": "all_gather", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "attrs": {"dim": -1})",
     R"("op": "all_to_all", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "attrs": {"idim": 0, "odim": 0}, "sizes": [1, 1])",
     "/programs/0/nodes/1/sizes/0", "each member has a list"},
    {In::kPlan,
     R"("op": "all_gather", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "attrs": {"dim": -1})",
     R"("op": "all_to_all", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "attrs": {"idim": 0, "odim": 0}, "sizes": [[1, 1], [1]])",
     "/programs/0/nodes/1/sizes/1", "expected 2 sizes"},
    {In::kPlan,
     R"("op": "all_gather", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "attrs": {"dim": -1})",
     R"("op": "all_to_all", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "attrs": {"idim": 0, "odim": 0}, "sizes": [[1]])",
     "/programs/0/nodes/1/sizes", "found 1 sizes, expected 4, one for each pair of members"},
    {In::kPlan,
     R"("op": "all_gather", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "attrs": {"dim": -1})",
     R"("op": "all_to_all", "in": [], "out": [], "comm": "ag", "group": ["tp"],
         "attrs": {"idim": -1, "odim": 0}, "sizes": [[0, 0], [0, 1]])",
     "/programs/0/nodes/1/attrs/idim", "counts from 0"},
    {In::kPlan,
     R"("op": "all_gather", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "attrs": {"dim": -1})",
     R"("op": "collective_permute", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"])",
     "/programs/0/nodes/1", "\"pairs\" is missing"},
    {In::kPlan,
     R"("op": "all_gather", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "attrs": {"dim": -1})",
     R"("op": "collective_permute", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "pairs": [[0, 1], [1]])",
     "/programs/0/nodes/1/pairs/1", "[source, target]"},
    {In::kPlan,
     R"("op": "all_gather", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "attrs": {"dim": -1})",
     R"("op": "collective_permute", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "pairs": [[0, 1], [1, 2]])",
     "/programs/0/nodes/1/pairs/1/1",
     "found the member 2, expected a place in the group, from 0 to 1"},
    {In::kPlan,
     R"("op": "all_gather", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "attrs": {"dim": -1})",
     R"("op": "collective_permute", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "pairs": [[0, 1], [1, 1]])",
     "/programs/0/nodes/1/pairs/1/1", "found the member 1 as a target again, after pair 0"},
    {In::kPlan,
     R"("op": "all_gather", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "attrs": {"dim": -1})",
     R"("op": "collective_permute", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "pairs": [[0, 1], [0, 0]])",
     "/programs/0/nodes/1/pairs/1/0", "found the member 0 as a source again, after pair 0"},
    {In::kPlan,
     R"("op": "all_gather", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "attrs": {"dim": -1})",
     R"("op": "collective_permute", "in": ["y"], "out": ["g"], "comm": "ag", "group": ["tp"],
         "pairs": [[{"tp": 0}, 1]])",
     "/programs/0/nodes/1/pairs/0/0", "places in the group"},
    {In::kPlan, "\"group\": [\"tp\"]", "\"group_at\": []", "/programs/0/nodes/1/group_at",
     "at least one member"},
    {In::kPlan, "\"group\": [\"tp\"]", "\"group_at\": [{\"tp\": 0}, {\"tp\": 2}]",
     "/programs/0/nodes/1/group_at/1/tp", "from 0 to 1"},
    {In::kPlan, "\"group\": [\"tp\"]", "\"group_at\": [{\"tp\": 1}, {}, {\"tp\": 0}]",
     "/programs/0/nodes/1/group_at/2", "same rank as member 1"},
    {In::kPlan, "\"group\": [\"tp\"]", "\"group_at\": [{\"dp\": 1}, {\"tp\": 1}, {\"tp\": 0}]",
     "/programs/0/nodes/1/group_at/2", "same rank as member 0"},
    {In::kPlan, "\"attrs\": {\"dim\": -1}", "\"attrs\": {\"dim\": 2}",
     "/programs/0/nodes/1/attrs/dim", "2 dimensions"},
    {In::kPlan, "\"attrs\": {\"dim\": -1}", "\"attrs\": {\"dims\": 1}",
     "/programs/0/nodes/1/attrs/dims", "unknown field"},
    {In::kPlan, "\"attrs\": {\"dim\": -1}, ", "", "/programs/0/nodes/1",
     "all_gather needs \"dim\""},
    {In::kPlan, "\"mean\"", "\"median\"", "/programs/0/nodes/4/attrs/reduce", "expected \"sum\""},
    {In::kPlan, "\"tag\": 7", "\"tag\": \"7\"", "/programs/0/nodes/4/tag", "expected an integer"},
    {In::kPlan, "\"tag\": 7", "\"root\": {}", "/programs/0/nodes/4/root", "unknown field \"root\""},
    {In::kPlan, "[ \"n\"]", "[]", "/programs/0/nodes/4", "one operand and one result"},
    {In::kPlan, "[ \"n\"]", "[null]", "/programs/0/nodes/4/out/0", "found null"},
    {In::kPlan, "{\"op\": \"add\", \"in\": [\"y#0\", \"y#1\"], \"out\": [\"n\"]}",
     "{\"op\": \"send\", \"in\": [\"y#0\"], \"out\": [], \"comm\": \"s\"}", "/programs/0/nodes/3",
     "\"to\" is missing"},
    {In::kPlan, "{\"op\": \"add\", \"in\": [\"y#0\", \"y#1\"], \"out\": [\"n\"]}",
     "{\"op\": \"recv\", \"in\": [], \"out\": [\"n\"], \"comm\": \"s\", \"from\": {\"tp\": 9}}",
     "/programs/0/nodes/3/from/tp", "from 0 to 1"},
    {In::kPlan, "\"tensor\": \"x\"", "\"tensor\": \"q\"", "/lineage/0/tensor", "found \"q\""},
    {In::kPlan, "\"tensor\": \"x\"", "\"tensor\": \"z\"", "/lineage/0/role",
     "which a node of the model produces"},
    {In::kPlan, "\"role\": \"input\"", "\"role\": \"lemma\"", "/lineage/0/role",
     "expected \"input\""},
    {In::kPlan, "\"role\": \"input\"", "\"role\": \"cut_point\"", "/lineage",
     "input \"x\" has no lineage"},
    {In::kPlan, "\"role\": \"output\"", "\"role\": \"cut_point\"", "/lineage",
     "output \"z\" has no lineage"},
    {In::kPlan, "\"step\": {\"dp\": [4, 0], \"mb\": [2, 0]}, \"box\"",
     "\"step\": {\"dp\": [4, 0]}, \"box\"", "/lineage", "leaves out the element at [2, 0]"},
    {In::kPlan, "\"role\": \"input\", ", "", "/lineage/0", "\"role\" is missing"},
    {In::kPlan, "\"box\": [[0, 2], [0, 4]]", "\"box\": [[0, 2]]", "/lineage/0/shards/0/box",
     "expected 2"},
    {In::kPlan, "\"box\": [[0, 2], [0, 4]]", "\"box\": [[0, 2], [4, 4]]",
     "/lineage/0/shards/0/box/1", "empty range"},
    {In::kPlan, "\"box\": [[0, 2], [0, 4]]", "\"box\": [[0, 2], [1, 5]]",
     "/lineage/0/shards/0/box/1", "[1, 5)"},
    {In::kPlan, "\"box\": [[0, 2], [0, 4]]", "\"box\": [[1, 3], [0, 4]]",
     "/lineage/0/shards/0/box/0", "[1, 9) with all its steps"},
    {In::kPlan, "\"box\": [[0, 2], [0, 4]]", "\"box\": [[0, 4], [0, 4]]",
     "/lineage/0/shards/0/parts/0/local", "which is [2, 4]"},
    {In::kPlan, "\"dp\": [4, 0]", "\"pp\": [4, 0]", "/lineage/0/shards/0/step/pp",
     "expected an axis of the mesh"},
    {In::kPlan, "\"dp\": [4, 0]", "\"dp\": [4]", "/lineage/0/shards/0/step/dp", "expected 2"},
    {In::kPlan, "\"dp\": [4, 0]", "\"dp\": [-4, 0]", "/lineage/0/shards/0/box/0", "[-4, 4)"},
    {In::kPlan, "\"dp\": [4, 0]", "\"dp\": [9223372036854775807, 0]", "/lineage/0/shards/0/box/0",
     "64 bits"},
    {In::kPlan, "\"local\": \"x\"", "\"local\": \"v\"", "/lineage/0/shards/0/parts/0/local",
     "/programs/0 has none"},
    {In::kPlan, "\"local\": \"x\"", "\"local\": \"x\", \"mb\": 2", "/lineage/0/shards/0/parts/0/mb",
     "from 0 to 1"},
    {In::kPlan, "\"local\": \"x\"", "\"local\": \"x\", \"mb\": 1", "/lineage/0/shards/0/step/mb",
     "no coordinate"},
    {In::kPlan, "\"local\": \"x\"", "\"local\": \"x\", \"at\": {\"dp\": 0}",
     "/lineage/0/shards/0/step/dp", "no coordinate"},
    {In::kPlan, "\"parts\": [{\"local\": \"x\"}]", "\"parts\": []", "/lineage/0/shards/0/parts",
     "at least one part"},
    {In::kPlan, "\"parts\": [{\"local\": \"x\"}]",
     "\"parts\": [{\"local\": \"x\"}], \"sum\": [\"dp\"]", "/lineage/0/shards/0/step/dp", "sums"},
    {In::kPlan, "\"parts\": [{\"local\": \"x\"}]",
     "\"parts\": [{\"local\": \"x\"}, {\"local\": \"x\", \"mb\": 0}]",
     "/lineage/0/shards/0/parts/1", "all or none"},
    {In::kPlan, "\"parts\": [{\"local\": \"x\"}]",
     "\"parts\": [{\"local\": \"x\"}, {\"local\": \"x\", \"at\": {\"tp\": 0}}]",
     "/lineage/0/shards/0/parts/1/at", "same axes"},
    {In::kPlan, "{\"local\": \"w\"}", "{\"local\": \"w\", \"mb\": 0}",
     "/lineage/1/shards/0/parts/0/mb", "not \"per_mb\""},
    {In::kPlan, "\"sum\": [\"mb\"]", "\"sum\": [\"tp\"]", "/lineage/2/shards/1/sum", "fix it"},
    {In::kPlan, "\"sum\": [\"mb\"]", "\"sum\": [\"dp\"]", "/lineage/2/shards/1/sum",
     "no coordinate"},
    {In::kPlan, "\"sum\": [\"mb\"]", "\"sums\": [\"mb\"]", "/lineage/2/shards/1/sums",
     "unknown field"},
    {In::kPlan, "\"in\": [\"x\", \"w\"], \"out\": [\"y\"]",
     "\"in\": [\"y\", \"w\"], \"out\": [\"x\"]", "/lineage/0/shards/0/parts/0/local",
     "produces it"},
    {In::kPlan, "\"kind\": \"input\", ", "", "/lineage/0/shards/0/parts/0/local",
     "\"input\" or \"parameter\""},
    {In::kPlan, "\"kind\": \"input\", ", "\"kind\": \"input\", \"dtype\": \"int64\", ",
     "/lineage/0/shards/0/parts/0/local", "integer elements"},
};

INSTANTIATE_TEST_SUITE_P(Model, ReaderDefectTest, testing::ValuesIn(kModelDefects));
INSTANTIATE_TEST_SUITE_P(Plan, ReaderDefectTest, testing::ValuesIn(kPlanDefects));

// `verify --plan <(...)`: a pipe gives its text once, so nothing may look into it beforehand.
TEST_F(ReaderTest, APlanFromAPipe) {
  const std::string model = write("small.model.json", kModelText), pipe = model + ".pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(pipe) << kPlanText; });
  EXPECT_EQ(readProblem(model, pipe)->plan.name, "small");
  writer.join();
}

TEST_F(ReaderTest, NestingWithoutEndIsAnError) {
  EXPECT_THROW(read(kModelText, std::string(100'000, '[')), InputError);
  EXPECT_THROW(
      read(kModelText, replaced(kPlanText, "\"mesh\": ", "\"mesh\": " + std::string(100'000, '['))),
      InputError);
}

// --- the real plans ---

std::vector<fs::path> sharedPlans() {
  std::vector<fs::path> files;
  const char* fromEnvironment = std::getenv("SHARDPROOF_SHARED");
  fs::path shared = fromEnvironment != nullptr ? fromEnvironment : "";
#ifdef SHARDPROOF_SOURCE_DIR
  if (shared.empty()) shared = fs::path(SHARDPROOF_SOURCE_DIR) / ".." / "shared";
#endif
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(shared / "plans", error)) {
    if (entry.path().filename().string().find(".plan.json") != std::string::npos)
      files.push_back(entry.path());
  }
  return files;
}

TEST(SharedPlansTest, AllAreRead) {
  const std::vector<fs::path> files = sharedPlans();
  if (files.empty())
    GTEST_SKIP() << "no shared plans: set SHARDPROOF_SHARED to the directory that holds plans/";
  for (const fs::path& file : files) {
    SCOPED_TRACE(file.string());
    std::unique_ptr<Problem> problem;
    ASSERT_NO_THROW(problem = readProblem(std::nullopt, file.string()));
    EXPECT_FALSE(problem->plan.lineage.empty());
    EXPECT_GE(problem->plan.ranks(), 8);
  }
}

}  // namespace
}  // namespace shardproof
