// SPDX-License-Identifier: Apache-2.0
// Interned strings: every name of a problem (tensors, communication ids, attributes, source
// locations) is stored once.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

#include "shardproof/ids.h"

namespace shardproof {

class Names {
 public:
  NameId intern(std::string_view text) {
    if (auto it = ids_.find(text); it != ids_.end()) return it->second;
    const NameId id(texts_.size());
    texts_.emplace_back(text);
    ids_.emplace(texts_.back(), id);  // deque: the text never moves, so the view stays valid
    return id;
  }
  NameId find(std::string_view text) const {
    const auto it = ids_.find(text);
    return it == ids_.end() ? NameId() : it->second;
  }
  const std::string& text(NameId id) const { return texts_.at(id.index()); }
  std::size_t size() const { return texts_.size(); }

 private:
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, NameId> ids_;
};

}  // namespace shardproof
