#pragma once

namespace shardproof {

// The program's version; CMakeLists.txt has it.
extern const char* const kVersion;

}  // namespace shardproof
