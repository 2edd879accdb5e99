// SPDX-License-Identifier: Apache-2.0
// What properties are checked on is made from a list of numbers, which rapidcheck draws and, when a
// property fails, shrinks: shorter lists and smaller numbers make smaller things. The numbers are
// drawn from a fixed seed, so that a run says the same as the one before; RC_PARAMS="seed=7
// max_success=100000" in the environment asks for others, SHARDPROOF_SLOW_TESTS=1 for a hundred
// times as many.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <rapidcheck.h>

namespace shardproof::test {

class Choices {
 public:
  explicit Choices(std::vector<std::uint32_t> numbers) : numbers_(std::move(numbers)) {}
  // 0 when the list is at its end: the simplest choice must come first.
  int below(int n) {
    return next_ < numbers_.size()
               ? static_cast<int>(numbers_[next_++] % static_cast<std::uint32_t>(n))
               : 0;
  }
  bool oneIn(int n) { return below(n) == n - 1; }
  template <class T>
  const T& among(const std::vector<T>& list) {
    return list[static_cast<std::size_t>(below(static_cast<int>(list.size())))];
  }
  // For values, where nothing is gained by shrinking.
  std::mt19937_64 random() { return std::mt19937_64(static_cast<std::uint64_t>(below(1 << 30))); }

 private:
  std::vector<std::uint32_t> numbers_;
  std::size_t next_ = 0;
};

inline Choices drawChoices(int most) {
  return Choices(*rc::gen::resize(most, rc::gen::container<std::vector<std::uint32_t>>(
                                            rc::gen::inRange<std::uint32_t>(0, 1U << 30))));
}

// Draws as many times as `usually`, or more (see above). A property throws, by RC_ASSERT or
// RC_FAIL, where it does not hold. Returns whether it always held.
template <class Property>
bool holds(int usually, Property&& property) {
  rc::detail::TestParams parameters;
  const char* slow = std::getenv("SHARDPROOF_SLOW_TESTS");
  parameters.seed = 2026;
  parameters.maxSuccess = slow != nullptr && std::string(slow) == "1" ? usually * 100 : usually;
  if (std::getenv("RC_PARAMS") != nullptr) parameters = rc::detail::configuration().testParams;
  const rc::detail::TestResult result = rc::detail::checkTestable(
      std::forward<Property>(property), rc::detail::TestMetadata(), parameters);
  if (result.template is<rc::detail::SuccessResult>()) return true;
  rc::detail::printResultMessage(result, std::cerr);
  std::cerr << std::endl;
  return false;
}

}  // namespace shardproof::test
