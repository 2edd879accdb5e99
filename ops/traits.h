// SPDX-License-Identifier: Apache-2.0
// Facts about an operator that code outside of its definition relies on: front ends, inference,
// mutations. Each is true of every call of the operator; tests/ops/traits_test.cpp checks each by
// numbers. A list of operator names elsewhere is a sign that a fact is missing here.
#pragma once

#include <cstdint>

namespace shardproof::ops {

// Of all elements of the first result, where they have a value.
enum class Sign : std::uint8_t {
  kAny,
  kNotNegative,
  kPositive,  // zero only where the operand is minus infinity
};

struct Traits {
  // One result, each element of which reads only the elements at its own position of the operands:
  // where nothing is broadcast, the Jacobian is diagonal.
  bool elementwise = false;
  // Each result holds exactly the first operand's elements, in some arrangement (identity, view,
  // transpose, ...): knowing one is knowing the other.
  bool rearranges = false;
  // Two operands of equal shape, without attributes: the result is their sum, element by element.
  // Sums of such sums may be made at once.
  bool sums = false;
  // Each element of a result is an element of an operand; which one depends on shapes, attributes
  // and integer operands only. All that rearrange do.
  bool moves = false;
  // The same, but which one may depend on the elements (amax). All that move do.
  bool picks = false;
  // The gradient does not depend on the values of the operands that have gradients.
  bool affine = false;
  // The result has a value wherever all operands are numbers; so does the gradient.
  bool total = false;
  // Bounded where operands tend to minus infinity beside numbers: masked scores become numbers. Of
  // a gradient: where the operands of the forward operator do, its own operand being a number.
  bool finite = false;
  // The first result is above zero where all operands and number attributes are, and not below zero
  // where none of them is.
  bool keepsSign = false;
  Sign sign = Sign::kAny;
};

}  // namespace shardproof::ops
