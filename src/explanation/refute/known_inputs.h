// SPDX-License-Identifier: Apache-2.0
// What is known of a stage's inputs beside their shapes (KnownInput), where the stage is evaluated
// in numbers: a difference counts only at values of which it is true.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "shape_reduction/reduction.h"
#include "stages/stage.h"

namespace shardproof {

class KnownInputs {
 public:
  explicit KnownInputs(const Stage& stage);
  bool any() const { return any_; }

  // The number that element `index` (row-major over reduced positions) stands for, or nan where it
  // is not known precisely enough; nothing of a tensor that stands for none.
  std::optional<double> number(const ReducedStage& reduced, StageTensorId tensor,
                               std::int64_t index) const;
  // How large the numbers of that tensor are: so much of them may be lost where they are made.
  double size(StageTensorId tensor) const { return size_[tensor]; }

  bool isNumberOf(StageTensorId tensor) const {
    const auto& known = stage_.tensors[tensor].known;
    return known && known->kind == KnownInput::Kind::kNumberOf;
  }

  // An element of a tensor of integers, or of one that is isNumberOf(): of what it is the number.
  // An index is one that the reduced tables tell apart: one that stands for many of their rows is
  // none. Nothing where no such index is one that the tensor may hold.
  std::optional<std::int64_t> drawInteger(const ReducedStage& reduced, StageTensorId tensor,
                                          std::mt19937_64& random, bool positive) const;

 private:
  const Stage& stage_;
  bool any_ = false;
  std::vector<double> size_;    // by tensor
  std::vector<char> asNumber_;  // by tensor: integers whose numbers are computed with
};

}  // namespace shardproof
