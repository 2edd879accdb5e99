// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/cursor.h"

#include <limits>

#include "shardproof/error.h"

namespace shardproof::hlo {
namespace {

bool isDigit(char c) { return c >= '0' && c <= '9'; }
bool isLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool isWord(char c) { return isLetter(c) || isDigit(c) || c == '_' || c == '.' || c == '-'; }

}  // namespace

std::string toText(Place place) {
  return "line " + std::to_string(place.line) + ", column " + std::to_string(place.column);
}

void failAt(const std::string& file, Place place, const std::string& message) {
  throw InputError(file, toText(place), message);
}

Cursor::Cursor(std::string_view text, std::string file, Place start)
    : text_(text), file_(std::move(file)), place_(start) {}

void Cursor::advance() {
  if (atEnd()) return;
  if (text_[at_] == '\n') {
    ++place_.line;
    place_.column = 1;
  } else {
    ++place_.column;
  }
  ++at_;
}

bool Cursor::skipComment() {
  if (peek() != '/') return false;
  if (peek(1) == '/') {
    while (!atEnd() && peek() != '\n') advance();
    return true;
  }
  if (peek(1) != '*') return false;
  const Place begin = place_;
  advance();
  advance();
  while (!(peek() == '*' && peek(1) == '/')) {
    if (atEnd()) failAt(begin, "the comment that begins here has no end, expected */");
    advance();
  }
  advance();
  advance();
  return true;
}

void Cursor::skipSpace() {
  while (!atEnd()) {
    const char c = peek();
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') advance();
    else if (!skipComment()) return;
  }
}

void Cursor::skipBlanks() {
  while (!atEnd()) {
    const char c = peek();
    if (c == ' ' || c == '\t' || c == '\r') advance();
    else if (!skipComment()) return;
  }
}

bool Cursor::tryTake(std::string_view word) {
  skipSpace();
  if (!looksAt(word)) return false;
  for (std::size_t i = 0; i < word.size(); ++i) advance();
  return true;
}

void Cursor::take(std::string_view word) {
  if (!tryTake(word)) expected("'" + std::string(word) + "'");
}

std::string Cursor::identifier(const char* what) {
  skipSpace();
  const std::size_t begin = at_;
  while (isWord(peek())) advance();
  if (at_ == begin) expected(what);
  return std::string(since(begin));
}

std::string Cursor::name(const char* what) {
  skipSpace();
  if (peek() == '%') advance();
  if (peek() == '"') return quoted();
  const std::size_t begin = at_;
  // In place of other characters there may be any that do not end a name.
  while (isWord(peek()) || (!atEnd() && static_cast<unsigned char>(peek()) >= 0x80)) advance();
  if (at_ == begin) expected(what);
  return std::string(since(begin));
}

std::int64_t Cursor::integer(const char* what) {
  skipSpace();
  const Place begin = place_;
  const bool negative = peek() == '-';
  if (negative) advance();
  if (!isDigit(peek())) expected(what);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  std::int64_t value = 0;
  while (isDigit(peek())) {
    const std::int64_t digit = peek() - '0';
    if (value > (kMost - digit) / 10)
      failAt(begin, "found an integer that does not fit 64 bits, expected " + std::string(what));
    value = value * 10 + digit;
    advance();
  }
  return negative ? -value : value;
}

std::string Cursor::quoted() {
  skipSpace();
  const Place begin = place_;
  const char quote = peek();
  if (quote != '"' && quote != '\'') expected("a text in quotes");
  advance();
  std::string text;
  while (peek() != quote) {
    if (atEnd()) failAt(begin, "the text in quotes that begins here has no end");
    if (peek() == '\\' && peek(1) != '\0') advance();
    text += peek();
    advance();
  }
  advance();
  return text;
}

std::vector<std::int64_t> Cursor::integers(char open, char close) {
  take(std::string_view(&open, 1));
  std::vector<std::int64_t> list;
  if (tryTake(std::string_view(&close, 1))) return list;
  do list.push_back(integer("an integer"));
  while (tryTake(","));
  take(std::string_view(&close, 1));
  return list;
}

void Cursor::fail(const std::string& message) const { failAt(place_, message); }
void Cursor::failAt(Place place, const std::string& message) const {
  hlo::failAt(file_, place, message);
}

void Cursor::expected(const std::string& what) const {
  if (atEnd()) fail("found the end, expected " + what);
  std::string found;
  for (std::size_t i = 0; i < 24 && at_ + i < text_.size() && text_[at_ + i] != '\n'; ++i)
    found += text_[at_ + i];
  fail(found.empty() ? "found the end of the line, expected " + what
                     : "found '" + found + "', expected " + what);
}

}  // namespace shardproof::hlo
