#include "infer/model_table.h"

#include <limits>
#include <tuple>

namespace shardproof::infer {

double keyOf(const Real* x, std::int64_t count) {
  std::uint64_t key = static_cast<std::uint64_t>(count);
  for (std::int64_t i = 0; i < count; ++i) {
    key += static_cast<std::uint64_t>(static_cast<std::int64_t>(x[i])) + 0x9e3779b97f4a7c15ULL;
    key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ULL;
    key = (key ^ (key >> 27)) * 0x94d049bb133111ebULL;
  }
  return static_cast<double>(key >> 11);
}

void ModelTable::take(TensorId t, const Value& value) {
  if (value.element == ElementKind::kComplex) return;
  Value copy(memory_, value.shape, value.element);
  std::copy(value.data(), value.data() + value.size(), copy.writable());
  if (copy.size() > std::numeric_limits<std::int32_t>::max()) return;
  for (std::int64_t i = 0; i < copy.size(); ++i) {
    if (value.element == ElementKind::kReal) {
      if (tells(copy.data()[i]))
        index_.push_back({static_cast<double>(copy.data()[i]), t, static_cast<std::int32_t>(i)});
      continue;
    }
    const std::int64_t row = value.shape.empty() ? 1 : value.shape.back();
    for (std::int64_t k = 1; k <= std::min(kIntegersInARow, row - i % row); ++k)
      index_.push_back({keyOf(copy.data() + i, k), t, static_cast<std::int32_t>(i)});
  }
  values_[t] = std::move(copy);
  sorted_ = false;
}

void ModelTable::keep(TensorId t, const Value& value) {
  if (value.element == ElementKind::kComplex) return;
  Value copy(memory_, value.shape, value.element);
  std::copy(value.data(), value.data() + value.size(), copy.writable());
  values_[t] = std::move(copy);
}

void ModelTable::sort() {
  if (sorted_) return;
  std::sort(index_.begin(), index_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.value, a.tensor, a.offset) < std::tie(b.value, b.tensor, b.offset);
  });
  sorted_ = true;
}

std::vector<Place> ModelTable::placesOf(const Real* x, const Shape& shape, ElementKind element,
                                        std::int64_t pivot, Real wanted, Real tolerance) const {
  std::vector<Place> places;
  forPlaces(shape, element, pivot, wanted, tolerance, [&](const Place& place) {
    if (allOf(place, shape, [&](std::int64_t i, Real y) { return same(x[i], y, tolerance); }))
      places.push_back(place);
    return places.size() == kMostPlaces;
  });
  return places;
}

}  // namespace shardproof::infer
