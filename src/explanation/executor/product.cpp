// SPDX-License-Identifier: Apache-2.0
#include "executor/product.h"

#include <Eigen/Core>
#include <algorithm>
#include <type_traits>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace shardproof::executor {
namespace {

int threads() {
#ifdef _OPENMP
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

template <class T>
Product<T> batch(const Product<T>& p, std::int64_t i) {
  Product<T> q = p;
  q.a += i * p.strideA;
  q.b += i * p.strideB;
  q.c += i * p.strideC;
  q.batches = 1;
  return q;
}

// Too small for anything but a loop.
template <class T>
void tiny(const Product<T>& p) {
  const std::int64_t ai = p.transposeA ? 1 : p.k, al = p.transposeA ? p.m : 1,
                     bl = p.transposeB ? 1 : p.n, bj = p.transposeB ? p.k : 1;
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      T s = p.a[i * ai] * p.b[j * bj];
      for (std::int64_t l = 1; l < p.k; ++l) s += p.a[i * ai + l * al] * p.b[l * bl + j * bj];
      p.c[i * p.n + j] = s;
    }
}

// Rows of C by threads. B is read along its rows (transposed once if need be), in strips of columns
// that stay in the cache.
template <class T>
void byLoops(const Product<T>& p) {
  std::vector<T> turned;
  const T* b = p.b;
  if (p.transposeB) {
    turned.resize(static_cast<std::size_t>(p.k * p.n));
    for (std::int64_t j = 0; j < p.n; ++j)
      for (std::int64_t l = 0; l < p.k; ++l) turned[l * p.n + j] = p.b[j * p.k + l];
    b = turned.data();
  }
  bool special = false;  // the field's two values that are no numbers: then element by element
  if constexpr (kIsField<T>) {
    const auto any = [](const T* x, std::int64_t n) {
      return std::any_of(x, x + n, [](T v) { return v.special(); });
    };
    special = any(p.a, p.m * p.k) || any(p.b, p.k * p.n);
  }
  constexpr std::int64_t kStrip = 128;
  const std::int64_t strips = (p.n + kStrip - 1) / kStrip;
#pragma omp parallel for schedule(dynamic) if (p.m * p.n * p.k > 20000)
  for (std::int64_t task = 0; task < p.m * strips; ++task) {
    const std::int64_t i = task % p.m, begin = task / p.m * kStrip,
                       width = std::min(kStrip, p.n - begin);
    const T* a = p.a + (p.transposeA ? i : i * p.k);
    const std::int64_t step = p.transposeA ? p.m : 1;
    T* c = p.c + i * p.n + begin;
    if constexpr (kIsField<T>) {
      if (!special) {  // products below 2^122: 60 of them fit
        Wide sums[kStrip];
        for (std::int64_t j = 0; j < width; ++j) sums[j] = 0;
        for (std::int64_t l = 0; l < p.k; ++l) {
          const std::uint64_t f = a[l * step].v;
          const T* row = b + l * p.n + begin;
          for (std::int64_t j = 0; j < width; ++j) sums[j] += static_cast<Wide>(f) * row[j].v;
          if (l % 60 == 59)
            for (std::int64_t j = 0; j < width; ++j) sums[j] = Field::reduced(sums[j]);
        }
        for (std::int64_t j = 0; j < width; ++j) c[j] = Field::raw(Field::reduced(sums[j]));
        continue;
      }
    }
    T sums[kStrip];
    for (std::int64_t j = 0; j < width; ++j) sums[j] = a[0] * b[begin + j];
    for (std::int64_t l = 1; l < p.k; ++l) {
      const T f = a[l * step];
      const T* row = b + l * p.n + begin;
      for (std::int64_t j = 0; j < width; ++j) sums[j] += f * row[j];
    }
    for (std::int64_t j = 0; j < width; ++j) c[j] = sums[j];
  }
}

void byEigen(const Product<double>& p) {
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Read = Eigen::Map<const Matrix>;
  Eigen::Map<Matrix> c(p.c, p.m, p.n);
  if (p.transposeA) {
    const Read a(p.a, p.k, p.m);
    if (p.transposeB) c.noalias() = a.transpose() * Read(p.b, p.n, p.k).transpose();
    else c.noalias() = a.transpose() * Read(p.b, p.k, p.n);
  } else {
    const Read a(p.a, p.m, p.k);
    if (p.transposeB) c.noalias() = a * Read(p.b, p.n, p.k).transpose();
    else c.noalias() = a * Read(p.b, p.k, p.n);
  }
}

template <class T>
void inBatches(const Product<T>& p, const auto& one) {
  const double work =
      static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  const bool small = work <= 2000;
  // Many that are small go to the threads as wholes, few large ones are divided.
  if (p.batches >= threads() && p.batches > 1 && work < 3e7) {
#pragma omp parallel for schedule(static) if (work * static_cast <double>(p.batches) > 20000)
    for (std::int64_t i = 0; i < p.batches; ++i) {
      if (small) tiny(batch(p, i));
      else one(batch(p, i));
    }
    return;
  }
  for (std::int64_t i = 0; i < p.batches; ++i) {
    if (small) tiny(batch(p, i));
    else one(batch(p, i));
  }
}

}  // namespace

void multiply(const Product<double>& p) { inBatches(p, byEigen); }
void multiply(const Product<long double>& p) { inBatches(p, byLoops<long double>); }
void multiply(const Product<Field>& p) { inBatches(p, byLoops<Field>); }

}  // namespace shardproof::executor
