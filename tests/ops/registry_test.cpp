// SPDX-License-Identifier: Apache-2.0
// Names, attributes and shape errors: every message says what was found and what was expected.
#include "ops/registry.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include <algorithm>

#include "cases.h"

namespace shardproof::ops::testing {
namespace {

template <class F>
std::string message(F&& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

TEST(Registry, FindsOperatorsByName) {
  const Registry& r = Registry::instance();
  for (std::size_t i = 0; i < r.size(); ++i) {
    const OperatorId id(static_cast<std::int64_t>(i));
    EXPECT_EQ(r.find(r.at(id).name), id);
  }
  EXPECT_FALSE(r.find("").valid());
  EXPECT_FALSE(r.find("softmaxx").valid());
  EXPECT_FALSE(r.find("amax_backward").valid());
  EXPECT_FALSE(r.find("create_mask_backward").valid());
  EXPECT_EQ(r.similar("sofmax").at(0), "softmax");
  EXPECT_EQ(r.similar("lineer_backward").at(0), "linear_backward");
  EXPECT_TRUE(r.similar("completely_different_thing").empty());
}

TEST(Registry, AttributesAreCheckedExactly) {
  const auto check = [](const char* op, const Attributes& a, std::size_t operands = 1,
                        std::size_t results = 1) {
    const OperatorInfo& info = Registry::instance().at(Registry::instance().find(op));
    return message([&] { info.validate(a, operands, results); });
  };
  EXPECT_EQ(check("exp", numbers({{"dim", 1}})),
            "exp: unknown attribute 'dim', expected no attributes");
  EXPECT_EQ(check("softmax", numbers({{"dims", 1}})),
            "softmax: unknown attribute 'dims', expected only: dim");
  EXPECT_EQ(check("softmax", {}), "softmax: attribute 'dim' is missing, expected an integer");
  EXPECT_EQ(check("softmax", {{"dim", Rational(1, 2)}}),
            "softmax: attribute 'dim': found 1/2, expected an integer");
  EXPECT_EQ(check("softmax", {{"dim", true}}),
            "softmax: attribute 'dim': found true, expected an integer");
  EXPECT_EQ(check("sum", {{"dim", std::vector<std::int64_t>{}}}),
            "sum: attribute 'dim': found [], expected an integer or a non-empty list of integers");
  EXPECT_EQ(check("gelu", {{"approximate", std::string("fast")}}),
            "gelu: attribute 'approximate': found \"fast\", expected one of \"none\", \"tanh\"");
  EXPECT_EQ(check("pow", {{"scalar", Rational(1, 3)}}),
            "pow: attribute 'scalar': found 1/3, expected an integer or half-integer");
  EXPECT_EQ(check("dropout", {{"p", Rational(3, 2)}}),
            "dropout: attribute 'p': found 3/2, expected at most 1");
  EXPECT_NE(check("dropout", {{"p", Rational(1, 2)}}).find("'seed' is missing"), std::string::npos);
  EXPECT_NE(check("add", {}).find("expected two operands, or one and 'scalar'"), std::string::npos);
  EXPECT_NE(
      check("add", {{"scalar", Rational(1)}}, 2).find("expected two operands, or one and 'scalar'"),
      std::string::npos);
  EXPECT_NE(check("div", {{"scalar", Rational(0)}}).find("expected another divisor"),
            std::string::npos);
  EXPECT_NE(check("mul", {{"alpha", Rational(2)}}, 2).find("unknown attribute 'alpha'"),
            std::string::npos);
  EXPECT_EQ(check("linear", {}, 1), "linear: found 1 operands, expected 2 to 3");
  EXPECT_EQ(check("exp", {}, 1, 2), "exp: found 2 results, expected 1");
  EXPECT_EQ(check("exp_backward", {}, 1),
            "exp_backward: found 1 operands (gradients, then operands), expected 2");
  EXPECT_NE(check("embedding", numbers({{"start", 1}}), 2).find("both or neither"),
            std::string::npos);
  EXPECT_NE(check("einsum", {{"equation", std::string("...i,ij->...j")}}, 2).find("no ellipsis"),
            std::string::npos);
  EXPECT_NE(check("einsum", {{"equation", std::string("ii->i")}}).find("diagonals"),
            std::string::npos);
  EXPECT_NE(check("einsum", {{"equation", std::string("ij->k")}}).find("stand in an operand"),
            std::string::npos);
  EXPECT_NE(check("einsum", {{"equation", std::string("ij,jk")}}, 2).find("explicit ->"),
            std::string::npos);
  EXPECT_NE(check("view", {{"size", std::vector<std::int64_t>{-1, -1}}}).find("at most one -1"),
            std::string::npos);
  EXPECT_NE(
      check("chunk", numbers({{"dim", 0}, {"parts", 2}, {"index", 2}})).find("less than 'parts'"),
      std::string::npos);
  EXPECT_EQ(check("identity_backward", {}, 1), "no error");
  EXPECT_EQ(check("identity_backward", {}, 2), "no error");
  EXPECT_EQ(check("multiref_backward", {}, 4), "no error");
  EXPECT_EQ(check("view_backward", {{"size", std::vector<std::int64_t>{2, -1}}}, 2), "no error");
}

TEST(Registry, ShapesAreChecked) {
  const OperandSpec ids{{2, 3}, ElementKind::kInteger, false, 5};
  const auto shape = [](const Call& c) { return message([&] { inferResults(c); }); };
  EXPECT_EQ(shape({"add", {}, {{{2, 3}}, {{2}}}}), "add: shapes [2, 3] and [2] do not broadcast");
  EXPECT_EQ(shape({"linear", {}, {{{2, 3}}, {{4, 5}}}}),
            "linear: operand 0 has shape [2, 3], expected [..., 5] to fit weight [4, 5]");
  EXPECT_EQ(
      shape({"matmul", {}, {{{2, 3}}, {{2, 3}}}}),
      "matmul: shapes [2, 3] and [2, 3] do not multiply, expected [..., m, k] and [..., k, n]");
  EXPECT_EQ(shape({"exp", {}, {ids}}), "exp: operand 0 holds integers, expected real numbers");
  EXPECT_EQ(shape({"embedding", {}, {{{2, 3}}, {{5, 4}}}}),
            "embedding: operand 0 holds real numbers, expected integers");
  EXPECT_EQ(
      shape({"embedding", numbers({{"start", 0}, {"stop", 4}}), {ids, {{5, 4}}}}),
      "embedding: the weight has shape [5, 4], expected [4, 4] for the rows from start to stop");
  EXPECT_EQ(shape({"softmax", numbers({{"dim", 2}}), {{{2, 3}}}}),
            "softmax: found dimension 2, expected -2 to 1");
  EXPECT_EQ(shape({"chunk", numbers({{"dim", 1}, {"parts", 2}, {"index", 0}}), {{{2, 3}}}}),
            "chunk: dimension 1 of shape [2, 3] has no 2 equal pieces");
  EXPECT_NE(shape({"view", {{"size", std::vector<std::int64_t>{4, -1}}}, {{{2, 3}}}})
                .find("cannot be viewed as [4, -1]"),
            std::string::npos);
  EXPECT_NE(shape({"slice", numbers({{"dim", 0}, {"start", 2}}), {{{2, 3}}}}).find("is empty"),
            std::string::npos);
  EXPECT_NE(shape({"cat", numbers({{"dim", 0}}), {{{2, 3}}, {{2, 4}}}})
                .find("expected that of operand 0"),
            std::string::npos);
  EXPECT_EQ(shape({"exp_backward", {}, {{{3, 2}}, {{2, 3}}}}),
            "exp_backward: the gradient, operand 0, has shape [3, 2], expected [2, 3]");
  Call absent{"exp", {}, {{{2}}}};
  absent.in[0].present = false;
  EXPECT_EQ(shape(absent), "exp: operand 0 is absent (null), expected a tensor");
  EXPECT_TRUE(Registry::instance().at(Registry::instance().find("sum")).scalarMayBeOne);
}

// The names in backquotes of a text, where they look like operators'.
std::set<std::string> namesIn(const std::string& text) {
  std::set<std::string> names;
  for (std::size_t at = text.find('`'); at != std::string::npos;) {
    const std::size_t end = text.find('`', at + 1);
    if (end == std::string::npos) break;
    const std::string name = text.substr(at + 1, end - at - 1);
    if (!name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
          return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
        }))
      names.insert(name);
    at = text.find('`', end + 1);
  }
  return names;
}

TEST(Registry, IsWhatThePageLists) {
  std::ifstream file(std::filesystem::path(SHARDPROOF_SOURCE_DIR) / "docs" / "operators.md");
  std::set<std::string> mentioned, listed;  // anywhere; in the first column of a table
  std::size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    mentioned.merge(namesIn(line));
    if (const std::size_t at = line.find(" names, gradients included"); at != std::string::npos)
      number = std::stoul(line.substr(line.rfind(' ', at - 1) + 1));
    if (line.starts_with("| `") && line.find(".cpp` |") == std::string::npos)
      listed.merge(namesIn(line.substr(0, line.find(" | "))));
  }
  const Registry& registry = Registry::instance();
  std::size_t names = 0;
  for (std::size_t i = 0; i < registry.size(); ++i) {
    const std::string& name = registry.at(OperatorId(static_cast<std::int64_t>(i))).name;
    ++names;
    EXPECT_TRUE(name.ends_with("_backward") || mentioned.contains(name))
        << name << " is not in docs/operators.md";
  }
  EXPECT_EQ(number, names);
  const std::set<std::string> communications{
      "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send", "recv"};
  for (const std::string& name : listed)
    EXPECT_TRUE(registry.find(name).valid() || communications.contains(name))
        << "docs/operators.md lists " << name;
}

}  // namespace
}  // namespace shardproof::ops::testing
