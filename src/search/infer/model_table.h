// SPDX-License-Identifier: Apache-2.0
// The elements of the model's tensors at one draw, by value: where a box with certain elements
// lies.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "executor/run.h"
#include "infer/relations.h"

namespace shardproof::infer {

// What is looked up is long doubles, or doubles where nothing of the model nearly cancels (a
// normalisation of two features, the gradient of one): that would be lost in them, or look like
// what it is added to. Of further draws, which only tell apart what the first one found: a fourth
// of the time.
using ResampledValue = executor::Value<double>;
constexpr double kResampledRounding = 1e-9;

// By how much of the largest element two may differ that are the same.
template <class Real>
constexpr Real kRounding = std::is_same_v<Real, double> ? 1e-10L : 1e-12L;
constexpr std::size_t kMostPlaces = 128;  // that are kept of one tensor

template <class Real>
bool isInformative(Real x) {
  return x != 0 && std::isfinite(x);
}

// Also of a mask's minus infinity.
template <class Real>
bool same(Real a, Real b, Real tolerance) {
  return a == b || std::abs(a - b) <= tolerance;
}

// Integers are few and often the same: they are looked up by several that follow one another.
constexpr std::int64_t kIntegersInARow = 8;
template <class Real>
double keyOf(const Real* x, std::int64_t count);

constexpr std::size_t kMostTried = 512;  // places at which a box may lie

template <class Real>
class ModelTable {
 public:
  using Value = executor::Value<Real>;

  explicit ModelTable(const Model& model)
      : values_(model.graph.tensors.size()), kept_(values_.size()), strides_(values_.size()) {}

  // A tensor's elements, to be looked up.
  void take(TensorId t, const Value& value);
  // Those of another draw, for allOfKept only.
  void keep(TensorId t, const ResampledValue& value);
  // After the last one that is taken, before anything is looked up.
  void sort();

  // Whether many real elements of tensors with so many dimensions are this one, but for rounding.
  bool common(Real value, std::size_t dims) const;

  // f(place) for each place where a box of `shape` may lie whose element number `pivot` has this
  // value, until f says that it is enough.
  template <class F>
  void forPlaces(const Shape& shape, ElementKind element, std::int64_t pivot, Real value,
                 Real tolerance, const F& f) const {
    const auto index = indices_.find({element, shape.size()});
    if (index == indices_.end()) return;
    const auto low = static_cast<double>(value - tolerance),
               high = static_cast<double>(value + tolerance);
    const auto end = index->second.entries.end();
    auto it = index->second.first(low, high);
    if (it == end || it->value > high) return;
    Shape inBox(shape.size());  // of the pivot
    for (std::size_t d = shape.size(); d-- > 0;) {
      inBox[d] = pivot % std::max<std::int64_t>(shape[d], 1);
      pivot /= std::max<std::int64_t>(shape[d], 1);
    }
    BoxPosition place{TensorId(), Shape(shape.size())};
    std::size_t tried = 0;
    for (; it != end && it->value <= high && tried < kMostTried; ++it) {
      const Shape &whole = values_[it->tensor].shape, &strides = strides_[it->tensor];
      place.tensor = it->tensor;
      bool inside = true;
      std::int64_t rest = it->offset;
      for (std::size_t d = 0; inside && d < shape.size(); ++d) {
        place.low[d] = rest / strides[d] - inBox[d];
        rest %= strides[d];
        inside = place.low[d] >= 0 && place.low[d] + shape[d] <= whole[d];
      }
      if (!inside) continue;
      ++tried;
      if (f(place)) return;
    }
  }

  // f(index in the box, element of the model) for the whole box, until f is false.
  template <class F>
  bool allOf(const BoxPosition& place, const Shape& shape, const F& f) const {
    return allIn(values_[place.tensor], place, shape, f);
  }
  // The same of the draw that was kept last.
  template <class F>
  bool allOfKept(const BoxPosition& place, const Shape& shape, const F& f) const {
    return allIn(kept_[place.tensor], place, shape, f);
  }

  // Where a box with these elements lies. `wanted`: what is looked up, of element `pivot`.
  std::vector<BoxPosition> placesOf(const Real* x, const Shape& shape, ElementKind element,
                                    std::int64_t pivot, Real wanted, Real tolerance) const;

 private:
  template <class Whole, class F>
  bool allIn(const Whole& whole, const BoxPosition& place, const Shape& shape, const F& f) const {
    const Shape& strides = strides_[place.tensor];
    Shape position(shape.size(), 0);
    const std::int64_t size = executor::positionsOf(shape);
    std::int64_t offset = offsetOf(place);
    for (std::int64_t i = 0; i < size; ++i) {
      if (!f(i, whole.data()[offset])) return false;
      for (std::size_t d = shape.size(); d-- > 0;) {
        offset += strides[d];
        if (++position[d] < shape[d]) break;
        offset -= strides[d] * shape[d];
        position[d] = 0;
      }
    }
    return true;
  }

  struct Entry {
    double value;  // rounded: places are compared in full
    TensorId tensor;
    std::int32_t offset;
  };
  // By value, with a hash table of where neighbouring values begin: a binary search among millions
  // of entries waits for memory at each of its steps.
  class Index {
   public:
    std::vector<Entry> entries;
    void sort();
    // The first entry from `low` on, or any that is above `high`.
    typename std::vector<Entry>::const_iterator first(double low, double high) const;

   private:
    // Values that agree in sign, exponent and some 38 bits share a bucket: what differs by rounding
    // lies in one or in neighbouring ones.
    static constexpr int kBitsInBucket = 14;
    static constexpr std::uint64_t kMostBuckets = 4;  // that are looked into one by one
    static std::uint64_t bucketOf(double value) {
      return std::bit_cast<std::uint64_t>(value) >> kBitsInBucket;
    }
    std::size_t slotOf(std::uint64_t bucket) const {
      return (bucket * 0x9e3779b97f4a7c15ULL) >> shift_;
    }
    std::vector<std::uint32_t> firsts_;  // open addressing: an entry's number and 1; 0: none
    int shift_ = 64;
  };
  std::int64_t offsetOf(const BoxPosition& place) const {
    const Shape& strides = strides_[place.tensor];
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < strides.size(); ++d) offset += place.low[d] * strides[d];
    return offset;
  }
  template <class T>
  executor::Value<T> copyOf(const executor::Value<T>& value);

  executor::Memory memory_;
  std::vector<Value> values_;         // by tensor, of the draw that is looked up
  std::vector<ResampledValue> kept_;  // of another one
  std::vector<Shape> strides_;        // of them
  // Of tensors of one kind and with as many dimensions: others cannot hold a box of these.
  std::map<std::pair<ElementKind, std::size_t>, Index> indices_;
  bool sorted_ = true;
};

}  // namespace shardproof::infer
