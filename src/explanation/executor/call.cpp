// SPDX-License-Identifier: Apache-2.0
#include "executor/call.h"

#include <algorithm>
#include <map>
#include <variant>

namespace shardproof::executor {
namespace {

const AttributeValue& attribute(const Attributes& a, std::string_view key) {
  const auto it = a.find(key);
  if (it == a.end()) throw Misfit("attribute '" + std::string(key) + "' is missing");
  return it->second;
}

template <class V>
const V& attributeOf(const Attributes& a, std::string_view key) {
  const V* v = std::get_if<V>(&attribute(a, key));
  if (v == nullptr) throw Misfit("attribute '" + std::string(key) + "' has another type");
  return *v;
}

}  // namespace

bool hasAttribute(const Attributes& a, std::string_view key) { return a.find(key) != a.end(); }
bool flagOf(const Attributes& a, std::string_view key, bool otherwise) {
  return hasAttribute(a, key) ? attributeOf<bool>(a, key) : otherwise;
}
std::int64_t integerOf(const Attributes& a, std::string_view key) {
  return attributeOf<Rational>(a, key).toInt64();
}
std::int64_t integerOf(const Attributes& a, std::string_view key, std::int64_t otherwise) {
  return hasAttribute(a, key) ? integerOf(a, key) : otherwise;
}
Rational numberOf(const Attributes& a, std::string_view key) {
  return attributeOf<Rational>(a, key);
}
Rational numberOf(const Attributes& a, std::string_view key, const Rational& otherwise) {
  return hasAttribute(a, key) ? numberOf(a, key) : otherwise;
}
std::string textOf(const Attributes& a, std::string_view key, std::string_view otherwise) {
  return hasAttribute(a, key) ? attributeOf<std::string>(a, key) : std::string(otherwise);
}
std::vector<std::int64_t> integersOf(const Attributes& a, std::string_view key) {
  const AttributeValue& v = attribute(a, key);
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&v)) return *list;
  return {integerOf(a, key)};
}

std::size_t dimensionOf(std::int64_t dim, std::size_t rank) {
  const auto r = static_cast<std::int64_t>(rank);
  if (dim < -r || dim >= r)
    throw Misfit("dimension " + std::to_string(dim) + " does not exist in an operand of " +
                 std::to_string(rank) + " dimensions");
  return static_cast<std::size_t>(dim < 0 ? dim + r : dim);
}

Shape broadcastOf(const Shape& a, const Shape& b) {
  Shape shape(std::max(a.size(), b.size()));
  for (std::size_t d = 0; d < shape.size(); ++d) {  // from the last dimension on
    const std::int64_t m = d < a.size() ? a[a.size() - 1 - d] : 1,
                       n = d < b.size() ? b[b.size() - 1 - d] : 1;
    if (m != n && m != 1 && n != 1)
      throw Misfit("shapes " + text(a) + " and " + text(b) + " cannot be broadcast together");
    shape[shape.size() - 1 - d] = m == 1 ? n : m;
  }
  return shape;
}

Shape broadcastStrides(const Shape& operand, const Shape& result) {
  const Shape own = stridesOf(operand);
  Shape strides(result.size(), 0);
  for (std::size_t d = 0; d < operand.size(); ++d)
    strides[result.size() - operand.size() + d] = operand[d] == 1 ? 0 : own[d];
  return strides;
}

Walk::Walk(const Shape& s, const Shape& stridesA, const Shape& stridesB) {
  for (std::size_t d = 0; d < s.size(); ++d) {
    if (s[d] == 1) continue;
    if (!shape.empty() && a.back() == stridesA[d] * s[d] && b.back() == stridesB[d] * s[d]) {
      shape.back() *= s[d];
      a.back() = stridesA[d];
      b.back() = stridesB[d];
    } else {
      shape.push_back(s[d]);
      a.push_back(stridesA[d]);
      b.push_back(stridesB[d]);
    }
  }
  if (shape.empty()) return;
  length = shape.back();
  strideA = a.back();
  strideB = b.back();
  for (std::size_t d = 0; d + 1 < shape.size(); ++d) runs *= shape[d];
}

std::pair<std::int64_t, std::int64_t> Walk::start(std::int64_t run) const {
  std::int64_t ia = 0, ib = 0;
  for (std::size_t d = shape.empty() ? 0 : shape.size() - 1; d-- > 0;) {
    const std::int64_t i = run % shape[d];
    run /= shape[d];
    ia += i * a[d];
    ib += i * b[d];
  }
  return {ia, ib};
}

template <class T>
Value<T> strided(const Call<T>& c, const Value<T>& x, Shape shape, const Shape& strides,
                 std::int64_t offset) {
  const std::int64_t planes = x.planes();
  const Walk walk(shape, strides, Shape(shape.size(), 0));
  Value<T> y = c.make(std::move(shape), x.element);
  const T* from = x.data() + offset * planes;
  T* to = y.writable();
  forEachRow(walk.runs, walk.length, [&](std::int64_t run) {
    const T* p = from + walk.start(run).first * planes;
    T* q = to + run * walk.length * planes;
    const std::int64_t step = walk.strideA;
    if (planes == 2) {
      for (std::int64_t i = 0; i < walk.length; ++i) {
        q[2 * i] = p[2 * i * step];
        q[2 * i + 1] = p[2 * i * step + 1];
      }
    } else if (step == 1) {
      std::copy(p, p + walk.length, q);
    } else {
      for (std::int64_t i = 0; i < walk.length; ++i) q[i] = p[i * step];
    }
  });
  return y;
}

template <class T>
Value<T> scattered(const Call<T>& c, const Value<T>& g, Shape shape, const Shape& strides,
                   std::int64_t offset) {
  Value<T> x = filled(c, std::move(shape), T(0));
  const Walk walk(g.shape, strides, Shape(g.shape.size(), 0));
  const T* from = g.data();
  T* to = x.writable() + offset;
  for (std::int64_t run = 0; run < walk.runs;
       ++run) {  // by one thread: runs may meet where something was repeated
    const T* p = from + run * walk.length;
    T* q = to + walk.start(run).first;
    if (walk.strideA == 0) {
      q[0] += sumOf(p, walk.length);
    } else {
      for (std::int64_t i = 0; i < walk.length; ++i) q[i * walk.strideA] += p[i];
    }
  }
  return x;
}

template <class T>
Value<T> permuted(const Call<T>& c, const Value<T>& x, const std::vector<std::size_t>& order) {
  const Shape own = stridesOf(x.shape);
  Shape shape, strides;
  for (const std::size_t d : order) {
    shape.push_back(x.shape[d]);
    strides.push_back(own[d]);
  }
  // Where only dimensions of size 1 move, the elements stay.
  std::int64_t last = -1;
  bool inOrder = true;
  for (const std::size_t d : order) {
    if (x.shape[d] == 1) continue;
    inOrder = inOrder && static_cast<std::int64_t>(d) > last;
    last = static_cast<std::int64_t>(d);
  }
  return inOrder ? x.as(std::move(shape)) : strided(c, x, std::move(shape), strides, 0);
}

// Sums of 256 numbers by four running sums, then pairwise: the error grows with the logarithm of
// the length.
template <class T>
T sumOf(const T* x, std::int64_t n, std::int64_t stride) {
  if (n > 256) {
    const std::int64_t half = (n / 2 + 255) / 256 * 256;
    return sumOf(x, half, stride) + sumOf(x + half * stride, n - half, stride);
  }
  if (n < 8) {
    T s = n > 0 ? x[0] : T(0);
    for (std::int64_t i = 1; i < n; ++i) s += x[i * stride];
    return s;
  }
  T s0 = x[0], s1 = x[stride], s2 = x[2 * stride], s3 = x[3 * stride];
  std::int64_t i = 4;
  for (; i + 4 <= n; i += 4) {
    s0 += x[i * stride];
    s1 += x[(i + 1) * stride];
    s2 += x[(i + 2) * stride];
    s3 += x[(i + 3) * stride];
  }
  for (; i < n; ++i) s0 += x[i * stride];
  return (s0 + s1) + (s2 + s3);
}

template <class T>
Value<T> summed(const Call<T>& c, const Value<T>& x, const std::vector<char>& dims) {
  Shape result = x.shape;
  for (std::size_t d = 0; d < dims.size(); ++d)
    if (dims[d]) result[d] = 1;
  // As [outer, n, inner]; where what is summed does not lie together it is brought together first.
  std::size_t first = 0, end = dims.size();
  while (first < end && (!dims[first] || x.shape[first] == 1)) ++first;
  while (end > first && (!dims[end - 1] || x.shape[end - 1] == 1)) --end;
  if (first == end) return x.as(std::move(result));
  Value<T> source = x;
  std::int64_t outer = 1, n = 1, inner = 1;
  if (std::any_of(dims.begin() + static_cast<std::ptrdiff_t>(first),
                  dims.begin() + static_cast<std::ptrdiff_t>(end), [](char d) { return !d; })) {
    std::vector<std::size_t> order;
    for (std::size_t d = 0; d < dims.size(); ++d)
      if (!dims[d]) order.push_back(d), outer *= x.shape[d];
    for (std::size_t d = 0; d < dims.size(); ++d)
      if (dims[d]) order.push_back(d), n *= x.shape[d];
    source = permuted(c, x, order);
  } else {
    for (std::size_t d = 0; d < dims.size(); ++d)
      (d < first ? outer : d < end ? n : inner) *= x.shape[d];
  }
  Value<T> y = c.make(std::move(result));
  const T* from = source.data();
  T* to = y.writable();
  if (inner == 1) {
    if (outer == 1 && n >= 4 * kParallelFrom) {  // one long sum, in blocks
      constexpr std::int64_t block = 1 << 14;
      const std::int64_t blocks = (n + block - 1) / block;
      std::vector<T> parts(static_cast<std::size_t>(blocks));
      forEachRow(blocks, block, [&](std::int64_t b) {
        parts[b] = sumOf(from + b * block, std::min(block, n - b * block));
      });
      to[0] = sumOf(parts.data(), blocks);
    } else {
      forEachRow(outer, n, [&](std::int64_t o) { to[o] = sumOf(from + o * n, n); });
    }
    return y;
  }
  // Columns: strips of rows are added up, so that memory is read in order; 64 rows at a time bound
  // the error.
  constexpr std::int64_t kStrip = 256, kRows = 64;
  const std::int64_t strips = (inner + kStrip - 1) / kStrip;
  forEachRow(outer * strips, n * kStrip, [&](std::int64_t task) {
    const std::int64_t o = task / strips, begin = task % strips * kStrip,
                       width = std::min(kStrip, inner - begin);
    const T* p = from + o * n * inner + begin;
    T* q = to + o * inner + begin;
    T part[kStrip];
    for (std::int64_t k = 0; k < n; k += kRows) {
      const std::int64_t rows = std::min(kRows, n - k);
      for (std::int64_t i = 0; i < width; ++i) part[i] = p[k * inner + i];
      for (std::int64_t r = 1; r < rows; ++r)
        for (std::int64_t i = 0; i < width; ++i) part[i] += p[(k + r) * inner + i];
      if (k == 0) {
        for (std::int64_t i = 0; i < width; ++i) q[i] = part[i];
      } else {
        for (std::int64_t i = 0; i < width; ++i) q[i] += part[i];
      }
    }
  });
  return y;
}

template <class T>
Value<T> summedTo(const Call<T>& c, const Value<T>& x, const Shape& shape) {
  if (x.shape == shape) return x;
  const std::size_t lead = x.shape.size() - shape.size();
  std::vector<char> dims(x.shape.size(), 0);
  for (std::size_t d = 0; d < dims.size(); ++d)
    dims[d] = d < lead || (shape[d - lead] == 1 && x.shape[d] != 1);
  return summed(c, x, dims).as(shape);
}

template <class T>
Kernel<T> findKernel(std::string_view name) {
  static const std::map<std::string_view, Kernel<T>> kernels = [] {
    std::vector<NamedKernel<T>> list;
    addElementwise<T>(list);
    addLayout<T>(list);
    addReductions<T>(list);
    addContractions<T>(list);
    addNormalization<T>(list);
    addLosses<T>(list);
    addChoice<T>(list);
    addEmbeddingAttention<T>(list);
    addAttention<T>(list);
    addExperts<T>(list);
    addOptimizers<T>(list);
    std::map<std::string_view, Kernel<T>> table;
    for (const NamedKernel<T>& k : list) table.emplace(k.name, k.kernel);
    return table;
  }();
  const auto it = kernels.find(name);
  return it == kernels.end() ? nullptr : it->second;
}

#define SHARDPROOF_INSTANTIATE(T)                                                                  \
  template Value<T> strided(const Call<T>&, const Value<T>&, Shape, const Shape&, std::int64_t);   \
  template Value<T> scattered(const Call<T>&, const Value<T>&, Shape, const Shape&, std::int64_t); \
  template Value<T> permuted(const Call<T>&, const Value<T>&, const std::vector<std::size_t>&);    \
  template T sumOf(const T*, std::int64_t, std::int64_t);                                          \
  template Value<T> summed(const Call<T>&, const Value<T>&, const std::vector<char>&);             \
  template Value<T> summedTo(const Call<T>&, const Value<T>&, const Shape&);                       \
  template Kernel<T> findKernel(std::string_view);
SHARDPROOF_INSTANTIATE(double)
SHARDPROOF_INSTANTIATE(long double)
SHARDPROOF_INSTANTIATE(Field)
#undef SHARDPROOF_INSTANTIATE

}  // namespace shardproof::executor
