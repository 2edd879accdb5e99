// SPDX-License-Identifier: Apache-2.0
#include "util/printable.h"

#include <array>
#include <cstdint>
#include <cstdio>

namespace shardproof {
namespace {

struct Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;  // 0: no UTF-8
};

Character decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t bytes = first >= 0xf0 && first < 0xf5   ? 4
                            : first >= 0xe0 && first < 0xf0 ? 3
                            : first >= 0xc2 && first < 0xe0 ? 2
                                                            : 0;
  if (bytes == 0 || text.size() < bytes) return {};
  std::uint32_t code = first & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr std::array<std::uint32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return {};
  return {code, bytes};
}

bool isHarmless(std::uint32_t code) {
  const bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  const bool direction = code == 0x61c || code == 0x200e || code == 0x200f ||
                         (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  const bool line = code == 0x2028 || code == 0x2029;
  return !control && !direction && !line;
}

}  // namespace

std::string printable(std::string_view text, std::size_t most) {
  if (text.size() > most) {
    // A character that is cut in two comes out as its bytes' codes.
    return printable(text.substr(0, most / 2)) + " ... " +
           printable(text.substr(text.size() - most / 2));
  }
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Character c = decode(text);
    const std::size_t bytes = c.bytes == 0 ? 1 : c.bytes;
    if (c.bytes != 0 && isHarmless(c.code)) {
      result += text.substr(0, bytes);
    } else {
      std::array<char, 16> escaped{};
      const char* form = c.bytes > 1 ? "\\u%04x" : "\\x%02x";
      std::snprintf(
          escaped.data(), escaped.size(), form,
          c.bytes == 0 ? static_cast<unsigned>(static_cast<unsigned char>(text[0])) : c.code);
      result += escaped.data();
    }
    text.remove_prefix(bytes);
  }
  return result;
}

}  // namespace shardproof
