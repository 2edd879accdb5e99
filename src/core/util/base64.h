// SPDX-License-Identifier: Apache-2.0
// Bytes as text (RFC 4648), by the nettle library.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace shardproof {

std::string base64(std::string_view bytes);
// Nothing where `text` is not exactly what base64() writes for some bytes.
std::optional<std::string> fromBase64(std::string_view text);

}  // namespace shardproof
