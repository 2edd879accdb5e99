// SPDX-License-Identifier: Apache-2.0
// What an operator declares about itself besides its shape rule, reduction rule and meaning.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "ops/attributes.h"
#include "ops/traits.h"

namespace shardproof::ops {

constexpr std::size_t kAnyNumber = static_cast<std::size_t>(-1);

struct Interface {
  std::string name = {};
  std::vector<AttributeRule> attributes = {};
  std::size_t minOperands = 1, maxOperands = 1;
  std::size_t minResults = 1, maxResults = 1;
  std::vector<std::size_t> optionalOperands = {};  // may be null
  bool everyOperandOptional = false;
  bool differentiable = true;  // NAME_backward is defined too (needs a fixed number of results)
  std::vector<std::size_t> withoutGradient =
      {};                 // operands for which no gradient exists (integers never have one)
  bool separate = false;  // of the operands that have gradients, result r reads operand r only
  bool scalarMayBeOne = false;
  bool followsLogicalPosition = false;  // OperatorInfo::followsLogicalPosition
  Traits traits = {};
  bool finiteGradient = false;  // Traits::finite of NAME_backward, where NAME is not finite itself
  // What concerns several attributes, or attributes and numbers of operands. Throws
  // std::invalid_argument.
  std::function<void(const Attributes&, std::size_t operands, std::size_t results)> check = nullptr;
};

}  // namespace shardproof::ops
