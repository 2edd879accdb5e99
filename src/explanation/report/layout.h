// SPDX-License-Identifier: Apache-2.0
// How text for people is put on the screen: colour, and lines that fit it.
#pragma once

#include <cstddef>
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

// `text` with each line wrapped between words to `style.width`, what goes on below where its value
// begins, and coloured by the labels that lines begin with. A word that is longer than a line is
// cut. Nothing is coloured or wrapped that `style` does not ask for.
std::string laidOut(std::string_view text, const TextStyle& style);

}  // namespace shardproof
