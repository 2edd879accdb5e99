// SPDX-License-Identifier: Apache-2.0
// Contractions: linear, matmul, einsum (torch.nn.functional.linear, torch.matmul, torch.einsum).
// Each one names the dimensions of its operands by labels and leaves the rest to contract()
// (indexing.h).
#include <algorithm>
#include <stdexcept>

#include "ops/definition.h"

namespace shardproof::ops {
namespace {

using Labels = ContractionLabels;

// linear: x [..., k], w [n, k], optional bias [n] -> x w^T + bias [..., n].
struct Linear {
  static Interface interface() {
    return {.name = "linear",
            .minOperands = 2,
            .maxOperands = 3,
            .optionalOperands = {2},
            .traits = {.total = true, .keepsSign = true}};
  }
  static Labels labels(std::size_t rank) {
    Labels l;
    l.operands.resize(2);
    for (std::size_t d = 0; d + 1 < rank; ++d) {
      l.operands[0].push_back(static_cast<int>(d));
      l.result.push_back(static_cast<int>(d));
    }
    const int k = static_cast<int>(rank), n = k + 1;
    l.operands[0].push_back(k);
    l.operands[1] = {n, k};
    l.result.push_back(n);
    return l;
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    needReal(s, 1);
    needRank(s, 1, 2, "[n, k]");
    const Shape &x = shapeOf(s, 0), &w = shapeOf(s, 1);
    if (x.empty() || x.back() != w[1])
      throw ShapeError("operand 0 has shape " + toText(x) + ", expected [..., " +
                       std::to_string(w[1]) + "] to fit weight " + toText(w));
    if (present(s, 2)) {
      needReal(s, 2);
      if (shapeOf(s, 2) != Shape{w[0]})
        throw ShapeError("the bias has shape " + toText(shapeOf(s, 2)) + ", expected " +
                         toText({w[0]}));
    }
    Shape shape = x;
    shape.back() = w[0];
    return {TensorInfo{std::move(shape)}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const std::size_t rank = shapeOf(s, 0).size();
    relateLabels(labels(rank), slotOfResult(s, 0), relations);
    if (present(s, 2)) {
      relations.equal(ref(2, 0), ref(1, 0));
      relations.equal(ref(2, 0), ref(slotOfResult(s, 0), rank - 1));
    }
  }
  template <class A>
  static SumOfProducts products(const Evaluation<A>& e) {
    const Labels l = labels(e.in[0]->dims.size());
    SumOfProducts made{{{0, 1}}, l};
    if (e.in.size() > 2 && e.in[2] != nullptr) {
      made.summands.push_back({2});
      made.labels.operands.push_back({l.result.back()});
    }
    return made;
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const Labels l = labels(e.in[0]->dims.size());
    TensorValue<A>& out = *e.out[0];
    contract<A>(e.algebra, {{e.in[0], l.operands[0]}, {e.in[1], l.operands[1]}}, l.result, out);
    if (e.in.size() < 3 || e.in[2] == nullptr) return;
    const TensorValue<A>& bias = *e.in[2];
    expectDims(bias.dims, std::span(out.dims).last(1));
    for (std::size_t k = 0; k < out.data.size(); ++k)
      out.data[k] = e.algebra.add(out.data[k], bias.data[k % bias.data.size()]);
  }
};

// matmul: a [..., m, k], b [..., k, n] -> [..., m, n]; leading dimensions broadcast; a vector on
// either side is a row or a column whose dimension disappears.
struct MatMul {
  static Interface interface() {
    return {.name = "matmul",
            .minOperands = 2,
            .maxOperands = 2,
            .traits = {.total = true, .keepsSign = true}};
  }
  static Shape batch(const Shape& x) {
    return x.size() <= 2 ? Shape{} : Shape(x.begin(), x.end() - 2);
  }
  static Labels labels(const Shape& a, const Shape& b) {
    const Shape shape = broadcastShapes(batch(a), batch(b));
    const int lead = static_cast<int>(shape.size()), m = lead, k = lead + 1, n = lead + 2;
    Labels l;
    l.operands.resize(2);
    const auto leading = [&](const Shape& x, std::vector<int>& labelsOfX) {
      const Shape own = batch(x);
      for (std::size_t d = 0; d < own.size(); ++d) {
        const std::size_t r = d + shape.size() - own.size();
        labelsOfX.push_back(own[d] == shape[r] ? static_cast<int>(r) : -1);
      }
    };
    leading(a, l.operands[0]);
    leading(b, l.operands[1]);
    for (int r = 0; r < lead; ++r) l.result.push_back(r);
    if (a.size() > 1) {
      l.operands[0].push_back(m);
      l.result.push_back(m);
    }
    l.operands[0].push_back(k);
    l.operands[1].push_back(k);
    if (b.size() > 1) {
      l.operands[1].push_back(n);
      l.result.push_back(n);
    }
    return l;
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    needReal(s, 1);
    const Shape &a = shapeOf(s, 0), &b = shapeOf(s, 1);
    const std::string text = "shapes " + toText(a) + " and " + toText(b) +
                             " do not multiply, expected [..., m, k] and [..., k, n]";
    if (a.empty() || b.empty() || a.back() != (b.size() == 1 ? b[0] : b[b.size() - 2]))
      throw ShapeError(text);
    Shape shape = broadcastShapes(batch(a), batch(b));
    if (a.size() > 1) shape.push_back(a[a.size() - 2]);
    if (b.size() > 1) shape.push_back(b.back());
    return {TensorInfo{std::move(shape)}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    relateLabels(labels(shapeOf(s, 0), shapeOf(s, 1)), slotOfResult(s, 0), relations);
  }
  template <class A>
  static SumOfProducts products(const Evaluation<A>& e) {
    return {{{0, 1}}, labels(fullShape(e.in[0]->dims), fullShape(e.in[1]->dims))};
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const Labels l = labels(fullShape(e.in[0]->dims), fullShape(e.in[1]->dims));
    contract<A>(e.algebra, {{e.in[0], l.operands[0]}, {e.in[1], l.operands[1]}}, l.result,
                *e.out[0]);
  }
};

// einsum: `equation` with an explicit "->". Errors: an ellipsis, a letter that stands twice in one
// operand (a diagonal) or in the result, a result letter that no operand has, sizes of one letter
// that differ (1 is not broadcast).
struct Einsum {
  static Interface interface() {
    return {.name = "einsum",
            .attributes = {{.key = "equation", .type = AttributeType::kText, .required = true}},
            .maxOperands = kAnyNumber,
            .traits = {.total = true, .keepsSign = true},
            .check = [](const Attributes& attributes, std::size_t operands, std::size_t) {
              const Labels l = labels(attributes);
              if (l.operands.size() != operands)
                throw std::invalid_argument("attribute 'equation': found " +
                                            std::to_string(l.operands.size()) +
                                            " operands, expected " + std::to_string(operands));
            }};
  }
  static Labels labels(const Attributes& attributes) {
    std::string equation = text(attributes, "equation");
    equation.erase(std::remove(equation.begin(), equation.end(), ' '), equation.end());
    const auto fail = [&](const std::string& expected) {
      throw std::invalid_argument("attribute 'equation': found \"" + equation + "\", expected " +
                                  expected);
    };
    const std::size_t arrow = equation.find("->");
    if (arrow == std::string::npos) fail("an explicit ->");
    std::string letters;  // label -> letter
    const auto label = [&](char c) {
      const auto isLetter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if (!isLetter) fail("letters and commas only (no ellipsis)");
      if (letters.find(c) == std::string::npos) letters += c;
      return static_cast<int>(letters.find(c));
    };
    Labels l;
    l.operands.emplace_back();
    for (const char c : equation.substr(0, arrow)) {
      if (c == ',') {
        l.operands.emplace_back();
        continue;
      }
      const int i = label(c);
      auto& own = l.operands.back();
      if (std::find(own.begin(), own.end(), i) != own.end())
        fail("each letter once in an operand (diagonals are unsupported)");
      own.push_back(i);
    }
    const std::size_t known = letters.size();
    for (const char c : equation.substr(arrow + 2)) {
      const int i = label(c);
      if (at(i) >= known) fail("result letters that stand in an operand");
      if (std::find(l.result.begin(), l.result.end(), i) != l.result.end())
        fail("each letter once in the result");
      l.result.push_back(i);
    }
    return l;
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    const Labels l = labels(s.attributes);
    std::vector<std::int64_t> sizes;
    for (std::size_t i = 0; i < s.in.size(); ++i) {
      needReal(s, i);
      const Shape& x = shapeOf(s, i);
      if (i >= l.operands.size() || x.size() != l.operands[i].size())
        throw ShapeError("operand " + std::to_string(i) + " has shape " + toText(x) +
                         ", which does not fit the equation \"" + text(s.attributes, "equation") +
                         "\"");
      for (std::size_t d = 0; d < x.size(); ++d) {
        const std::size_t k = at(l.operands[i][d]);
        if (sizes.size() <= k) sizes.resize(k + 1, -1);
        if (sizes[k] >= 0 && sizes[k] != x[d])
          throw ShapeError("dimension " + std::to_string(d) + " of operand " + std::to_string(i) +
                           " has size " + std::to_string(x[d]) + ", expected " +
                           std::to_string(sizes[k]) + " as for the same letter before");
        sizes[k] = x[d];
      }
    }
    Shape shape;
    for (const int k : l.result) shape.push_back(sizes.at(at(k)));
    return {TensorInfo{std::move(shape)}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    relateLabels(labels(s.attributes), slotOfResult(s, 0), relations);
  }
  template <class A>
  static SumOfProducts products(const Evaluation<A>& e) {
    SumOfProducts made{{{}}, labels(e.attributes)};
    for (std::size_t i = 0; i < e.in.size(); ++i) made.summands[0].push_back(i);
    return made;
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const Labels l = labels(e.attributes);
    std::vector<Factor<A>> factors;
    for (std::size_t i = 0; i < e.in.size(); ++i) factors.push_back({e.in[i], l.operands.at(i)});
    contract<A>(e.algebra, factors, l.result, *e.out[0]);
  }
};

}  // namespace

void defineLinearAlgebra(Catalog& catalog) {
  define<Linear>(catalog);
  define<MatMul>(catalog);
  define<Einsum>(catalog);
}

}  // namespace shardproof::ops
