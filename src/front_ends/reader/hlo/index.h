// SPDX-License-Identifier: Apache-2.0
// Functions of one integer, in pieces: what a program computes of an index before it looks
// something up (wrapping negative ones, moving it into a rank's window, keeping it in bounds).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "reader/hlo/scalars.h"
#include "shardproof/rational.h"

namespace shardproof::hlo {

constexpr std::int64_t kNoLow = std::numeric_limits<std::int64_t>::min() / 4;
constexpr std::int64_t kNoHigh = std::numeric_limits<std::int64_t>::max() / 4;

// a i + b for low <= i < high.
struct Piece {
  std::int64_t low = kNoLow, high = kNoHigh;
  std::int64_t a = 0;
  Rational b;

  friend bool operator==(const Piece&, const Piece&) = default;
};
// In order. What is in no piece is no value that the integer can have.
using Pieces = std::vector<Piece>;

Pieces identityPieces(std::int64_t low, std::int64_t high);
// The only piece there is, but for gaps: a i + b everywhere.
std::optional<Piece> singlePiece(const Pieces& pieces);
Pieces constantPieces(const Pieces& domain, const Rational& value);
// An elementwise opcode on functions of the same integer; nothing where the result is no such
// function. Conditions are 0 and 1.
std::optional<Pieces> combinePieces(std::string_view opcode, std::string_view direction,
                                    std::span<const Pieces* const> operands);
bool isIdentity(const Pieces& pieces);
// The value everywhere, if it is one.
std::optional<Rational> constantValue(const Pieces& pieces);
// The least and the greatest value.
std::pair<Rational, Rational> valueRange(const Pieces& pieces);

// Where the value is a row, 0 to count - 1, as it is; -1 elsewhere: a constant or the integer plus
// a number. Nothing where it is a multiple of the integer that is one of too many rows.
std::optional<Pieces> rowPieces(const Pieces& pieces, std::int64_t count);
// The same moved into bounds.
std::optional<Pieces> clampPieces(const Pieces& pieces, std::int64_t count);
// 1 where the value is one of 0 to count - 1, else 0.
Pieces insidePieces(const Pieces& pieces, std::int64_t count);

// 0 where a negative integer counts from the end: where it is moved in pieces of negative ones
// only.
Pieces unwrappedPieces(const Pieces& pieces);

// Integers from `first` up to `second`, without it.
using Stretch = std::pair<std::int64_t, std::int64_t>;
// The values of a type; of 64 bits those that pieces can have.
Stretch typeRange(const IntegerType& type);
// The same numbers modulo 2^bits, within the type's range, as its arithmetic gives them. Nothing
// where that takes too many pieces, or a type of 64 bits may not hold them.
std::optional<Pieces> wrapPieces(const Pieces& pieces, const IntegerType& type);

}  // namespace shardproof::hlo
