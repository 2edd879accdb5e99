// SPDX-License-Identifier: Apache-2.0
// The windows of convolutions and reductions: "{size=3x3 stride=2x2 pad=0_1x0_1 ...}".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reader/hlo/syntax.h"

namespace shardproof::hlo {

// Of one dimension. Position p of a window at place s is at s * stride + p * dilation of the
// operand, after zeros (or whatever is the operation's own) have been put between its elements
// (baseDilation - 1 each), before and after it.
struct Window {
  std::int64_t size = 1, stride = 1, low = 0, high = 0, baseDilation = 1, dilation = 1;
  bool reversed = false;

  // How many places the window has in an operand of this size; 0 if none.
  std::int64_t places(std::int64_t operand) const;
};

// One for each dimension. Throws InputError for what is no window, or too large to compute with.
std::vector<Window> parseWindow(const Attribute& attribute, const std::string& file);

// "b01f_01io->b01f": where the dimensions of operands and result are.
struct ConvolutionDims {
  std::int64_t batch = 0, feature = 0;        // of the left operand
  std::int64_t input = 0, output = 0;         // features, of the right one
  std::int64_t toBatch = 0, toFeature = 0;    // of the result
  std::vector<std::int64_t> left, right, to;  // by number of the window's dimension
};
ConvolutionDims parseConvolutionDims(const Attribute& attribute, const std::string& file);

}  // namespace shardproof::hlo
