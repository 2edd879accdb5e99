// SPDX-License-Identifier: Apache-2.0
// Numbers of an HLO program that are no rationals, as doubles.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "reader/hlo/scalars.h"
#include "reader/hlo/value.h"

namespace shardproof::hlo {

// A number and how far it may be from the true one.
struct Approximation {
  double value = 0, error = 0;
};

// Nothing where it cannot be computed: an operation that is not known here, outside of its domain,
// or so near to a jump of it that the side cannot be told.
class Approximations {
 public:
  explicit Approximations(const Scalars& scalars) : scalars_(scalars) {}
  std::optional<Approximation> of(ScalarId id);
  // Of all elements of a formula, of which none depends on a random generator's key; nothing where
  // one cannot be computed, or there are more than can be listed.
  std::optional<std::vector<Approximation>> of(const Value& formula);

 private:
  // In the widest type: angles of thousands of turns lose as many digits as they have.
  struct Wide {
    long double value = 0, error = 0;
  };
  static std::optional<Approximation> narrowed(const std::optional<Wide>& x);
  std::optional<Wide> at(const Value& known, const std::vector<std::int64_t>& index);
  std::optional<Wide> compute(ScalarId id);
  std::optional<Wide> unary(const std::string& op, const Wide& x) const;
  std::optional<Wide> binary(const std::string& op, const Wide& x, const Wide& y) const;

  const Scalars& scalars_;
  std::unordered_map<ScalarId, std::optional<Wide>> known_;
};

}  // namespace shardproof::hlo
