// Interned strings: every name of a problem (tensors, communication ids, attributes, source
// locations) is stored once.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

namespace shardproof {

// A distinct integer type per kind of id, so that a TensorId is never passed for a NodeId.
template <class Tag>
struct Id {
  std::int32_t value = -1;
  constexpr Id() = default;
  constexpr explicit Id(std::int64_t v) : value(static_cast<std::int32_t>(v)) {}
  constexpr bool valid() const { return value >= 0; }
  constexpr explicit operator bool() const { return valid(); }
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  friend constexpr bool operator==(Id, Id) = default;
  friend constexpr auto operator<=>(Id, Id) = default;
};

using NameId = Id<struct NameTag>;

class Names {
 public:
  NameId intern(std::string_view text) {
    if (auto it = ids_.find(text); it != ids_.end()) return it->second;
    const NameId id(static_cast<std::int64_t>(texts_.size()));
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

template <class Tag>
struct std::hash<shardproof::Id<Tag>> {
  std::size_t operator()(shardproof::Id<Tag> id) const noexcept {
    return std::hash<std::int32_t>()(id.value);
  }
};
