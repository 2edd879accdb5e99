// SPDX-License-Identifier: Apache-2.0
// Operators that cut pieces out of tensors and put tensors together. Meanings as in the PyTorch
// documentation (torch.cat, torch.nn.functional.pad, ...). Elements of any kind pass through; a
// complex position moves with both of its planes.
#include <algorithm>
#include <limits>
#include <stdexcept>

#include "ops/definition.h"
#include "ops/moved_elements.h"

namespace shardproof::ops {
namespace {

// slice: x[..., start:stop:step, ...] along `dim`, with Python's rules for negative and large
// bounds. Errors: an empty result.
struct Slice {
  static Interface interface() {
    return {.name = "slice",
            .attributes = {{.key = "dim", .required = true},
                           {.key = "start"},
                           {.key = "stop"},
                           {.key = "step", .min = Rational(1)}},
            .traits = kMoves};
  }
  struct Bounds {
    std::size_t dim;
    std::int64_t start, stop, step, count;
  };
  static Bounds bounds(const Attributes& attributes, const Shape& x) {
    Bounds b{};
    b.dim = dimIndex(integer(attributes, "dim"), x.size());
    const std::int64_t n = x[b.dim];
    const auto clamp = [n](std::int64_t v) {
      return std::clamp<std::int64_t>(v < 0 ? v + n : v, 0, n);
    };
    b.start = clamp(integer(attributes, "start", 0));
    b.stop = clamp(integer(attributes, "stop", std::numeric_limits<std::int64_t>::max()));
    b.step = integer(attributes, "step", 1);
    if (b.start >= b.stop)
      throw ShapeError("the slice [" + std::to_string(b.start) + ", " + std::to_string(b.stop) +
                       ") of dimension " + std::to_string(b.dim) + " of shape " + toText(x) +
                       " is empty, expected at least one position");
    b.count = (b.stop - b.start - 1) / b.step + 1;
    return b;
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    const Bounds b = bounds(s.attributes, shapeOf(s, 0));
    Shape shape = shapeOf(s, 0);
    shape[b.dim] = b.count;
    return {like(s, std::move(shape))};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const Bounds b = bounds(s.attributes, shapeOf(s, 0));
    const int result = slotOfResult(s, 0);
    equalValues(s, 0, relations);
    for (std::size_t d = 0; d < rankOf(s); ++d) {
      if (d != b.dim) {
        relations.equal(ref(0, d), ref(result, d));
      } else if (b.step == 1) {
        relations.range(ref(0, d), b.start, ref(result, d));
      } else {
        relations.keep(ref(0, d));
        relations.keep(ref(result, d));
      }
    }
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const TensorValue<A>& x = *e.in[0];
    const Bounds b = bounds(e.attributes, fullShape(x.dims));
    std::vector<ReducedDim> expected = x.dims;
    Index first = b.start;
    if (b.step == 1) {
      expected[b.dim] = stretch(x.dims[b.dim], b.start, b.stop);
      first = x.dims[b.dim].reducedBound(b.start);
    } else {
      if (x.dims[b.dim].reduced())
        inconsistent("a dimension that is sliced with a step is reduced");
      expected[b.dim] = ReducedDim::whole(b.count);
    }
    expectDims(e.out[0]->dims, expected);
    std::vector<Index> strides = rowMajorStrides(x.dims);
    const Index base = first * strides[b.dim];
    if (b.step != 1) strides[b.dim] *= b.step;
    gather(x, base, strides, *e.out[0]);
  }
};

// select: x[..., index, ...] along `dim`, which disappears.
struct Select {
  static Interface interface() {
    return {.name = "select",
            .attributes = {{.key = "dim", .required = true}, {.key = "index", .required = true}},
            .traits = kMoves};
  }
  static std::pair<std::size_t, std::int64_t> place(const Attributes& attributes, const Shape& x) {
    const std::size_t dim = dimIndex(integer(attributes, "dim"), x.size());
    const std::int64_t index = integer(attributes, "index");
    if (index < -x[dim] || index >= x[dim])
      throw ShapeError("found index " + std::to_string(index) + " into dimension " +
                       std::to_string(dim) + " of shape " + toText(x) + ", expected " +
                       std::to_string(-x[dim]) + " to " + std::to_string(x[dim] - 1));
    return {dim, index < 0 ? index + x[dim] : index};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    Shape shape = shapeOf(s, 0);
    shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(place(s.attributes, shape).first));
    return {like(s, std::move(shape))};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const auto [dim, index] = place(s.attributes, shapeOf(s, 0));
    const int result = slotOfResult(s, 0);
    equalValues(s, 0, relations);
    for (std::size_t d = 0; d < rankOf(s); ++d)
      if (d != dim) relations.equal(ref(0, d), ref(result, d - (d > dim ? 1 : 0)));
    // The selected position is a stretch of one: its dimension must be cut around it.
    const int one = static_cast<int>(s.in.size() + s.results);
    relations.virtualTensor(one, Shape{1});
    relations.range(ref(0, dim), index, {one, 0});
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const TensorValue<A>& x = *e.in[0];
    const auto [dim, index] = place(e.attributes, fullShape(x.dims));
    expectDim(stretch(x.dims[dim], index, index + 1), ReducedDim{});
    std::vector<ReducedDim> expected = x.dims;
    std::vector<Index> strides = rowMajorStrides(x.dims);
    const Index base = x.dims[dim].reducedBound(index) * strides[dim];
    expected.erase(expected.begin() + static_cast<std::ptrdiff_t>(dim));
    strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(dim));
    expectDims(e.out[0]->dims, expected);
    gather(x, base, strides, *e.out[0]);
  }
};

// cat: operands one after another along `dim`. Errors: shapes that differ elsewhere, operands of
// different kinds.
struct Cat {
  static Interface interface() {
    return {.name = "cat",
            .attributes = {{.key = "dim", .required = true}},
            .maxOperands = kAnyNumber,
            .traits = kMoves};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    Shape shape = shapeOf(s, 0);
    const std::size_t dim = dimIndex(integer(s.attributes, "dim"), shape.size());
    for (std::size_t i = 1; i < s.in.size(); ++i) {
      Shape other = shapeOf(s, i);
      if (s.in[i]->element != s.in[0]->element)
        throw ShapeError("operands 0 and " + std::to_string(i) +
                         " hold elements of different kinds");
      const bool ranks = other.size() == shape.size();
      const std::int64_t own = ranks ? other[dim] : 0;
      if (ranks) other[dim] = shape[dim];
      if (other != shape)
        throw ShapeError("operand " + std::to_string(i) + " has shape " + toText(shapeOf(s, i)) +
                         ", expected that of operand 0, " + toText(shapeOf(s, 0)) +
                         ", but for dimension " + std::to_string(dim));
      shape[dim] += own;
    }
    return {like(s, std::move(shape))};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const std::size_t dim = dimIndex(integer(s.attributes, "dim"), rankOf(s));
    const int result = slotOfResult(s, 0);
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < s.in.size(); ++i) {
      equalValues(s, i, relations);
      for (std::size_t d = 0; d < rankOf(s); ++d) {
        if (d == dim) relations.range(ref(result, d), offset, ref(i, d));
        else relations.equal(ref(i, d), ref(result, d));
      }
      offset += shapeOf(s, i)[dim];
    }
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    TensorValue<A>& out = *e.out[0];
    const std::size_t dim = dimIndex(integer(e.attributes, "dim"), e.in[0]->dims.size());
    if (out.dims.size() != e.in[0]->dims.size())
      inconsistent("cat changes the number of dimensions");
    const std::vector<Index> strides = rowMajorStrides(out.dims);
    const Index planes = out.planes();
    out.data.assign(at(out.positions() * planes), typename A::Element{});
    std::int64_t offset = 0, filled = 0;
    for (const TensorValue<A>* x : e.in) {
      const std::int64_t size = x->dims[dim].full;
      std::vector<ReducedDim> expected = out.dims;
      expected[dim] = stretchFrom(out.dims[dim], filled, offset, offset + size);
      expectDims(x->dims, expected);
      const Index base = filled * strides[dim];
      Index k = 0;
      walk<1>(sizesOf(x->dims), {strides}, [&](const std::array<Index, 1>& o) {
        for (Index p = 0; p < planes; ++p)
          out.data[at((base + o[0]) * planes + p)] = x->data[at(k++)];
      });
      offset += size;
      filled += x->dims[dim].size();
    }
    if (offset != out.dims[dim].full || filled != out.dims[dim].size())
      inconsistent("the operands of cat do not fill its result");
  }
};

// pad: zeros (or `value`) around the operand; `pad` lists (left, right) pairs from the last
// dimension on, as torch.nn.functional.pad with mode = "constant". Errors: negative pads (a slice
// says that), more pairs than dimensions, operands that are not real.
struct Pad {
  static Interface interface() {
    return {.name = "pad",
            .attributes = {{.key = "pad",
                            .type = AttributeType::kIntegers,
                            .required = true,
                            .min = Rational(0)},
                           {.key = "value", .type = AttributeType::kNumber},
                           {.key = "mode", .type = AttributeType::kText, .choices = {"constant"}}},
            .traits = {.affine = true, .total = true},
            .check = [](const Attributes& attributes, std::size_t, std::size_t) {
              const Shape pad = integers(attributes, "pad");
              if (pad.size() % 2 != 0)
                throw std::invalid_argument("attribute 'pad': found " + toText(pad) +
                                            ", expected pairs");
            }};
  }
  struct Side {
    std::int64_t left = 0, right = 0;
  };
  static std::vector<Side> sides(const Attributes& attributes, std::size_t rank) {
    const Shape pad = integers(attributes, "pad");
    if (pad.size() / 2 > rank)
      throw ShapeError("found pad " + toText(pad) + ", expected at most " + std::to_string(rank) +
                       " pairs");
    std::vector<Side> all(rank);
    for (std::size_t i = 0; i < pad.size() / 2; ++i)
      all[rank - 1 - i] = {pad[2 * i], pad[2 * i + 1]};
    return all;
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    Shape shape = shapeOf(s, 0);
    const std::vector<Side> pad = sides(s.attributes, shape.size());
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (__builtin_add_overflow(shape[d], pad[d].left, &shape[d]) ||
          __builtin_add_overflow(shape[d], pad[d].right, &shape[d]))
        throw ShapeError("the padded dimension exceeds 64 bits");
    }
    return {like(s, std::move(shape))};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const std::vector<Side> pad = sides(s.attributes, rankOf(s));
    const int result = slotOfResult(s, 0);
    for (std::size_t d = 0; d < pad.size(); ++d) {
      if (pad[d].left == 0 && pad[d].right == 0) relations.equal(ref(0, d), ref(result, d));
      else relations.range(ref(result, d), pad[d].left, ref(0, d));
    }
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const TensorValue<A>& x = *e.in[0];
    TensorValue<A>& out = *e.out[0];
    const std::vector<Side> pad = sides(e.attributes, x.dims.size());
    if (out.dims.size() != x.dims.size()) inconsistent("pad changes the number of dimensions");
    const std::vector<Index> strides = rowMajorStrides(out.dims);
    Index base = 0;
    for (std::size_t d = 0; d < pad.size(); ++d) {
      const std::int64_t size = x.dims[d].full;
      if (out.dims[d].full != pad[d].left + size + pad[d].right)
        inconsistent("a padded dimension has another size");
      expectDim(x.dims[d], stretch(out.dims[d], pad[d].left, pad[d].left + size));
      base += out.dims[d].reducedBound(pad[d].left) * strides[d];
    }
    out.data.assign(at(out.positions()),
                    e.algebra.constant(number(e.attributes, "value", Rational(0))));
    Index k = 0;
    walk<1>(sizesOf(x.dims), {strides},
            [&](const std::array<Index, 1>& o) { out.data[at(base + o[0])] = x.data[at(k++)]; });
  }
};

// chunk: the index-th of `parts` equal pieces along `dim`. Errors: the size is not divisible by
// `parts`.
struct Chunk {
  static Interface interface() {
    return {.name = "chunk",
            .attributes = {{.key = "dim", .required = true},
                           {.key = "parts", .required = true, .min = Rational(1)},
                           {.key = "index", .required = true, .min = Rational(0)}},
            .traits = kMoves,
            .check = [](const Attributes& attributes, std::size_t, std::size_t) {
              if (integer(attributes, "index") >= integer(attributes, "parts"))
                throw std::invalid_argument("attribute 'index': found " +
                                            std::to_string(integer(attributes, "index")) +
                                            ", expected less than 'parts', " +
                                            std::to_string(integer(attributes, "parts")));
            }};
  }
  struct Piece {
    std::size_t dim;
    std::int64_t start, size;
  };
  static Piece piece(const Attributes& attributes, const Shape& x) {
    const std::size_t dim = dimIndex(integer(attributes, "dim"), x.size());
    const std::int64_t parts = integer(attributes, "parts");
    if (x[dim] % parts != 0)
      throw ShapeError("dimension " + std::to_string(dim) + " of shape " + toText(x) + " has no " +
                       std::to_string(parts) + " equal pieces");
    const std::int64_t size = x[dim] / parts;
    return {dim, integer(attributes, "index") * size, size};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    Shape shape = shapeOf(s, 0);
    const Piece p = piece(s.attributes, shape);
    shape[p.dim] = p.size;
    return {like(s, std::move(shape))};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const Piece p = piece(s.attributes, shapeOf(s, 0));
    const int result = slotOfResult(s, 0);
    equalValues(s, 0, relations);
    for (std::size_t d = 0; d < rankOf(s); ++d) {
      if (d == p.dim) relations.range(ref(0, d), p.start, ref(result, d));
      else relations.equal(ref(0, d), ref(result, d));
    }
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const TensorValue<A>& x = *e.in[0];
    const Piece p = piece(e.attributes, fullShape(x.dims));
    std::vector<ReducedDim> expected = x.dims;
    expected[p.dim] = stretch(x.dims[p.dim], p.start, p.start + p.size);
    expectDims(e.out[0]->dims, expected);
    const std::vector<Index> strides = rowMajorStrides(x.dims);
    gather(x, x.dims[p.dim].reducedBound(p.start) * strides[p.dim], strides, *e.out[0]);
  }
};

}  // namespace

void defineCutting(Catalog& catalog) {
  define<Slice>(catalog);
  define<Select>(catalog);
  define<Cat>(catalog);
  define<Pad>(catalog);
  define<Chunk>(catalog);
}

}  // namespace shardproof::ops
