// SPDX-License-Identifier: Apache-2.0
// One application of an operator: what a kernel gets and gives, and the helpers that all kernels
// share. Kernels check that their operands fit, since a plan may declare anything, and throw Misfit
// where not.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "executor/scalar.h"
#include "executor/value.h"
#include "shardproof/graph.h"

namespace shardproof::executor {

// What all calls of one execution share.
struct Context {
  Memory& memory;
  double flops = 0;
  // Decisions (slopes, maxima of choices) that rounding may have made: a difference that follows
  // one is none. See compare.h.
  std::int64_t closeDecisions = 0;
  // Values of sigmoid and tanh that are nearly 1 in size, whatever exactly the argument is.
  std::int64_t saturated = 0;
};

template <class T>
struct Call {
  Context& context;
  const Attributes& attributes;
  std::span<const Value<T>* const> in;  // nullptr: absent
  std::span<const char> wanted;         // for each result that the node lists
  std::vector<Value<T>>&
      out;  // as many, empty; a kernel fills those that are wanted (and may fill others)

  const Value<T>& operand(std::size_t i) const {
    if (i >= in.size() || in[i] == nullptr)
      throw Misfit("operand " + std::to_string(i) + " is absent");
    return *in[i];
  }
  bool present(std::size_t i) const { return i < in.size() && in[i] != nullptr; }
  bool wants(std::size_t r) const { return r < wanted.size() && wanted[r] != 0; }
  Value<T> make(Shape shape, ElementKind element = ElementKind::kReal) const {
    return Value<T>(context.memory, std::move(shape), element);
  }
  const Value<T>& real(std::size_t i) const { return ofKind(i, ElementKind::kReal, "real"); }
  const Value<T>& integer(std::size_t i) const {
    return ofKind(i, ElementKind::kInteger, "integer");
  }
  const Value<T>& complex(std::size_t i) const {
    return ofKind(i, ElementKind::kComplex, "complex");
  }
  // The gradient of a result of the forward operator. [1] may stand for [].
  const Value<T>& gradient(std::size_t i, const Shape& expected) const {
    const Value<T>& g = real(i);
    expect(i, expected, g.shape == expected || (expected.empty() && g.shape == Shape{1}));
    return g;
  }
  void expect(std::size_t i, const Shape& expected, bool holds) const {
    if (!holds)
      throw Misfit("operand " + std::to_string(i) + " has shape " + text(operand(i).shape) +
                   ", expected " + text(expected));
  }
  void expect(std::size_t i, const Shape& expected) const {
    expect(i, expected, operand(i).shape == expected);
  }

 private:
  const Value<T>& ofKind(std::size_t i, ElementKind kind, const char* name) const {
    const Value<T>& v = operand(i);
    if (v.element != kind)
      throw Misfit("operand " + std::to_string(i) + " holds another kind of element, expected " +
                   name + " ones");
    return v;
  }
};

template <class T>
using Kernel = void (*)(Call<T>&);

template <class T>
struct NamedKernel {
  const char* name;
  Kernel<T> kernel;
};

// --- attributes; the reader has checked that they are there and of the right type ---

bool hasAttribute(const Attributes& a, std::string_view key);
bool flagOf(const Attributes& a, std::string_view key, bool otherwise);
std::int64_t integerOf(const Attributes& a, std::string_view key);
std::int64_t integerOf(const Attributes& a, std::string_view key, std::int64_t otherwise);
Rational numberOf(const Attributes& a, std::string_view key);
Rational numberOf(const Attributes& a, std::string_view key, const Rational& otherwise);
std::string textOf(const Attributes& a, std::string_view key, std::string_view otherwise);
std::vector<std::int64_t> integersOf(const Attributes& a,
                                     std::string_view key);  // one integer is a list of one

// A dimension counted from the end where negative.
std::size_t dimensionOf(std::int64_t dim, std::size_t rank);
Shape broadcastOf(const Shape& a, const Shape& b);

// --- loops ---

// f(i) for all i, by several threads where there are many; f must not throw.
template <class F>
void forEach(std::int64_t n, const F& f) {
#pragma omp parallel for schedule(static) if (n >= kParallelFrom)
  for (std::int64_t i = 0; i < n; ++i) f(i);
}

// f(row) for all rows of so much work each.
template <class F>
void forEachRow(std::int64_t rows, [[maybe_unused]] std::int64_t work, const F& f) {
#pragma omp parallel for schedule(static) if (rows > 1 && rows * work >= kParallelFrom)
  for (std::int64_t i = 0; i < rows; ++i) f(i);
}

template <class T, class F>
Value<T> mapped(const Call<T>& c, const Value<T>& x, const F& f) {
  Value<T> y = c.make(x.shape, x.element);
  const T* from = x.data();
  T* to = y.writable();
  forEach(y.size(), [=, &f](std::int64_t i) { to[i] = f(from[i]); });
  return y;
}

template <class T, class F>
Value<T> mapped(const Call<T>& c, const Value<T>& x, const Value<T>& y,
                const F& f) {  // of one shape
  Value<T> z = c.make(x.shape, x.element);
  const T *a = x.data(), *b = y.data();
  T* to = z.writable();
  forEach(z.size(), [=, &f](std::int64_t i) { to[i] = f(a[i], b[i]); });
  return z;
}

template <class T>
Value<T> filled(const Call<T>& c, Shape shape, T value) {
  Value<T> y = c.make(std::move(shape));
  T* to = y.writable();
  forEach(y.size(), [=](std::int64_t i) { to[i] = value; });
  return y;
}

// Up to any number of dimensions, the last innermost: f(offset of a, offset of b, length) for each
// run of positions along the last collapsed dimension, whose strides are given back. Strides of 0
// repeat. `row` counts the runs.
struct Walk {
  Shape shape, a,
      b;  // collapsed: neighbours that both operands walk through without a jump are one
  std::int64_t runs = 1, length = 1, strideA = 0, strideB = 0;
  Walk(const Shape& shape, const Shape& stridesA, const Shape& stridesB);
  std::pair<std::int64_t, std::int64_t> start(std::int64_t run) const;  // offsets in a and in b
};

// Strides with which an operand is read in a result that it is broadcast to.
Shape broadcastStrides(const Shape& operand, const Shape& result);

template <class T, class F>
Value<T> broadcastMap(const Call<T>& c, const Value<T>& x, const Value<T>& y, const F& f) {
  if (x.shape == y.shape) return mapped(c, x, y, f);
  const Shape shape = broadcastOf(x.shape, y.shape);
  Value<T> z = c.make(shape);
  const Walk walk(shape, broadcastStrides(x.shape, shape), broadcastStrides(y.shape, shape));
  const T *a = x.data(), *b = y.data();
  T* to = z.writable();
  forEachRow(walk.runs, walk.length, [&](std::int64_t run) {
    const auto [ia, ib] = walk.start(run);
    const T *p = a + ia, *q = b + ib;
    T* r = to + run * walk.length;
    const std::int64_t sa = walk.strideA, sb = walk.strideB;
    if (sa == 1 && sb == 1) {
      for (std::int64_t i = 0; i < walk.length; ++i) r[i] = f(p[i], q[i]);
    } else {
      for (std::int64_t i = 0; i < walk.length; ++i) r[i] = f(p[i * sa], q[i * sb]);
    }
  });
  return z;
}

// The elements at offset + strides * position, for all positions of `shape`.
template <class T>
Value<T> strided(const Call<T>& c, const Value<T>& x, Shape shape, const Shape& strides,
                 std::int64_t offset);
// Its transpose: what is read twice is added up, what is not read is 0. The result has `shape`.
template <class T>
Value<T> scattered(const Call<T>& c, const Value<T>& g, Shape shape, const Shape& strides,
                   std::int64_t offset);
template <class T>
Value<T> permuted(const Call<T>& c, const Value<T>& x, const std::vector<std::size_t>& order);

// The sum over `dims` (which are kept with size 1): in blocks, so that long sums lose little.
template <class T>
Value<T> summed(const Call<T>& c, const Value<T>& x, const std::vector<char>& dims);
// Summed back to what it was broadcast from.
template <class T>
Value<T> summedTo(const Call<T>& c, const Value<T>& x, const Shape& shape);
template <class T>
T sumOf(const T* x, std::int64_t n, std::int64_t stride = 1);

// All operators of the families.
template <class T>
void addElementwise(std::vector<NamedKernel<T>>&);
template <class T>
void addLayout(std::vector<NamedKernel<T>>&);
template <class T>
void addReductions(std::vector<NamedKernel<T>>&);
template <class T>
void addContractions(std::vector<NamedKernel<T>>&);
template <class T>
void addNormalization(std::vector<NamedKernel<T>>&);
template <class T>
void addChoice(std::vector<NamedKernel<T>>&);
template <class T>
void addLosses(std::vector<NamedKernel<T>>&);
template <class T>
void addEmbeddingAttention(std::vector<NamedKernel<T>>&);
template <class T>
void addAttention(std::vector<NamedKernel<T>>&);
template <class T>
void addExperts(std::vector<NamedKernel<T>>&);
template <class T>
void addOptimizers(std::vector<NamedKernel<T>>&);

// By name; nullptr: there is none.
template <class T>
Kernel<T> findKernel(std::string_view name);

}  // namespace shardproof::executor
