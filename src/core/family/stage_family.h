// SPDX-License-Identifier: Apache-2.0
// One stage for many sizes: the stages of one lineage entry in plans of several sizes, where they
// differ in nothing but numbers, each of which is a simple function of the size. What the family is
// at other sizes follows from these functions, and is what is proved (docs/soundness.md, "Any
// size").
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shardproof/error.h"
#include "shardproof/rational.h"
#include "stages/stage.h"
#include "terms/size_symbol.h"

namespace shardproof {

// A number of the stage is no whole number at a size, or too large: the family may have multiples
// of some unit only.
class NotWhole : public Unsupported {
 public:
  using Unsupported::Unsupported;
};

// A number that may depend on the size, of values at several. Throws Unsupported where it is not
// (a + b m) m^k with k of 0 or -1.
SizedNumber functionOf(const std::vector<Rational>& values, std::span<const std::int64_t> sizes);

// Whether an operator may have an attribute that depends on the size: where it is a factor, a
// summand or a shape. Other attributes decide what an operator does (a rate of 0, an odd exponent,
// a bound that is clamped), which nothing shows at the primes.
bool mayDependOnSize(const std::string& op, const std::string& attribute);
// A factor or summand is of one sign at all sizes, and not 0. Throws Unsupported.
void expectOneSign(const SizedNumber& number, const std::string& what);

class StageFamily {
 public:
  // At least so many stages: two determine a number's function, the others confirm it.
  static constexpr std::size_t kLeastMembers = 3;

  // `forms`: canonical forms of the stages at `sizes`, which differ. Throws Unsupported where the
  // stages differ in more than numbers, or in one that is not (a + b m) m^k with k of 0 or -1.
  StageFamily(std::span<const std::string> forms, std::span<const std::int64_t> sizes);

  // Of all forms and sizes that it was made of.
  std::uint64_t fingerprint() const { return fingerprint_; }
  // Throws NotWhole.
  Stage at(std::int64_t size) const;
  // All numbers that do not depend on the size.
  const std::vector<Rational>& constants() const { return constants_; }
  // What the size is multiplied with in the others.
  const std::vector<std::int64_t>& slopes() const { return slopes_; }

 private:
  std::string form_;                  // of the first stage
  std::vector<SizedNumber> numbers_;  // in the order in which a stage has them
  std::vector<Rational> constants_;
  std::vector<std::int64_t> slopes_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace shardproof
