// SPDX-License-Identifier: Apache-2.0
// JSON as it is written, without a document in memory: what is asked for is appended to one text.
// Where a list or an object is begun with kLines, each of its entries gets a line of its own, so
// that files can be compared line by line.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardproof {

class JsonWriter {
 public:
  enum Style { kInline, kLines };
  JsonWriter& beginObject(Style style = kInline) { return open('{', style); }
  JsonWriter& endObject() { return close('}'); }
  JsonWriter& beginList(Style style = kInline) { return open('[', style); }
  JsonWriter& endList() { return close(']'); }
  JsonWriter& key(std::string_view name) {
    separate();
    quote(name);
    text_ += ": ";
    afterKey_ = true;
    return *this;
  }
  JsonWriter& text(std::string_view value) {
    separate();
    quote(value);
    return *this;
  }
  JsonWriter& number(std::int64_t value) {
    char digits[24];
    return raw({digits, static_cast<std::size_t>(
                            std::to_chars(digits, digits + sizeof digits, value).ptr - digits)});
  }
  JsonWriter& real(double value) {  // finite; the shortest decimal that is this double
    char digits[32];
    return raw({digits, static_cast<std::size_t>(
                            std::to_chars(digits, digits + sizeof digits, value).ptr - digits)});
  }
  JsonWriter& flag(bool value) { return raw(value ? "true" : "false"); }
  // A value that is JSON already.
  JsonWriter& raw(std::string_view value) {
    separate();
    text_ += value;
    return *this;
  }
  JsonWriter& integers(const std::vector<std::int64_t>& values) {
    beginList();
    for (const std::int64_t v : values) number(v);
    return endList();
  }
  // The whole text, ended by a newline.
  std::string take() {
    text_ += '\n';
    return std::move(text_);
  }

 private:
  struct Level {
    Style style;
    bool first = true;
  };

  JsonWriter& open(char bracket, Style style) {
    separate();
    text_ += bracket;
    levels_.push_back({style});
    return *this;
  }
  JsonWriter& close(char bracket) {
    levels_.pop_back();
    text_ += bracket;
    return *this;
  }
  void separate() {
    if (afterKey_) {
      afterKey_ = false;
      return;
    }
    if (levels_.empty()) return;
    Level& level = levels_.back();
    if (!level.first) text_ += level.style == kLines ? "," : ", ";
    if (level.style == kLines) text_ += '\n';
    level.first = false;
  }
  void quote(std::string_view value) {
    text_ += '"';
    for (const char c : value) {
      if (c == '"' || c == '\\') text_ += '\\';
      if (static_cast<unsigned char>(c) < 0x20) {
        constexpr std::string_view kHex = "0123456789abcdef";
        text_ += "\\u00";
        text_ += kHex[static_cast<std::size_t>(c) >> 4];
        text_ += kHex[static_cast<std::size_t>(c) & 15];
      } else {
        text_ += c;
      }
    }
    text_ += '"';
  }

  std::string text_;
  std::vector<Level> levels_;
  bool afterKey_ = false;
};

}  // namespace shardproof
