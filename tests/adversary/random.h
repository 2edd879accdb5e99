// SPDX-License-Identifier: Apache-2.0
// Random choices that are the same on every machine: splitmix64 (Steele, Lea and Flood 2014), and
// nothing of the standard library's distributions, whose results are the library's own affair. A
// plan is made from its family, a seed and an index alone, so that any can be made again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace shardproof::adversary {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  // The choices of one plan.
  Random(std::string_view family, std::uint64_t seed, std::uint64_t index) : state_(seed) {
    for (const char c : family) state_ = next() ^ static_cast<unsigned char>(c);
    state_ = next() ^ index;
    next();
  }

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // 0 to n - 1; n at least 1.
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n));
  }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }
  std::size_t index(std::size_t size) {
    return static_cast<std::size_t>(below(static_cast<std::int64_t>(size)));
  }
  template <class List>
  auto& pick(List& list) {
    return list[index(list.size())];
  }
  template <class T>
  T pick(std::initializer_list<T> list) {
    return list.begin()[index(list.size())];
  }
  template <class T>
  void shuffle(std::vector<T>& list) {
    for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[index(i)]);
  }

 private:
  std::uint64_t state_;
};

}  // namespace shardproof::adversary
