// The elements of the model's tensors at one draw, by value: where a box with certain elements
// lies.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "infer/relations.h"
#include "interpret/run.h"

namespace shardproof::infer {

using Real = long double;
using Value = interpret::Value<Real>;

// By how much of the largest element two may differ that are the same.
constexpr Real kRounding = 1e-12L;
constexpr std::size_t kMostPlaces = 128;  // that are kept of one tensor

inline bool tells(Real x) { return x != 0 && std::isfinite(x); }

// Also of a mask's minus infinity.
inline bool same(Real a, Real b, Real tolerance) { return a == b || std::abs(a - b) <= tolerance; }

// Integers are few and often the same: they are looked up by several that follow one another.
constexpr std::int64_t kIntegersInARow = 8;
double keyOf(const Real* x, std::int64_t count);

constexpr std::size_t kMostTried = 512;  // places at which a box may lie

class ModelTable {
 public:
  explicit ModelTable(const Model& model) : values_(model.graph.tensors.size()) {}

  // A tensor's elements, to be looked up.
  void take(TensorId t, const Value& value);
  // Those of another draw, to be compared only.
  void keep(TensorId t, const Value& value);
  // After the last one that is taken, before anything is looked up.
  void sort();

  // f(tensor, low) for each place where a box of `shape` may lie whose element number `pivot` has
  // this value, until f says that it is enough.
  template <class F>
  void forPlaces(const Shape& shape, ElementKind element, std::int64_t pivot, Real value,
                 Real tolerance, const F& f) const {
    const auto low = static_cast<double>(value - tolerance),
               high = static_cast<double>(value + tolerance);
    auto it = std::lower_bound(index_.begin(), index_.end(), low,
                               [](const Entry& e, double wanted) { return e.value < wanted; });
    const Shape strides = interpret::stridesOf(shape);
    std::size_t tried = 0;
    for (; it != index_.end() && it->value <= high && tried < kMostTried; ++it) {
      const Value& whole = values_[it->tensor];
      if (whole.shape.size() != shape.size() || whole.element != element) continue;
      const Shape wholeStrides = interpret::stridesOf(whole.shape);
      Place place{it->tensor, Shape(shape.size())};
      bool inside = true;
      for (std::size_t d = 0; d < shape.size(); ++d) {
        place.low[d] = it->offset / wholeStrides[d] % whole.shape[d] -
                       (shape[d] == 0 ? 0 : pivot / strides[d] % shape[d]);
        inside = inside && place.low[d] >= 0 && place.low[d] + shape[d] <= whole.shape[d];
      }
      if (!inside) continue;
      ++tried;
      if (f(place)) return;
    }
  }

  // f(index in the box, element of the model) for the whole box, until f is false.
  template <class F>
  bool allOf(const Place& place, const Shape& shape, const F& f) const {
    const Value& whole = values_[place.tensor];
    const Shape strides = interpret::stridesOf(whole.shape);
    Shape position(shape.size(), 0);
    const std::int64_t size = interpret::positionsOf(shape);
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) offset += place.low[d] * strides[d];
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

  // Where a box with these elements lies. `wanted`: what is looked up, of element `pivot`.
  std::vector<Place> placesOf(const Real* x, const Shape& shape, ElementKind element,
                              std::int64_t pivot, Real wanted, Real tolerance) const;

 private:
  struct Entry {
    double value;  // rounded: places are compared in full
    TensorId tensor;
    std::int32_t offset;
  };
  interpret::Memory memory_;
  std::vector<Value> values_;  // by tensor
  std::vector<Entry> index_;
  bool sorted_ = true;
};

}  // namespace shardproof::infer
