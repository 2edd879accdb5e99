// SPDX-License-Identifier: Apache-2.0
// Attribute rules: each operator lists the attributes it has, and everything else is an error.
// Accessors read what the rules admitted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardproof/graph.h"
#include "shardproof/rational.h"

namespace shardproof::ops {

enum class AttributeType : std::uint8_t {
  kFlag,
  kInteger,
  kNumber,
  kText,
  kIntegers,
  kIntegerOrIntegers
};

struct AttributeRule {
  std::string key;
  AttributeType type = AttributeType::kInteger;
  bool required = false;
  std::optional<Rational> min =
      std::nullopt;  // inclusive; for numbers and for each entry of a list
  std::optional<Rational> max = std::nullopt;
  std::vector<std::string> choices = {};  // for text
};

// Throws std::invalid_argument for an unknown, missing, ill-typed or out-of-range attribute, saying
// what was found and expected.
void checkAttributes(const std::vector<AttributeRule>& rules, const Attributes& attributes);

bool has(const Attributes& attributes, std::string_view key);
// These throw std::invalid_argument when the attribute is missing (without default) or of another
// type.
bool flag(const Attributes& attributes, std::string_view key, bool otherwise);
std::int64_t integer(const Attributes& attributes, std::string_view key);
std::int64_t integer(const Attributes& attributes, std::string_view key, std::int64_t otherwise);
Rational number(const Attributes& attributes, std::string_view key);
Rational number(const Attributes& attributes, std::string_view key, const Rational& otherwise);
std::string text(const Attributes& attributes, std::string_view key);
std::string text(const Attributes& attributes, std::string_view key, std::string_view otherwise);
// A list, or a single integer as a list of one.
std::vector<std::int64_t> integers(const Attributes& attributes, std::string_view key);

// "[2, 3]", for messages.
std::string toText(const std::vector<std::int64_t>& list);

}  // namespace shardproof::ops
