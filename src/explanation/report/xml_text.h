// SPDX-License-Identifier: Apache-2.0
// Text that XML 1.0 can hold.
#pragma once

#include <string>

namespace shardproof {

// XML 1.0 has no place for control characters, nor for the last two code points of the first plane,
// however they are escaped; names of files may hold any bytes. What cannot stand is replaced; what
// only has to be escaped is not touched.
std::string xmlText(const std::string& text);
std::string xmlSeconds(double value);  // "0.123"

}  // namespace shardproof
