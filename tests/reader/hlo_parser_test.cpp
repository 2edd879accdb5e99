// SPDX-License-Identifier: Apache-2.0
// HLO text: what is read of it, and what is said of text that is wrong.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "reader/hlo/parser.h"
#include "shardproof/error.h"
#include "support/problems.h"

namespace shardproof::hlo {
namespace {

const char* const kModule =
    R"(HloModule jit_step, entry_computation_layout={(f32[2,3]{1,0}, s32[2]{0})->(f32[2,3]{1,0}, )"
    R"(f32[])}, num_partitions=8

FileNames
1 "models.py"
2 "a \"quoted\" name.py"

FunctionNames
1 "<module>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=3 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y), metadata={op_name="add"}
}

// the program itself
ENTRY %main.4 (p: f32[2,3], i: s32[2]) -> (f32[2,3], f32[]) {
  %p = f32[2,3]{1,0:T(8,128)} parameter(0), sharding={devices=[2,1,4]<=[4,2]T(1,)"
    R"(0) last_tile_dim_replicate}
  %i = s32[2]{0} parameter(1), sharding={replicated}
  %c = f32[2,3]{1,0} constant({ { 1, -2.5, 1e-05 }, { inf, /*i1=0*/ -inf, nan } })
  %r = f32[] reduce(%p, %c), dimensions={0,1}, to_apply=%add, )"
    R"(metadata={op_name="jit(step)/reduce_sum" stack_frame_id=1}
  ROOT %t = (f32[2,3]{1,0}, /*index=1*/f32[]) tuple(%c, %r)
}
)";

Attribute attribute(const std::string& value) { return {"a", value, {3, 7}}; }

std::string errorOf(const std::string& text) {
  try {
    parse(text, "x.hlo");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(HloParser, ReadsAModule) {
  const Module m = parse(kModule, "x.hlo");
  EXPECT_EQ(m.name, "jit_step");
  EXPECT_EQ(m.attribute("num_partitions")->value, "8");
  ASSERT_EQ(m.computations.size(), 2u);
  const Computation& main = m.computations[m.entry];
  EXPECT_EQ(main.name, "main.4");
  ASSERT_EQ(main.instructions.size(), 5u);
  const Instruction &p = main.instructions[0], &t = main.instructions[4];
  EXPECT_EQ(p.opcode, "parameter");
  EXPECT_EQ(p.literal, "0");
  EXPECT_EQ(p.shape.sizes, (std::vector<std::int64_t>{2, 3}));
  EXPECT_TRUE(t.root);
  EXPECT_EQ(main.root, 4u);
  EXPECT_TRUE(t.shape.tuple);
  EXPECT_EQ(toText(t.shape), "(f32[2,3], f32[])");
  ASSERT_EQ(t.operands.size(), 2u);
  EXPECT_EQ(t.operands[1].name, "r");
  EXPECT_EQ(main.instructions[3].place.line, 27);
  EXPECT_EQ(main.instructions[3].place.column, 3);
  const Metadata metadata = parseMetadata(m, main.instructions[3], "x.hlo");
  EXPECT_EQ(metadata.operation, "jit(step)/reduce_sum");
  EXPECT_EQ(metadata.source, "models.py:12");
}

TEST(HloParser, ReadsOldTextsWithoutPercentSigns) {
  const Module m = parse(R"(HloModule old
ENTRY main {
  p = f32[2]{0} parameter(0)
  q = (f32[2], s32[]) custom-call(f32[2]{0} p), custom_call_target="f, g"
  ROOT r = f32[2] add(f32[2]{0} p, p), metadata={op_type="add" source_file="m.py" source_line=7}
})",
                         "x.hlo");
  const Computation& main = m.computations[m.entry];
  EXPECT_EQ(main.instructions[1].operands[0].name, "p");
  EXPECT_EQ(main.instructions[1].attribute("custom_call_target")->value, "\"f, g\"");
  EXPECT_EQ(main.instructions[2].operands[1].name, "p");
  EXPECT_EQ(parseMetadata(m, main.instructions[2], "x.hlo").source, "m.py:7");
}

TEST(HloParser, ReadsLiterals) {
  const Module m = parse(kModule, "x.hlo");
  EXPECT_EQ(parseLiteral(m.computations[m.entry].instructions[2], "x.hlo"),
            (std::vector<std::string>{"1", "-2.5", "1e-05", "inf", "-inf", "nan"}));
}

TEST(HloParser, ReadsShardings) {
  const Sharding s =
      parseSharding(attribute("{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"), "x.hlo");
  EXPECT_EQ(s.kind, Sharding::Kind::kTiled);
  EXPECT_EQ(s.tiles, (std::vector<std::int64_t>{2, 1, 4}));
  EXPECT_EQ(s.repeated, 1u);
  EXPECT_EQ(s.devices, (std::vector<std::int64_t>{0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_EQ(parseSharding(attribute("{devices=[4]3,2,1,0}"), "x.hlo").devices,
            (std::vector<std::int64_t>{3, 2, 1, 0}));
  EXPECT_EQ(parseSharding(attribute("{maximal device=3}"), "x.hlo").device, 3);
  EXPECT_EQ(parseSharding(attribute("{manual}"), "x.hlo").kind, Sharding::Kind::kManual);
  EXPECT_EQ(parseSharding(attribute("{unreduced}"), "x.hlo").kind, Sharding::Kind::kUnreduced);
  EXPECT_TRUE(
      parseSharding(attribute("{devices=[2,4]<=[8] last_tile_dims={unreduced}}"), "x").noTiles);
  const Sharding subgroups =
      parseSharding(attribute("{devices=[2,2,2]<=[8] last_tile_dims={manual, replicated}}"), "x");
  EXPECT_TRUE(subgroups.noTiles);
  EXPECT_EQ(subgroups.repeated, 2u);
  const Sharding tuple = parseSharding(
      attribute("{{replicated}, /*index=1*/{devices=[8]<=[8] metadata={op_name=\"}\"}}}"), "x.hlo");
  ASSERT_EQ(tuple.elements.size(), 2u);
  EXPECT_EQ(tuple.elements[1].tiles, (std::vector<std::int64_t>{8}));
}

TEST(HloParser, ReadsTheThreeSpellingsOfGroups) {
  using Groups = std::vector<std::vector<std::int64_t>>;
  const Groups columns{{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  EXPECT_EQ(parseGroups(attribute("{{0,4},{1,5},{2,6},{3,7}}"), "x", 8), columns);
  EXPECT_EQ(parseGroups(attribute("[4,2]<=[2,4]T(1,0)"), "x", 8), columns);
  EXPECT_EQ(parseGroups(attribute("mesh['a'=2,'b'=4] {'a'}"), "x", 8), columns);
  EXPECT_EQ(parseGroups(attribute("mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}"), "x", 4),
            (Groups{{0, 2}, {1, 3}}));
  EXPECT_EQ(parseGroups(attribute("mesh['a'=2,'b'=2], device_ids=(3,1,2,0) {'a','b'}"), "x", 4),
            (Groups{{3, 1, 2, 0}}));
  // Parts of axes, in the order in which jaxlib 0.10.2 gathers them where there are no device_ids.
  const std::vector<std::pair<std::string, Groups>> parts{
      {"mesh['a'=8] {'a':(1)2}", columns},
      {"mesh['a'=8] {'a':(2)2}", {{0, 2}, {1, 3}, {4, 6}, {5, 7}}},
      {"mesh['a'=8] {'a':(4)2}", {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
      {"mesh['a'=8] {'a':(4)2,'a':(1)2}", {{0, 4, 1, 5}, {2, 6, 3, 7}}},
      {"mesh['a'=8] {'a':(1)2,'a':(4)2}", {{0, 1, 4, 5}, {2, 3, 6, 7}}},
      {"mesh['a'=2,'b'=4] {'b':(2)2,'a'}", {{0, 4, 1, 5}, {2, 6, 3, 7}}},
      {"mesh['a'=2,'b'=4] {'b':(2)2,'b':(1)2}", {{0, 2, 1, 3}, {4, 6, 5, 7}}},
      {"mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a','b':(1)2}", {{0, 4, 1, 5}, {2, 6, 3, 7}}}};
  for (const auto& [text, groups] : parts)
    EXPECT_EQ(parseGroups(attribute(text), "x", 8), groups) << text;
  EXPECT_EQ(parseGroups(attribute("{}"), "x", 3), (Groups{{0, 1, 2}}));
  // A mesh with commas does not end the attribute.
  const Module m = parse(
      "HloModule m\nENTRY e {\n  a = f32[] parameter(0)\n  ROOT b = f32[] all-reduce(a), "
      "replica_groups=mesh['a'=2,'b'=2], device_ids=([4]) {'a'}, channel_id=1\n}",
      "x");
  EXPECT_EQ(m.computations[0].instructions[1].attribute("channel_id")->value, "1");
}

TEST(HloParser, SaysWhereATextIsWrong) {
  const std::string head = "HloModule m\nENTRY e {\n";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", "x.hlo: line 1, column 1: found the end, expected 'HloModule'"},
      {"HloModule m", "line 1, column 12: found the end, expected an ENTRY computation"},
      {head, "line 2, column 7: the computation that begins here has no end"},
      {head + "}", "line 2, column 7: computation 'e' has no instruction"},
      {head + "  a = f32[2 parameter(0)\n}",
       "line 3, column 13: found 'parameter(0)', expected ']'"},
      {head + "  a = f32[-2] parameter(0)\n}", "line 3, column 11: found a negative size"},
      {head + "  a = f32[<=2] parameter(0)\n}", "line 3, column 11: found a dynamic dimension"},
      {head + "  a = f32[4611686018427387904,4] parameter(0)\n}",
       "line 3, column 7: found a shape of more than 2^62 elements"},
      {head + "  a = f32[99999999999999999999] parameter(0)\n}",
       "line 3, column 11: found an integer that does not fit 64 bits"},
      {head + "  a = f32[] add(b, b)\n}",
       "line 3, column 17: found operand 'b', expected an instr"},
      {head + "  a = f32[] parameter(0)\n  a = f32[] parameter(1)\n}",
       "line 4, column 3: instruction 'a' is defined twice"},
      {head + "  a = f32[] parameter(0), x=1, x=2\n}",
       "line 3, column 32: attribute 'x' is given twice"},
      {head + "  ROOT a = f32[] parameter(0)\n  ROOT b = f32[] negate(a)\n}",
       "line 4, column 8: found a second ROOT"},
      {head + "  a = f32[] parameter(0\n}", "line 4, column 1: found '}', expected ')'"},
      {head + "  a = f32[] parameter(0), metadata={op_name=\"x}\n}", "has no end"},
      {head + "  a = f32[] parameter(0) /* b\n}", "line 3, column 26: the comment"},
      {head + "  a = f32[] parameter(0)\n}\nENTRY e2 {\n  a = f32[] parameter(0)\n}",
       "line 5, column 7: found a second ENTRY computation"},
  };
  for (const auto& [text, message] : cases)
    EXPECT_NE(errorOf(text).find(message), std::string::npos) << text << "\n" << errorOf(text);
}

TEST(HloParser, RefusesWrongAttributes) {
  const auto fails = [](auto&& read, const std::string& message) {
    try {
      read();
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("x: line 3, column "), std::string::npos);
      return;
    }
    ADD_FAILURE() << "no error: " << message;
  };
  const auto sharding = [&](const std::string& text, const std::string& message) {
    fails([&] { parseSharding(attribute(text), "x"); }, message);
  };
  sharding("{devices=[2,4]<=[7]}", "different products: 8 and 7");
  sharding("{devices=[2]0,0}", "a list of devices in which one is missing, twice or unknown");
  sharding("{devices=[2]0}", "found 1 devices, expected 2");
  sharding("{devices=[8]<=[2,4]T(0,0)}", "no permutation");
  sharding("{devices=[0]<=[0]}", "found the count 0");
  sharding("{devices=[1048577]<=[1048577]}", "more than 2^20 devices");
  sharding("{elsewhere}", "expected a sharding");
  sharding("{{replicated}, {{replicated}}}", "tuple of shardings in a tuple");
  sharding("{replicated} x", "expected the end of the attribute");
  const auto groups = [&](const std::string& text, const std::string& message) {
    fails([&] { parseGroups(attribute(text), "x", 4); }, message);
  };
  groups("{{0,1},{1,2}}", "device 1 stands in the groups twice");
  groups("{{0,4}}", "found device 4, expected one of 4");
  groups("[2]<=[4]", "expected two sizes");
  groups("mesh['a'=4] {'b'}", "found 'b', expected an axis of the mesh");
  groups("mesh['a'=4] {'a','a'}", "parts of axis 'a' overlap");
  groups("mesh['a'=4] {'a':(1)2,'a'}", "parts of axis 'a' overlap");
  groups("mesh['a'=4] {'a':(1)2,'a':(1)2}", "parts of axis 'a' overlap");
  groups("mesh['a'=12] {'a':(1)3,'a':(2)2}", "parts of axis 'a' overlap");
  groups("mesh['a'=4] {'a':(2)4}", "a part of axis 'a' that does not divide its size 4");
  groups("mesh['a'=4] {'a':(0)2}", "a part of axis 'a' that does not divide its size 4");
  groups("mesh['a'=4] {'a':(1)3}", "a part of axis 'a' that does not divide its size 4");
}

TEST(HloParser, RefusesWrongLiterals) {
  const auto message = [](const std::string& shape, const std::string& literal) {
    const Module m =
        parse("HloModule m\nENTRY e {\n  a = " + shape + " constant(" + literal + ")\n}", "x.hlo");
    try {
      parseLiteral(m.computations[0].instructions[0], "x.hlo");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message("f32[2]", "{1}").find("found 1 entries, expected 2"), std::string::npos);
  EXPECT_NE(message("f32[2]", "{1, 2, 3}").find("more than 2 entries"), std::string::npos);
  EXPECT_NE(message("f32[2,1]", "{1, 2}").find("expected a literal of shape"), std::string::npos);
  EXPECT_NE(message("f32[2]", "{...}").find("xla_dump_large_constants"), std::string::npos);
  EXPECT_NE(message("f32[]", "{1}").find("expected a literal of shape"), std::string::npos);
  EXPECT_NE(message("c64[]", "(1, 2)").find("expected a literal of shape"), std::string::npos);
  EXPECT_NE(message("f32[]", "").find("found 0 elements, expected 1"), std::string::npos);
}

TEST(HloParser, IsToldByItsBeginning) {
  EXPECT_TRUE(looksLikeHlo("HloModule m"));
  EXPECT_TRUE(looksLikeHlo("// a comment\n/* another */ \nHloModule m"));
  EXPECT_FALSE(looksLikeHlo("{\"format\": \"shardproof-plan\"}"));
  EXPECT_FALSE(looksLikeHlo(""));
  EXPECT_FALSE(looksLikeHlo("/* HloModule"));
}

TEST(HloParser, DeepNestingIsAnError) {
  std::string tuple(100000, '(');
  EXPECT_NE(errorOf("HloModule m\nENTRY e {\n  a = " + tuple).find("nested more than"),
            std::string::npos);
  EXPECT_NE(errorOf("HloModule m, a=" + std::string(100000, '{')).find("nested more than"),
            std::string::npos);
}

// Texts with random damage are read, or are errors with a place: nothing else.
TEST(HloParser, DamagedTextsAreReadOrRefused) {
  std::mt19937 random(7);
  const std::string original = kModule;
  const std::string alphabet = "(){}[],=%\"'<>0123456789-abT/* \n\\:.\xff";
  std::size_t refused = 0, read = 0;
  for (int round = 0; round < test::randomCases(20000); ++round) {
    std::string text = original;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text.erase(at, 1 + random() % 20);
          break;
        case 1:
          text.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        case 2:
          text[at] = alphabet[random() % alphabet.size()];
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
      }
      if (text.empty()) text = "x";
    }
    try {
      const Module m = parse(text, "x.hlo");
      for (const Computation& c : m.computations)
        for (const Instruction& i : c.instructions) {
          if (const Attribute* a = i.attribute("sharding")) parseSharding(*a, "x.hlo");
          parseMetadata(m, i, "x.hlo");
          if (i.opcode == "constant") parseLiteral(i, "x.hlo");
        }
      ++read;
    } catch (const InputError& error) {
      ++refused;
      ASSERT_TRUE(std::string(error.what()).starts_with("x.hlo: line ")) << error.what();
    }
  }
  EXPECT_GT(refused, static_cast<std::size_t>(test::randomCases(5000)));
  EXPECT_GT(read, static_cast<std::size_t>(test::randomCases(500)));
}

}  // namespace
}  // namespace shardproof::hlo
