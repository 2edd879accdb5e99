// SPDX-License-Identifier: Apache-2.0
// Input that means harm: paths that lead elsewhere, names made to be mistaken for others or to
// steer a terminal, sizes whose products leave 64 bits.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "reader/reader.h"
#include "shardproof/error.h"
#include "support/problems.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

const char* const kModel =
    R"({"format": "shardproof-model", "version": 1, "tensors": {"x": {"shape": [4],
        "kind": "input"}, "y": {"shape": [4]}},
 "nodes": [{"op": "identity", "in": ["x"], "out": ["y"]}], "outputs": ["y"]})";

std::string planFor(const std::string& model) {
  const test::Json plan{
      {"format", "shardproof-plan"},
      {"version", 1},
      {"model", model},
      {"mesh", test::Json::array()},
      {"programs",
       test::Json::parse(
           R"([{"at": {}, "tensors": {"x": {"shape": [4], "kind": "input"}, "y": {"shape": [4]}},
                           "nodes": [{"op": "identity", "in": ["x"], "out": ["y"]}]}])")},
      {"lineage", test::Json::parse(
                      R"([{"tensor": "x", "role": "input", "shards": [{"box": [[0, 4]],
               "parts": [{"local": "x"}]}]},
                           {"tensor": "y", "role": "output",
                            "shards": [{"box": [[0, 4]], "parts": [{"local": "y"}]}]}])")}};
  return plan.dump();
}

// The message, or nothing where the problem is read.
std::string messageOf(const std::string& plan,
                      const std::optional<std::string>& model = std::nullopt) {
  try {
    readProblem(model, plan);
    return {};
  } catch (const InputError& error) {
    return error.what();
  }
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// plans/p.plan.json is the plan; what it must not reach lies in elsewhere/.
class PathTest : public testing::Test {
 protected:
  PathTest() {
    for (const char* name : {"plans", "plans/inner", "elsewhere"}) fs::create_directory(at(name));
    directory_.write("elsewhere/m.json", kModel);
    directory_.write("plans/m.json", kModel);
    directory_.write("plans/inner/m.json", kModel);
  }
  fs::path at(const std::string& name) const {
    return fs::path(directory_.write("anchor", "")).parent_path() / name;
  }
  std::string messageFor(const std::string& model) const {
    return messageOf(directory_.write("plans/p.plan.json", planFor(model)));
  }

  test::TemporaryDirectory directory_;
};

TEST_F(PathTest, WhatLiesBesideThePlanIsRead) {
  for (const char* model : {"m.json", "./m.json", "inner/m.json", "inner//m.json"})
    EXPECT_EQ(messageFor(model), "") << model;
}

TEST_F(PathTest, PathsOutOfThePlansDirectory) {
  for (const std::string& model :
       {std::string("../elsewhere/m.json"), std::string("inner/../../elsewhere/m.json"),
        std::string(".."), at("elsewhere/m.json").string(), std::string("/dev/zero"),
        std::string("/etc/passwd"), std::string("m.json\0.txt", 11),
        std::string("inner/../m.json")}) {
    const std::string message = messageFor(model);
    EXPECT_TRUE(has(message, "p.plan.json: /model: found ") &&
                has(message, "inside the plan's directory"))
        << message;
  }
}

TEST_F(PathTest, WhatIsNoFile) {
  ASSERT_EQ(::mkfifo(at("plans/pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", at("plans/zeros"));
  fs::create_symlink("loop", at("plans/loop"));
  fs::create_symlink("nowhere", at("plans/dangling"));
  for (const char* model :
       {"inner", ".", "pipe", "zeros", "loop", "dangling", "none.json", "m.json/none", "m.json/"}) {
    const std::string message = messageFor(model);
    EXPECT_TRUE(has(message, "p.plan.json: /model: there is no file ") && has(message, "--model"))
        << model << ": " << message;
  }
  EXPECT_TRUE(has(messageFor(std::string(5000, 'm')), "there is no file "));
}

TEST_F(PathTest, SymbolicLinks) {
  fs::create_symlink("inner/m.json", at("plans/within"));
  EXPECT_EQ(messageFor("within"), "");
  fs::create_symlink(at("elsewhere/m.json"), at("plans/outside"));
  EXPECT_TRUE(has(messageFor("outside"), "/model: ") &&
              has(messageFor("outside"), "a symbolic link that leads out of the plan's directory"))
      << messageFor("outside");
  fs::create_directory_symlink(at("elsewhere"), at("plans/through"));
  EXPECT_TRUE(has(messageFor("through/m.json"), "leads out of the plan's directory"));
  // Said on the command line it is what the user wants.
  EXPECT_EQ(messageOf(at("plans/p.plan.json"), at("plans/outside")), "");
}

// A directory of links into a store, as caches of data sets and build systems make them.
TEST_F(PathTest, AStoreOfLinkedFiles) {
  directory_.write("elsewhere/p.json", planFor("m.link"));
  fs::create_directory(at("linked"));
  fs::create_symlink(at("elsewhere/p.json"), at("linked/p.plan.json"));
  fs::create_symlink(at("elsewhere/m.json"), at("linked/m.link"));
  EXPECT_EQ(messageOf(at("linked/p.plan.json")), "");
  fs::create_directory_symlink(at("plans"), at("other_name"));
  directory_.write("plans/q.plan.json", planFor("m.json"));
  EXPECT_EQ(messageOf(at("other_name/q.plan.json")), "");
}

TEST_F(PathTest, FilesThatAreNone) {
  fs::create_symlink("loop", at("loop"));
  for (const fs::path& file : {at("plans"), at("none"), at("loop"), fs::path("/dev/zero"),
                               fs::path("/proc/self/mem"), fs::path("")}) {
    EXPECT_NE(messageOf(file), "") << file;
    directory_.write("plans/p.plan.json", planFor("m.json"));
    EXPECT_NE(messageOf(at("plans/p.plan.json"), file), "") << file;
  }
}

// ---- names ----

TEST(HostileNamesTest, MessagesCannotSteerATerminal) {
  // Escape sequences, a carriage return that overwrites the line, a new line that looks like a
  // verdict, C1 controls, reversed writing.
  const std::vector<std::string> names{"\x1b[2J",
                                       "a\rEQUIVALENT: plan",
                                       "a\nEQUIVALENT: plan",
                                       "\x7f",
                                       "a\tb",
                                       "\xc2\x9b"
                                       "31m",
                                       "\xe2\x80\xae"
                                       "txt",
                                       "\xe2\x80\xa8"};
  for (const std::string& name : names) {
    test::Draft d = test::draft(
        R"({"tensors": {"x": {"shape": [2], "kind": "input"}, "y": {"shape": [2]}},
            "nodes": [{"op": "identity", "in": ["x"], "out": ["y"]}], "outputs": ["y"]})",
        R"({"mesh": [], "programs": [{"at": {}, "tensors": {}, "nodes": []}], "lineage": []})");
    for (const char* where : {"field", "operand", "axis", "kind"}) {
      test::Draft bad = d;
      if (std::string(where) == "field") bad.model["tensors"][name] = 3;
      if (std::string(where) == "operand") bad.model["nodes"][0]["in"][0] = name;
      if (std::string(where) == "axis") bad.plan["programs"][0]["at"][name] = 0;
      if (std::string(where) == "kind") bad.model["tensors"]["x"]["kind"] = name;
      try {
        test::read(bad);
        FAIL() << where;
      } catch (const InputError& error) {
        const std::string message = error.what();
        EXPECT_FALSE(has(message, name)) << where << " " << message;
        EXPECT_TRUE(std::none_of(message.begin(), message.end(), [](char c) {
          return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
        })) << message;
      }
    }
  }
}

TEST(HostileNamesTest, MessagesStayShort) {
  const std::string name(3'000'000, 'n');
  try {
    test::read(
        R"({"tensors": {"x": {"shape": [2], "kind": "input"}},
            "nodes": [{"op": "identity", "in": [")" +
            name + R"("], "out": ["x"]}], "outputs": ["x"]})",
        R"({"mesh": [], "programs": [{"at": {}, "tensors": {}, "nodes": []}], "lineage": []})");
    FAIL();
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_LT(message.size(), 2000U);
    EXPECT_TRUE(has(message, "/nodes/0/in/0: ") && has(message, "nnn ... nnn") &&
                has(message, "expected the name of a tensor"))
        << message;
  }
}

// Names are compared as they are: nothing is cut at a NUL, folded or taken apart.
TEST(HostileNamesTest, NamesThatLookAlikeAreDifferent) {
  for (const auto& [one, other] : {std::pair<std::string, std::string>{"a", "A"},
                                   {"a", std::string("a\0b", 3)},
                                   {"a", "a "},
                                   {"a", "a#0"},
                                   {"\xc3\xa9", "e\xcc\x81"},
                                   {"a/b", "a~1b"}}) {
    test::Draft d =
        test::draft(R"({"nodes": [], "outputs": []})", R"({"mesh": [], "lineage": []})");
    for (const std::string& name : {one, other}) {
      const bool first = name == one;
      d.model["tensors"][name] = test::Json{{"shape", {first ? 2 : 3}}, {"kind", "input"}};
      d.model["tensors"][name + "'"] = test::Json{{"shape", {first ? 2 : 3}}};
      d.model["nodes"].push_back({{"op", "identity"}, {"in", {name}}, {"out", {name + "'"}}});
      d.model["outputs"].push_back(name + "'");
      for (const auto& [n, role] :
           {std::pair<std::string, std::string>{name, "input"}, {name + "'", "output"}}) {
        d.plan["lineage"].push_back(
            {{"tensor", n},
             {"role", role},
             {"shards", test::Json::array({{{"box", {{0, first ? 2 : 3}}},
                                            {"parts", test::Json::array({{{"local", n}}})}}})}});
      }
    }
    d.plan["programs"] = test::Json::array({{{"at", test::Json::object()},
                                             {"tensors", d.model["tensors"]},
                                             {"nodes", d.model["nodes"]}}});
    std::unique_ptr<Problem> problem;
    ASSERT_NO_THROW(problem = test::read(d)) << one << " " << other;
    EXPECT_EQ(problem->model.graph.tensors.size(), 4U);
    EXPECT_EQ(problem->plan.programs[0].graph.tensors.size(), 4U);
  }
}

// ---- sizes ----

struct Size {
  const char* node;    // on x: [4, 6], and i: [4] of integers
  const char* result;  // its declared shape
};
void PrintTo(const Size& s, std::ostream* out) { *out << s.node; }

class HugeSizesTest : public testing::TestWithParam<Size> {};

TEST_P(HugeSizesTest, AreAnErrorOfTheModel) {
  const Size& s = GetParam();
  const std::string model = std::string(
                                R"({"tensors": {"x": {"shape": [4, 6], "kind": "input"},
              "i": {"shape": [4], "kind": "input", "dtype": "int64"},
      "w": {"shape": [5, 6], "kind": "parameter"}, "y": {"shape": )") +
                            s.result + R"(}}, "nodes": [)" + s.node + R"(], "outputs": ["y"]})";
  try {
    test::read(
        model,
        R"({"mesh": [], "programs": [{"at": {}, "tensors": {}, "nodes": []}], "lineage": []})");
    FAIL() << "no error";
  } catch (const InputError& error) {
    EXPECT_TRUE(error.pointer().starts_with("/nodes/0") ||
                error.pointer().starts_with("/tensors/y/shape"))
        << error.what();
  }
}

#define ON(op, in, attributes) \
  "{\"op\": \"" op "\", \"in\": [" in "], \"out\": [\"y\"], \"attrs\": {" attributes "}}"
INSTANTIATE_TEST_SUITE_P(
    Reader, HugeSizesTest,
    testing::Values(
        Size{ON("view", "\"x\"", "\"size\": [4294967296, 4294967296]"), "[24]"},
        Size{ON("view", "\"x\"", "\"size\": [-1, 9223372036854775807]"), "[24]"},
        Size{ON("reshape", "\"x\"", "\"size\": [-1, -1]"), "[24]"},
        Size{ON("reshape", "\"x\"", "\"size\": [-9223372036854775808]"), "[24]"},
        Size{ON("view", "\"x\"", "\"size\": [0, -1]"), "[24]"},
        Size{ON("expand", "\"x\"", "\"size\": [4611686018427387904, 4, 6]"),
             "[4611686018427387904, 4]"},
        Size{ON("expand", "\"x\"", "\"size\": [-2, 4, 6]"), "[4, 6]"},
        Size{ON("pad", "\"x\"", "\"pad\": [9223372036854775807, 9223372036854775807]"), "[4, 4]"},
        Size{ON("pad", "\"x\"", "\"pad\": [-9223372036854775808, 1]"), "[4, 7]"},
        Size{ON("pad", "\"x\"", "\"pad\": [9223372036854775807, 0]"), "[4, 6]"},
        Size{ON("slice", "\"x\"",
                "\"dim\": 0, \"start\": -9223372036854775808, \"stop\": -9223372036854775808"),
             "[1, 6]"},
        Size{ON("slice", "\"x\"", "\"dim\": 0, \"start\": 9223372036854775807"), "[1, 6]"},
        Size{ON("slice", "\"x\"", "\"dim\": 0, \"step\": 9223372036854775807"), "[2, 6]"},
        Size{ON("slice", "\"x\"", "\"dim\": -9223372036854775808"), "[4, 6]"},
        Size{ON("select", "\"x\"", "\"dim\": 0, \"index\": -9223372036854775808"), "[6]"},
        Size{ON("select", "\"x\"", "\"dim\": 9223372036854775807, \"index\": 0"), "[6]"},
        Size{ON("chunk", "\"x\"",
                "\"dim\": 0, \"parts\": 9223372036854775807, \"index\": 9223372036854775806"),
             "[1, 6]"},
        Size{ON("chunk", "\"x\"", "\"dim\": 0, \"parts\": -1, \"index\": 0"), "[4, 6]"},
        Size{ON("transpose", "\"x\"", "\"dim0\": -3, \"dim1\": 2147483648"), "[6, 4]"},
        Size{ON("permute", "\"x\"", "\"dims\": [0, 4294967296]"), "[4, 6]"},
        Size{ON("permute", "\"x\"", "\"dims\": [0, 0]"), "[4, 6]"},
        Size{ON("unsqueeze", "\"x\"", "\"dim\": 4294967297"), "[4, 1, 6]"},
        Size{ON("sum", "\"x\"", "\"dim\": [0, -2]"), "[6]"},
        Size{ON("sum", "\"x\"", "\"dim\": [4294967296]"), "[6]"},
        Size{ON("softmax", "\"x\"", "\"dim\": 9223372036854775807"), "[4, 6]"},
        Size{ON("cat", "\"x\", \"x\"", "\"dim\": -9223372036854775808"), "[8, 6]"},
        Size{ON("one_hot", "\"i\"",
                "\"start\": -9223372036854775808, \"stop\": 9223372036854775807"),
             "[4, 5]"},
        Size{ON("embedding", "\"i\", \"w\"",
                "\"start\": -9223372036854775808, \"stop\": 9223372036854775807"),
             "[4, 6]"},
        Size{ON("embedding", "\"i\", \"w\"",
                "\"start\": 9223372036854775803, \"stop\": -9223372036854775808"),
             "[4, 6]"},
        Size{ON("einsum", "\"x\", \"x\"", "\"equation\": \"ab,cd->abcdabcd\""), "[4, 6, 4, 6]"},
        Size{ON("squeeze", "\"x\"", "\"dim\": [0, 9223372036854775807]"), "[4, 6]"}));
#undef ON

TEST(HugeShapesTest, ProductsOfTwoBillionAreRead) {
  // 2^62 elements are a number like others as long as nothing is made of them.
  const char* const shape = "[2147483648, 2147483648]";
  const std::string tensors = std::string(R"({"x": {"shape": )") + shape +
                              R"(, "kind": "input"}, "y": {"shape": )" + shape + "}}";
  const std::string
      nodes = R"([{"op": "identity", "in": ["x"], "out": ["y"]}])",
      box = R"("shards": [{"box": [[0, 2147483648], [0, 2147483648]], "parts": [{"local": )";
  EXPECT_NO_THROW(test::read(
      R"({"tensors": )" + tensors + R"(, "nodes": )" + nodes + R"(, "outputs": ["y"]})",
      R"({"mesh": [], "programs": [{"at": {}, "tensors": )" + tensors + R"(, "nodes": )" + nodes +
          R"(}], "lineage": [{"tensor": "x", "role": "input", )" + box +
          R"("x"}]}]}, {"tensor": "y", "role": "output", )" + box + R"("y"}]}]}]})"));
}

}  // namespace
}  // namespace shardproof
