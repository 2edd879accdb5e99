// SPDX-License-Identifier: Apache-2.0
// Reading HLO text piece by piece, with places for messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reader/hlo/syntax.h"

namespace shardproof::hlo {

// A position in a text. `file` and `start` are for messages: an attribute's value is read by a
// cursor of its own that goes on counting where the value stands. All throw InputError (FILE:
// line L, column C: what was found, what was expected).
class Cursor {
 public:
  Cursor(std::string_view text, std::string file, Place start = {});

  bool atEnd() const { return at_ >= text_.size(); }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  void advance();
  Place place() const { return place_; }
  std::size_t offset() const { return at_; }
  std::string_view since(std::size_t offset) const { return text_.substr(offset, at_ - offset); }

  // Blanks, newlines and comments (/* ... */, and // to the end of the line).
  void skipSpace();
  // The same within a line.
  void skipBlanks();

  bool tryTake(std::string_view word);  // exactly these characters, after space
  void take(std::string_view word);
  bool looksAt(std::string_view word) const { return text_.substr(at_, word.size()) == word; }
  // Letters, digits and . _ - ; throws if there is none.
  std::string identifier(const char* expected);
  // A name of an instruction or computation, with or without `%`.
  std::string name(const char* expected);
  // A decimal integer within 64 bits.
  std::int64_t integer(const char* expected);
  // A text in quotes (either kind), with \ before what it escapes.
  std::string quoted();
  // "[1,2,3]" or "{1,2,3}": integers between these brackets; may be empty.
  std::vector<std::int64_t> integers(char open, char close);

  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void failAt(Place place, const std::string& message) const;
  // "found 'x', expected WHAT"
  [[noreturn]] void expected(const std::string& what) const;
  const std::string& file() const { return file_; }

 private:
  bool skipComment();

  std::string_view text_;
  std::string file_;
  std::size_t at_ = 0;
  Place place_;
};

// The message's place as it is written: "line 3, column 7".
std::string toText(Place place);
[[noreturn]] void failAt(const std::string& file, Place place, const std::string& message);

}  // namespace shardproof::hlo
