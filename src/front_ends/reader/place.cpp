// SPDX-License-Identifier: Apache-2.0
#include "reader/place.h"

#include <algorithm>

#include "shardproof/error.h"
#include "util/json_pointer.h"

namespace shardproof::reader {

namespace {
constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kFewKeys = 16;  // up to here a scan is faster than a hash table
}  // namespace

Place::Place(std::string file) : file_(std::move(file)) {}

void Place::fail(const std::string& message) const { throw InputError(file_, pointer(), message); }

void Place::enter(bool object) {
  if (depth_ == kMaxDepth) fail("nested more than " + std::to_string(kMaxDepth) + " levels deep");
  if (depth_ == frames_.size()) frames_.emplace_back();
  Frame& f = frames_[depth_++];
  f.object = object;
  f.index = -1;
  f.keyCount = 0;
  f.more.clear();
}

void Place::leave() { --depth_; }

bool Place::seenBefore(const Frame& f, const std::string& k) const {
  const auto end = f.keys.begin() + static_cast<std::ptrdiff_t>(std::min(f.keyCount, kFewKeys));
  return std::find(f.keys.begin(), end, k) != end || (f.keyCount > kFewKeys && f.more.contains(k));
}

void Place::key(const std::string& k) {
  Frame& f = frames_[depth_ - 1];
  const bool duplicate = seenBefore(f, k);
  f.current = k;
  if (f.keyCount < kFewKeys) {
    if (f.keys.size() <= f.keyCount) f.keys.emplace_back();
    f.keys[f.keyCount] = k;
  } else {
    f.more.insert(k);
  }
  ++f.keyCount;
  if (duplicate) fail("found the key \"" + k + "\" twice in one object");
}

void Place::beginValue() {
  if (depth_ > 0 && !frames_[depth_ - 1].object) ++frames_[depth_ - 1].index;
}

std::string_view Place::currentKey() const {
  if (depth_ == 0 || !frames_[depth_ - 1].object) return {};
  return frames_[depth_ - 1].current;
}

std::string Place::pointer() const {
  std::string out;
  for (std::size_t i = 0; i < depth_; ++i) {
    const Frame& f = frames_[i];
    if (f.object && f.keyCount > 0) out += "/" + escapePointer(f.current);
    if (!f.object && f.index >= 0) out += "/" + std::to_string(f.index);
  }
  return out;
}

}  // namespace shardproof::reader
