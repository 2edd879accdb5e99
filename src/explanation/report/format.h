// SPDX-License-Identifier: Apache-2.0
// How names and numbers look in what is printed for people.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "util/printable.h"  // of names

namespace shardproof {

std::string grouped(std::size_t value);  // 1,380,352
std::string grouped(double value);
std::string counted(std::size_t n, const char* one, const char* many);
std::string seconds(double value);  // 0.05 s, 12.3 s, 2 min 05 s
std::string megabytes(std::size_t bytes);

// Width in characters, not in bytes: UTF-8 continuation bytes take no column.
std::size_t columns(std::string_view text);
std::string padded(std::string text, std::size_t width);
std::string alignedRight(const std::string& text, std::size_t width);

}  // namespace shardproof
