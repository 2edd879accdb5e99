// Numbers of an HLO program that are no rationals, as doubles.
#pragma once

#include <optional>

#include "reader/hlo/scalars.h"

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

 private:
  // In the widest type: angles of thousands of turns lose as many digits as they have.
  struct Wide {
    long double value = 0, error = 0;
  };
  std::optional<Wide> compute(ScalarId id);
  std::optional<Wide> unary(const std::string& op, const Wide& x) const;
  std::optional<Wide> binary(const std::string& op, const Wide& x, const Wide& y) const;

  const Scalars& scalars_;
  std::unordered_map<ScalarId, std::optional<Wide>> known_;
};

}  // namespace shardproof::hlo
