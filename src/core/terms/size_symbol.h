// SPDX-License-Identifier: Apache-2.0
// A size that is not known: proofs about all sizes at once (docs/soundness.md, "Any size").
//
// A stage is stated at a large prime in the place of the size m. Numbers that are computed of it by
// sums, products and quotients are then read back as what they are of m: the prime is so large that
// 4 p - 2 is told from numbers that do not depend on m. Terms have the variable m in the place of
// the prime. What reads as no small expression of m is taken for a constant. A proof counts only
// where all numbers read the same at a second prime that is far from the first.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shardproof/rational.h"

namespace shardproof {

struct LinearNumber {  // constant + slope m
  Rational constant, slope;
  friend bool operator==(const LinearNumber&, const LinearNumber&) = default;
};

// (constant + slope m) m^power / divisor, where the divisor, if it depends on m, is no multiple of
// m, and 1 otherwise.
struct SizedNumber {
  Rational constant, slope;
  int power = 0;
  LinearNumber divisor{Rational(1), Rational(0)};
  bool dependsOnSize() const { return !slope.isZero() || power != 0 || !divisor.slope.isZero(); }
  Rational at(std::int64_t size) const;
  friend bool operator==(const SizedNumber&, const SizedNumber&) = default;
};

class SizeSymbol {
 public:
  // Two primes, far from one another and from powers of two, whose multiples sizes often are.
  // Squares of them times a few thousands are numbers still.
  static constexpr std::int64_t kPrimes[] = {15'485'863, 10'570'841};
  // Numbers below are the same at all sizes.
  static constexpr std::int64_t kMostConstant = std::int64_t{1} << 22;

  // `constants`: numbers of the stage that do not depend on the size, however large. `slopes`: what
  // the size is multiplied with in other numbers of it; 1 is always among them.
  SizeSymbol(std::int64_t prime, std::vector<Rational> constants,
             std::vector<std::int64_t> slopes = {});

  SizedNumber read(const Rational& value) const;
  // The same; numbers that were noted make the trace.
  SizedNumber note(const Rational& value);
  // Numbers below are the same at all sizes, without being read.
  static bool isSmall(std::int64_t value) {
    return -kMostConstant < value && value < kMostConstant;
  }

  // Of all numbers that were noted, in order: equal traces are of equal numbers.
  using Trace = std::pair<std::uint64_t, std::uint64_t>;
  Trace trace() const { return trace_; }

 private:
  const std::int64_t prime_;
  std::vector<Rational> constants_;   // sorted
  std::vector<std::int64_t> slopes_;  // positive, each once
  Trace trace_{0, 0};
};

}  // namespace shardproof
