// The reduction reads its sizes off as the least solution of lower bounds. An optimiser that knows
// nothing of that must not find less.
#include <set>

#include <gtest/gtest.h>
#include <z3++.h>

#include "shape_reduction/reduction.h"
#include "support/problems.h"

namespace shardproof {
namespace {

// The least sum of the reduced sizes of all dimensions, one integer for each class of pieces; a
// line is the sum of its pieces, a dimension the product of its lines. The optimiser is linear, so
// it minimises the sum of all lines, and the products are taken of its answer: they grow with every
// line.
std::int64_t optimum(const SizeProgram& program) {
  z3::context context;
  z3::optimize optimizer(context);
  const auto number = [&](std::int64_t n) { return context.int_val(n); };
  std::vector<z3::expr> kept;
  for (std::size_t c = 0; c < program.classes.size(); ++c) {
    kept.push_back(context.int_const(("class" + std::to_string(c)).c_str()));
    optimizer.add(kept.back() >= number(program.classes[c].needed));
    optimizer.add(kept.back() <= number(program.classes[c].size));
  }
  z3::expr objective = number(0);
  for (const auto& lines : program.dimensions) {
    for (const std::int32_t l : lines) {
      for (const std::int32_t c : program.lines[static_cast<std::size_t>(l)])
        objective = objective + kept[static_cast<std::size_t>(c)];
    }
  }
  optimizer.minimize(objective);
  if (optimizer.check() != z3::sat) throw std::runtime_error("the optimiser has no answer");
  const z3::model model = optimizer.get_model();
  std::int64_t total = 0;
  for (const auto& lines : program.dimensions) {
    std::int64_t dimension = 1;
    for (const std::int32_t l : lines) {
      std::int64_t line = 0;
      for (const std::int32_t c : program.lines[static_cast<std::size_t>(l)])
        line += model.eval(kept[static_cast<std::size_t>(c)], true).get_numeral_int64();
      dimension *= line;
    }
    total += dimension;
  }
  return total;
}

// The sum over distinct dimensions, as the optimiser counts them.
std::int64_t reached(const ReducedStage& reduced) {
  std::int64_t total = 0;
  for (const auto& dim : reduced.storage) total += dim->size();
  return total;
}

void expectOptimal(const Stage& stage, const Problem& problem, const ReductionOptions& options,
                   const std::string& what) {
  const SizeProgram program = sizeProgram(stage, problem, options);
  for (const SizeProgram::Class& c : program.classes) {
    ASSERT_GE(c.needed, 1);
    ASSERT_LE(c.needed, c.size);
  }
  EXPECT_EQ(reached(reduceStage(stage, problem, options)), optimum(program)) << what;
}

TEST(Optimum, OfASmallPlan) {
  const auto problem = test::read(test::pipeline());
  const Join join(*problem);
  for (const std::int32_t entry : {2, 3, 4, 5}) {
    for (const int extra : {0, 1, 3}) {
      ReductionOptions options;
      options.extraPositions = extra;
      expectOptimal(cutStage(join, entry, {}), *problem, options, "entry " + std::to_string(entry));
    }
  }
}

TEST(Optimum, OfViewsAndStretches) {
  const char* const tensors =
      R"("v": {"shape": [20, 30]}, "s": {"shape": [20, 12]}, "o": {"shape": [20]})";
  const char* const nodes =
      R"({"op": "view", "in": ["x"], "out": ["v"], "attrs": {"size": [20, 30]}}, {"op": "slice", "in": ["v"], "out": ["s"], "attrs": {"dim": 1, "start": 5, "stop": 17}},
                               {"op": "sum", "in": ["s"], "out": ["o"], "attrs": {"dim": 1}})";
  const auto c = test::cut(
      test::oneRank(R"("x": {"shape": [600], "kind": "input"})", tensors, nodes, tensors, nodes),
      1);
  expectOptimal(c.stage, *c.problem, {}, "views");
}

TEST(Optimum, OfTheFirstRealPlan) {
  const auto problem = test::readShared(test::kFirstPlan);
  if (!problem) GTEST_SKIP() << "no plans in " << test::sharedPlans();
  const Join join(*problem);
  std::set<std::string> forms;
  for (std::size_t e = 0; e < problem->plan.lineage.size(); ++e) {
    if (problem->plan.lineage[e].role == Role::kInput) continue;
    const Stage stage = cutStage(join, static_cast<std::int32_t>(e), {});
    if (forms.insert(canonicalForm(stage, *problem)).second)
      expectOptimal(stage, *problem, {}, "entry " + std::to_string(e));
  }
  EXPECT_GT(forms.size(), 100u);
}

}  // namespace
}  // namespace shardproof
