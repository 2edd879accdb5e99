// SPDX-License-Identifier: Apache-2.0
// Tensors that are known without the program's inputs and too large to be listed, such as a causal
// mask of 8,192 positions or the angles of rotary embeddings: expressions of tables that differ
// along fewer dimensions. Functions take and give values that are tables or formulas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "reader/hlo/approximate.h"
#include "reader/hlo/scalars.h"
#include "reader/hlo/value.h"

namespace shardproof::hlo {

// An elementwise opcode (or "convert", with the types as direction and type) of known values of
// equal sizes: a table where that lists no more than its operands do, or few numbers, else a
// formula. Throws as Scalars::apply() does.
Value applyKnown(Scalars& scalars, const Shape& shape, const std::string& opcode,
                 const std::string& direction, const std::string& type, std::vector<Value> x);

// A table where there are few numbers.
Value compacted(Scalars& scalars, Value known);

// Every number. Throws std::length_error where there are too many.
Table listed(Scalars& scalars, const Value& known);

// Along which dimensions it differs: their sizes, and 1 for the others.
Sizes extentOf(const Value& known);

// The same done to each table of a known value; `size` says what becomes of its sizes.
Value mapTablesOf(const Value& known, const Sizes& sizes,
                  const std::function<Table(const Table&)>& move);

// The same expression of the same tables.
bool sameKnown(const Value& a, const Value& b);

// Where `part` is a box of `whole`, where that begins; nothing also where it is not seen.
std::optional<Sizes> boxOf(const Value& part, const Value& whole);

// Whether all elements are numbers, as far as can be told without listing them.
bool isFinite(const Scalars& scalars, const Value& known);

// Elements where `column` <= `row` + `shift`, of the indices along two dimensions, row < column.
struct HalfPlane {
  std::size_t row = 0, column = 0;
  std::int64_t shift = 0;
  friend bool operator==(const HalfPlane&, const HalfPlane&) = default;
};
// A known value that is one number inside and another one outside of a half plane, as causal masks
// are; alike everywhere without one.
struct TwoNumbers {
  std::optional<HalfPlane> where;
  ScalarId inside = 0, outside = 0;
};
std::optional<TwoNumbers> twoNumbers(Scalars& scalars, const Value& known);

}  // namespace shardproof::hlo
