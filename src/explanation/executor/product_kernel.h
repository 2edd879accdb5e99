// SPDX-License-Identifier: Apache-2.0
// Included once for each processor, with SHARDPROOF_PROCESSOR its namespace. Eigen's own namespace
// is renamed with it: its templates are compiled differently in each, and the linker would
// otherwise take any one of them for all.
#define SHARDPROOF_JOIN(a, b) a##b
#define SHARDPROOF_EIGEN(processor) SHARDPROOF_JOIN(Eigen_, processor)
#define Eigen SHARDPROOF_EIGEN(SHARDPROOF_PROCESSOR)
#define EIGEN_NO_DEBUG
#define EIGEN_DONT_USE_ATOMIC

#include <Eigen/Core>

#include "executor/product.h"

namespace shardproof::executor::SHARDPROOF_PROCESSOR {

void multiplyOne(const Product<double>& p) {
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

}  // namespace shardproof::executor::SHARDPROOF_PROCESSOR
