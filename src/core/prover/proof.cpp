// SPDX-License-Identifier: Apache-2.0
#include "prover/proof.h"

#include <charconv>
#include <functional>
#include <stdexcept>

namespace shardproof {

namespace {

constexpr char kSeparator = ':';

}  // namespace

std::uint64_t Proof::fingerprint(std::string_view form) {
  return std::hash<std::string_view>{}(form);
}

std::string Proof::bytes() const {
  return std::to_string(static_cast<int>(method_)) + kSeparator + std::to_string(form_);
}

Proof Proof::fromBytes(std::string_view bytes) {
  const char* const end = bytes.data() + bytes.size();
  int method = 0;
  std::uint64_t form = 0;
  const auto first = std::from_chars(bytes.data(), end, method);
  const bool separated = first.ec == std::errc() && first.ptr != end && *first.ptr == kSeparator;
  const auto second = separated ? std::from_chars(first.ptr + 1, end, form) : first;
  if (!separated || second.ec != std::errc() || second.ptr != end ||
      !proves(static_cast<Method>(method)))
    throw std::invalid_argument("these bytes are no proof");
  return {static_cast<Method>(method), form};
}

}  // namespace shardproof
