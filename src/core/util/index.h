// SPDX-License-Identifier: Apache-2.0
// Positions and sizes are std::int64_t, as in the files; what they index has std::size_t.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shardproof {

// A position that is known not to be negative, as an index.
inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace shardproof
