// SPDX-License-Identifier: Apache-2.0
#include "writer/write_problem.h"

#include <gtest/gtest.h>

#include "generate/generate.h"
#include "ops/registry.h"
#include "reader/reader.h"
#include "support/problems.h"

namespace shardproof {
namespace {

// Everything that a problem says, by names rather than ids, which another reading may number
// otherwise.
class Description {
 public:
  explicit Description(const Problem& p) : p_(p) {}
  std::vector<std::string> lines() {
    add("model", p_.model.name, p_.model.graph.drawnMasks.size(), p_.lineageAdded);
    graph(p_.model.graph, nullptr);
    for (const std::int32_t t : p_.model.outputs) add("output", name(p_.model.graph, t));
    add("plan", p_.plan.name, p_.plan.modelFile, p_.plan.microbatches);
    for (const MeshAxis& a : p_.plan.mesh) add("axis", a.name, a.size);
    for (const Program& program : p_.plan.programs) {
      add("program", at(program.at), program.issueOrder);
      graph(program.graph, &program);
    }
    for (const std::int32_t e : p_.plan.positioning) add("positioning", e);
    for (const LineageEntry& e : p_.plan.lineage) {
      add("entry", name(p_.model.graph, e.tensor), static_cast<int>(e.role));
      for (const Shard& s : e.shards) {
        std::string text = "shard";
        for (const auto& [lo, hi] : s.box)
          text += " " + std::to_string(lo) + ":" + std::to_string(hi);
        for (const auto& [axis, offsets] : s.step)
          text += " step " + std::to_string(axis) + list(offsets);
        for (const std::int32_t axis : s.sum) text += " sum " + std::to_string(axis);
        for (const Part& part : s.parts)
          text += " part " + p_.names.text(part.local) + at(part.at) + microbatch(part.microbatch);
        out_.push_back(std::move(text));
      }
    }
    return out_;
  }

 private:
  template <class... T>
  void add(const T&... values) {
    std::ostringstream text;
    ((text << values << ' '), ...);
    out_.push_back(text.str());
  }
  static std::string microbatch(Microbatch m) {
    return m.isOne() ? std::to_string(m.number()) : m.isEach() ? "*" : "-";
  }
  static std::string list(const Shape& shape) {
    std::string text;
    for (const std::int64_t n : shape) text += "," + std::to_string(n);
    return text;
  }
  static std::string at(const Coordinates& c) {
    std::string text = "{";
    for (const auto& [axis, k] : c) text += std::to_string(axis) + "=" + std::to_string(k) + " ";
    return text + "}";
  }
  std::string name(const Graph& g, std::int32_t t) const {
    return t < 0 ? "null" : p_.names.text(g.tensors[static_cast<std::size_t>(t)].name);
  }

  void graph(const Graph& g, const Program* program) {
    for (const Tensor& t : g.tensors) {
      add("tensor", p_.names.text(t.name), list(t.shape), static_cast<int>(t.kind),
          static_cast<int>(t.element), t.elementDeclared, t.perMicrobatch,
          t.gradientOf.valid() ? p_.names.text(t.gradientOf) : "");
      if (t.constant < 0) continue;
      const ConstantValue& value = *g.constants[static_cast<std::size_t>(t.constant)];
      std::string text = value.fill ? "fill" : "listed";
      for (const Rational& r : value.elements) text += " " + r.toString();
      out_.push_back(std::move(text));
    }
    for (const Node& n : g.nodes) {
      std::ostringstream text;
      text << (n.communication < 0 ? ops::Registry::instance().at(n.op).name : "communication")
           << ' ' << microbatch(n.microbatch) << ' ' << p_.attributes.canonicalText(n.attributes)
           << ' ' << (n.location.valid() ? p_.names.text(n.location) : "");
      for (const Operand& o : g.in(n))
        text << " in " << name(g, o.tensor) << '#' << microbatch(o.microbatch);
      for (const std::int32_t t : g.out(n)) text << " out " << name(g, t);
      if (n.communication >= 0) {
        const CommunicationSpec& c =
            program->communications[static_cast<std::size_t>(n.communication)];
        text << ' ' << static_cast<int>(c.kind) << ' ' << p_.names.text(c.comm) << ' '
             << (c.tag ? std::to_string(*c.tag) : "") << ' ' << static_cast<int>(c.reduction) << ' '
             << c.dim << ' ' << c.odim << at(c.peer);
        for (const std::int32_t axis : c.groupAxes) text << " group " << axis;
        for (const Coordinates& member : c.groupAt) text << at(member);
        text << list(c.sizes);
        for (const auto& [source, target] : c.pairs) text << ' ' << source << "->" << target;
      }
      out_.push_back(text.str());
    }
  }

  const Problem& p_;
  std::vector<std::string> out_;
};

void expectSameAgain(const Problem& problem) {
  const std::string model = modelText(problem), plan = planText(problem, problem.plan.modelFile);
  const auto again = readProblemText(model, plan);
  const auto before = Description(problem).lines(), after = Description(*again).lines();
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < before.size(); ++i) ASSERT_EQ(before[i], after[i]);
}

std::unique_ptr<Problem> generated(const std::function<void(generate::Options&)>& choose) {
  generate::Options options;
  options.layers = 2;
  options.dim = 16;
  options.hidden = 24;
  options.heads = 4;
  options.sequence = 8;
  options.vocabulary = 32;
  options.dp = options.tp = options.pp = 2;
  options.microbatches = 2;
  choose(options);
  const generate::Files files = generate::generate(options, "g.model.json");
  return readProblemText(files.model, files.plan);
}

TEST(WriteProblem, KeepsTheCapture) {
  const auto problem = test::read(test::pipeline());
  problem->plan.capture = {"a \"b\".py",
                           {{"loss", {}}},
                           {{"leaf", "why"}},
                           {{"n", AssumptionClass::kCheckable, "text"}}};
  const auto again = readProblemText(modelText(*problem), planText(*problem, ""));
  EXPECT_EQ(again->plan.capture, problem->plan.capture);
}

TEST(WriteProblem, KeepsApprovedDifferences) {
  const auto problem = test::read(test::approvedPipeline());
  expectSameAgain(*problem);
  const auto again = readProblemText(modelText(*problem), planText(*problem, ""));
  EXPECT_EQ(again->plan.lineage[4].approved, "means");
}

TEST(WriteProblem, KeepsGuesses) {
  test::Draft d = test::pipeline();
  d.entry(2)["guess"] = "where it lies";
  const auto problem = test::read(d);
  EXPECT_TRUE(problem->plan.lineage[2].isGuess());
  expectSameAgain(*problem);
  const auto again = readProblemText(modelText(*problem), planText(*problem, ""));
  EXPECT_EQ(again->plan.lineage[2].guess, "where it lies");
}

TEST(WriteProblem, GeneratedPlansAreTheSameWhenReadAgain) {
  expectSameAgain(*generated([](auto& o) {
    o.architecture = "mlp";
    o.layers = 2;
    o.heads = 0;
    o.sequence = 0;
    o.vocabulary = 0;
  }));
  expectSameAgain(*generated([](auto& o) {
    o.architecture = "llama3";
    o.kvHeads = 2;
    o.sequenceParallel = o.vocabularyParallel = true;
    o.zero = 1;
    o.schedule = "1f1b";
  }));
  expectSameAgain(*generated([](auto& o) {
    o.architecture = "llama3";
    o.kvHeads = 2;
    o.tp = 4;
    o.zero = 3;
  }));
}

TEST(WriteProblem, MasksOfDropoutAreLeftOutAgain) {
  const auto problem = generated([](auto& o) {
    o.architecture = "gpt";
    o.hidden = 0;
    o.dropout = "0.1";
  });
  ASSERT_GT(problem->model.graph.drawnMasks.size(), 0u);
  EXPECT_EQ(modelText(*problem).find("dropout mask"), std::string::npos);
  EXPECT_NE(modelText(*problem).find("\"seed\": "), std::string::npos);
  expectSameAgain(*problem);
}

TEST(WriteProblem, RealPlansAreTheSameWhenReadAgain) {
  if (!std::filesystem::is_directory(test::sharedPlans()))
    GTEST_SKIP() << "no real plans beside the repository";
  std::size_t count = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(test::sharedPlans())) {
    const std::string path = file.path().string();
    if (path.find(".plan.json") == std::string::npos || file.file_size() > 400'000)
      continue;  // larger ones say the same again
    expectSameAgain(*readProblem(std::nullopt, path));
    ++count;
  }
  EXPECT_GT(count, 0u);
}

// All that generated plans do not have: listed and integer constants, tags, absent operands, parts
// of one microbatch, names that need escapes.
TEST(WriteProblem, RareFields) {
  expectSameAgain(*test::read(
      R"({"name": "n", "tensors": {"x": {"shape": [4, 2], "kind": "input"},
          "c": {"shape": [2, 2], "kind": "constant", "value": [[1, -2.5], [0.125, 1e-40]]},
      "i": {"shape": [], "kind": "constant", "dtype": "int64", "value": 3},
       "q\"\\\u0001": {"shape": [4, 2]}, "y": {"shape": [4, 2]}},
      "nodes": [{"op": "add", "in": ["x", "x"], "out": ["q\"\\\u0001"], "attrs": {"alpha": 0.1},
       "loc": "a\tb"}, {"op": "matmul", "in": ["q\"\\\u0001", "c"], "out": ["y"]}],
       "outputs": ["y"]})",
      R"({"mesh": [["a", 2], ["b", 1]], "microbatches": 2, "programs": [
      {"at": {"a": 0}, "tensors": {"x": {"shape": [2, 2], "kind": "input", "per_mb": true},
       "c": {"shape": [2, 2], "kind": "constant", "value": [[1, -2.5], [0.125, 1e-40]]},
        "t": {"shape": [2, 2], "per_mb": true}},
       "nodes": [{"op": "add", "in": ["x", "x"], "out": ["t"], "attrs": {"alpha": 0.1}, "mb": "*"},
        {"op": "send", "in": ["t#1"], "out": [], "comm": "s", "tag": 7, "to": {"a": 1}},
                 {"op": "send", "in": ["t#0"], "out": [], "comm": "s", "tag": -1, "to": {"a": 1}}]},
      {"at": {"a": 1}, "tensors": {"c": {"shape": [2, 2], "kind": "constant",
       "value": [[1, -2.5], [0.125, 1e-40]]}, "r0": {"shape": [2, 2]}, "r1": {"shape": [2, 2]},
        "y0": {"shape": [2, 2]}, "y1": {"shape": [2, 2]}},
       "nodes": [{"op": "recv", "in": [], "out": ["r1"], "comm": "s", "tag": 7, "from": {"a": 0}},
        {"op": "recv", "in": [], "out": ["r0"], "comm": "s", "tag": -1, "from": {"a": 0}},
                 {"op": "matmul", "in": ["r0", "c"], "out": ["y0"]},
                  {"op": "matmul", "in": ["r1", "c"], "out": ["y1"]}]}],
      "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2], [0, 2]],
       "parts": [{"local": "x", "at": {"a": 0}, "mb": 0}]},
                                                              {"box": [[2, 4], [0, 2]],
                                                               "parts": [{"local": "x",
                                                               "at": {"a": 0}, "mb": 1}]}]},
                  {"tensor": "y", "role": "output", "shards": [{"box": [[0, 2], [0, 2]],
                   "parts": [{"local": "y0", "at": {"a": 1}}]},
                                                               {"box": [[2, 4], [0, 2]],
                                                                "parts": [{"local": "y1",
                                                                "at": {"a": 1}}]}]}]})"));
}

TEST(WriteProblem, WhatIsKnownOfInputs) {
  const std::string real = R"({"shape": [2], "kind": "input"})";
  test::Draft d =
      test::oneRank(R"("x": )" + real + R"(, "u": )" + real + R"(, "n": )" + real +
                        R"(, "i": {"shape": [2], "kind": "input", "dtype": "int64"})",
                    R"("o": {"shape": [2]})", R"({"op": "identity", "in": ["x"], "out": ["o"]})",
                    R"("o": {"shape": [2]})", R"({"op": "identity", "in": ["x"], "out": ["o"]})");
  test::Json& model = d.model["tensors"];
  model["x"]["known"] = {{"numbers", {0.1, -1e-300}}};
  model["u"]["known"] = {{"numbers", nullptr}};
  model["n"]["known"] = {{"number_of", "i"}, {"plus", -7}};
  model["i"]["known"] = {{"within", {{-3, 0}, {5, 9}}}};
  const auto problem = test::read(d);
  const auto again = readProblemText(modelText(*problem), planText(*problem, "m.json"));
  const auto& tensors = again->model.graph.tensors;
  ASSERT_TRUE(tensors.at(0).known && tensors.at(1).known && tensors.at(2).known &&
              tensors.at(3).known);
  EXPECT_EQ(tensors[0].known->numbers, (std::vector<double>{0.1, -1e-300}));
  EXPECT_TRUE(tensors[1].known->numbers.empty());
  EXPECT_EQ(tensors[2].known->tensor, 3);
  EXPECT_EQ(tensors[2].known->plus, -7);
  const std::vector<std::pair<std::int64_t, std::int64_t>> within{{-3, 0}, {5, 9}};
  EXPECT_EQ(tensors[2].known->within, within);
  EXPECT_EQ(tensors[3].known->within, within);
}

TEST(WriteProblem, ArgumentsAmongTheOutputs) {
  test::Draft d =
      test::oneRank(R"("x": {"shape": [2], "kind": "input"})", R"("o": {"shape": [2]})",
                    R"({"op": "identity", "in": ["x"], "out": ["o"]})", R"("o": {"shape": [2]})",
                    R"({"op": "identity", "in": ["x"], "out": ["o"]})");
  d.model["arguments"] = {"o"};
  const auto problem = test::read(d);
  const auto again = readProblemText(modelText(*problem), planText(*problem, "m.json"));
  EXPECT_EQ(again->model.arguments, problem->model.outputs);
}

TEST(WriteProblem, SizesAndPairs) {
  const std::string
      given =
          R"("x": {"shape": [2], "kind": "input"}, "a": {"shape": [4]}, "b": {"shape": [2]},
              "o": {"shape": [4]})",
      nodes =
          R"({"op": "all_gather", "in": ["x"], "out": ["a"], "comm": "a", "group": ["r"],
              "attrs": {"dim": 0}, "sizes": [2, 2]},
      {"op": "all_to_all", "in": ["x"], "out": ["b"], "comm": "b", "group": ["r"],
       "attrs": {"idim": 0, "odim": 0}, "sizes": [[2, 0], [0, 2]]},
      {"op": "collective_permute", "in": ["a"], "out": ["o"], "comm": "c", "group": ["r"],
       "pairs": [[0, 1], [1, 0]]})";
  const auto problem = test::read(test::draft(
      R"({"tensors": {"x": {"shape": [4], "kind": "input"}, "o": {"shape": [4]}},
          "nodes": [{"op": "identity", "in": ["x"], "out": ["o"]}], "outputs": ["o"]})",
      R"({"mesh": [["r", 2]], "programs": [{"tensors": {)" + given + R"(}, "nodes": [)" + nodes +
          R"(]}],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 2]],
           "step": {"r": [2]}, "parts": [{"local": "x"}]}]},
                      {"tensor": "o", "role": "output", "shards": [{"box": [[0, 4]],
                       "parts": [{"local": "o"}]}]}]})"));
  const auto& communications = problem->plan.programs[0].communications;
  EXPECT_EQ(communications[0].sizes, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(communications[1].sizes, (std::vector<std::int64_t>{2, 0, 0, 2}));
  EXPECT_EQ(communications[2].pairs.front(), std::pair(1, 0));  // by target
  expectSameAgain(*problem);
}

TEST(DecimalText, IsExact) {
  for (const char* text :
       {"0", "3", "-17", "0.5", "-0.001", "123.456", "1e-40", "123456789012345678901234567890.5"}) {
    EXPECT_EQ(Rational::parse(decimalText(Rational::parse(text))), Rational::parse(text)) << text;
  }
  EXPECT_EQ(decimalText(Rational(-1, 8)), "-0.125");
  EXPECT_THROW(decimalText(Rational(1, 3)), Unsupported);
  EXPECT_THROW(decimalText(Rational(5, 14)), Unsupported);
}

}  // namespace
}  // namespace shardproof
