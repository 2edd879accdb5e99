// SPDX-License-Identifier: Apache-2.0
// Two HLO texts to a verification problem: what is refused, and that nothing but an error with its
// place comes of damaged programs.
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <utility>

#include "reader/hlo/documents.h"
#include "reader/hlo/graph.h"
#include "reader/reader.h"
#include "shardproof/error.h"
#include "support/problems.h"

namespace shardproof::hlo {
namespace {

const char* const kModel = R"(HloModule jit_f
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}
%body (t: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %t = (s32[], f32[8,4]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %h = f32[8,4] get-tuple-element(%t), index=1
  %g = f32[8,4] tanh(%h), metadata={op_name="jit(f)/tanh"}
  ROOT %r = (s32[], f32[8,4]) tuple(%next, %g)
}
%more (t: (s32[], f32[8,4])) -> pred[] {
  %t = (s32[], f32[8,4]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %two = s32[] constant(2)
  ROOT %lt = pred[] compare(%i, %two), direction=LT
}
ENTRY %main (table: f32[16,4], ids: s32[8]) -> f32[] {
  %table = f32[16,4] parameter(0)
  %ids = s32[8] parameter(1)
  %index = s32[8,1] reshape(%ids)
  %rows = f32[8,4] gather(%table, %index), offset_dims={1}, collapsed_slice_dims={0}, )"
                           R"(start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,4]) tuple(%zero, %rows)
  %loop = (s32[], f32[8,4]) while(%start), condition=%more, body=%body
  %last = f32[8,4] get-tuple-element(%loop), index=1
  %none = f32[] constant(0)
  ROOT %sum = f32[] reduce(%last, %none), dimensions={0,1}, to_apply=%add, )"
                           R"(metadata={op_name="jit(f)/sum"}
}
)";

const char* const kPlan = R"(HloModule jit_f, num_partitions=4
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}
ENTRY %main (table: f32[4,4], ids: s32[8]) -> f32[] {
  %table = f32[4,4] parameter(0), sharding={devices=[4,1]<=[4]}
  %all = f32[16,4] all-gather(%table), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}, )"
                          R"(use_global_device_ids=true
  %ids = s32[8] parameter(1), sharding={replicated}
  %id = u32[] partition-id()
  %starts = s32[4] constant({0, 2, 4, 6})
  %at = s32[1] dynamic-slice(%starts, %id), dynamic_slice_sizes={1}
  %from = s32[] reshape(%at)
  %mine = s32[2] dynamic-slice(%ids, %from), dynamic_slice_sizes={2}
  %index = s32[2,1] reshape(%mine)
  %rows = f32[2,4] gather(%all, %index), offset_dims={1}, collapsed_slice_dims={0}, )"
                          R"(start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}
  %once = f32[2,4] tanh(%rows)
  %twice = f32[2,4] tanh(%once)
  %none = f32[] constant(0)
  %part = f32[] reduce(%twice, %none), dimensions={0,1}, to_apply=%add
  ROOT %sum = f32[] all-reduce(%part), channel_id=2, replica_groups={{0,1,2,3}}, )"
                          R"(use_global_device_ids=true, to_apply=%add, sharding={replicated}
}
)";

std::string errorOf(const std::string& model, const std::string& plan) {
  try {
    documentsOf(model, "m.hlo", plan, "p.hlo", "m.json", {});
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(HloDocuments, MakeAProblem) {
  const Documents documents = documentsOf(kModel, "m.hlo", kPlan, "p.hlo", "m.json", {});
  const auto problem = readProblemText(documents.model, documents.plan);
  EXPECT_EQ(problem->model.outputs.size(), 1u);
  EXPECT_TRUE(documents.assumptions.empty());
  Options inBounds;
  inBounds.assumeInBounds = true;
  const Documents assuming = documentsOf(kModel, "m.hlo", kPlan, "p.hlo", "m.json", inBounds);
  ASSERT_EQ(assuming.assumptions.size(), 1u);
  EXPECT_EQ(
      assuming.assumptions[0].text,
      "what the model looks up by elements of 'ids' is there; of their values these are looked "
      "at: 0 to 15");
  EXPECT_EQ(assuming.assumptions[0].name, "indices-in-bounds");
  EXPECT_EQ(assuming.assumptions[0].kind, AssumptionClass::kRisk);
  EXPECT_NE(documents.plan.find("p.hlo:22 all-reduce"), std::string::npos) << documents.plan;
}

TEST(HloDocuments, SayWhatIsNotUnderstood) {
  const auto plan = [](const std::string& from, const std::string& to) {
    return errorOf(kModel, replaced(kPlan, from, to));
  };
  const auto model = [](const std::string& from, const std::string& to) {
    return errorOf(replaced(kModel, from, to), kPlan);
  };
  const auto expect = [](const std::string& found, const std::string& wanted) {
    EXPECT_NE(found.find(wanted), std::string::npos) << found << "\nexpected: " << wanted;
  };
  expect(plan("tanh(%rows)", "infeed(%rows)"),
         "p.hlo: line 18, column 3: instruction 'once', opcode 'infeed': not supported");
  expect(plan("tanh(%rows)", "infeed(%rows), metadata={source_file=\"a.py\" source_line=7}"),
         "opcode 'infeed': not supported (from a.py:7)");
  expect(plan("%once = f32[2,4]", "%once = f32[2,5]"), "its shape is f32[2,5]");
  expect(plan("dynamic-slice(%ids, %from)", "dynamic-slice(%ids, %ids)"),
         "a position that is no single number");
  expect(plan("[4,1]<=[4]", "[2,1]<=[2]"), "has a sharding that does not say what each device");
  expect(plan("{devices=[4,1]<=[4]}", "{devices=[1,4]<=[4]}"), "has shape f32[4,4], expected 16");
  for (const char* const none :
       {"{manual}", "{unreduced}", "{devices=[1,1,4]<=[4] last_tile_dims={unreduced}}"})
    expect(plan("{devices=[4,1]<=[4]}", none), "has a sharding that does not say");
  expect(plan(", sharding={devices=[4,1]<=[4]}", ""), "xla_keep_shardings_after_spmd");
  expect(plan("replica_groups={{0,1,2,3}}", "replica_groups={{0,1,2}}"), "stands in no group");
  expect(plan("replica_groups={{0,1,2,3}}", "replica_groups={{0,1,2},{3}}"),
         "groups of different sizes");
  expect(plan("num_partitions=4", "num_partitions=4, replica_count=2"),
         "found both num_partitions and replica_count");
  expect(plan("num_partitions=4", "num_partitions=0"), "found 0, expected 1 to 2^20");
  expect(plan("%table = f32[4,4] parameter(0)", "%table = f32[4,4] parameter(2)"),
         "found parameter 1, expected 0");
  expect(plan("to_apply=%add, sharding", "to_apply=%main, sharding"),
         "computation 'main' is none of add");
  expect(model("jit_f", "jit_f, replica_count=2"), "expected the model: one device's");
  expect(model("tanh(%h)", "custom-call(%h), custom_call_target=\"xla.sdy.LocalToGlobalShape\""),
         "found a call that the plan does not have");
  expect(model("%g = f32[8,4] tanh(%h)",
               "%g = f32[4,4] custom-call(%h), custom_call_target=\"Sharding\""),
         "custom call \"Sharding\" changes f32[8,4]");
  expect(model("compare(%i, %two)", "compare(%two, %two)"), "no error");
  expect(model("constant(2)", "constant(5000)"), "a loop of more than 4096 turns");
  expect(model("tuple(%zero, %rows)", "tuple(%rows, %zero)"), "m.hlo: line ");
  expect(model("slice_sizes={1,4}", "slice_sizes={1,3}"), "neither rows nor whole dimensions");
  expect(model("constant(0)\n  ROOT", "constant(nan)\n  ROOT"), "m.hlo: line 32, column 8");
}

// A call of the host without results, such as jax.debug.print, computes nothing.
TEST(HloDocuments, CallsWithoutResultsAreListed) {
  const std::string print =
      "%said = () custom-call(%once), custom_call_target=\"xla_ffi_python_cpu_callback\", "
      "custom_call_has_side_effect=true\n  ";
  const std::string plan = replaced(kPlan, "%twice =", print + "%twice =");
  const Documents documents = documentsOf(kModel, "m.hlo", plan, "p.hlo", "m.json", {});
  ASSERT_EQ(documents.assumptions.size(), 1u);
  EXPECT_EQ(documents.assumptions[0].name, "host-callbacks");
  EXPECT_EQ(documents.assumptions[0].kind, AssumptionClass::kCheckable);
  EXPECT_NE(documents.assumptions[0].text.find("is not compared: p.hlo:19"), std::string::npos);
  EXPECT_EQ(readProblemText(documents.model, documents.plan)->model.outputs.size(), 1u);
  // With a result it is a function that has an effect.
  EXPECT_NE(
      errorOf(kModel, replaced(plan, "%said = ()", "%said = f32[]")).find("has a side effect"),
      std::string::npos);
}

// A program before partitioning is the model that it stands for: shardings are marks.
TEST(HloDocuments, ShardingsOfTheModelAreMarks) {
  const std::string marked = replaced(
      replaced(replaced(kModel, "jit_f", "jit_f, num_partitions=4"), "%g = f32[8,4] tanh(%h)",
               "%marked = f32[8,4] custom-call(%h), custom_call_target=\"Sharding\", "
               "sharding={devices=[4,1]<=[4]}\n  %once = f32[8,4] tanh(%marked)\n"
               "  %g = f32[8,4] custom-call(%once), "
               "custom_call_target=\"xla.sdy.FuncResultSharding\""),
      "parameter(0)\n  %ids", "parameter(0), sharding={devices=[4,1]<=[4]}\n  %ids");
  const Documents documents = documentsOf(marked, "m.hlo", kPlan, "p.hlo", "m.json", {});
  EXPECT_EQ(readProblemText(documents.model, documents.plan)->model.outputs.size(), 1u);
  // What each device computes is no model, whatever its groups look like.
  for (const char* const opcode : {"all-reduce(%h), to_apply=%add, replica_groups={}",
                                   "all-gather(%h), dimensions={0}, replica_groups={{0}}",
                                   "collective-permute(%h), source_target_pairs={{0,0}}"})
    EXPECT_NE(errorOf(replaced(marked, "tanh(%marked)", opcode), kPlan)
                  .find("in a program for several devices"),
              std::string::npos)
        << opcode;
  EXPECT_NE(errorOf(kPlan, kPlan).find("found 'all-gather' in a program for several devices"),
            std::string::npos);
}

// The model's loop calls f twice; devices call it on their rows, or on all.
TEST(HloDocuments, TieFunctionsOfWhichNothingIsKnown) {
  const std::string call =
      "custom-call(%h), custom_call_target=\"f\", api_version=1, backend_config={k=1}";
  const std::string model = replaced(kModel, "tanh(%h)", call);
  const auto plan = [&](const std::string& options) {
    const std::string each =
        "custom-call(%rows), custom_call_target=\"f\", api_version=1, backend_config={k=1}" +
        options;
    std::string text = replaced(kPlan, "tanh(%rows)", each);
    return replaced(text, "tanh(%once)", replaced(each, "%rows", "%once"));
  };
  const std::string batch = ", frontend_attributes={num_batch_dims=\"1\"}",
                    sharding = ", sharding={devices=[4,1]<=[4]}";
  const auto expect = [](const std::string& found, const std::string& wanted) {
    EXPECT_NE(found.find(wanted), std::string::npos) << found << "\nexpected: " << wanted;
  };
  // Of the rows of a device nothing can be said, but where the function goes along them.
  expect(errorOf(model, plan("")),
         "p.hlo: line 18, column 3: custom call \"f\": found a call that the model does not have");
  const std::string batched = replaced(model, "{k=1}", "{k=1}" + batch);
  expect(errorOf(batched, plan("")), "found a call that the model does not have");
  expect(errorOf(batched, replaced(plan(batch + sharding), "{k=1}", "{k=2}")),
         "found a call that the model does not have");
  expect(errorOf(batched, kPlan),
         "m.hlo: line 13, column 3: custom call \"f\": found a call that the plan does not have");
  expect(errorOf(kModel, plan("")), "found a call that the model does not have");
  const Documents documents =
      documentsOf(batched, "m.hlo", plan(batch + sharding), "p.hlo", "m.json", {});
  ASSERT_EQ(documents.assumptions.size(), 1u);
  EXPECT_EQ(documents.assumptions[0].kind, AssumptionClass::kCheckable);
  EXPECT_EQ(documents.assumptions[0].text,
            "custom call \"f\" (m.hlo:13) is a function of its whole operands, at each index of "
            "their first 1 dimension, of which nothing else is known");
  const auto problem = readProblemText(documents.model, documents.plan);
  EXPECT_EQ(problem->model.arguments.size(), 2u);
  EXPECT_EQ(problem->model.outputs.size(), 3u);
  Options strict;
  strict.strict = true;
  try {
    documentsOf(batched, "m.hlo", plan(batch + sharding), "p.hlo", "m.json", strict);
    ADD_FAILURE() << "expected an error";
  } catch (const InputError& error) {
    expect(error.what(), "--strict");
  }
  const auto refused = [&](const std::string& attribute) {
    return errorOf(replaced(model, "api_version=1", "api_version=1, " + attribute), kPlan);
  };
  expect(refused("custom_call_has_side_effect=true"), "custom call \"f\" has a side effect");
  expect(refused("called_computations={%add}"), "custom call \"f\" calls a computation");
  expect(errorOf(replaced(model, "custom_call_target=\"f\", ", ""), kPlan), "without a target");
  expect(errorOf(replaced(model, "api_version=1", "frontend_attributes={num_batch_dims=\"3\"}"),
                 kPlan),
         "expected 3 first dimensions that all have");
  expect(errorOf(replaced(model, "api_version=1", "frontend_attributes={num_batch_dims=\"x\"}"),
                 kPlan),
         "m.hlo: line 13");
}

// Damage in one of the programs: a problem, or an error with a place.
TEST(HloDocuments, DamagedProgramsAreErrorsWithAPlace) {
  std::mt19937 random(17);
  const auto damaged = [&](std::string text) {
    for (int edits = 1 + static_cast<int>(random() % 2); edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      static const std::string kDigits = "0123456789";
      switch (random() % 5) {
        case 0:
          text.erase(at, 1 + random() % 4);
          break;
        case 1: {  // a number becomes another
          const std::size_t digit = text.find_first_of(kDigits, at);
          if (digit != std::string::npos) text[digit] = kDigits[random() % 10];
          break;
        }
        case 2: {  // a name or an opcode becomes another
          const std::size_t other = random() % text.size();
          text.replace(at, 3, text.substr(other, 3));
          break;
        }
        case 3: {  // a line moves
          const std::size_t end = text.find('\n', at);
          if (end == std::string::npos) break;
          const std::size_t next = text.find('\n', end + 1);
          if (next == std::string::npos) break;
          const std::string line = text.substr(end, next - end);
          text.erase(end, next - end);
          text.insert(text.find('\n', random() % text.size()) == std::string::npos
                          ? 0
                          : text.find('\n', random() % (text.size() / 2)),
                      line);
          break;
        }
        default:
          text.insert(at, 1, "(){}[],=%-x5"[random() % 12]);
      }
    }
    return text;
  };
  std::size_t refused = 0, read = 0;
  for (int round = 0; round < test::randomCases(4000); ++round) {
    const bool first = round % 2 == 0;
    const std::string model = first ? damaged(kModel) : kModel,
                      plan = first ? kPlan : damaged(kPlan);
    try {
      const Documents documents = documentsOf(model, "m.hlo", plan, "p.hlo", "m.json", {});
      ++read;
      try {
        readProblemText(documents.model, documents.plan);
      } catch (const InputError&) {  // what the two say does not fit together
      }
    } catch (const InputError& error) {
      ++refused;
      const std::string what = error.what();
      ASSERT_TRUE(what.starts_with("m.hlo: line ") || what.starts_with("p.hlo: line ")) << what;
    } catch (const std::exception& error) {
      FAIL() << error.what() << "\n" << model << plan;
    }
  }
  EXPECT_GT(refused, static_cast<std::size_t>(test::randomCases(1500)));
  EXPECT_GT(read, static_cast<std::size_t>(test::randomCases(150)));
}

// The starts of the devices' rows: what is read of the plan's programs.
std::pair<std::size_t, std::size_t> programsAndSteps(const std::string& starts) {
  std::string plan = kPlan;
  plan.replace(plan.find("{0, 2, 4, 6}"), 12, "{" + starts + "}");
  const Documents documents = documentsOf(kModel, "m.hlo", plan, "p.hlo", "m.json", {});
  const auto problem = readProblemText(documents.model, documents.plan);
  std::size_t steps = 0;
  for (const Program& program : problem->plan.programs) steps += program.steps.size();
  return {problem->plan.programs.size(), steps};
}

TEST(HloDocuments, DevicesShareAProgramWhereNumbersAreAffineInTheirPlace) {
  using Found = std::pair<std::size_t, std::size_t>;
  EXPECT_EQ(programsAndSteps("0, 2, 4, 6"), Found(1, 1));
  EXPECT_EQ(programsAndSteps("6, 4, 2, 0"), Found(1, 1));
  EXPECT_EQ(programsAndSteps("2, 2, 2, 2"), Found(1, 0));
  EXPECT_EQ(programsAndSteps("0, 4, 2, 6"), Found(4, 0));
  EXPECT_EQ(programsAndSteps("0, 2, 4, 4"), Found(4, 0));
}

TEST(HloDocuments, ATransposedMeshIsAGatheringAndASliceThatMoves) {
  const std::string model = R"(HloModule jit_f
ENTRY %main (x: f32[8,3]) -> f32[8,3] {
  %x = f32[8,3] parameter(0)
  ROOT %y = f32[8,3] add(%x, %x)
}
)";
  const auto programs = [&](const std::string& pairs) {
    const Documents documents = documentsOf(model, "m.hlo",
                                            R"(HloModule jit_f, num_partitions=4
ENTRY %main (x: f32[2,3]) -> f32[2,3] {
  %x = f32[2,3] parameter(0), sharding={devices=[4,1]<=[4]}
  %moved = f32[2,3] collective-permute(%x), channel_id=1, source_target_pairs=)" +
                                                pairs +
                                                R"(
  ROOT %y = f32[2,3] add(%moved, %moved), sharding={devices=[4,1]<=[2,2]T(1,0)}
}
)",
                                            "p.hlo", "m.json", {});
    return readProblemText(documents.model, documents.plan)->plan.programs;
  };
  const auto transposed = programs("{{0,0},{1,2},{2,1},{3,3}}");
  ASSERT_EQ(transposed.size(), 1U);
  ASSERT_EQ(transposed[0].steps.size(), 1U);
  EXPECT_EQ(transposed[0].steps[0].step.size(), 2U);  // both axes
  // A ring comes round: the last device's source is no affine one.
  EXPECT_EQ(programs("{{0,1},{1,2},{2,3},{3,0}}").size(), 4U);
}

// A device that sends to itself takes no part, and what the others send is known all the same.
TEST(HloDocuments, IntegersThatMoveAmongSomeDevicesStayKnown) {
  const Documents documents = documentsOf(R"(HloModule jit_f
ENTRY %main (x: f32[8,3]) -> f32[4,3] {
  %x = f32[8,3] parameter(0)
  ROOT %y = f32[4,3] slice(%x), slice={[0:4], [0:3]}
}
)",
                                          "m.hlo",
                                          R"(HloModule jit_f, num_partitions=4
ENTRY %main (x: f32[8,3]) -> f32[1,3] {
  %x = f32[8,3] parameter(0), sharding={replicated}
  %own = u32[] partition-id()
  %moved = u32[] collective-permute(%own), channel_id=1, source_target_pairs={{0,0},{1,2},{2,1}}
  %zero = u32[] constant(0)
  ROOT %y = f32[1,3] dynamic-slice(%x, %moved, %zero), dynamic_slice_sizes={1,3}, )"
                                          R"(sharding={devices=[4,1]<=[4]}
}
)",
                                          "p.hlo", "m.json", {});
  const auto problem = readProblemText(documents.model, documents.plan);
  std::set<std::string> starts;
  for (const Program& program : problem->plan.programs) {
    EXPECT_TRUE(program.communications.empty());
    for (const Node& node : program.graph.nodes)
      if (problem->attributes.at(node.attributes).contains("start"))
        starts.insert(problem->attributes.canonicalText(node.attributes));
  }
  EXPECT_EQ(starts.size(), 3U);  // of rows 0 (twice), 1 and 2
}

TEST(HloDocuments, ASumInIntegersIsNoSum) {
  const auto read = [](const std::string& root) {
    std::string plan = kPlan;
    const std::string sum = "ROOT %s = f32[] add(%x, %y)";
    plan.replace(plan.find(sum), sum.size(), root);
    return documentsOf(kModel, "m.hlo", plan, "p.hlo", "m.json", {});
  };
  EXPECT_NO_THROW(read(R"(%a = bf16[] convert(%x)
  %b = f32[] convert(%a)
  %c = f64[] add(%b, %y)
  ROOT %s = f32[] convert(%c))"));
  EXPECT_THROW(read(R"(%a = s32[] convert(%x)
  %b = f32[] convert(%a)
  ROOT %s = f32[] add(%b, %y))"),
               InputError);
  EXPECT_THROW(read(R"(%a = f32[] add(%x, %y)
  %b = s32[] convert(%a)
  ROOT %s = f32[] convert(%b))"),
               InputError);
}

TEST(HloGraph, ATensorThatWasUndoneIsNotTheOneThatHasItsNameNow) {
  Graph graph;
  graph.input("x", {2}, false, "float32");
  graph.begin("y", "");
  const Graph::Mark mark = graph.mark();
  const std::string before = graph.emit("exp", {"x"}, {}, {2});
  const std::uint64_t serial = graph.tensor(before).serial;
  EXPECT_TRUE(graph.has(before, serial));
  graph.undo(mark);
  EXPECT_FALSE(graph.has(before, serial));
  const std::string now = graph.emit("neg", {"x"}, {}, {2});
  EXPECT_EQ(now, before);
  EXPECT_FALSE(graph.has(before, serial));
  EXPECT_TRUE(graph.has(now, graph.tensor(now).serial));
}

}  // namespace
}  // namespace shardproof::hlo
