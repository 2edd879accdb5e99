// SPDX-License-Identifier: Apache-2.0
#include "reader/value.h"

#include <algorithm>
#include <stdexcept>

#include "ir/suggestions.h"
#include "shardproof/error.h"
#include "util/json_pointer.h"

namespace shardproof::reader {

std::string listNames(std::span<const std::string_view> names) {
  std::string out;
  std::size_t i = 0;
  for (const std::string_view name : names) {
    if (i > 0) out += i + 1 == names.size() ? " and " : ", ";
    out += "\"" + std::string(name) + "\"";
    ++i;
  }
  return out;
}

// --- Document ---

void Document::clear() {
  entries_.clear();
  text_.clear();
  open_ = kNone;
}

std::uint32_t Document::store(std::string_view text) {
  // 32-bit offsets: one element of more than 4 GB is refused rather than misread.
  if (text_.size() + text.size() >= kNone) place_.fail("a single value is larger than 4 GB");
  const auto begin = static_cast<std::uint32_t>(text_.size());
  text_ += text;
  return begin;
}

std::uint32_t Document::add(std::string_view key, ValueKind kind) {
  if (entries_.size() >= kNone - 1)
    place_.fail("a single value has more than four thousand million members");
  const auto index = static_cast<std::uint32_t>(entries_.size());
  const std::uint32_t keyBegin = store(key);
  entries_.push_back({kind, open_, kNone, kNone, kNone, 0, keyBegin,
                      static_cast<std::uint32_t>(key.size()), 0, 0, 0});
  if (open_ != kNone) {
    Entry& parent = entries_[open_];
    if (parent.last == kNone) {
      parent.first = index;
    } else {
      entries_[parent.last].next = index;
    }
    parent.last = index;
    ++parent.count;
  }
  return index;
}

void Document::setText(std::uint32_t entry, std::string_view text) {
  entries_[entry].textBegin = store(text);
  entries_[entry].textLength = static_cast<std::uint32_t>(text.size());
}

void Document::open(std::string_view key, bool object) {
  open_ = add(key, object ? ValueKind::kObject : ValueKind::kArray);
}

bool Document::close() {
  open_ = entries_[open_].parent;
  return open_ == kNone;
}

// --- Value ---

ValueKind Value::kind() const { return document_->entries_[index_].kind; }
std::size_t Value::size() const { return document_->entries_[index_].count; }

Value::Iterator& Value::Iterator::operator++() {
  index_ = document_->entries_[index_].next;
  return *this;
}
Value::Iterator Value::begin() const { return {document_, document_->entries_[index_].first}; }
Value::Iterator Value::end() const { return {document_, Document::kNone}; }

std::string_view Value::key() const {
  const Document::Entry& e = document_->entries_[index_];
  return document_->slice(e.keyBegin, e.keyLength);
}

std::string Value::pointer() const {
  const Document::Entry& e = document_->entries_[index_];
  if (e.parent == Document::kNone) return document_->place_.pointer();
  const Value parent(document_, e.parent);
  if (parent.kind() == ValueKind::kObject) return parent.pointer() + "/" + escapePointer(key());
  std::size_t position = 0;
  for (std::uint32_t i = document_->entries_[e.parent].first; i != index_;
       i = document_->entries_[i].next)
    ++position;
  return parent.pointer() + "/" + std::to_string(position);
}

void Value::fail(const std::string& message) const {
  throw InputError(document_->place_.file(), pointer(), message);
}
void Value::failAt(const std::string& pointer, const std::string& message) const {
  throw InputError(document_->place_.file(), pointer, message);
}
void Value::expectedOneOf(const std::string& what, const std::vector<std::string>& words) const {
  const bool word = kind() == ValueKind::kString;
  fail("found " + describe() + ", expected " + what +
       (word ? ir::suggestWord(string(), words) : std::string()));
}
void Value::expectedAs(const std::string& what, const std::string& suggestion) const {
  fail("found " + describe() + ", expected " + what + ": " + suggestion);
}
void Value::expected(const std::string& what) const {
  fail("found " + describe() + ", expected " + what);
}

std::string Value::describe() const {
  const Document::Entry& e = document_->entries_[index_];
  const std::string_view text = document_->slice(e.textBegin, e.textLength);
  switch (e.kind) {
    case ValueKind::kNull:
      return "null";
    case ValueKind::kBool:
      return e.integer != 0 ? "true" : "false";
    case ValueKind::kInteger:
      return "the number " + std::to_string(e.integer);
    case ValueKind::kDecimal:
      return "the number " + std::string(text);
    case ValueKind::kString:
      return "the string \"" + std::string(text.substr(0, 60)) + (text.size() > 60 ? "..." : "") +
             "\"";
    case ValueKind::kArray:
      return e.count == 0 ? "an empty list" : "a list of length " + std::to_string(e.count);
    case ValueKind::kObject:
      return "an object";
  }
  return "a value";
}

bool Value::boolean() const {
  if (kind() != ValueKind::kBool) expected("true or false");
  return document_->entries_[index_].integer != 0;
}

bool Value::isNegative() const { return document_->entries_[index_].integer < 0; }

std::int64_t Value::integer(std::int64_t low, std::int64_t high) const {
  const Document::Entry& e = document_->entries_[index_];
  if (e.kind == ValueKind::kInteger && e.integer >= low && e.integer <= high) return e.integer;
  std::string what = "an integer";
  if (high != std::numeric_limits<std::int64_t>::max()) {
    what += " from " + std::to_string(low) + " to " + std::to_string(high);
  } else if (low != std::numeric_limits<std::int64_t>::min()) {
    what += " of at least " + std::to_string(low) + " and at most 64 bits";
  } else {
    what += " of at most 64 bits";
  }
  expected(what);
}

Rational Value::number() const {
  const Document::Entry& e = document_->entries_[index_];
  if (e.kind == ValueKind::kInteger) return Rational(e.integer);
  if (e.kind != ValueKind::kDecimal) expected("a number");
  const std::string_view text = document_->slice(e.textBegin, e.textLength);
  try {
    return Rational::parse(text);
  } catch (const std::out_of_range& error) {
    fail("the number " + std::string(text) + " is out of range: " + error.what());
  } catch (const std::invalid_argument& error) {
    fail("cannot read the number " + std::string(text) + ": " + error.what());
  }
}

std::string Value::numberText(const std::string& what) const {
  const Document::Entry& e = document_->entries_[index_];
  if (e.kind == ValueKind::kInteger) return std::to_string(e.integer);
  if (e.kind != ValueKind::kDecimal) expected(what);
  return std::string(document_->slice(e.textBegin, e.textLength));
}

std::string_view Value::string() const {
  const Document::Entry& e = document_->entries_[index_];
  if (e.kind != ValueKind::kString) expected("a string");
  return document_->slice(e.textBegin, e.textLength);
}

std::string_view Value::name() const {
  const std::string_view text = string();
  if (text.empty()) expected("a name that is not empty");
  return text;
}

Value Value::expectArray() const {
  if (kind() != ValueKind::kArray) expected("a list");
  return *this;
}

Value Value::expectObject() const {
  if (kind() != ValueKind::kObject) expected("an object");
  return *this;
}

Value Value::expectFields(std::span<const std::string_view> known) const {
  expectObject();
  for (const Value member : *this) {
    if (std::find(known.begin(), known.end(), member.key()) == known.end()) {
      member.fail("unknown field \"" + std::string(member.key()) + "\", expected only " +
                  listNames(known) + ir::suggestField(member.key(), {known.begin(), known.end()}));
    }
  }
  return *this;
}

std::optional<Value> Value::find(std::string_view wanted) const {
  for (const Value member : *this) {
    if (member.key() == wanted) return member;
  }
  return std::nullopt;
}

Value Value::require(std::string_view wanted) const {
  if (const auto found = find(wanted)) return *found;
  fail("the field \"" + std::string(wanted) + "\" is missing");
}

}  // namespace shardproof::reader
