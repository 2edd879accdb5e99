// SPDX-License-Identifier: Apache-2.0
// That the instructions that are written in place of complex ones compute the same is tested with
// numbers: tests/plans/hlo_operators.py.
#include "reader/hlo/complex.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "reader/hlo/parser.h"
#include "shardproof/error.h"

namespace shardproof::hlo {
namespace {

Module split(const std::string& body) {
  return withoutComplex(parse("HloModule m\n\n" + body, "m.hlo"), "m.hlo");
}

std::string errorOf(const std::string& instruction) {
  try {
    split("ENTRY %e (z: c64[4]) -> c64[4] {\n  %z = c64[4] parameter(0)\n  ROOT %r = " +
          instruction + "\n}\n");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

bool hasComplex(const Shape& shape) {
  return shape.type == "c64" ||
         std::any_of(shape.elements.begin(), shape.elements.end(), hasComplex);
}

TEST(HloComplex, ParametersAndResultsAreTwoEach) {
  const Module m = split(
      "ENTRY %e (a: f32[2], z: c64[2], b: f32[2]) -> (c64[2], f32[2]) {\n"
      "  %b = f32[2] parameter(2)\n"
      "  %z = c64[2] parameter(1), sharding={devices=[2]<=[2]}, metadata={op_name=\"z\"}\n"
      "  %a = f32[2] parameter(0)\n"
      "  ROOT %t = (c64[2], f32[2]) tuple(%z, %b), "
      "sharding={{devices=[2]<=[2]}, {replicated}}\n}\n");
  const Computation& entry = m.computations[m.entry];
  std::string parameters;
  for (const Instruction& i : entry.instructions) {
    EXPECT_FALSE(hasComplex(i.shape)) << i.name;
    if (i.opcode != "parameter") continue;
    parameters += i.name + " " + i.literal + "; ";
    if (const Attribute* metadata = i.attribute("metadata")) parameters += metadata->value + "; ";
  }
  EXPECT_EQ(parameters,
            "b 3; z@re 1; {op_name=\"z real\"}; z@im 2; {op_name=\"z imaginary\"}; a 0; ");
  const Instruction& root = entry.instructions[entry.root];
  ASSERT_EQ(root.operands.size(), 3U);
  EXPECT_EQ(root.operands[0].name + " " + root.operands[1].name + " " + root.operands[2].name,
            "z@re z@im b");
  const Sharding sharding = parseSharding(*root.attribute("sharding"), "m.hlo");
  ASSERT_EQ(sharding.elements.size(), 3U);
  EXPECT_EQ(sharding.elements[0].kind, Sharding::Kind::kTiled);
  EXPECT_EQ(sharding.elements[1].kind, Sharding::Kind::kTiled);
  EXPECT_EQ(sharding.elements[2].kind, Sharding::Kind::kReplicated);
}

TEST(HloComplex, ProgramsWithoutStayAsTheyAre) {
  const Module m = split(
      "ENTRY %e (a: f32[2]) -> f32[2] {\n"
      "  %a = f32[2] parameter(0)\n  ROOT %r = f32[2] tanh(%a)\n}\n");
  EXPECT_EQ(m.computations[m.entry].instructions.size(), 2U);
}

TEST(HloComplex, SaysWhatIsNotSupported) {
  const auto expect = [](const std::string& instruction, const std::string& message) {
    const std::string found = errorOf(instruction);
    EXPECT_NE(found.find(message), std::string::npos) << instruction << ": " << found;
  };
  expect("c64[4] tanh(%z)", "line 5, column 8: instruction 'r', opcode 'tanh': of complex numbers");
  expect("pred[4] compare(%z, %z), direction=LT", "an order of complex numbers");
  expect("c64[4] fft(%z), fft_type=FFT, fft_length={8}", "a transform of other sizes");
  expect("c64[4] fft(%z), fft_type=RFFT, fft_length={4}", "of or to other numbers");
  expect("c64[4] fft(%z), fft_type=DCT, fft_length={4}", "a transform of type DCT");
  expect("c64[4] fft(%z)", "no type or no length");
  expect("c64[4] constant({(1, 2), (3, 4), (5, 6), (7 8)})", "not (real, imaginary)");
  expect("c64[4] custom-call(%z), custom_call_target=\"f\"", "of complex numbers");
}

}  // namespace
}  // namespace shardproof::hlo
