// SPDX-License-Identifier: Apache-2.0
// Embedding lookup and the parts of attention that are not plain linear algebra.
#include <stdexcept>

#include "ops/definition.h"
#include "ops/positions.h"

namespace shardproof::ops {
namespace {

// embedding: ids (any shape, integers), weight [rows, d] holding rows [start, stop) of a table ->
// [..., d]: row ids - start where start <= ids < stop, else zeros. Written as a sum over the table,
// sum_v [ids = start + v] weight[v] (docs/design.md, "Discrete choices"), so that a table cut into
// shards is a sum cut into pieces. The entries [ids = v] are treated as an arbitrary matrix that is
// constant on classes, which the one-hot matrix of every integer input is an instance of at full
// size; hence the weights. Errors: rows other than stop - start.
struct Embedding {
  static Interface interface() {
    return {
        .name = "embedding",
        .attributes = {{.key = "start", .min = Rational(0)}, {.key = "stop", .min = Rational(1)}},
        .minOperands = 2,
        .maxOperands = 2,
        .traits = {.affine = true, .total = true},
        .check = [](const Attributes& attributes, std::size_t, std::size_t) {
          if (has(attributes, "start") != has(attributes, "stop"))
            throw std::invalid_argument(
                "found one of the attributes 'start' and 'stop', expected both or neither");
          if (has(attributes, "start") &&
              integer(attributes, "start") >= integer(attributes, "stop"))
            throw std::invalid_argument(
                "attribute 'stop': found " + std::to_string(integer(attributes, "stop")) +
                ", expected more than 'start', " + std::to_string(integer(attributes, "start")));
        }};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needInteger(s, 0);
    needReal(s, 1);
    needRank(s, 1, 2, "[rows, d]");
    const Shape& w = shapeOf(s, 1);
    const std::int64_t rows =
        integer(s.attributes, "stop", w[0]) - integer(s.attributes, "start", 0);
    if (rows != w[0])
      throw ShapeError("the weight has shape " + toText(w) + ", expected " + toText({rows, w[1]}) +
                       " for the rows from start to stop");
    Shape shape = shapeOf(s, 0);
    shape.push_back(w[1]);
    return {TensorInfo{std::move(shape)}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const std::size_t rank = shapeOf(s, 0).size();
    const int result = slotOfResult(s, 0);
    for (std::size_t d = 0; d < rank; ++d) relations.equal(ref(0, d), ref(result, d));
    relations.equal(ref(1, 1), ref(result, rank));
    relations.range({0, kValues}, integer(s.attributes, "start", 0), ref(1, 0));
    relations.summed(ref(1, 0));
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const TensorValue<A>&ids = *e.in[0], &w = *e.in[1];
    TensorValue<A>& out = *e.out[0];
    std::vector<ReducedDim> expected = ids.dims;
    expected.push_back(w.dims.at(1));
    expectDims(out.dims, expected);
    const std::int64_t start = integer(e.attributes, "start", 0);
    const ReducedDim& table = w.dims[0];
    const Index rows = table.size(), width = w.dims[1].size();
    out.data.clear();
    std::vector<typename A::Element> chosen(at(rows)), terms;
    std::vector<std::int64_t> weights;
    for (const auto& id : ids.data) {
      const auto [from, to] = rowsOf(e.algebra, table, start, id);
      for (Index v = from; v < to; ++v)
        chosen[at(v)] = e.algebra.indicator(id, start + table.position[at(v)]);
      for (Index c = 0; c < width; ++c) {
        terms.clear();
        weights.clear();
        for (Index v = from; v < to; ++v) {
          if (e.algebra.isZero(chosen[at(v)])) continue;
          terms.push_back(e.algebra.select(chosen[at(v)], w.data[at(v * width + c)]));
          weights.push_back(table.weight[at(v)]);
        }
        out.data.push_back(
            terms.empty() ? e.algebra.constant(Rational(0))
                          : e.algebra.sum(std::span<const typename A::Element>(terms), weights));
      }
    }
  }
};

// create_mask: tokens [b, s], optionally anything -> [1, 1, s, s]: 0 where column <= row, minus
// infinity elsewhere. Only the length of the sequence is read. An entry is the comparison of two
// positions (ops/positions.h): known between different pieces of the sequence and on the diagonal,
// an opaque function of both within a reduced piece. What is proved then holds for every mask
// inside of such pieces, causal or not.
struct CreateMask {
  static Interface interface() {
    return {
        .name = "create_mask", .maxOperands = 2, .optionalOperands = {1}, .differentiable = false};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needRank(s, 0, 2, "[b, s]");
    const std::int64_t n = shapeOf(s, 0)[1];
    return {TensorInfo{Shape{1, 1, n, n}}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const int result = slotOfResult(s, 0);
    relations.equal(ref(0, 1), ref(result, 2));
    relations.equal(ref(0, 1), ref(result, 3));
    relations.absolute(ref(0, 1));
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    TensorValue<A>& out = *e.out[0];
    const ReducedDim& sequence = e.in[0]->dims.at(1);
    const std::array<ReducedDim, 4> expected{ReducedDim{}, ReducedDim{}, sequence, sequence};
    expectDims(out.dims, expected);
    const auto zero = e.algebra.constant(Rational(0)), infinity = e.algebra.negativeInfinity();
    out.data.clear();
    for (Index row = 0; row < sequence.size(); ++row)
      for (Index column = 0; column < sequence.size(); ++column) {
        const PositionOrder order = comparePositions(sequence, row, column);
        out.data.push_back(!order.sign ? e.algebra.apply(Function::kMaskEntry, order.params, {})
                           : *order.sign >= 0 ? zero
                                              : infinity);
      }
  }
};

// apply_mask: x + mask with broadcasting. The mask gets no gradient.
struct ApplyMask {
  static Interface interface() {
    return {.name = "apply_mask",
            .minOperands = 2,
            .maxOperands = 2,
            .withoutGradient = {1},
            .traits = {.elementwise = true, .affine = true}};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    needReal(s, 1);
    return {TensorInfo{broadcastShapes(shapeOf(s, 0), shapeOf(s, 1))}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const> out,
                     Relations& relations) {
    for (std::size_t i = 0; i < 2; ++i)
      equalBroadcast(s, i, slotOfResult(s, 0), out[0]->shape, relations);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const TensorValue<A>&x = *e.in[0], &mask = *e.in[1];
    TensorValue<A>& out = *e.out[0];
    const std::array<const std::vector<ReducedDim>*, 2> dims{&x.dims, &mask.dims};
    expectDims(out.dims, broadcastDims(dims));
    out.data.clear();
    walk<2>(sizesOf(out.dims),
            {broadcastStrides(x.dims, out.dims), broadcastStrides(mask.dims, out.dims)},
            [&](const std::array<Index, 2>& o) {
              out.data.push_back(e.algebra.add(x.data[at(o[0])], mask.data[at(o[1])]));
            });
  }
};

// apply_rotary_emb: q [b, s, h, d], k [b, s, h', d], freqs complex [s, d/2] -> q and k with the
// pairs (2j, 2j+1) of the last dimension, as complex numbers, multiplied by freqs[s, j] (Su et al.,
// arXiv 2104.09864). freqs gets no gradient.
struct ApplyRotaryEmb {
  static Interface interface() {
    return {.name = "apply_rotary_emb",
            .minOperands = 3,
            .maxOperands = 3,
            .minResults = 2,
            .maxResults = 2,
            .withoutGradient = {2},
            .separate = true,
            .traits = {.affine = true, .total = true}};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needComplex(s, 2);
    needRank(s, 2, 2, "[s, d/2]");
    const Shape& f = shapeOf(s, 2);
    std::vector<TensorInfo> results;
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      needReal(s, i);
      const Shape& x = shapeOf(s, i);
      if (x.size() != 4 || x[1] != f[0] || x[3] != 2 * f[1])
        throw ShapeError("operand " + std::to_string(i) + " has shape " + toText(x) +
                         ", expected [b, " + std::to_string(f[0]) + ", h, " +
                         std::to_string(2 * f[1]) + "] to fit freqs " + toText(f));
      results.push_back({x});
    }
    return results;
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      equalTensors(s, i, slotOfResult(s, i), relations);
      relations.equal(ref(2, 0), ref(i, 1));
      relations.pairs(ref(i, 3), ref(2, 1));
    }
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const TensorValue<A>& f = *e.in[2];
    const ReducedDim& half = f.dims.at(1);
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      if (e.out[i] == nullptr) continue;
      const TensorValue<A>& x = *e.in[i];
      TensorValue<A>& out = *e.out[i];
      expectDims(out.dims, x.dims);
      expectDim(x.dims.at(1), f.dims[0]);
      expectDim(x.dims.at(3), doubled(half));
      out.data = x.data;
      const Index b = x.dims[0].size(), s = x.dims[1].size(), h = x.dims[2].size(), n = half.size();
      for (Index p = 0; p < b * s * h; ++p)
        for (Index j = 0; j < n; ++j) {
          const std::size_t k = at(p * 2 * n + 2 * j), w = at(2 * ((p / h % s) * n + j));
          const auto re = x.data[k], im = x.data[k + 1], c = f.data[w], d = f.data[w + 1];
          out.data[k] = subtract(e.algebra, e.algebra.mul(re, c), e.algebra.mul(im, d));
          out.data[k + 1] = e.algebra.add(e.algebra.mul(re, d), e.algebra.mul(im, c));
        }
    }
  }

 private:
  // The dimension of which `half` lists the pairs (Relations::pairs).
  static ReducedDim doubled(const ReducedDim& half) {
    ReducedDim d;
    d.full = 2 * half.full;
    d.position.clear();
    d.weight.clear();
    for (std::size_t j = 0; j < half.position.size(); ++j)
      for (const std::int64_t odd : {0, 1}) {
        d.position.push_back(2 * half.position[j] + odd);
        d.weight.push_back(half.weight[j]);
      }
    return d;
  }
};

}  // namespace

void defineEmbeddingAttention(Catalog& catalog) {
  define<Embedding>(catalog);
  define<CreateMask>(catalog);
  define<ApplyMask>(catalog);
  define<ApplyRotaryEmb>(catalog);
}

}  // namespace shardproof::ops
