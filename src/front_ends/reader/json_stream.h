// SPDX-License-Identifier: Apache-2.0
// Reads a JSON text in one pass. The client decides at each object or array whether to be shown its
// members one by one (large ones: all nodes of a program) or to be given it whole (small ones: one
// node). Memory is that of the largest value given whole.
#pragma once

#include <string>
#include <string_view>

#include "reader/place.h"
#include "reader/text_source.h"
#include "reader/value.h"

namespace shardproof::reader {

class StreamClient {
 public:
  static constexpr int kWhole = -1;
  static constexpr int kOutside = 0;  // the state in which the file's outermost value opens

  virtual ~StreamClient() = default;
  // An object or array opens under `key` (empty in an array) of a container that is in `state`.
  // Returns its own state (positive), or kWhole.
  virtual int open(int state, std::string_view key, bool object, const Place& place) = 0;
  // A scalar, or a container for which `open` said kWhole.
  virtual void value(int state, std::string_view key, const Value& value) = 0;
  // A container that was shown one by one has closed; `place` stands at it.
  virtual void close(int state, const Place& place) = 0;
};

// Returns the SHA-256 of the text that was read, all of it. Throws InputError with place and byte
// position on anything that is not JSON, and what the client throws: a value that it refuses does
// not keep the others from being read, so there may be several (InputErrors).
std::string readJson(const Input& input, StreamClient& client);

}  // namespace shardproof::reader
