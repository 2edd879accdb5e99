// SPDX-License-Identifier: Apache-2.0
#include "executor/draw.h"

#include <cmath>
#include <numeric>

#include "executor/call.h"
#include "executor/scalar.h"

namespace shardproof::executor {
namespace {

std::uint64_t bits(std::uint64_t key, std::int64_t element, std::uint64_t seed) {
  return mixed(mixed(key ^ mixed(seed)) + static_cast<std::uint64_t>(element));
}

// Which of two values integers are in the first styles after 0. Where all scores of a row are
// masked, a model has no value: one that is drawn freely leaves no row of a long batch alone.
// kPadded: the higher one, then the lower.
enum class TwoValues { kFree, kPadded, kAllHigh, kAllLow };

TwoValues twoValuesOf(const Use& use, const Draw& draw) {
  if (use.high - use.low != 2 || draw.style == 0 || draw.style > 3) return TwoValues::kFree;
  return static_cast<TwoValues>(draw.style);
}

// In (0, 1), never a round number.
double unit(std::uint64_t b) { return (static_cast<double>(b >> 12) + 0.5) * 0x1p-52; }

struct Reals {
  double scale = 1;
  int sign = 0;       // 0: either
  bool away = false;  // between 0.5 and 1.5 of the scale, rather than around 0
  double at(std::uint64_t b) const {
    const double u = unit(b);
    if (!away) return scale * (2 * u - 1);
    const bool negative = sign < 0 || (sign == 0 && (b & 1) != 0);
    return (negative ? -scale : scale) * (0.5 + u);
  }
};

Reals realsOf(const Drawn& what, const Draw& draw) {
  Reals r;
  r.scale = std::sqrt(3.0);
  if (what.parameter && what.shape.size() >= 2)
    r.scale = std::sqrt(3.0 / static_cast<double>(what.shape.back()));
  if (what.parameter && what.shape.size() < 2) {
    r.scale = 1;
    r.away = true;
  }
  if (draw.style > 0 || what.use.positive) {
    r.scale = what.parameter && what.shape.size() >= 2
                  ? std::sqrt(1.0 / static_cast<double>(what.shape.back()))
                  : 1;
    r.away = true;
    r.sign = draw.style < 2 || what.use.positive || (bits(what.key, draw.style, draw.seed) & 1) != 0
                 ? 1
                 : -1;
  }
  return r;
}

// A permutation of the range for each run of as many elements: all values come, and as few as
// possible come twice.
std::int64_t indexAt(const Use& use, std::uint64_t key, std::int64_t i, std::uint64_t seed) {
  const std::int64_t range = use.high - use.low, run = i / range;
  if (range == 1) return use.low;
  const std::uint64_t b = bits(key, run, seed);
  auto factor = static_cast<std::int64_t>(b % static_cast<std::uint64_t>(range));
  while (std::gcd(factor, range) != 1) factor = factor % range + 1;
  const auto product = static_cast<Wide>(factor) * static_cast<Wide>(i % range) + (b >> 32);
  return use.low + static_cast<std::int64_t>(product % static_cast<Wide>(range));
}

std::int64_t integerAt(const Drawn& what, const Draw& draw, std::int64_t i) {
  const TwoValues how = twoValuesOf(what.use, draw);
  if (how == TwoValues::kFree) return indexAt(what.use, what.key, i, draw.seed);
  const std::int64_t length = what.shape.empty() ? 1 : what.shape.back();
  const std::uint64_t seen =
      1 + bits(what.key, i / length, draw.seed) % static_cast<std::uint64_t>(length);
  const bool high = how == TwoValues::kAllHigh ||
                    (how == TwoValues::kPadded && i % length < static_cast<std::int64_t>(seen));
  return high ? what.use.high - 1 : what.use.low;
}

template <class T>
void drawReals(const Drawn& what, const Draw& draw, std::int64_t size, T* to) {
  const Reals reals = realsOf(what, draw);
  forEach(size, [&](std::int64_t i) {
    to[i] = static_cast<T>(reals.at(bits(what.key, i, draw.seed)) * moveOf(what.key, i, draw));
  });
}

}  // namespace

std::uint64_t keyOf(std::string_view name) {
  std::uint64_t h = 0;
  for (const char ch : name) h = mixed(h ^ static_cast<unsigned char>(ch));
  return h;
}

double moveOf(std::uint64_t key, std::int64_t element, const Draw& draw) {
  return draw.moved == 0 ? 1
                         : 1 + 1e-3 * (2 * unit(bits(key ^ draw.moved, element, ~draw.seed)) - 1);
}

template <class T>
Value<T> drawn(Memory& memory, const Drawn& what, const Draw& draw) {
  Value<T> v(memory, what.shape, what.element);
  T* to = v.writable();
  const std::uint64_t key = what.key, seed = draw.seed;
  if (what.element == ElementKind::kInteger) {
    forEach(v.size(), [&](std::int64_t i) { to[i] = fromInteger<T>(integerAt(what, draw, i)); });
    return v;
  }
  if constexpr (kIsField<T>) {
    forEach(v.size(),
            [&](std::int64_t i) { to[i] = Field::raw(bits(key, i, seed) % Field::kPrime); });
    return v;
  }
  if constexpr (!kIsField<T>) {
    if (what.element == ElementKind::kComplex) {  // on the unit circle
      forEach(v.positions(), [&](std::int64_t i) {
        const double angle =
            6.283185307179586 * unit(bits(key, i, seed)) + (moveOf(key, i, draw) - 1);
        to[2 * i] = static_cast<T>(std::cos(angle));
        to[2 * i + 1] = static_cast<T>(std::sin(angle));
      });
      return v;
    }
    drawReals(what, draw, v.size(), to);
  }
  return v;
}

template <class T>
Value<T> drawnMask(Memory& memory, std::uint64_t key, const Shape& shape, const Shape& low,
                   const Shape& extent, const Draw& draw) {
  Value<T> v(memory, extent, ElementKind::kInteger);
  const Shape strides = stridesOf(shape);
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < low.size(); ++d) offset += low[d] * strides[d];
  const Walk walk(extent, strides, Shape(extent.size(), 0));
  T* to = v.writable();
  forEachRow(walk.runs, walk.length, [&](std::int64_t run) {
    const std::int64_t start = offset + walk.start(run).first;
    for (std::int64_t i = 0; i < walk.length; ++i)
      to[run * walk.length + i] = fromInteger<T>(
          static_cast<std::int64_t>(bits(key, start + i * walk.strideA, draw.seed) >> 17 & 1));
  });
  return v;
}

#define SHARDPROOF_INSTANTIATE(T)                                                               \
  template Value<T> drawn(Memory&, const Drawn&, const Draw&);                                  \
  template Value<T> drawnMask(Memory&, std::uint64_t, const Shape&, const Shape&, const Shape&, \
                              const Draw&);
SHARDPROOF_INSTANTIATE(double)
SHARDPROOF_INSTANTIATE(long double)
SHARDPROOF_INSTANTIATE(Field)
#undef SHARDPROOF_INSTANTIATE

}  // namespace shardproof::executor
