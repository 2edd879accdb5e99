// SPDX-License-Identifier: Apache-2.0
#include "report/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace shardproof {

std::string grouped(std::size_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string grouped(double value) {
  if (value >= 0 && value < 1e15) return grouped(static_cast<std::size_t>(std::llround(value)));
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return text.data();
}

std::string counted(std::size_t n, const char* one, const char* many) {
  return grouped(n) + " " + (n == 1 ? one : many);
}

std::string seconds(double value) {
  std::array<char, 40> text{};
  if (value < 60) std::snprintf(text.data(), text.size(), value < 1 ? "%.2f s" : "%.1f s", value);
  else
    std::snprintf(text.data(), text.size(), "%lld min %02lld s", std::llround(value) / 60,
                  std::llround(value) % 60);
  return text.data();
}

std::string megabytes(std::size_t bytes) { return grouped((bytes + (1u << 20) - 1) >> 20) + " MB"; }

std::size_t columns(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string padded(std::string text, std::size_t width) {
  if (const std::size_t now = columns(text); now < width) text.append(width - now, ' ');
  return text;
}

std::string alignedRight(const std::string& text, std::size_t width) {
  const std::size_t now = columns(text);
  return now < width ? std::string(width - now, ' ') + text : text;
}

}  // namespace shardproof
