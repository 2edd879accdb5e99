// SPDX-License-Identifier: Apache-2.0
// Text from files on its way to a person.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace shardproof {

// Names come from files that anyone may have written. What could steer a terminal or make a line
// look like another is replaced by its code: control characters (also those beyond ASCII), line
// separators, marks that turn the direction of writing, and bytes that are no UTF-8. Of what is
// longer than `most` bytes the middle is left out.
std::string printable(std::string_view text,
                      std::size_t most = std::numeric_limits<std::size_t>::max());

}  // namespace shardproof
