// SPDX-License-Identifier: Apache-2.0
// How far rounding moves each tensor of a step: whether a difference that somebody saw is one.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compare/compare.h"

namespace shardproof::compare {

// Of one tensor, as shares of the reference's norm. Nothing where rounding cannot be told.
struct ExpectedRounding {
  std::string name, kind, dtype;
  std::optional<double> moved;      // the largest distance of the perturbed references
  std::optional<double> tolerance;  // what counts as rounding
  std::optional<double> error;      // of a candidate
};

struct RoundingOfStep {
  std::string reference, candidate;  // none: nobody was compared
  std::string verdict, first;        // of the comparison; the first tensor that decided it
  std::size_t draws = 0;
  double bound = 0;  // a tolerance above it shows nothing
  std::vector<ExpectedRounding> tensors;
};

// Of a reference with its perturbed traces. Throws InputError as compareTraces does.
RoundingOfStep roundingOf(const std::string& reference, const Options& options);

// Of what jsonText has written to `file`. Throws InputError where it is not that.
RoundingOfStep roundingOf(const nlohmann::ordered_json& report, const std::string& file);

// `tensor`: the one that was asked for; empty: the loss, or the first that differs. `difference`:
// relative; or that of the candidate. Throws InputError where there is no such tensor, or no
// difference was given or found.
void writeRounding(std::ostream& out, const RoundingOfStep& rounding, const std::string& tensor,
                   const std::optional<double>& difference);

}  // namespace shardproof::compare
