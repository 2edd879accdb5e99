// SPDX-License-Identifier: Apache-2.0
// What tensors were found to be, by their elements alone: a box of a tensor of the model, a partial
// sum over axes, a multiple, another place or another tensor than what lineage says.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "diagnose/numbers.h"

namespace shardproof::diagnose {

// A small fraction; den > 0.
struct Ratio {
  std::int64_t num = 1, den = 1;
  friend bool operator==(const Ratio&, const Ratio&) = default;
};
std::optional<Ratio> ratioOf(Field value);        // with both at most 2^12
std::optional<Ratio> ratioOf(long double value);  // the same, up to rounding

struct Match {
  enum class Kind : std::uint8_t {
    kUnknown,
    kZero,      // all elements are 0
    kUniform,   // all elements are one number, which may be anything
    kBox,       // of a tensor of the model
    kPartial,   // added up over `axes` it is the box (times `ratio`)
    kMultiple,  // of the box: that times `ratio`
    kSummed,    // the sum of the boxes along `axes`
    kLess,      // the box without (kMore: with one more) `local`
    kMore,
    kPermuted,  // the box's elements in another order
  };
  Kind kind = Kind::kUnknown;
  TensorId tensor;                 // of the model
  Shape low, extent;               // of the box; empty extent: elements of it in a row
  std::vector<std::int32_t> axes;  // kMicrobatchAxis for microbatches
  Ratio ratio;
  std::string local;
  friend bool operator==(const Match&, const Match&) = default;
};

// Where the model has a number: of all tensors at the first draw, in the field.
class ModelIndex {
 public:
  struct Position {
    std::uint64_t value;
    TensorId tensor;
    std::int32_t offset;
  };
  // Once the values are known.
  explicit ModelIndex(const ModelValues& model);
  std::span<const Position> at(Field value) const;  // by tensor and offset

 private:
  std::vector<Position> all_;  // by value
};

class Finder {
 public:
  Finder(const Image& image, const Numbers& numbers, const ModelValues& model,
         const ModelIndex& index);

  // A box of some tensor of the model, `likely` before all others.
  Match box(const Elements& x, std::int32_t likely = -1) const;
  // A box, or a partial sum of one, or a multiple by numbers of ranks and microbatches.
  Match local(Rank rank, std::int32_t slot) const;
  Match claim(std::size_t c) const;  // of one that does not hold

  std::string tensorName(TensorId logical) const;
  // "y[0:4, 0:8]", in the sizes of the image; without a box where that is all of it or where sizes
  // are not those of the plan.
  std::string boxText(const Match& match) const;
  std::string text(const Match& match) const;
  std::string axesText(const std::vector<std::int32_t>& axes) const;  // "tp", "dp and mb"
  // "2 = size of dp or tp"; of the full plan.
  std::string ratioText(Ratio ratio) const;
  std::int64_t sizeOf(std::int32_t axis) const;

 private:
  bool matches(const Elements& x, const ModelIndex::Position& at, Match& match) const;
  // Nonempty subsets of the axes that have several ranks, and the microbatches where asked.
  std::vector<std::vector<std::int32_t>> axisSets(bool microbatches) const;
  std::optional<Elements> summedOver(Rank rank, std::int32_t slot,
                                     const std::vector<std::int32_t>& axes) const;
  std::optional<Elements> claimsOver(std::size_t c, const std::vector<std::int32_t>& axes,
                                     bool expected) const;

  const Image& image_;
  const Numbers& numbers_;
  const ModelValues& model_;
  std::vector<Rational> scales_;  // that multiples are looked for with
  const ModelIndex& index_;
};

}  // namespace shardproof::diagnose
