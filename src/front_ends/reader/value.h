// SPDX-License-Identifier: Apache-2.0
// One small JSON value (a tensor, a node, a shard) held flat while it is turned into the problem's
// own structures. The memory is reused from value to value; a whole file is never held this way.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reader/place.h"
#include "shardproof/rational.h"

namespace shardproof::reader {

enum class ValueKind : std::uint8_t { kNull, kBool, kInteger, kDecimal, kString, kArray, kObject };

class Document;

// A handle into a Document; copy freely. Every accessor throws InputError with the value's own
// place when the type is another.
class Value {
 public:
  ValueKind kind() const;
  bool isNull() const { return kind() == ValueKind::kNull; }

  bool boolean() const;
  bool isNegative() const;  // of an integer
  std::int64_t integer(std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t high = std::numeric_limits<std::int64_t>::max()) const;
  Rational number() const;                                // exact
  std::string numberText(const std::string& what) const;  // as it is written; `what` was expected
  std::string_view string() const;                        // valid as long as the value
  std::string_view name() const;                          // a string that is not empty

  std::size_t size() const;   // members or elements
  Value expectArray() const;  // the value itself
  Value expectObject() const;
  // An object with no keys but these: an unknown one is an error, never ignored.
  Value expectFields(std::span<const std::string_view> known) const;
  std::optional<Value> find(std::string_view key) const;
  Value require(std::string_view key) const;

  std::string_view key() const;  // of a member of an object
  std::string describe() const;  // "the string \"x\"", for messages
  std::string pointer() const;
  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void failAt(const std::string& pointer,
                           const std::string& message) const;  // of the same file
  [[noreturn]] void expected(const std::string& what) const;   // "found ..., expected WHAT"
  // The same, with which of `words` may have been meant; with how to write it.
  [[noreturn]] void expectedOneOf(const std::string& what,
                                  const std::vector<std::string>& words) const;
  [[noreturn]] void expectedAs(const std::string& what, const std::string& suggestion) const;

  class Iterator {
   public:
    Iterator(const Document* document, std::uint32_t index) : document_(document), index_(index) {}
    Value operator*() const { return Value(document_, index_); }
    Iterator& operator++();
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.index_ == b.index_; }

   private:
    const Document* document_;
    std::uint32_t index_;
  };
  Iterator begin() const;  // members or elements in file order
  Iterator end() const;

 private:
  friend class Document;
  Value(const Document* document, std::uint32_t index) : document_(document), index_(index) {}
  const Document* document_;
  std::uint32_t index_;
};

class Document {
 public:
  explicit Document(const Place& place) : place_(place) {}
  void clear();
  // Builders, in the order of the file. Each takes the key (empty in an array).
  void addNull(std::string_view key) { add(key, ValueKind::kNull); }
  void addBool(std::string_view key, bool b) {
    entries_[add(key, ValueKind::kBool)].integer = b ? 1 : 0;
  }
  void addInteger(std::string_view key, std::int64_t n) {
    entries_[add(key, ValueKind::kInteger)].integer = n;
  }
  void addDecimal(std::string_view key, std::string_view text) {
    setText(add(key, ValueKind::kDecimal), text);
  }
  void addString(std::string_view key, std::string_view text) {
    setText(add(key, ValueKind::kString), text);
  }
  void open(std::string_view key, bool object);
  bool close();  // true when that was the outermost container
  Value root() const { return Value(this, 0); }

 private:
  friend class Value;
  friend class Value::Iterator;
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  struct Entry {
    ValueKind kind;
    std::uint32_t parent, next, first, last, count;
    std::uint32_t keyBegin, keyLength, textBegin, textLength;
    std::int64_t integer;
  };
  std::uint32_t add(std::string_view key, ValueKind kind);
  void setText(std::uint32_t entry, std::string_view text);
  std::uint32_t store(std::string_view text);
  std::string_view slice(std::uint32_t begin, std::uint32_t length) const {
    return std::string_view(text_).substr(begin, length);
  }

  const Place& place_;  // stands at the root value while it is read
  std::vector<Entry> entries_;
  std::string text_;
  std::uint32_t open_ = kNone;  // innermost open container
};

// "a", "b" and "c", for messages.
std::string listNames(std::span<const std::string_view> names);

}  // namespace shardproof::reader
