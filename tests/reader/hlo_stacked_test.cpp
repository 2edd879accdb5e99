// SPDX-License-Identifier: Apache-2.0
// Programs before and after a pass: the model has each device's copy, and what is refused.
// tests/plans/hlo_passes.py has their verdicts.
#include <gtest/gtest.h>

#include <string>

#include "reader/hlo/documents.h"
#include "reader/hlo/parser.h"
#include "reader/hlo/stacked.h"
#include "reader/reader.h"
#include "shardproof/error.h"

namespace shardproof::hlo {
namespace {

const char* const kBefore = R"(HloModule step, num_partitions=2
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}
ENTRY %main (a: f32[4,2], b: f32[3]) -> (f32[4,2], f32[3]) {
  %a = f32[4,2] parameter(0)
  %b = f32[3] parameter(1), sharding={replicated}
  %t = f32[4,2] tanh(%a)
  %sum = f32[4,2] all-reduce(%t), channel_id=1, replica_groups={{0,1}}, )"
                            R"(use_global_device_ids=true, to_apply=%add
  ROOT %r = (f32[4,2], f32[3]) tuple(%sum, %b)
}
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

Documents documents(const std::string& before, const std::string& after) {
  Options options;
  options.beforePass = true;
  return documentsOf(before, "b.hlo", after, "a.hlo", "m.json", options);
}

std::string errorOf(const std::string& before, const std::string& after) {
  try {
    documents(before, after);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(HloStacked, EachDeviceHasACopy) {
  const Module module = parse(kBefore, "b.hlo");
  const StackedPrograms made = stackedPrograms(module, "b.hlo", module, "a.hlo", 2, false);
  const Computation& model = made.model.computations[made.model.entry];
  EXPECT_TRUE(model.byName.contains("t@0"));
  EXPECT_TRUE(model.byName.contains("t@1"));
  // Its own for each device, and the one that both hold.
  EXPECT_EQ(model.instructions[model.byName.at("a")].shape.sizes,
            (std::vector<std::int64_t>{2, 4, 2}));
  EXPECT_EQ(model.instructions[model.byName.at("b")].shape.sizes, (std::vector<std::int64_t>{3}));
  for (const Instruction& i : model.instructions) EXPECT_NE(i.opcode, "all-reduce");
  EXPECT_EQ(made.model.attribute("num_partitions"), nullptr);
  const Computation& plan = made.plan.computations[made.plan.entry];
  EXPECT_EQ(plan.instructions[plan.byName.at("a@row")].shape.sizes,
            (std::vector<std::int64_t>{1, 4, 2}));
  EXPECT_EQ(plan.instructions[plan.root].shape.elements[0].sizes,
            (std::vector<std::int64_t>{1, 4, 2}));
}

TEST(HloStacked, MakesAProblemWithTheKeptInstructionsAsCutPoints) {
  const Documents made = documents(kBefore, kBefore);
  const auto problem = readProblemText(made.model, made.plan);
  EXPECT_EQ(problem->model.outputs.size(), 2u);
  EXPECT_NE(made.plan.find("\"tensor\": \"t@1\", \"role\": \"cut_point\""), std::string::npos);
}

TEST(HloStacked, CopiesHaveTheirInstructionsName) {
  const auto expect = [](const char* name, const char* tensor, std::int64_t device) {
    const auto copy = copyOf(name);
    ASSERT_TRUE(copy) << name;
    EXPECT_EQ(copy->tensor, tensor);
    EXPECT_EQ(copy->device, device);
  };
  expect("t@1", "t", 1);
  expect("while.3@all[2]/dot.1@12", "while.3[2]/dot.1", 12);
  expect("fusion.1@3/add.2", "fusion.1/add.2", 3);
  for (const char* const none : {"t", "while@all[0]/x", "a@1/b@2", "x@row", "x@"})
    EXPECT_FALSE(copyOf(none)) << none;
}

TEST(HloStacked, ErrorsNameThePlace) {
  const std::string before = kBefore;
  const auto expect = [](const std::string& found, const std::string& wanted) {
    EXPECT_NE(found.find(wanted), std::string::npos) << found << "\nexpected: " << wanted;
  };
  const auto after = [&](const std::string& from, const std::string& to) {
    return errorOf(before, replaced(before, from, to));
  };
  const auto both = [&](const std::string& from, const std::string& to) {
    const std::string text = replaced(before, from, to);
    return errorOf(text, text);
  };
  expect(after("num_partitions=2", "num_partitions=4"),
         "a.hlo: line 1, column 1: found num_partitions=4, the program before has 2");
  expect(after("%b = f32[3] parameter(1)", "%b = f32[5] parameter(1)"),
         "a.hlo: line 9, column 3: parameter 1 is f32[5], in the program before f32[3]");
  expect(after("ROOT %r = (f32[4,2], f32[3]) tuple(%sum, %b)", "ROOT %r = (f32[3]) tuple(%b)"),
         "the results are (f32[3]), in the program before (f32[4,2], f32[3])");
  expect(both("replica_groups={{0,1}}", "replica_groups={{0}}"), "stands in no group");
  expect(both("add(%x, %y)", "subtract(%x, %y)"), "a reduction other than one by add");
  expect(both("add(%x, %y)", "add(%x, %x)"), "a reduction other than one by add");
  expect(both(", to_apply=%add\n", "\n"), "no attribute 'to_apply'");
  expect(both("tanh(%a)", "recv(%a)"), "recv: is not supported");
  expect(both("num_partitions=2", "num_partitions=5000"), "expected at most 4096");
  expect(both("%a = f32[4,2] parameter(0)", "%a = f32[4,2] parameter(1)"),
         "parameter 'b': a parameter's number used twice");
}

}  // namespace
}  // namespace shardproof::hlo
