// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace shardproof {

// The program's version; CMakeLists.txt has it.
extern const char* const kVersion;

}  // namespace shardproof
