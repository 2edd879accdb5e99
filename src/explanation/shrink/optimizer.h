// SPDX-License-Identifier: Apache-2.0
// Small integer programs, solved by Z3's optimizer: linear equations and bounds, sums that should
// be distinct, and one to be made least.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace shardproof {

// sum of coefficient * variable, plus a constant
struct LinearSum {
  std::vector<std::pair<std::int32_t, std::int64_t>>
      terms;  // (variable, coefficient), sorted by variable, none twice, none 0
  std::int64_t constant = 0;

  LinearSum& add(std::int32_t variable, std::int64_t coefficient);
  LinearSum& add(const LinearSum& other, std::int64_t factor = 1);
  std::int64_t value(const std::vector<std::int64_t>& values) const;
  friend bool operator==(const LinearSum&, const LinearSum&) = default;
  friend auto operator<=>(const LinearSum&, const LinearSum&) = default;
};

struct IntegerProgram {
  std::vector<std::pair<std::int64_t, std::int64_t>> variables;  // least and greatest value of each
  std::vector<LinearSum> zero;                                   // each is 0
  std::vector<LinearSum> notNegative;                            // each is at least 0
  std::vector<std::pair<LinearSum, std::vector<std::int64_t>>>
      among;  // the sum is one of the values
  // Each sum differs from those before it that are listed with it, where that can be.
  std::vector<std::pair<LinearSum, std::vector<std::size_t>>> distinct;
  LinearSum objective;  // as small as can be; coefficients are not negative
};

struct IntegerSolution {
  bool solved = false;
  std::string reason;                // why not: "unsatisfiable", or what Z3 says ("timeout")
  std::vector<std::int64_t> values;  // of all variables
};

// Least first, then larger where sums that should be distinct are not: each is raised just above
// those that come before it, and the rest is made least again. So the result is the least one under
// the bounds that distinctness needed, not the least of all distinct ones, which would be a search.
// Deterministic but for the time limit, at which it ends with what it has. Never throws for a
// solver failure.
IntegerSolution minimize(const IntegerProgram& program, double seconds);

}  // namespace shardproof
