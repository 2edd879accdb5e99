// SPDX-License-Identifier: Apache-2.0
// Interned attribute sets. Sharing them makes "same attributes" one integer comparison, which the
// classes of stages rely on.
#include <string>
#include <string_view>
#include <utility>

#include "shardproof/graph.h"

namespace shardproof {

namespace {

void appendQuoted(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  out += '"';
}

struct AppendValue {
  std::string& out;
  void operator()(bool b) const { out += b ? "true" : "false"; }
  void operator()(const Rational& number) const { out += number.toString(); }
  void operator()(const std::string& text) const { appendQuoted(out, text); }
  void operator()(const std::vector<std::int64_t>& list) const {
    out += '[';
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0) out += ',';
      out += std::to_string(list[i]);
    }
    out += ']';
  }
};

// Injective: keys and strings are quoted, and the other kinds of value start with different
// characters.
std::string canonical(const Attributes& attributes) {
  std::string out = "{";
  for (const auto& [key, value] : attributes) {
    if (out.size() > 1) out += ',';
    appendQuoted(out, key);
    out += ':';
    std::visit(AppendValue{out}, value);
  }
  return out + "}";
}

}  // namespace

AttributesId AttributeTable::intern(Attributes attributes) {
  std::string text = canonical(attributes);
  if (const auto it = ids_.find(text); it != ids_.end()) return it->second;
  const AttributesId id(static_cast<std::int64_t>(sets_.size()));
  sets_.push_back(std::make_shared<const Attributes>(std::move(attributes)));
  texts_.push_back(text);
  ids_.emplace(std::move(text), id);
  return id;
}

}  // namespace shardproof
