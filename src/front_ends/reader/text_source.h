// SPDX-License-Identifier: Apache-2.0
// The bytes of an input file, gunzipped on the way when its name ends in ".gz"; or a text that is
// in memory already. The only place that opens input files.
#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "util/sha256.h"

struct gzFile_s;

namespace shardproof::reader {

// What is read: a file, or a text, which is to stay where it is meanwhile. `name` is what messages
// call it.
struct Input {
  Input(std::string file) : name(std::move(file)) {}  // NOLINT: a file's name is the usual input
  Input(std::string name_, std::string_view text_) : name(std::move(name_)), text(text_) {}
  std::string name;
  std::optional<std::string_view> text;
};

class TextSource {
 public:
  explicit TextSource(const Input& input);  // throws InputError when it cannot be opened

  // True when there is no further byte. Throws InputError when the file cannot be read or its
  // compression is damaged.
  bool atEnd() {
    if (next_ != end_) return false;
    return !refill();
  }
  char peek() const { return *next_; }
  void advance() { ++next_; }
  std::string sha256() {
    return digest_.hex();
  }  // of the text that was read; to be asked once, at the end

 private:
  struct Close {
    void operator()(gzFile_s* handle) const;
  };
  bool refill();
  void refuseNul() const;  // in what was read last
  [[noreturn]] void fail(const std::string& message) const;

  std::string file_;
  bool compressed_ = false;
  std::unique_ptr<gzFile_s, Close> handle_;
  std::vector<char> buffer_;
  std::optional<std::string_view> text_;  // what is in memory and not yet given out
  const char* next_ = nullptr;
  const char* end_ = nullptr;
  std::size_t bytesRead_ = 0;
  Sha256 digest_;
};

// What the JSON parser reads from: an input iterator over a TextSource. The default one is the end.
class TextIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;

  TextIterator() = default;
  explicit TextIterator(TextSource* source) : source_(source) {}
  char operator*() const { return source_->peek(); }
  TextIterator& operator++() {
    source_->advance();
    return *this;
  }
  TextIterator operator++(int) {
    const TextIterator before = *this;
    source_->advance();
    return before;
  }
  friend bool operator==(const TextIterator& a, const TextIterator& b) {
    return a.done() == b.done();
  }
  friend bool operator!=(const TextIterator& a, const TextIterator& b) { return !(a == b); }

 private:
  bool done() const { return source_ == nullptr || source_->atEnd(); }
  TextSource* source_ = nullptr;
};

}  // namespace shardproof::reader
