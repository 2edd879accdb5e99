// SPDX-License-Identifier: Apache-2.0
// Checks of option values that CLI11 does not have.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace shardproof {

// CLI11's Range lets "nan" through: no comparison with it is true.
inline CLI::Validator secondsRange() {
  constexpr double kLeast = 0.001, kMost = 1e7;
  return CLI::Validator(
      [](std::string& text) -> std::string {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= kLeast && value <= kMost) return {};
        return "Value " + text + " not in range 0.001 to 10000000";
      },
      "SECONDS");
}

// CLI::Range lets "nan" pass.
inline CLI::Validator isNumber() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value == value) return {};
        return "Value " + text + " is not a number";
      },
      "");
}

}  // namespace shardproof
