// SPDX-License-Identifier: Apache-2.0
// Names that someone may have meant who wrote another.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardproof {

// Of `known` those that few letters tell apart from `word`, the nearest first; at most `most`.
std::vector<std::string> similarTo(std::string_view word, const std::vector<std::string>& known,
                                   std::size_t most = 3);

// `, did you mean "a" or "b"?`, or nothing.
std::string didYouMean(std::string_view word, const std::vector<std::string>& known);

}  // namespace shardproof
