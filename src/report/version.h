#pragma once

namespace shardproof {

// The same as in CMakeLists.txt; a test compares them.
constexpr const char* kVersion = "0.1.0";

}  // namespace shardproof
