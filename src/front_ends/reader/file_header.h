// SPDX-License-Identifier: Apache-2.0
// "format" and "version", which every file must state, so that a plan is never taken for a model
// and a later version never misread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "reader/value.h"

namespace shardproof::reader {

class FileHeader {
 public:
  // Versions from 1 to `latest` are read.
  explicit FileHeader(std::string_view format, std::int64_t latest = 1)
      : format_(format), latest_(latest) {}

  // True when `key` was one of the two.
  bool read(std::string_view key, const Value& value) {
    if (key == "format") {
      formatSeen_ = true;
      if (value.kind() != ValueKind::kString || value.string() != format_)
        value.expected("\"" + format_ + "\"");
      return true;
    }
    if (key == "version") {
      if (value.kind() == ValueKind::kString)
        value.expectedAs(expected(), "it is a number: write 1");
      version_ = value.integer();
      if (version_ < 1 || version_ > latest_) value.expected(expected());
      return true;
    }
    return false;
  }
  void checkComplete(const Place& place) const {
    if (!formatSeen_) place.fail("the field \"format\" is missing, expected \"" + format_ + "\"");
    if (version_ == 0) place.fail("the field \"version\" is missing, expected 1");
  }
  std::int64_t version() const { return version_; }

 private:
  std::string expected() const {
    return latest_ == 1 ? "version 1" : "version 1 or " + std::to_string(latest_);
  }

  std::string format_;
  std::int64_t latest_;
  bool formatSeen_ = false;
  std::int64_t version_ = 0;  // 0: not seen
};

}  // namespace shardproof::reader
