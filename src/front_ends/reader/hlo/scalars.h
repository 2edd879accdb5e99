// SPDX-License-Identifier: Apache-2.0
// Numbers that an HLO program knows without its inputs, exactly: rationals, infinities, and what
// is neither (a cosine), as an expression. Equal ids are equal numbers; unequal ids of expressions
// may still be equal ones.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "shardproof/rational.h"

namespace shardproof::hlo {

using ScalarId = std::uint32_t;

enum class ScalarKind : std::uint8_t { kRational, kInfinity, kNegativeInfinity, kNan, kExpression };

// Bits of an integer type ("s32": 32, signed), or nothing for another. pred is no integer here.
struct IntegerType {
  int bits = 0;
  bool isSigned = false;
};
std::optional<IntegerType> integerType(std::string_view type);
bool isUnsigned(std::string_view type);
bool isFloat(std::string_view type);  // f16, bf16, f32, f64, f8...
// Bits of the significand of a floating-point type, the hidden one included; 0 for another type.
int significandBits(std::string_view type);

// The rational with the least denominator among those that round to the number that the type has
// nearest to `value`; integers that the type has stay what they are.
Rational simplestRounding(const Rational& value, int bits);

class Scalars {
 public:
  Scalars();
  ScalarId rational(const Rational& value);
  ScalarId infinity() const { return 0; }
  ScalarId negativeInfinity() const { return 1; }
  ScalarId nan() const { return 2; }
  ScalarId expression(const std::string& operation, std::span<const ScalarId> arguments);

  ScalarKind kind(ScalarId id) const { return entries_[id].kind; }
  const Rational& value(ScalarId id) const { return entries_[id].value; }  // of a rational
  const std::string& operation(ScalarId id) const { return entries_[id].operation; }
  const std::vector<ScalarId>& arguments(ScalarId id) const { return entries_[id].arguments; }
  bool isRational(ScalarId id) const { return entries_[id].kind == ScalarKind::kRational; }
  bool is(ScalarId id, std::int64_t n) const;

  // An element of a literal, as it is written, of this type. `exact`: the very number that the type
  // has, else see simplestRounding. Throws std::invalid_argument.
  ScalarId parse(const std::string& text, std::string_view type, bool exact);

  // An elementwise opcode on operands of this type; `direction` is compare's. pred is 0 or 1;
  // integers wrap around as their type does. Throws std::invalid_argument for what it cannot do.
  ScalarId apply(std::string_view opcode, std::string_view direction, std::string_view type,
                 std::span<const ScalarId> arguments);
  ScalarId convert(ScalarId id, std::string_view from, std::string_view to);
  // The same bits as another type of the same width; from integers only.
  ScalarId bitcast(ScalarId id, std::string_view from, std::string_view to);

  // Symbols: elements of an integer input that is only computed with bit by bit (the key of a
  // random generator). What depends on them is an expression of everything that was applied, and
  // equal expressions are equal numbers for every input.
  // `counts`: of a counter, for which a small number is the choice of sample().
  ScalarId symbol(std::size_t parameter, std::size_t element, bool counts = false);
  // An integer of this type that `function` makes of the arguments, of which no more is known:
  // "rng-bit-generator" and what else is in Scalars::sample. `detail`: which of its results.
  ScalarId bits(std::string_view function, const std::string& detail, std::string_view type,
                std::span<const ScalarId> arguments);
  bool isSymbolic(ScalarId id) const { return entries_[id].symbolic; }
  // What it comes to for one choice of all symbols. Throws std::invalid_argument as apply() does.
  ScalarId sample(ScalarId id);

 private:
  struct Entry {
    ScalarKind kind = ScalarKind::kRational;
    Rational value;
    std::string operation;
    std::vector<ScalarId> arguments;
    bool symbolic = false;
  };
  ScalarId symbolic(std::string_view opcode, std::string_view detail, std::string_view type,
                    std::span<const ScalarId> arguments);
  ScalarId wrap(const Rational& value, const IntegerType& type);
  std::optional<int> compare(ScalarId a, ScalarId b) const;
  std::optional<ScalarId> exact(std::string_view opcode, std::span<const ScalarId> x);
  std::optional<ScalarId> withInfinity(std::string_view opcode, std::span<const ScalarId> x);
  std::optional<ScalarId> withUnit(std::string_view opcode, std::span<const ScalarId> x);
  ScalarId bitwise(std::string_view opcode, const IntegerType& type, std::span<const ScalarId> x);

  std::vector<Entry> entries_;
  std::unordered_map<std::string, ScalarId> rationals_;
  std::map<std::pair<std::string, std::vector<ScalarId>>, ScalarId> expressions_;
  std::size_t symbolics_ = 0;
  std::unordered_map<ScalarId, ScalarId> samples_;
};

}  // namespace shardproof::hlo
