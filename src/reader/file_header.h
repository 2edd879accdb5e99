// "format" and "version", which every file must state, so that a plan is never taken for a model
// and a later version never misread.
#pragma once

#include <string>
#include <string_view>

#include "reader/value.h"

namespace shardproof::reader {

class FileHeader {
 public:
  explicit FileHeader(std::string_view format) : format_(format) {}

  // True when `key` was one of the two.
  bool read(std::string_view key, const Value& value) {
    if (key == "format") {
      formatSeen_ = true;
      if (value.kind() != ValueKind::kString || value.string() != format_)
        value.expected("\"" + format_ + "\"");
      return true;
    }
    if (key == "version") {
      versionSeen_ = true;
      if (value.kind() == ValueKind::kString)
        value.expectedAs("version 1", "it is a number: write 1");
      if (value.integer() != 1) value.expected("version 1");
      return true;
    }
    return false;
  }
  void checkComplete(const Place& place) const {
    if (!formatSeen_) place.fail("the field \"format\" is missing, expected \"" + format_ + "\"");
    if (!versionSeen_) place.fail("the field \"version\" is missing, expected 1");
  }

 private:
  std::string format_;
  bool formatSeen_ = false;
  bool versionSeen_ = false;
};

}  // namespace shardproof::reader
