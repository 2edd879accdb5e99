// SPDX-License-Identifier: Apache-2.0
// Operators that read whole rows: reductions, normalisation, losses (docs/operators.md).
#include <algorithm>

#include "unreduced/definitions.h"

namespace shardproof::unreduced {
namespace {

using ops::Function;

// What of a row is shared by its elements (NodeView::shared).
enum SharedInRow {
  kRowExponentials,
  kRowWeighted,
  kRowMean,
  kRowInverse,
  kRowGradient,
  kRowGradientTimes
};

// The dimensions that a reduction goes over; the others are those of its result, in their order.
std::vector<std::size_t> reducedDims(const Attributes& a, std::size_t rank) {
  std::vector<std::size_t> dims;
  if (!ops::has(a, "dim")) {
    for (std::size_t d = 0; d < rank; ++d) dims.push_back(d);
    return dims;
  }
  for (const Index d : ops::integers(a, "dim")) dims.push_back(dimension(d, rank));
  return dims;
}

Shape keptShape(const Shape& shape, const std::vector<std::size_t>& dims) {
  Shape kept;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) kept.push_back(shape[d]);
  }
  return kept;
}

// Where the result's element `flat` starts in the operand.
Position unreducedPosition(const Shape& shape, const std::vector<std::size_t>& dims, Index flat) {
  const Position kept = unravel(keptShape(shape, dims), flat);
  Position p(shape.size());
  for (std::size_t d = 0, k = 0; d < shape.size(); ++d)
    p[d] = std::find(dims.begin(), dims.end(), d) == dims.end() ? kept[k++] : 0;
  return p;
}

// The other way round: of which result's element an operand's is a part.
Index reducedFlat(const Shape& shape, const std::vector<std::size_t>& dims, const Position& p) {
  Index flat = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) flat = flat * shape[d] + p[d];
  }
  return flat;
}

Index countOf(const Shape& shape, const std::vector<std::size_t>& dims) {
  Index n = 1;
  for (const std::size_t d : dims) n *= shape[d];
  return n;
}

// The sum of f(flat) over the stretch of operand x that `p` lies in.
template <class A, class F>
Number<A> overRow(const NodeView<A>& n, const Shape& shape, const std::vector<std::size_t>& dims,
                  Position p, F&& f) {
  Sum<A> sum = n.sum();
  forEach(shape, dims, p, [&] { sum.add(f(ravel(shape, p))); });
  return sum.value();
}

void defineReductions(DefinitionTable& table) {
  const auto reduce = [&](const std::string& name, bool mean) {
    table.add(name, [mean](const auto& n, std::size_t, Index i) {
      const Shape& s = n.shape(0);
      const auto dims = reducedDims(n.attributes(), s.size());
      const auto sum =
          overRow(n, s, dims, unreducedPosition(s, dims, i), [&](Index j) { return n.in(0, j); });
      return mean ? sum.times(Rational(1, countOf(s, dims))) : sum;
    });
    table.add(name + "_backward", [mean](const auto& n, std::size_t, Index i) {
      const Shape& s = n.shape(1);
      const auto dims = reducedDims(n.attributes(), s.size());
      const auto g = n.in(0, reducedFlat(s, dims, unravel(s, i)));
      return mean ? g.times(Rational(1, countOf(s, dims))) : g;
    });
  };
  reduce("sum", false);
  reduce("mean", true);
  const auto extremum = [&](const std::string& name, Function f) {
    table.add(name, [f](const auto& n, std::size_t, Index i) {
      const Shape& s = n.shape(0);
      const auto dims = reducedDims(n.attributes(), s.size());
      Position p = unreducedPosition(s, dims, i);
      std::vector<decltype(n.zero().value)> row;
      forEach(s, dims, p, [&] { row.push_back(n.in(0, p).value); });
      auto result = n.zero();
      result.value = n.algebra().apply(f, {}, row);
      return result;
    });
  };
  extremum("amax", Function::kMaximum);
  extremum("amin", Function::kMinimum);
  // Operand k, row with number `row`: the sum of exponentials.
  const auto exponentials = [](const auto& n, std::size_t k, const std::vector<std::size_t>& dims,
                               Index row) {
    const Shape& s = n.shape(k);
    return n.shared(kRowExponentials, row, [&] {
      return overRow(n, s, dims, unreducedPosition(s, dims, row),
                     [&](Index j) { return n.in(k, j).exp(); });
    });
  };
  table.add("logsumexp", [exponentials](const auto& n, std::size_t, Index i) {
    return exponentials(n, 0, reducedDims(n.attributes(), n.shape(0).size()), i)
        .apply(Function::kLog);
  });
  table.add("logsumexp_backward", [exponentials](const auto& n, std::size_t, Index i) {
    const auto dims = reducedDims(n.attributes(), n.shape(1).size());
    const Index row = reducedFlat(n.shape(1), dims, unravel(n.shape(1), i));
    return n.in(0, row) * n.in(1, i).exp() * exponentials(n, 1, dims, row).power(-2);
  });
  table.add("softmax", [exponentials](const auto& n, std::size_t, Index i) {
    const auto dims = reducedDims(n.attributes(), n.shape(0).size());
    return n.in(0, i).exp() *
           exponentials(n, 0, dims, reducedFlat(n.shape(0), dims, unravel(n.shape(0), i)))
               .power(-2);
  });
  // y_i (g_i - sum_j g_j y_j)
  table.add("softmax_backward", [exponentials](const auto& n, std::size_t, Index i) {
    const Shape& s = n.shape(1);
    const auto dims = reducedDims(n.attributes(), s.size());
    const Index row = reducedFlat(s, dims, unravel(s, i));
    const auto inverse = exponentials(n, 1, dims, row).power(-2);
    const auto weighted = n.shared(kRowWeighted, row, [&] {
      return overRow(n, s, dims, unreducedPosition(s, dims, row),
                     [&](Index j) { return n.in(0, j) * n.in(1, j).exp(); });
    });
    return n.in(1, i).exp() * inverse * (n.in(0, i) - weighted * inverse);
  });
  table.add("log_softmax", [exponentials](const auto& n, std::size_t, Index i) {
    const auto dims = reducedDims(n.attributes(), n.shape(0).size());
    return n.in(0, i) -
           exponentials(n, 0, dims, reducedFlat(n.shape(0), dims, unravel(n.shape(0), i)))
               .apply(Function::kLog);
  });
  table.add("log_softmax_backward", [exponentials](const auto& n, std::size_t, Index i) {
    const Shape& s = n.shape(1);
    const auto dims = reducedDims(n.attributes(), s.size());
    const Index row = reducedFlat(s, dims, unravel(s, i));
    const auto total = n.shared(kRowGradient, row, [&] {
      return overRow(n, s, dims, unreducedPosition(s, dims, row),
                     [&](Index j) { return n.in(0, j); });
    });
    return n.in(0, i) - n.in(1, i).exp() * exponentials(n, 1, dims, row).power(-2) * total;
  });
}

// (x - mean) / sqrt(variance + eps) w + b over the last dimension; for rms_norm without the mean.
// `x` is the operand that x is, w follows it.
struct Norm {
  bool centred;

  template <class A>
  static Number<A> rowSum(const NodeView<A>& n, Index row, Index d,
                          const std::function<Number<A>(Index)>& f) {
    Sum<A> sum = n.sum();
    for (Index j = 0; j < d; ++j) sum.add(f(row * d + j));
    return sum.value();
  }
  template <class A>
  Number<A> mean(const NodeView<A>& n, std::size_t x, Index row, Index d) const {
    if (!centred) return n.zero();
    return n.shared(kRowMean, row, [&] {
      return rowSum<A>(n, row, d, [&](Index j) { return n.in(x, j); }).times(Rational(1, d));
    });
  }
  template <class A>
  Number<A> deviation(const NodeView<A>& n, std::size_t x, Index flat, Index d) const {
    return centred ? n.in(x, flat) - mean(n, x, flat / d, d) : n.in(x, flat);
  }
  // 1 / sqrt(mean of squares + eps)
  template <class A>
  Number<A> inverse(const NodeView<A>& n, std::size_t x, Index row, Index d) const {
    return n.shared(kRowInverse, row, [&] {
      const auto squares = rowSum<A>(n, row, d, [&](Index j) {
        const auto v = deviation(n, x, j, d);
        return v * v;
      });
      return (squares.times(Rational(1, d)) + n.constant(ops::number(n.attributes(), "eps")))
          .power(-1);
    });
  }
  template <class A>
  Number<A> value(const NodeView<A>& n, Index i) const {
    const Index d = n.shape(0).back();
    const auto y = deviation(n, 0, i, d) * inverse(n, 0, i / d, d) * n.in(1, i % d);
    return n.has(2) ? y + n.in(2, i % d) : y;
  }
  // Operands: g, x, w, [b].
  template <class A>
  Number<A> gradient(const NodeView<A>& n, std::size_t r, Index i) const {
    const Index d = n.shape(1).back();
    if (r > 0) {  // w and b are the same in all rows
      Sum<A> sum = n.sum();
      for (Index j = i; j < elementsOf(n.shape(1)); j += d)
        sum.add(r == 1 ? n.in(0, j) * deviation(n, 1, j, d) * inverse(n, 1, j / d, d) : n.in(0, j));
      return sum.value();
    }
    const Index row = i / d;
    const auto scaled = [&](Index j) { return n.in(0, j) * n.in(2, j % d); };
    const auto inv = inverse(n, 1, row, d);
    const auto along = n.shared(kRowGradientTimes, row, [&] {
      return rowSum<A>(n, row, d, [&](Index j) { return scaled(j) * deviation(n, 1, j, d); })
          .times(Rational(1, d));
    });
    const auto direct = scaled(i) - deviation(n, 1, i, d) * inv * inv * along;
    if (!centred) return inv * direct;
    return inv * (direct - n.shared(kRowGradient, row, [&] {
             return rowSum<A>(n, row, d, scaled).times(Rational(1, d));
           }));
  }
};

// Rows of logits against the class of each: log(sum_v exp(x_v)) - x_label.
void defineCrossEntropy(DefinitionTable& table) {
  const auto exponentials = [](const auto& n, std::size_t logits, Index row) {
    return n.shared(kRowExponentials, row, [&] {
      const Index v = n.shape(logits).back();
      auto sum = n.sum();
      for (Index j = 0; j < v; ++j) sum.add(n.in(logits, row * v + j).exp());
      return sum.value();
    });
  };
  const auto label = [](const auto& n, std::size_t labels, Index row, Index classes) {
    const auto l = n.integer(labels, row);
    if (!l || *l < 0 || *l >= classes) throw Unsupported("a label that is no class");
    return *l;
  };
  table.add("cross_entropy", [=](const auto& n, std::size_t, Index i) {
    const Index v = n.shape(0).back(), rows = elementsOf(n.shape(0)) / v;
    const std::string reduction = ops::text(n.attributes(), "reduction", "mean");
    const auto loss = [&](Index row) {
      return exponentials(n, 0, row).apply(Function::kLog) - n.in(0, row * v + label(n, 1, row, v));
    };
    if (reduction == "none") return loss(i);
    auto sum = n.sum();
    for (Index row = 0; row < rows; ++row) sum.add(loss(row));
    return reduction == "mean" ? sum.value().times(Rational(1, rows)) : sum.value();
  });
  table.add("cross_entropy_backward", [=](const auto& n, std::size_t, Index i) {
    const Index v = n.shape(1).back(), rows = elementsOf(n.shape(1)) / v, row = i / v;
    const std::string reduction = ops::text(n.attributes(), "reduction", "mean");
    const auto share = n.in(1, i).exp() * exponentials(n, 1, row).power(-2);
    const auto slope = label(n, 2, row, v) == i % v ? share - share.of(1) : share;
    const auto g = n.in(0, reduction == "none" ? row : 0) * slope;
    return reduction == "mean" ? g.times(Rational(1, rows)) : g;
  });
}

}  // namespace

void defineRows(DefinitionTable& table) {
  defineReductions(table);
  for (const bool centred : {true, false}) {
    const std::string name = centred ? "layer_norm" : "rms_norm";
    table.add(name, [norm = Norm{centred}](const auto& n, std::size_t, Index i) {
      return norm.value(n, i);
    });
    table.add(name + "_backward", [norm = Norm{centred}](const auto& n, std::size_t r, Index i) {
      return norm.gradient(n, r, i);
    });
  }
  defineCrossEntropy(table);
}

}  // namespace shardproof::unreduced
