// SPDX-License-Identifier: Apache-2.0
// Distinct integer types, one per kind of id: a NodeId is never taken for a TensorId, nor a number
// for either. An id is made of a number only by saying so, and is one wherever a number is wanted:
// as an index, in a comparison, in a message.
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace shardproof {

template <class Tag>
struct Id {
  std::int32_t value = -1;
  constexpr Id() = default;  // none
  template <std::integral Number>
  requires(!std::same_as<Number, bool>) constexpr explicit Id(Number v)
      : value(static_cast<std::int32_t>(v)) {}
  static constexpr Id none() { return {}; }
  constexpr bool valid() const { return value >= 0; }
  constexpr explicit operator bool() const { return valid(); }
  constexpr operator std::int64_t() const { return value; }  // so that products do not overflow
  // Not by way of the number: id 0 is valid.
  template <std::same_as<bool> Truth>
  operator Truth() const = delete;
  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  constexpr Id& operator++() {
    ++value;
    return *this;
  }
  friend constexpr bool operator==(Id, Id) = default;
  friend constexpr auto operator<=>(Id, Id) = default;
  // For nlohmann/json, which looks for it: its number.
  template <class Json>
  friend void to_json(Json& json, Id id) {
    json = id.value;
  }
};

// Ids of different kinds are not compared.
template <class A, class B>
requires(!std::same_as<A, B>) bool operator==(Id<A>, Id<B>) = delete;
template <class A, class B>
requires(!std::same_as<A, B>) auto operator<=>(Id<A>, Id<B>) = delete;

// The first `count` ids, to be gone through.
template <class AnyId>
class IdRange {
 public:
  class Iterator {
   public:
    constexpr explicit Iterator(AnyId id) : id_(id) {}
    constexpr AnyId operator*() const { return id_; }
    constexpr Iterator& operator++() {
      ++id_;
      return *this;
    }
    friend constexpr bool operator==(Iterator, Iterator) = default;

   private:
    AnyId id_;
  };
  constexpr explicit IdRange(std::size_t count) : count_(count) {}
  constexpr Iterator begin() const { return Iterator(AnyId(0)); }
  constexpr Iterator end() const { return Iterator(AnyId(count_)); }

 private:
  std::size_t count_;
};
template <class AnyId, std::integral Number>
constexpr IdRange<AnyId> firstIds(Number count) {
  return IdRange<AnyId>(static_cast<std::size_t>(count));
}

using NameId = Id<struct NameTag>;
using TensorId = Id<struct TensorTag>;    // of one graph: the model's, or a program's
using NodeId = Id<struct NodeTag>;        // of one graph, in file order
using ProgramId = Id<struct ProgramTag>;  // of a plan
using EntryId = Id<struct EntryTag>;      // of a plan's lineage
using Rank = Id<struct RankTag>;          // of a plan's mesh, row-major over its axes

}  // namespace shardproof

template <class Tag>
struct std::hash<shardproof::Id<Tag>> {
  std::size_t operator()(shardproof::Id<Tag> id) const noexcept {
    return std::hash<std::int32_t>()(id.value);
  }
};
