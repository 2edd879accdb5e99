// SPDX-License-Identifier: Apache-2.0
// Where in its file the reader is: the chain of open objects and arrays, as a JSON pointer. Also
// refuses what JSON leaves undefined or what would exhaust the stack: duplicate keys, and nesting
// without end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace shardproof::reader {

class Place {
 public:
  explicit Place(std::string file);
  const std::string& file() const { return file_; }
  std::size_t depth() const { return depth_; }

  void enter(bool object);  // a container opens as the current value
  void leave();             // it closes
  void key(const std::string& k);
  void beginValue();                    // a value begins (in an array: the next element)
  std::string_view currentKey() const;  // of the innermost open container, empty in an array

  std::string pointer() const;  // of the value that was begun last
  [[noreturn]] void fail(const std::string& message) const;

 private:
  struct Frame {
    bool object = false;
    std::int64_t index = -1;        // array: position of the current element
    std::size_t keyCount = 0;       // object: keys seen, the last is the current one
    std::vector<std::string> keys;  // the first few keys; strings are reused from object to object
    std::unordered_set<std::string> more;  // the keys beyond those
    std::string current;
  };
  bool seenBefore(const Frame& f, const std::string& k) const;

  std::string file_;
  std::vector<Frame> frames_;  // reused by depth
  std::size_t depth_ = 0;
};

}  // namespace shardproof::reader
