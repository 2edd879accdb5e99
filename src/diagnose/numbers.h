// A slice executed in the prime field, at two draws of the model's inputs: what a claim asks of the
// ranks, and what they have. What agrees at both is equal but by a chance of 2^-120.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "diagnose/slice.h"
#include "interpret/prime_field.h"
#include "interpret/run.h"
#include "interpret/setup.h"

namespace shardproof::diagnose {

using interpret::Field;
constexpr std::size_t kDraws = 2;
using Clock = std::chrono::steady_clock;

// The model's values, computed once for each draw.
struct ModelValues {
  interpret::Memory memory;
  std::array<std::vector<interpret::Value<Field>>, kDraws> values;  // by draw and tensor
  bool known = false;
};

// The elements of one array, at both draws.
struct Elements {
  Shape shape;
  ElementKind element = ElementKind::kReal;
  std::array<std::vector<Field>, kDraws> of;
  bool known() const { return !of[0].empty(); }
  std::size_t size() const { return of[0].size(); }
  friend bool operator==(const Elements& a, const Elements& b) {
    return a.of == b.of;  // whatever the shapes
  }
};

class Numbers {
 public:
  // Executes; throws interpret::CannotRun, Stopped, TooLarge, InputError.
  Numbers(const Slice& slice, ModelValues& model, Clock::time_point end, bool keepAll);

  const interpret::Setup& setup() const { return setup_; }
  std::size_t claims() const { return setup_.compared; }
  const interpret::Claim& claim(std::size_t c) const { return setup_.claims[c]; }
  const Elements& expected(std::size_t c) const { return expected_[c]; }
  const Elements& actual(std::size_t c) const { return actual_[c]; }
  bool holds(std::size_t c) const { return expected_[c] == actual_[c]; }
  bool allHold() const;
  // Of a rank's slot; nothing known where it has no value. With `keepAll` only.
  const Elements& local(std::int64_t rank, std::int32_t slot) const;
  const Elements& logical(std::int32_t tensor) const;

 private:
  void takeClaims(std::size_t draw);

  interpret::Setup setup_;
  ModelValues& model_;
  bool keepAll_;
  std::vector<Elements> expected_, actual_;
  std::map<std::int64_t, Elements> local_;  // by slot over all ranks
  mutable std::map<std::int32_t, Elements> logical_;
};

// Of a tensor of the model, the elements of a box.
Elements boxOf(const ModelValues& model, std::int32_t tensor, const Shape& low,
               const Shape& extent);

}  // namespace shardproof::diagnose
