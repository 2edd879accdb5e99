// SPDX-License-Identifier: Apache-2.0
// attention: the scaled products of queries and keys, a mask, softmax, and the product with the
// values, in one operator, with the logarithm of each row's sum of exponentials
// (torch.nn.functional.scaled_dot_product_attention, and the kernels behind it, which give the
// logarithm too; Dao et al., arXiv 2205.14135). It is defined as that composition, so attention
// over pieces of the keys is merged by the laws of exponentials and logarithms
// (terms/term_functions.cpp): with lse = log(sum_i exp(lse_i)), o = sum_i exp(lse_i - lse) o_i. No
// law is about this operator.
#include <stdexcept>

#include "ops/definition.h"

namespace shardproof::ops {
namespace {

// q [..., s, d], k [..., t, d], v [..., t, e], optionally a mask that broadcasts to [..., s, t] and
// is added to the scores -> o [..., s, e], lse [..., s]. Leading dimensions of k and v broadcast to
// those of q (a head of keys that several heads of queries share). `scale`: of the products,
// without it 1 / sqrt(d). The mask gets no gradient. A row whose mask is minus infinity throughout
// has neither result.
struct Attention {
  static Interface interface() {
    return {.name = "attention",
            .attributes = {{.key = "scale", .type = AttributeType::kNumber}},
            .minOperands = 3,
            .maxOperands = 4,
            .minResults = 2,
            .maxResults = 2,
            .optionalOperands = {3},
            .withoutGradient = {3}};
  }
  // The leading dimensions of q are labelled 0, 1, ..., then come s, t, d, e.
  struct Labels {
    ContractionLabels all;       // operands q, k, v and the mask, result o
    std::vector<int> scores;     // [..., s, t]
    std::vector<int> logarithm;  // [..., s]
  };
  static Labels labels(const Shape& q, const Shape& k, const Shape& v, const Shape* mask) {
    const std::size_t lead = q.size() - 2;
    const int s = static_cast<int>(lead), t = s + 1, d = s + 2, e = s + 3;
    Labels l;
    for (int i = 0; i < s; ++i) l.logarithm.push_back(i);
    l.logarithm.push_back(s);
    l.scores = l.logarithm;
    l.scores.push_back(t);
    l.all.result = l.logarithm;
    l.all.result.push_back(e);
    // Dimensions of `own` broadcast to those of the scores (of which the last two may be another
    // tensor's own).
    const auto aligned = [&](const Shape& own, std::size_t count) {
      std::vector<int> labelled;
      const std::size_t skipped = l.scores.size() - own.size();
      for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t whole = i + skipped < lead    ? q[i + skipped]
                                   : i + skipped == lead ? q[lead]
                                                         : k[k.size() - 2];
        labelled.push_back(own[i] == whole ? l.scores[i + skipped] : -1);
      }
      return labelled;
    };
    l.all.operands = {l.logarithm, aligned(k, k.size() - 2), aligned(v, v.size() - 2)};
    l.all.operands[0].push_back(d);
    l.all.operands[1].insert(l.all.operands[1].end(), {t, d});
    l.all.operands[2].insert(l.all.operands[2].end(), {t, e});
    if (mask != nullptr) l.all.operands.push_back(aligned(*mask, mask->size()));
    return l;
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    for (std::size_t i = 0; i < 3; ++i) {
      needReal(s, i);
      if (shapeOf(s, i).size() < 2)
        throw ShapeError("operand " + std::to_string(i) + " has shape " + toText(shapeOf(s, i)) +
                         ", expected at least two dimensions");
    }
    const Shape &q = shapeOf(s, 0), &k = shapeOf(s, 1), &v = shapeOf(s, 2);
    const std::string text = "queries " + toText(q) + ", keys " + toText(k) + " and values " +
                             toText(v) +
                             " do not fit, expected [..., s, d], [..., t, d] and [..., t, e]";
    if (q.back() != k.back() || k[k.size() - 2] != v[v.size() - 2]) throw ShapeError(text);
    const Shape lead(q.begin(), q.end() - 2);
    for (const Shape* x : {&k, &v}) {
      if (broadcastShapes(lead, Shape(x->begin(), x->end() - 2)) != lead)
        throw ShapeError(text + ", with leading dimensions that broadcast to those of the queries");
    }
    Shape scores = q;
    scores.back() = k[k.size() - 2];
    if (present(s, 3)) {
      needReal(s, 3);
      if (broadcastShapes(scores, shapeOf(s, 3)) != scores)
        throw ShapeError("the mask has shape " + toText(shapeOf(s, 3)) +
                         ", expected one that broadcasts to " + toText(scores));
    }
    Shape o = q;
    o.back() = v.back();
    return {TensorInfo{std::move(o)}, TensorInfo{Shape(q.begin(), q.end() - 1)}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const Labels l = labels(shapeOf(s, 0), shapeOf(s, 1), shapeOf(s, 2),
                            present(s, 3) ? &shapeOf(s, 3) : nullptr);
    relateLabels(l.all, slotOfResult(s, 0), relations);
    for (std::size_t d = 0; d < l.logarithm.size(); ++d)
      relations.equal(ref(0, d), ref(slotOfResult(s, 1), d));
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    using Element = typename A::Element;
    A& a = e.algebra;
    const TensorValue<A>&q = *e.in[0], &k = *e.in[1], &v = *e.in[2];
    const TensorValue<A>* mask = e.in.size() > 3 ? e.in[3] : nullptr;
    const Shape maskShape = mask != nullptr ? fullShape(mask->dims) : Shape{};
    const Labels l = labels(fullShape(q.dims), fullShape(k.dims), fullShape(v.dims),
                            mask != nullptr ? &maskShape : nullptr);
    const std::size_t last = q.dims.size() - 1;
    const ReducedDim& keys = k.dims[k.dims.size() - 2];

    TensorValue<A> p;  // the scores, then their softmax
    p.dims = q.dims;
    p.dims[last] = keys;
    contract<A>(a, {{&q, l.all.operands[0]}, {&k, l.all.operands[1]}}, l.scores, p);
    const Element scale = has(e.attributes, "scale")
                              ? a.constant(number(e.attributes, "scale"))
                              : a.power(a.constant(Rational(q.dims[last].full)), -1);
    for (Element& x : p.data) x = a.mul(scale, x);
    if (mask != nullptr) {
      const std::array<const std::vector<ReducedDim>*, 2> both{&p.dims, &mask->dims};
      expectDims(p.dims, broadcastDims(both));
      std::size_t i = 0;
      walk<1>(sizesOf(p.dims), {broadcastStrides(mask->dims, p.dims)},
              [&](const std::array<Index, 1>& o) {
                p.data[i] = a.add(p.data[i], mask->data[at(o[0])]);
                ++i;
              });
    }

    const std::vector<std::int64_t> weights = weightsOf(std::span(&keys, 1));
    const std::size_t width = at(keys.size());
    TensorValue<A>* const lse = e.out[1];
    if (lse != nullptr) {
      expectDims(lse->dims, std::span(q.dims).first(last));
      lse->data.clear();
    }
    std::vector<Element> row(width);
    for (std::size_t first = 0; first < p.data.size(); first += width) {
      for (std::size_t t = 0; t < width; ++t) row[t] = a.exp(p.data[first + t]);
      const std::array<Element, 1> total{weightedSum(a, row, weights)};
      if (lse != nullptr)
        lse->data.push_back(a.apply(Function::kLog, {}, std::span<const Element>(total)));
      if (e.out[0] == nullptr) continue;
      const Element inverse = a.power(total[0], -2);
      for (std::size_t t = 0; t < width; ++t) p.data[first + t] = a.mul(row[t], inverse);
    }
    if (e.out[0] != nullptr)
      contract<A>(a, {{&p, l.scores}, {&v, l.all.operands[2]}}, l.all.result, *e.out[0]);
  }
};

}  // namespace

void defineAttention(Catalog& catalog) { define<Attention>(catalog); }

}  // namespace shardproof::ops
