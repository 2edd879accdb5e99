// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/window.h"

#include <map>
#include <string_view>

#include "reader/hlo/cursor.h"

namespace shardproof::hlo {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 31;  // of each number, so that products fit

}  // namespace

std::int64_t Window::places(std::int64_t operand) const {
  const std::int64_t whole = (operand - 1) * baseDilation + 1 + low + high;
  const std::int64_t reach = (size - 1) * dilation + 1;
  return operand < 1 || whole < reach ? 0 : (whole - reach) / stride + 1;
}

std::vector<Window> parseWindow(const Attribute& attribute, const std::string& file) {
  Cursor c(attribute.value, file, attribute.place);
  std::vector<Window> dims;
  const auto number = [&](std::int64_t least) {
    const std::int64_t n = c.integer("a number of the window");
    if (n < least || n > kMost)
      failAt(file, attribute.place,
             "found " + std::to_string(n) + ", expected a number of the window from " +
                 std::to_string(least) + " to 2^31");
    return n;
  };
  static const std::map<std::string, std::int64_t Window::*, std::less<>> kNumbers{
      {"size", &Window::size},
      {"stride", &Window::stride},
      {"lhs_dilate", &Window::baseDilation},
      {"rhs_dilate", &Window::dilation}};
  c.take("{");
  bool first = true;
  while (!c.tryTake("}")) {
    const std::string what = c.identifier("a field of the window");
    c.take("=");
    std::size_t d = 0;
    do {
      if (first) dims.emplace_back();
      if (d == dims.size())
        failAt(file, attribute.place, "found '" + what + "' of more dimensions than 'size'");
      Window& w = dims[d++];
      if (what == "pad") {
        w.low = number(-kMost);
        c.take("_");
        w.high = number(-kMost);
      } else if (what == "rhs_reversal") {
        w.reversed = number(0) != 0;
      } else if (const auto field = kNumbers.find(what); field != kNumbers.end()) {
        w.*field->second = number(1);
      } else {
        failAt(file, attribute.place, "found '" + what + "', expected a field of a window");
      }
    } while (c.tryTake("x"));
    if (d != dims.size())
      failAt(file, attribute.place, "found '" + what + "' of fewer dimensions than 'size'");
    if (first && what != "size")
      failAt(file, attribute.place, "found '" + what + "', expected 'size' first");
    first = false;
  }
  return dims;
}

ConvolutionDims parseConvolutionDims(const Attribute& attribute, const std::string& file) {
  ConvolutionDims dims;
  const std::string_view text = attribute.value;
  const auto wrong = [&] {
    failAt(file, attribute.place,
           "found " + attribute.value + ", expected labels such as b01f_01io->b01f");
  };
  // One part: its two letters, and the dimension of each digit.
  const auto read = [&](std::string_view part, char first, std::int64_t& a, char second,
                        std::int64_t& b, std::vector<std::int64_t>& spatial) {
    spatial.assign(part.size() < 2 ? 0 : part.size() - 2, -1);
    a = b = -1;
    for (std::size_t d = 0; d < part.size(); ++d) {
      const auto place = static_cast<std::int64_t>(d);
      const auto digit = static_cast<std::size_t>(part[d] - '0');
      if (part[d] == first && a < 0) a = place;
      else if (part[d] == second && b < 0) b = place;
      else if (part[d] >= '0' && digit < spatial.size() && spatial[digit] < 0)
        spatial[digit] = place;
      else wrong();
    }
    if (a < 0 || b < 0) wrong();
  };
  const std::size_t low = text.find('_'), arrow = text.find("->");
  if (low == std::string_view::npos || arrow == std::string_view::npos || arrow < low) wrong();
  read(text.substr(0, low), 'b', dims.batch, 'f', dims.feature, dims.left);
  read(text.substr(low + 1, arrow - low - 1), 'i', dims.input, 'o', dims.output, dims.right);
  read(text.substr(arrow + 2), 'b', dims.toBatch, 'f', dims.toFeature, dims.to);
  if (dims.left.size() != dims.right.size() || dims.left.size() != dims.to.size()) wrong();
  return dims;
}

}  // namespace shardproof::hlo
