// SPDX-License-Identifier: Apache-2.0
#include "infer/model_table.h"

#include <algorithm>
#include <boost/sort/spreadsort/float_sort.hpp>
#include <limits>
#include <tuple>

namespace shardproof::infer {

template <class Real>
double keyOf(const Real* x, std::int64_t count) {
  std::uint64_t key = static_cast<std::uint64_t>(count);
  for (std::int64_t i = 0; i < count; ++i) {
    key += static_cast<std::uint64_t>(static_cast<std::int64_t>(x[i])) + 0x9e3779b97f4a7c15ULL;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ULL;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebULL;
  }
  return static_cast<double>(key >> 11);
}

template <class Real>
template <class T>
executor::Value<T> ModelTable<Real>::copyOf(const executor::Value<T>& value) {
  executor::Value<T> copy(memory_, value.shape, value.element);
  std::copy(value.data(), value.data() + value.size(), copy.writable());
  return copy;
}

template <class Real>
void ModelTable<Real>::take(TensorId t, const Value& value) {
  if (value.element == ElementKind::kComplex ||
      value.size() > std::numeric_limits<std::int32_t>::max())
    return;
  strides_[t] = executor::stridesOf(value.shape);
  values_[t] = copyOf(value);
  auto& index = indices_[{value.element, value.shape.size()}].entries;
  const Real* x = value.data();
  for (std::int64_t i = 0; i < value.size(); ++i) {
    if (value.element == ElementKind::kReal) {
      if (isInformative(x[i]))
        index.push_back({static_cast<double>(x[i]), t, static_cast<std::int32_t>(i)});
      continue;
    }
    const std::int64_t row = value.shape.empty() ? 1 : value.shape.back();
    for (std::int64_t k = 1; k <= std::min(kIntegersInARow, row - i % row); ++k)
      index.push_back({keyOf(x + i, k), t, static_cast<std::int32_t>(i)});
  }
  sorted_ = false;
}

template <class Real>
void ModelTable<Real>::keep(TensorId t, const ResampledValue& value) {
  if (value.element != ElementKind::kComplex) kept_[t] = copyOf(value);
}

template <class Real>
void ModelTable<Real>::Index::sort() {
  // By their bits: a comparison of values that are all over the place is predicted wrongly half of
  // the time.
  boost::sort::spreadsort::float_sort(
      entries.begin(), entries.end(),
      [](const Entry& e, unsigned shift) {
        return boost::sort::spreadsort::float_mem_cast<double, std::int64_t>(e.value) >> shift;
      },
      [](const Entry& a, const Entry& b) { return a.value < b.value; });
  const auto place = [](const Entry& e) { return std::tie(e.tensor, e.offset); };
  for (auto begin = entries.begin(); begin != entries.end();) {
    const auto end =
        std::find_if(begin, entries.end(), [&](const Entry& e) { return e.value != begin->value; });
    std::sort(begin, end, [&](const Entry& a, const Entry& b) { return place(a) < place(b); });
    begin = end;
  }
  firsts_.clear();
  if (entries.empty() || entries.size() >= std::numeric_limits<std::uint32_t>::max()) return;
  const std::size_t size = std::bit_ceil(2 * entries.size());
  firsts_.resize(size);
  shift_ = 64 - std::countr_zero(size);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::uint64_t bucket = bucketOf(entries[i].value);
    if (i > 0 && bucketOf(entries[i - 1].value) == bucket) continue;
    std::size_t slot = slotOf(bucket);
    while (firsts_[slot] != 0) slot = (slot + 1) & (size - 1);
    firsts_[slot] = static_cast<std::uint32_t>(i + 1);
  }
}

template <class Real>
typename std::vector<typename ModelTable<Real>::Entry>::const_iterator
ModelTable<Real>::Index::first(double low, double high) const {
  const auto from = [&](typename std::vector<Entry>::const_iterator begin) {
    return std::lower_bound(begin, entries.end(), low,
                            [](const Entry& e, double wanted) { return e.value < wanted; });
  };
  // Of one sign, larger buckets are of values that are further from zero.
  const std::uint64_t a = bucketOf(low), b = bucketOf(high);
  if (firsts_.empty() || std::signbit(low) != std::signbit(high) ||
      (a < b ? b - a : a - b) >= kMostBuckets)
    return from(entries.begin());
  for (std::uint64_t bucket = a;; bucket += a < b ? 1 : -1) {
    for (std::size_t slot = slotOf(bucket); firsts_[slot] != 0;
         slot = (slot + 1) & (firsts_.size() - 1)) {
      const auto it = entries.begin() + (firsts_[slot] - 1);
      if (bucketOf(it->value) != bucket) continue;
      if (it->value >= low) return it;
      const auto next = from(it);
      if (next != entries.end() && next->value <= high) return next;
      break;
    }
    if (bucket == b) return entries.end();
  }
}

template <class Real>
void ModelTable<Real>::sort() {
  if (sorted_) return;
  for (auto& [kind, index] : indices_) index.sort();
  sorted_ = true;
}

template <class Real>
bool ModelTable<Real>::common(Real value, std::size_t dims) const {
  constexpr std::ptrdiff_t kMany = 64;
  const auto index = indices_.find({ElementKind::kReal, dims});
  if (index == indices_.end()) return false;
  const Real tolerance = kRounding<Real> * std::abs(value);
  const auto low = static_cast<double>(value - tolerance),
             high = static_cast<double>(value + tolerance);
  const auto end = index->second.entries.end();
  const auto it = index->second.first(low, high);
  return end - it > kMany && it[kMany].value <= high;
}

template <class Real>
std::vector<BoxPosition> ModelTable<Real>::placesOf(const Real* x, const Shape& shape,
                                                    ElementKind element, std::int64_t pivot,
                                                    Real wanted, Real tolerance) const {
  std::vector<BoxPosition> places;
  forPlaces(shape, element, pivot, wanted, tolerance, [&](const BoxPosition& place) {
    // Most places that share the pivot do not share the first element.
    if (!same(x[0], values_[place.tensor].data()[offsetOf(place)], tolerance)) return false;
    if (allOf(place, shape, [&](std::int64_t i, Real y) { return same(x[i], y, tolerance); }))
      places.push_back(place);
    return places.size() == kMostPlaces;
  });
  return places;
}

template double keyOf(const double* x, std::int64_t count);
template double keyOf(const long double* x, std::int64_t count);
template class ModelTable<double>;
template class ModelTable<long double>;

}  // namespace shardproof::infer
