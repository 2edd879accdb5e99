// Operators that only move elements. Meanings as in the PyTorch documentation (torch.Tensor.view,
// torch.cat, torch.nn.functional.pad, ...). Elements of any kind pass through; a complex position
// moves with both of its planes.
#include <algorithm>
#include <limits>
#include <stdexcept>

#include "ops/definition.h"

namespace shardproof::ops {
namespace {

TensorInfo like(const Signature& s, Shape shape) {
  return TensorInfo{std::move(shape), s.in[0]->element};
}

void equalValues(const Signature& s, std::size_t operand, Relations& relations) {
  if (s.in[operand]->element == ElementKind::kInteger)
    relations.equal({static_cast<int>(operand), kValues}, {slotOfResult(s, 0), kValues});
}

// Fills `out` by reading `x` with the given strides (in positions) from `base`.
template <class A>
void gather(const TensorValue<A>& x, Index base, const std::vector<Index>& strides,
            TensorValue<A>& out) {
  const Index planes = x.planes();
  out.data.clear();
  out.data.reserve(at(out.positions() * planes));
  walk<1>(sizesOf(out.dims), {strides}, [&](const std::array<Index, 1>& o) {
    for (Index p = 0; p < planes; ++p) out.data.push_back(x.data[at((base + o[0]) * planes + p)]);
  });
}

// view, reshape: the same elements in row-major order under another shape. `size`: one entry may be
// -1. Errors: another number of elements.
struct View {
  static Interface interface() {
    return {.name = "view",
            .attributes = {{.key = "size",
                            .type = AttributeType::kIntegers,
                            .required = true,
                            .min = Rational(-1)}},
            .rearranges = true,
            .check = [](const Attributes& attributes, std::size_t, std::size_t) {
              const Shape size = integers(attributes, "size");
              if (std::count(size.begin(), size.end(), -1) > 1)
                throw std::invalid_argument("attribute 'size': found " + toText(size) +
                                            ", expected at most one -1");
            }};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    const Shape& x = shapeOf(s, 0);
    const Shape wanted = integers(s.attributes, "size");
    Shape size = wanted;
    Shape known = size;
    known.erase(std::remove(known.begin(), known.end(), -1), known.end());
    const std::int64_t total = elements(x), fixed = elements(known);
    if (known.size() != size.size()) {
      if (fixed == 0 || total % fixed != 0)
        throw ShapeError("shape " + toText(x) + " cannot be viewed as " + toText(wanted));
      *std::find(size.begin(), size.end(), -1) = total / fixed;
    }
    if (elements(size) != total)
      throw ShapeError("shape " + toText(x) + " has " + std::to_string(total) +
                       " elements, expected " + toText(wanted) + " with " +
                       std::to_string(elements(size)));
    return {like(s, std::move(size))};
  }
  // The shapes are matched from the left into the smallest groups of equal products: row-major
  // order makes each group's dimensions regroup among themselves. Dimensions of size 1 carry no
  // position.
  static void relate(const Signature& s, std::span<const TensorInfo* const> out,
                     Relations& relations) {
    const Shape &x = shapeOf(s, 0), &y = out[0]->shape;
    const int result = slotOfResult(s, 0);
    equalValues(s, 0, relations);
    std::size_t i = 0, j = 0;
    const auto skipOnes = [](const Shape& shape, std::size_t& d) {
      while (d < shape.size() && shape[d] == 1) ++d;
    };
    while (true) {
      skipOnes(x, i);
      skipOnes(y, j);
      if (i == x.size() || j == y.size()) break;  // equal products: both end together
      std::vector<DimRef> a{ref(0, i)}, b{ref(result, j)};
      std::int64_t left = x[i++], right = y[j++];
      while (left != right) {
        if (left < right) {
          skipOnes(x, i);
          a.push_back(ref(0, i));
          left *= x.at(i++);
        } else {
          skipOnes(y, j);
          b.push_back(ref(result, j));
          right *= y.at(j++);
        }
      }
      if (a.size() == 1 && b.size() == 1) relations.equal(a[0], b[0]);
      else relations.regroup(a, b);
    }
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const TensorValue<A>& x = *e.in[0];
    TensorValue<A>& out = *e.out[0];
    if (x.positions() != out.positions())
      throw Unsupported("view: " + std::to_string(x.positions()) +
                        " reduced positions cannot become " + std::to_string(out.positions()));
    // Each reduced element must stand for the same number of positions, starting with the same one,
    // on both sides. (A class of positions is a product of classes, so that its first member is the
    // tuple of first members.)
    const Places a = places(x.dims), b = places(out.dims);
    if (a.full != b.full || a.first != b.first || a.weight != b.weight)
      inconsistent("a view does not keep its classes of positions");
    out.data = x.data;
  }

 private:
  struct Places {
    std::int64_t full = 1;
    std::vector<std::int64_t> first{0}, weight{1};
  };
  static Places places(const std::vector<ReducedDim>& dims) {
    Places p;
    for (const ReducedDim& d : dims) {
      Places next;
      next.full = p.full * d.full;
      next.first.clear();
      next.weight.clear();
      for (std::size_t i = 0; i < p.first.size(); ++i)
        for (std::size_t k = 0; k < d.position.size(); ++k) {
          next.first.push_back(p.first[i] * d.full + d.position[k]);
          next.weight.push_back(p.weight[i] * d.weight[k]);
        }
      p = std::move(next);
    }
    return p;
  }
};

// Shared by transpose, permute, expand, unsqueeze and squeeze: result dimension r is operand
// dimension source(r), or is new (kNew).
constexpr std::size_t kNew = static_cast<std::size_t>(-1);

void relateSources(const Signature& s, const Shape& out, const std::vector<std::size_t>& source,
                   Relations& relations) {
  equalValues(s, 0, relations);
  for (std::size_t r = 0; r < source.size(); ++r)
    if (source[r] != kNew && shapeOf(s, 0)[source[r]] == out[r])
      relations.equal(ref(0, source[r]), ref(slotOfResult(s, 0), r));
}

template <class A>
void evalSources(Evaluation<A>& e, const std::vector<std::size_t>& source) {
  const TensorValue<A>& x = *e.in[0];
  TensorValue<A>& out = *e.out[0];
  if (out.dims.size() != source.size())
    inconsistent("found " + std::to_string(out.dims.size()) + " dimensions, expected " +
                 std::to_string(source.size()));
  const std::vector<Index> own = rowMajorStrides(x.dims);
  std::vector<Index> strides(source.size(), 0);
  for (std::size_t r = 0; r < source.size(); ++r) {
    if (source[r] == kNew) continue;
    if (x.dims[source[r]].full == 1 && out.dims[r].full != 1) continue;  // expanded
    expectDim(out.dims[r], x.dims[source[r]]);
    strides[r] = own[source[r]];
  }
  gather(x, 0, strides, out);
}

std::size_t rankOf(const Signature& s) { return shapeOf(s, 0).size(); }

// transpose: swaps `dim0` and `dim1`.
struct Transpose {
  static Interface interface() {
    return {.name = "transpose",
            .attributes = {{.key = "dim0", .required = true}, {.key = "dim1", .required = true}},
            .rearranges = true};
  }
  static std::vector<std::size_t> source(const Attributes& attributes, std::size_t rank) {
    std::vector<std::size_t> from(rank);
    for (std::size_t d = 0; d < rank; ++d) from[d] = d;
    std::swap(from[dimIndex(integer(attributes, "dim0"), rank)],
              from[dimIndex(integer(attributes, "dim1"), rank)]);
    return from;
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    Shape shape;
    for (const std::size_t d : source(s.attributes, rankOf(s))) shape.push_back(shapeOf(s, 0)[d]);
    return {like(s, std::move(shape))};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const> out,
                     Relations& relations) {
    relateSources(s, out[0]->shape, source(s.attributes, rankOf(s)), relations);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    evalSources(e, source(e.attributes, e.in[0]->dims.size()));
  }
};

// permute: result dimension r is operand dimension dims[r]. Errors: `dims` is not a permutation.
struct Permute {
  static Interface interface() {
    return {.name = "permute",
            .attributes = {{.key = "dims", .type = AttributeType::kIntegers, .required = true}},
            .rearranges = true};
  }
  static std::vector<std::size_t> source(const Attributes& attributes, std::size_t rank) {
    std::vector<std::size_t> from;
    for (const std::int64_t d : integers(attributes, "dims")) from.push_back(dimIndex(d, rank));
    std::vector<std::size_t> sorted = from;
    std::sort(sorted.begin(), sorted.end());
    if (sorted.size() != rank || std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      throw ShapeError("found dims " + toText(integers(attributes, "dims")) +
                       ", expected a permutation of " + std::to_string(rank) + " dimensions");
    return from;
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    Shape shape;
    for (const std::size_t d : source(s.attributes, rankOf(s))) shape.push_back(shapeOf(s, 0)[d]);
    return {like(s, std::move(shape))};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const> out,
                     Relations& relations) {
    relateSources(s, out[0]->shape, source(s.attributes, rankOf(s)), relations);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    evalSources(e, source(e.attributes, e.in[0]->dims.size()));
  }
};

// expand: dimensions of size 1 are repeated to `size`, new ones may be put in front; -1 leaves a
// dimension as it is.
struct Expand {
  static Interface interface() {
    return {.name = "expand",
            .attributes = {{.key = "size",
                            .type = AttributeType::kIntegers,
                            .required = true,
                            .min = Rational(-1)}}};
  }
  static std::vector<std::size_t> source(std::size_t rank, std::size_t resultRank) {
    std::vector<std::size_t> from(resultRank, kNew);
    for (std::size_t d = 0; d < rank; ++d) from[resultRank - rank + d] = d;
    return from;
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    const Shape& x = shapeOf(s, 0);
    Shape size = integers(s.attributes, "size");
    const std::string text = "shape " + toText(x) + " cannot be expanded to " + toText(size);
    if (size.size() < x.size()) throw ShapeError(text);
    const std::size_t lead = size.size() - x.size();
    for (std::size_t d = 0; d < size.size(); ++d) {
      if (d < lead) {
        if (size[d] < 1) throw ShapeError(text);
        continue;
      }
      if (size[d] == -1) size[d] = x[d - lead];
      if (size[d] < 1 || (size[d] != x[d - lead] && x[d - lead] != 1)) throw ShapeError(text);
    }
    return {like(s, std::move(size))};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const> out,
                     Relations& relations) {
    relateSources(s, out[0]->shape, source(rankOf(s), out[0]->shape.size()), relations);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    if (e.out[0]->dims.size() < e.in[0]->dims.size())
      inconsistent("an expanded tensor has fewer dimensions");
    evalSources(e, source(e.in[0]->dims.size(), e.out[0]->dims.size()));
  }
};

// unsqueeze: a dimension of size 1 at `dim` (counted in the result).
struct Unsqueeze {
  static Interface interface() {
    return {
        .name = "unsqueeze", .attributes = {{.key = "dim", .required = true}}, .rearranges = true};
  }
  static std::vector<std::size_t> source(const Attributes& attributes, std::size_t rank) {
    const std::size_t place = dimIndex(integer(attributes, "dim"), rank + 1);
    std::vector<std::size_t> from;
    for (std::size_t r = 0; r <= rank; ++r)
      from.push_back(r == place ? kNew : r - (r > place ? 1 : 0));
    return from;
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    Shape shape;
    for (const std::size_t d : source(s.attributes, rankOf(s)))
      shape.push_back(d == kNew ? 1 : shapeOf(s, 0)[d]);
    return {like(s, std::move(shape))};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const> out,
                     Relations& relations) {
    relateSources(s, out[0]->shape, source(s.attributes, rankOf(s)), relations);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const std::vector<std::size_t> from = source(e.attributes, e.in[0]->dims.size());
    for (std::size_t r = 0; r < from.size() && r < e.out[0]->dims.size(); ++r)
      if (from[r] == kNew) expectDim(e.out[0]->dims[r], ReducedDim{});
    evalSources(e, from);
  }
};

// squeeze: without `dim` (an integer or a list) all dimensions of size 1 go, with it those of them
// that have size 1.
struct Squeeze {
  static Interface interface() {
    return {.name = "squeeze",
            .attributes = {{.key = "dim", .type = AttributeType::kIntegerOrIntegers}},
            .rearranges = true};
  }
  static std::vector<std::size_t> source(const Attributes& attributes, const Shape& x) {
    std::vector<bool> may(x.size(), !has(attributes, "dim"));
    if (has(attributes, "dim"))
      for (const std::int64_t d : integers(attributes, "dim")) may[dimIndex(d, x.size())] = true;
    std::vector<std::size_t> from;
    for (std::size_t d = 0; d < x.size(); ++d)
      if (x[d] != 1 || !may[d]) from.push_back(d);
    return from;
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    Shape shape;
    for (const std::size_t d : source(s.attributes, shapeOf(s, 0)))
      shape.push_back(shapeOf(s, 0)[d]);
    return {like(s, std::move(shape))};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const> out,
                     Relations& relations) {
    relateSources(s, out[0]->shape, source(s.attributes, shapeOf(s, 0)), relations);
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    Shape full;
    for (const ReducedDim& d : e.in[0]->dims) full.push_back(d.full);
    evalSources(e, source(e.attributes, full));
  }
};

// slice: x[..., start:stop:step, ...] along `dim`, with Python's rules for negative and large
// bounds. Errors: an empty result.
struct Slice {
  static Interface interface() {
    return {.name = "slice",
            .attributes = {{.key = "dim", .required = true},
                           {.key = "start"},
                           {.key = "stop"},
                           {.key = "step", .min = Rational(1)}}};
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
    Shape full;
    for (const ReducedDim& d : x.dims) full.push_back(d.full);
    const Bounds b = bounds(e.attributes, full);
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
            .attributes = {{.key = "dim", .required = true}, {.key = "index", .required = true}}};
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
    Shape full;
    for (const ReducedDim& d : x.dims) full.push_back(d.full);
    const auto [dim, index] = place(e.attributes, full);
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
    return {
        .name = "cat", .attributes = {{.key = "dim", .required = true}}, .maxOperands = kAnyNumber};
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
      expected[dim] = stretch(out.dims[dim], offset, offset + size);
      expectDims(x->dims, expected);
      const Index base = out.dims[dim].reducedBound(offset) * strides[dim];
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
    Shape full;
    for (const ReducedDim& d : x.dims) full.push_back(d.full);
    const Piece p = piece(e.attributes, full);
    std::vector<ReducedDim> expected = x.dims;
    expected[p.dim] = stretch(x.dims[p.dim], p.start, p.start + p.size);
    expectDims(e.out[0]->dims, expected);
    const std::vector<Index> strides = rowMajorStrides(x.dims);
    gather(x, x.dims[p.dim].reducedBound(p.start) * strides[p.dim], strides, *e.out[0]);
  }
};

}  // namespace

void defineLayout(Catalog& catalog) {
  define<View>(catalog);
  Interface reshape = View::interface();
  reshape.name = "reshape";
  define<View>(catalog, reshape);
  define<Transpose>(catalog);
  define<Permute>(catalog);
  define<Expand>(catalog);
  define<Unsqueeze>(catalog);
  define<Squeeze>(catalog);
  define<Slice>(catalog);
  define<Select>(catalog);
  define<Cat>(catalog);
  define<Pad>(catalog);
  define<Chunk>(catalog);
}

}  // namespace shardproof::ops
