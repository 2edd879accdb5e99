// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/input_facts.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "reader/hlo/formula.h"

namespace shardproof::hlo {
namespace {

// Of what depends on the key of a random generator, for one key.
std::optional<Approximation> sampled(ScalarId id, Scalars& scalars,
                                     Approximations& approximations) {
  try {
    return approximations.of(scalars.sample(id));
  } catch (const std::invalid_argument&) {  // not known, or not defined
    return std::nullopt;
  }
}

}  // namespace

std::string numbersText(const Value& known, Scalars& scalars, Approximations& approximations) {
  constexpr double kPrecise = 0x1p-46;  // of the largest: noise of 2^-40 hides it
  std::vector<Approximation> numbers;
  double size = 0;
  constexpr std::int64_t kMostListed = std::int64_t{1} << 20;
  Value content = known;
  std::optional<std::vector<Approximation>> all;
  if (content.kind == Value::Kind::kFormula) {
    all = approximations.of(content);
    std::int64_t count = 1;
    for (const std::int64_t n : content.shape.sizes)
      count = count > kMostListed ? count : count * n;
    if (!all && count > kMostListed) return "null";
    // Of what is no real number on the way: integers, conditions.
    if (!all) content = tableValue(content.shape, listed(scalars, content));
  }
  if (all) {
    numbers = std::move(*all);
    for (const Approximation& number : numbers) size = std::max(size, std::abs(number.value));
  } else {
    for (const ScalarId id : content.table->values) {
      const auto number = sampled(id, scalars, approximations);
      if (!number) return "null";
      numbers.push_back(*number);
      size = std::max(size, std::abs(number->value));
    }
  }
  std::string text = "[";
  for (const Approximation& number : numbers) {
    if (number.error > kPrecise * size) return "null";
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, number.value).ptr;
    text += (text.size() > 1 ? "," : "") + std::string(digits, end);
  }
  return text + "]";
}

}  // namespace shardproof::hlo
