// SPDX-License-Identifier: Apache-2.0
// linear, matmul, einsum and their gradients, as batches of products of matrices
// (docs/operators.md, "Linear algebra").
#include <algorithm>
#include <map>
#include <string>

#include "executor/call.h"
#include "executor/product.h"

namespace shardproof::executor {
namespace {

template <class T>
void run(Call<T>& c, const Product<T>& p) {
  c.context.flops += 2.0 * static_cast<double>(p.batches) * static_cast<double>(p.m) *
                     static_cast<double>(p.n) * static_cast<double>(p.k);
  multiply(p);
}

// --- linear: x [..., k], w [n, k], bias [n] ---

struct LinearSizes {
  std::int64_t rows = 1, n = 0, k = 0;
  Shape result;
};

template <class T>
LinearSizes linearSizes(const Call<T>& c, std::size_t first) {
  const Shape &x = c.real(first).shape, &w = c.real(first + 1).shape;
  if (x.empty())
    throw Misfit("operand " + std::to_string(first) + " has shape [], expected [..., k]");
  LinearSizes s;
  s.k = x.back();
  c.expect(first + 1, {w.empty() ? 1 : w[0], s.k}, w.size() == 2 && w[1] == s.k);
  s.n = w[0];
  s.result = x;
  s.result.back() = s.n;
  for (std::size_t d = 0; d + 1 < x.size(); ++d) s.rows *= x[d];
  if (c.present(first + 2)) {
    c.real(first + 2);
    c.expect(first + 2, {s.n});
  }
  return s;
}

template <class T>
void linear(Call<T>& c) {
  const LinearSizes s = linearSizes(c, 0);
  Value<T> y = c.make(s.result);
  run(c, Product<T>{.m = s.rows,
                    .n = s.n,
                    .k = s.k,
                    .a = c.operand(0).data(),
                    .b = c.operand(1).data(),
                    .c = y.writable(),
                    .transposeB = true});
  if (c.present(2)) {
    const T* bias = c.operand(2).data();
    T* to = y.writable();
    forEachRow(s.rows, s.n, [=](std::int64_t r) {
      for (std::int64_t i = 0; i < s.n; ++i) to[r * s.n + i] += bias[i];
    });
  }
  c.out[0] = std::move(y);
}

template <class T>
void linearBackward(Call<T>& c) {
  const LinearSizes s = linearSizes(c, 1);
  const Value<T>& g = c.gradient(0, s.result);
  const Value<T>&x = c.operand(1), &w = c.operand(2);
  if (c.wants(0)) {
    c.out[0] = c.make(x.shape);
    run(c, Product<T>{.m = s.rows,
                      .n = s.k,
                      .k = s.n,
                      .a = g.data(),
                      .b = w.data(),
                      .c = c.out[0].writable()});
  }
  if (c.wants(1)) {
    c.out[1] = c.make(w.shape);
    run(c, Product<T>{.m = s.n,
                      .n = s.k,
                      .k = s.rows,
                      .a = g.data(),
                      .b = x.data(),
                      .c = c.out[1].writable(),
                      .transposeA = true});
  }
  if (c.wants(2)) c.out[2] = summed(c, g.as({s.rows, s.n}), {1, 0}).as({s.n});
}

// --- matmul ---

struct MatmulSizes {
  Shape a, b, result;  // a and b with a row or column added to vectors
  Shape batch;         // the leading dimensions, broadcast
  std::int64_t m, n, k;
  Shape full;  // result with that row and column
};

MatmulSizes matmulSizes(const Shape& a, const Shape& b) {
  MatmulSizes s{.a = a, .b = b, .result = {}, .batch = {}, .m = 1, .n = 1, .k = 1, .full = {}};
  if (a.empty() || b.empty())
    throw Misfit("matmul of shapes " + text(a) + " and " + text(b) +
                 ", expected at least one dimension each");
  if (a.size() == 1) s.a = {1, a[0]};
  if (b.size() == 1) s.b = {b[0], 1};
  s.m = s.a[s.a.size() - 2];
  s.k = s.a.back();
  s.n = s.b.back();
  if (s.b[s.b.size() - 2] != s.k)
    throw Misfit("matmul of shapes " + text(a) + " and " + text(b) +
                 ": the inner dimensions differ");
  s.batch = broadcastOf(Shape(s.a.begin(), s.a.end() - 2), Shape(s.b.begin(), s.b.end() - 2));
  s.full = s.batch;
  s.full.insert(s.full.end(), {s.m, s.n});
  s.result = s.batch;
  if (a.size() > 1) s.result.push_back(s.m);
  if (b.size() > 1) s.result.push_back(s.n);
  return s;
}

// C[batch] = A B with leading dimensions broadcast to `batch`.
template <class T>
Value<T> batched(Call<T>& c, const Value<T>& a, const Value<T>& b, const Shape& batch,
                 std::int64_t m, std::int64_t n, std::int64_t k, bool transposeA, bool transposeB) {
  Shape shape = batch;
  shape.insert(shape.end(), {m, n});
  Value<T> y = c.make(shape);
  const Shape leadA(a.shape.begin(), a.shape.end() - 2), leadB(b.shape.begin(), b.shape.end() - 2);
  Product<T> p{.m = m,
               .n = n,
               .k = k,
               .a = a.data(),
               .b = b.data(),
               .c = y.writable(),
               .transposeA = transposeA,
               .transposeB = transposeB};
  // One B for all batches of an A that is not transposed: one tall product.
  if (!transposeA && positionsOf(leadB) == 1 && leadA == batch) {
    p.m = m * positionsOf(batch);
    run(c, p);
    return y;
  }
  const Walk walk(batch, broadcastStrides(leadA, batch), broadcastStrides(leadB, batch));
  p.batches = walk.length;
  p.strideA = walk.strideA * m * k;
  p.strideB = walk.strideB * k * n;
  p.strideC = m * n;
  for (std::int64_t r = 0; r < walk.runs; ++r) {
    const auto [ia, ib] = walk.start(r);
    Product<T> q = p;
    q.a += ia * m * k;
    q.b += ib * k * n;
    q.c += r * walk.length * m * n;
    run(c, q);
  }
  return y;
}

template <class T>
void matmul(Call<T>& c) {
  const Value<T>&a = c.real(0), &b = c.real(1);
  const MatmulSizes s = matmulSizes(a.shape, b.shape);
  c.out[0] = batched(c, a.as(s.a), b.as(s.b), s.batch, s.m, s.n, s.k, false, false).as(s.result);
}

template <class T>
void matmulBackward(Call<T>& c) {
  const Value<T>&a = c.real(1), &b = c.real(2);
  const MatmulSizes s = matmulSizes(a.shape, b.shape);
  const Value<T> g = c.gradient(0, s.result).as(s.full);
  if (c.wants(0))
    c.out[0] =
        summedTo(c, batched(c, g, b.as(s.b), s.batch, s.m, s.k, s.n, false, true), s.a).as(a.shape);
  if (c.wants(1))
    c.out[1] =
        summedTo(c, batched(c, a.as(s.a), g, s.batch, s.k, s.n, s.m, true, false), s.b).as(b.shape);
}

// --- einsum ---

template <class T>
struct Lettered {
  Value<T> value;
  std::string letters;  // one for each dimension
};

struct Equation {
  std::vector<std::string> operands;
  std::string result;
};

Equation parse(const std::string& text) {
  Equation e;
  e.operands.emplace_back();
  bool right = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char ch = text[i];
    if (ch == ' ') continue;
    if (ch == '-' && i + 1 < text.size() && text[i + 1] == '>' && !right) {
      right = true;
      ++i;
    } else if (ch == ',' && !right) {
      e.operands.emplace_back();
    } else if ((ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z')) {
      std::string& term = right ? e.result : e.operands.back();
      if (term.find(ch) != std::string::npos)
        throw Misfit("equation '" + text + "' has a letter twice in one term");
      term += ch;
    } else {
      throw Misfit("equation '" + text + "' has the character '" + std::string(1, ch) + "'");
    }
  }
  if (!right) throw Misfit("equation '" + text + "' has no '->'");
  return e;
}

bool has(const std::string& letters, char l) { return letters.find(l) != std::string::npos; }

template <class T>
Lettered<T> arranged(Call<T>& c, const Lettered<T>& x, const std::string& letters) {
  std::vector<std::size_t> order;
  for (const char l : letters) order.push_back(x.letters.find(l));
  return {permuted(c, x.value, order), letters};
}

// Sums over the letters that are not in `wanted`.
template <class T>
Lettered<T> reduced(Call<T>& c, const Lettered<T>& x, const std::string& wanted) {
  std::vector<char> dims;
  std::string letters;
  Shape shape;
  for (std::size_t d = 0; d < x.letters.size(); ++d) {
    const bool stays = has(wanted, x.letters[d]);
    dims.push_back(!stays);
    if (!stays) continue;
    letters += x.letters[d];
    shape.push_back(x.value.shape[d]);
  }
  if (letters.size() == x.letters.size()) return x;
  return {summed(c, x.value, dims).as(shape), letters};
}

// Sums over the letters that both have and `wanted` has not.
template <class T>
Lettered<T> contracted(Call<T>& c, const Lettered<T>& left, const Lettered<T>& right,
                       const std::string& wanted) {
  const Lettered<T> a = reduced(c, left, wanted + right.letters),
                    b = reduced(c, right, wanted + left.letters);
  std::string batch, inner, rows, columns;
  std::int64_t batches = 1, k = 1, m = 1, n = 1;
  for (std::size_t d = 0; d < a.letters.size(); ++d) {
    const char l = a.letters[d];
    const std::int64_t size = a.value.shape[d];
    if (!has(b.letters, l)) rows += l, m *= size;
    else if (has(wanted, l)) batch += l, batches *= size;
    else inner += l, k *= size;
  }
  for (std::size_t d = 0; d < b.letters.size(); ++d) {
    if (!has(a.letters, b.letters[d])) columns += b.letters[d], n *= b.value.shape[d];
  }
  const Lettered<T> x = arranged(c, a, batch + rows + inner),
                    y = arranged(c, b, batch + inner + columns);
  Lettered<T> z;
  z.letters = batch + rows + columns;
  Shape shape;
  for (const char l : z.letters) {
    const std::size_t d = x.letters.find(l);
    shape.push_back(d != std::string::npos ? x.value.shape[d] : y.value.shape[y.letters.find(l)]);
  }
  z.value = c.make(shape);
  run(c, Product<T>{.m = m,
                    .n = n,
                    .k = k,
                    .a = x.value.data(),
                    .b = y.value.data(),
                    .c = z.value.writable(),
                    .batches = batches,
                    .strideA = m * k,
                    .strideB = k * n,
                    .strideC = m * n});
  return z;
}

template <class T>
Value<T> contractAll(Call<T>& c, const std::vector<Lettered<T>>& factors,
                     const std::string& result) {
  Lettered<T> left = factors[0];
  for (std::size_t i = 1; i < factors.size(); ++i) {
    std::string wanted = result;
    for (std::size_t j = i + 1; j < factors.size(); ++j) wanted += factors[j].letters;
    left = contracted(c, left, factors[i], wanted);
  }
  left = reduced(c, left, result);
  return arranged(c, left, result).value;
}

template <class T>
std::map<char, std::int64_t> einsumOperands(const Call<T>& c, const Equation& e, std::size_t first,
                                            std::vector<Lettered<T>>& operands) {
  if (c.in.size() - first != e.operands.size())
    throw Misfit("the equation has " + std::to_string(e.operands.size()) + " operands, the node " +
                 std::to_string(c.in.size() - first));
  std::map<char, std::int64_t> sizes;
  for (std::size_t i = 0; i < e.operands.size(); ++i) {
    const Value<T>& x = c.real(first + i);
    if (x.shape.size() != e.operands[i].size())
      throw Misfit("operand " + std::to_string(first + i) + " has shape " + text(x.shape) +
                   ", but the equation names '" + e.operands[i] + "'");
    for (std::size_t d = 0; d < x.shape.size(); ++d) {
      const auto [it, added] = sizes.emplace(e.operands[i][d], x.shape[d]);
      if (!added && it->second != x.shape[d])
        throw Misfit(std::string("the letter '") + e.operands[i][d] + "' has two sizes, " +
                     std::to_string(it->second) + " and " + std::to_string(x.shape[d]));
    }
    operands.push_back({x, e.operands[i]});
  }
  for (const char l : e.result)
    if (!sizes.contains(l))
      throw Misfit(std::string("the result's letter '") + l + "' is in no operand");
  return sizes;
}

template <class T>
void einsum(Call<T>& c) {
  const Equation e = parse(textOf(c.attributes, "equation", ""));
  std::vector<Lettered<T>> operands;
  einsumOperands(c, e, 0, operands);
  c.out[0] = contractAll(c, operands, e.result);
}

template <class T>
void einsumBackward(Call<T>& c) {
  const Equation e = parse(textOf(c.attributes, "equation", ""));
  std::vector<Lettered<T>> operands;
  const std::map<char, std::int64_t> sizes = einsumOperands(c, e, 1, operands);
  Shape shape;
  for (const char l : e.result) shape.push_back(sizes.at(l));
  const Value<T> g = c.gradient(0, shape).as(shape);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (!c.wants(i)) continue;
    std::vector<Lettered<T>> factors{{g, e.result}};
    std::string there = e.result;
    for (std::size_t j = 0; j < operands.size(); ++j) {
      if (j == i) continue;
      factors.push_back(operands[j]);
      there += operands[j].letters;
    }
    // Letters that this operand alone has were summed there: the gradient is the same along them.
    std::string own;
    Shape kept;
    for (std::size_t d = 0; d < operands[i].letters.size(); ++d) {
      const bool shared = has(there, operands[i].letters[d]);
      if (shared) own += operands[i].letters[d];
      kept.push_back(shared ? operands[i].value.shape[d] : 1);
    }
    const Value<T> d = contractAll(c, factors, own).as(kept);
    c.out[i] = d.shape == operands[i].value.shape
                   ? d
                   : strided(c, d, operands[i].value.shape,
                             broadcastStrides(kept, operands[i].value.shape), 0);
  }
}

}  // namespace

template <class T>
void addContractions(std::vector<NamedKernel<T>>& k) {
  k.push_back({"linear", linear<T>});
  k.push_back({"linear_backward", linearBackward<T>});
  k.push_back({"matmul", matmul<T>});
  k.push_back({"matmul_backward", matmulBackward<T>});
  k.push_back({"einsum", einsum<T>});
  k.push_back({"einsum_backward", einsumBackward<T>});
}

template void addContractions(std::vector<NamedKernel<double>>&);
template void addContractions(std::vector<NamedKernel<long double>>&);
template void addContractions(std::vector<NamedKernel<Field>>&);

}  // namespace shardproof::executor
