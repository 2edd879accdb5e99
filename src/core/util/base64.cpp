// SPDX-License-Identifier: Apache-2.0
#include "util/base64.h"

#include <cstdint>

#include <nettle/base64.h>

namespace shardproof {

std::string base64(std::string_view bytes) {
  std::string text(BASE64_ENCODE_RAW_LENGTH(bytes.size()), '\0');
  base64_encode_raw(text.data(), bytes.size(), reinterpret_cast<const std::uint8_t*>(bytes.data()));
  return text;
}

std::optional<std::string> fromBase64(std::string_view text) {
  std::string bytes(BASE64_DECODE_LENGTH(text.size()), '\0');
  base64_decode_ctx state{};
  base64_decode_init(&state);
  std::size_t length = bytes.size();
  if (base64_decode_update(&state, &length, reinterpret_cast<std::uint8_t*>(bytes.data()),
                           text.size(), text.data()) == 0)
    return std::nullopt;
  if (base64_decode_final(&state) == 0) return std::nullopt;
  bytes.resize(length);
  // White space and stray bits at the end are passed over by the decoder: one text for one value.
  if (base64(bytes) != text) return std::nullopt;
  return bytes;
}

}  // namespace shardproof
