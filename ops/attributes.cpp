// SPDX-License-Identifier: Apache-2.0
#include "ops/attributes.h"

#include <algorithm>
#include <stdexcept>

namespace shardproof::ops {
namespace {

std::string describe(const AttributeValue& value) {
  if (const bool* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const Rational* r = std::get_if<Rational>(&value)) return r->toString();
  if (const std::string* s = std::get_if<std::string>(&value)) return "\"" + *s + "\"";
  return toText(std::get<std::vector<std::int64_t>>(value));
}

const char* describe(AttributeType type) {
  switch (type) {
    case AttributeType::kFlag:
      return "true or false";
    case AttributeType::kInteger:
      return "an integer";
    case AttributeType::kNumber:
      return "a number";
    case AttributeType::kText:
      return "a string";
    case AttributeType::kIntegers:
      return "a list of integers";
    case AttributeType::kIntegerOrIntegers:
      return "an integer or a non-empty list of integers";
  }
  return "";
}

[[noreturn]] void fail(std::string_view key, const AttributeValue& found,
                       const std::string& expected) {
  throw std::invalid_argument("attribute '" + std::string(key) + "': found " + describe(found) +
                              ", expected " + expected);
}

bool fits(AttributeType type, const AttributeValue& value) {
  const Rational* r = std::get_if<Rational>(&value);
  const auto* list = std::get_if<std::vector<std::int64_t>>(&value);
  switch (type) {
    case AttributeType::kFlag:
      return std::holds_alternative<bool>(value);
    case AttributeType::kInteger:
      return r != nullptr && r->fitsInt64();
    case AttributeType::kNumber:
      return r != nullptr;
    case AttributeType::kText:
      return std::holds_alternative<std::string>(value);
    case AttributeType::kIntegers:
      return list != nullptr;
    case AttributeType::kIntegerOrIntegers:
      return (r != nullptr && r->fitsInt64()) || (list != nullptr && !list->empty());
  }
  return false;
}

void checkRange(const AttributeRule& rule, const AttributeValue& value, const Rational& entry) {
  if (rule.min && entry < *rule.min) fail(rule.key, value, "at least " + rule.min->toString());
  if (rule.max && *rule.max < entry) fail(rule.key, value, "at most " + rule.max->toString());
}

const AttributeValue* find(const Attributes& attributes, std::string_view key) {
  const auto it = attributes.find(key);
  return it == attributes.end() ? nullptr : &it->second;
}

const AttributeValue& need(const Attributes& attributes, std::string_view key) {
  const AttributeValue* value = find(attributes, key);
  if (value == nullptr)
    throw std::invalid_argument("attribute '" + std::string(key) + "' is missing");
  return *value;
}

template <class T>
const T& typed(const AttributeValue& value, std::string_view key, AttributeType type) {
  const T* t = std::get_if<T>(&value);
  if (t == nullptr) fail(key, value, describe(type));
  return *t;
}

}  // namespace

std::string toText(const std::vector<std::int64_t>& list) {
  std::string s = "[";
  for (std::size_t i = 0; i < list.size(); ++i) s += (i ? ", " : "") + std::to_string(list[i]);
  return s + "]";
}

void checkAttributes(const std::vector<AttributeRule>& rules, const Attributes& attributes) {
  for (const auto& [key, value] : attributes) {
    const auto rule = std::find_if(rules.begin(), rules.end(),
                                   [&k = key](const AttributeRule& r) { return r.key == k; });
    if (rule == rules.end()) {
      std::string known;
      for (const AttributeRule& r : rules) known += (known.empty() ? "" : ", ") + r.key;
      throw std::invalid_argument("unknown attribute '" + key + "', expected " +
                                  (known.empty() ? "no attributes" : "only: " + known));
    }
    if (!fits(rule->type, value)) fail(key, value, describe(rule->type));
    if (const Rational* r = std::get_if<Rational>(&value)) checkRange(*rule, value, *r);
    if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value))
      for (const std::int64_t entry : *list) checkRange(*rule, value, Rational(entry));
    if (const std::string* s = std::get_if<std::string>(&value);
        s != nullptr && !rule->choices.empty()) {
      if (std::find(rule->choices.begin(), rule->choices.end(), *s) == rule->choices.end()) {
        std::string all;
        for (const std::string& c : rule->choices) all += (all.empty() ? "\"" : ", \"") + c + "\"";
        fail(key, value, "one of " + all);
      }
    }
  }
  for (const AttributeRule& r : rules)
    if (r.required && !has(attributes, r.key))
      throw std::invalid_argument("attribute '" + r.key + "' is missing, expected " +
                                  describe(r.type));
}

bool has(const Attributes& attributes, std::string_view key) {
  return find(attributes, key) != nullptr;
}

bool flag(const Attributes& attributes, std::string_view key, bool otherwise) {
  const AttributeValue* v = find(attributes, key);
  return v == nullptr ? otherwise : typed<bool>(*v, key, AttributeType::kFlag);
}

std::int64_t integer(const Attributes& attributes, std::string_view key) {
  const AttributeValue& v = need(attributes, key);
  const Rational& r = typed<Rational>(v, key, AttributeType::kInteger);
  if (!r.fitsInt64()) fail(key, v, describe(AttributeType::kInteger));
  return r.toInt64();
}

std::int64_t integer(const Attributes& attributes, std::string_view key, std::int64_t otherwise) {
  return has(attributes, key) ? integer(attributes, key) : otherwise;
}

Rational number(const Attributes& attributes, std::string_view key) {
  return typed<Rational>(need(attributes, key), key, AttributeType::kNumber);
}

Rational number(const Attributes& attributes, std::string_view key, const Rational& otherwise) {
  return has(attributes, key) ? number(attributes, key) : otherwise;
}

std::string text(const Attributes& attributes, std::string_view key) {
  return typed<std::string>(need(attributes, key), key, AttributeType::kText);
}

std::string text(const Attributes& attributes, std::string_view key, std::string_view otherwise) {
  return has(attributes, key) ? text(attributes, key) : std::string(otherwise);
}

std::vector<std::int64_t> integers(const Attributes& attributes, std::string_view key) {
  const AttributeValue& v = need(attributes, key);
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&v)) return *list;
  return {integer(attributes, key)};
}

}  // namespace shardproof::ops
