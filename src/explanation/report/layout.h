// SPDX-License-Identifier: Apache-2.0
// How text for people is put on the screen: colour, and lines that fit it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardproof {

struct TextStyle {
  bool quiet = false;         // the verdict's line only
  bool verbose = false;       // all that there is: no list is cut short, no name shortened
  bool colour = false;        // escape sequences (ECMA-48) for a terminal
  std::size_t width = 0;      // columns; 0: lines are not wrapped
  std::size_t maxCauses = 3;  // told one by one; not when `verbose`

  std::size_t atMost(std::size_t count) const {
    return verbose ? static_cast<std::size_t>(-1) : count;
  }
};

// What the label of a line is about: its colour.
enum class Tone : std::uint8_t { kBad, kGood, kOpen, kHead, kLabel, kAdvice };

// The label that a line begins with, colon and blanks included: laidOut() colours it, and continues
// a wrapped value below where it begins. In text that laidOut() has not seen, it stands between two
// control characters (printable() leaves none in names of files).
std::string label(std::string_view text, Tone tone);

// `text` with each line wrapped between words to `style.width`, and its labels coloured. A word
// that is longer than a line is cut. Nothing is coloured or wrapped that `style` does not ask for.
std::string laidOut(std::string_view text, const TextStyle& style);

}  // namespace shardproof
