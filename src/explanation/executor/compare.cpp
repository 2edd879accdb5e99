// SPDX-License-Identifier: Apache-2.0
#include "executor/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "executor/call.h"

namespace shardproof::executor {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Distances within one thousandth of the largest number around are measured against that.
constexpr double kSurroundings = 0x1p-10;

bool hasValue(Field x) { return !x.undefined(); }
template <class T>
bool hasValue(T x) {  // minus infinity is a mask's; plus infinity is an overflow
  return !std::isnan(x) && x != std::numeric_limits<T>::infinity();
}

template <class T>
double distance(T a, T b, double surroundings) {
  if constexpr (kIsField<T>) {
    return b.undefined() ? kInfinity : a == b ? 0 : 1;
  } else {
    if (a == b) return 0;
    if (!std::isfinite(a) || !std::isfinite(b)) return kInfinity;
    const double difference = toDouble(std::abs(a - b));
    const double size = std::max({toDouble(std::abs(a)), toDouble(std::abs(b)), surroundings});
    return difference / size;  // size is not 0: a and b differ
  }
}

}  // namespace

void Comparison::merge(const Comparison& other) {
  compared += other.compared;
  undefined += other.undefined;
  worst = std::max(worst, other.worst);
  apart = std::max(apart, other.apart);
  reach = std::max(reach, other.reach);
  if (!first) first = other.first;
  if (unknown.empty()) unknown = other.unknown;
}

template <class T>
void compare(const Claim& claim, const Value<T>& logical, const Value<T>& local, double tolerance,
             Comparison& to) {
  if (const auto& unknown = logical.unknown ? logical.unknown : local.unknown) {
    if (to.unknown.empty()) to.unknown = *unknown;
    return;
  }
  const std::int64_t planes = logical.planes();
  const Shape strides = stridesOf(logical.shape);
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < strides.size(); ++d) offset += claim.low[d] * strides[d];
  const Walk walk(claim.extent, strides, Shape(claim.extent.size(), 0));
  const T *a = logical.data() + offset * planes, *b = local.data();
  double largest = 0;
  if constexpr (!kIsField<T>) {
    for (std::int64_t i = 0; i < local.size(); ++i)
      if (std::isfinite(b[i])) largest = std::max(largest, toDouble(std::abs(b[i])));
  }
  const double surroundings = largest * kSurroundings;
  to.reach = std::max({to.reach, logical.reach, local.reach});
  std::int64_t from = -1;  // where the first difference is, in `local`
  T logicalThere{}, localThere{};
  const std::int64_t length = walk.length * planes;
  for (std::int64_t run = 0; run < walk.runs; ++run) {
    const T* p = a + walk.start(run).first * planes;
    const T* q = b + run * length;
    for (std::int64_t i = 0; i < length; ++i) {
      const T x = planes == 1 ? p[i * walk.strideA] : p[i / 2 * 2 * walk.strideA + i % 2], y = q[i];
      if (x == y && hasValue(x)) {
        ++to.compared;
        continue;
      }
      if (!hasValue(x)) {
        ++to.undefined;
        continue;
      }
      ++to.compared;
      const double far = distance(x, y, surroundings);
      to.worst = std::max(to.worst, far);
      if (far <= tolerance) continue;
      if constexpr (!kIsField<T>) {
        if (std::isfinite(far)) to.apart = std::max(to.apart, toDouble(std::abs(x - y)));
      }
      if (from < 0) {
        from = run * length + i;
        logicalThere = x;
        localThere = y;
      }
    }
  }
  if (from < 0 || to.first) return;
  Difference d;
  d.shard = claim.shard;
  d.rank = claim.parts.front().rank;
  d.microbatch = claim.microbatch;
  d.position.resize(claim.extent.size());
  std::int64_t position = from / planes;
  for (std::size_t k = claim.extent.size(); k-- > 0;) {
    d.position[k] = claim.low[k] + position % claim.extent[k];
    position /= claim.extent[k];
  }
  d.logical = toDouble(logicalThere);
  d.parallel = toDouble(localThere);
  to.first = std::move(d);
}

template void compare(const Claim&, const Value<double>&, const Value<double>&, double,
                      Comparison&);
template void compare(const Claim&, const Value<long double>&, const Value<long double>&, double,
                      Comparison&);
template void compare(const Claim&, const Value<Field>&, const Value<Field>&, double, Comparison&);

}  // namespace shardproof::executor
