// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), by the nettle library: what a proof log names files and canonical forms by.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nettle/sha2.h>

namespace shardproof {

class Sha256 {
 public:
  Sha256() { sha256_init(&state_); }
  void update(std::string_view bytes);
  std::string hex();  // 64 digits, of everything so far; starts anew

 private:
  sha256_ctx state_{};
};

std::string sha256Hex(std::string_view bytes);

}  // namespace shardproof
