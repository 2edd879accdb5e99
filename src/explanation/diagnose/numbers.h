// SPDX-License-Identifier: Apache-2.0
// A slice executed at two draws of the model's inputs: what a claim asks of the ranks, and what
// they have. In the prime field, where tensors that are equal at both draws are equal but by a
// chance of 2^-120; and in long doubles, where all laws of the real functions hold, up to rounding.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "diagnose/slice.h"
#include "executor/prime_field.h"
#include "executor/run.h"
#include "executor/setup.h"
#include "shardproof/report.h"
#include "util/processor_clock.h"

namespace shardproof::diagnose {

using executor::Field;
constexpr std::size_t kDraws = 2;

// The model's values, computed once for each draw.
template <class T>
struct ModelValuesIn {
  std::array<std::vector<executor::Value<T>>, kDraws> values;  // by draw and tensor
  std::array<bool, kDraws> known{};
};
struct ModelValues {
  executor::Memory memory;
  ModelValuesIn<Field> field;
  ModelValuesIn<long double> real;
  std::size_t firstDraw = 0;  // where the draws begin; others show what these do not
  void beginAt(std::size_t draw) { firstDraw = draw, field.known = {}, real.known = {}; }
};

// Numbers to look at: of one rank's tensors, by slot, and of a claim. At the first draw.
struct Shown {
  std::map<std::int32_t, Cause::Block> locals;
  Cause::Block expected, actual;
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

// In the reals alone only whether claims hold is known; at one draw, whether they may.
enum class Look { kRealsAtOneDraw, kReals, kField, kRealsAndField };

class Numbers {
 public:
  // Executes; throws executor::CannotRun, Stopped, TooLarge, InputError.
  Numbers(const Slice& slice, ModelValues& model, ProcessorClock::time_point end, Look look);

  const executor::Setup& setup() const { return setup_; }
  std::size_t claims() const { return setup_.compared; }
  const executor::Claim& claim(std::size_t c) const { return setup_.claims[c]; }
  const Elements& expected(std::size_t c) const { return expected_[c]; }
  const Elements& actual(std::size_t c) const { return actual_[c]; }
  bool holds(std::size_t c) const { return holds_[c] != 0; }
  // By how much what the ranks have is a multiple of what is asked, in the reals and at both draws;
  // of a claim that does not hold.
  std::optional<long double> realRatio(std::size_t c) const { return ratios_[c]; }
  bool allHold() const;
  bool allHoldInField() const;
  // Of a rank's slot; nothing known where it has no value.
  const Elements& local(Rank rank, std::int32_t slot) const;
  const Elements& logical(TensorId tensor) const;
  // Executes once more. Of the rank of the claim's first part; throws as the constructor does.
  Shown show(std::size_t c);

 private:
  template <class T>
  void execute(ModelValuesIn<T>& model, std::size_t draw, executor::Hooks<T> hooks);
  void inField();
  void inReals(std::size_t draw);
  void compareReals(std::size_t c, const executor::Value<long double>& logical,
                    const executor::Value<long double>& local);

  executor::Setup setup_;
  ModelValues& model_;
  ProcessorClock::time_point end_;
  std::vector<char> holds_;
  std::vector<std::optional<long double>> ratios_;
  std::vector<char> ratiosSeen_;
  std::vector<Elements> expected_, actual_;
  std::map<std::int64_t, Elements> local_;  // by slot over all ranks
  mutable std::map<std::int32_t, Elements> logical_;
};

// Of a tensor of the model, the elements of a box.
Elements boxOf(const ModelValues& model, TensorId tensor, const Shape& low, const Shape& extent);

}  // namespace shardproof::diagnose
