// SPDX-License-Identifier: Apache-2.0
// Operators that only give elements other places (those that cut and join: cutting.cpp). Meanings
// as in the PyTorch documentation (torch.Tensor.view, torch.cat, torch.nn.functional.pad, ...).
// Elements of any kind pass through; a complex position moves with both of its planes.
#include <algorithm>
#include <limits>
#include <stdexcept>

#include "ops/definition.h"
#include "ops/moved_elements.h"

namespace shardproof::ops {
namespace {

// view, reshape: the same elements in row-major order under another shape. `size`: one entry may be
// -1. Errors: another number of elements.
struct View {
  static Interface interface() {
    return {.name = "view",
            .attributes = {{.key = "size",
                            .type = AttributeType::kIntegers,
                            .required = true,
                            .min = Rational(-1)}},
            .traits = kRearranges,
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

// transpose: swaps `dim0` and `dim1`.
struct Transpose {
  static Interface interface() {
    return {.name = "transpose",
            .attributes = {{.key = "dim0", .required = true}, {.key = "dim1", .required = true}},
            .traits = kRearranges};
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
            .traits = kRearranges};
  }
  static std::vector<std::size_t> source(const Attributes& attributes, std::size_t rank) {
    std::vector<std::size_t> from;
    for (const std::int64_t d : integers(attributes, "dims")) from.push_back(dimIndex(d, rank));
    std::vector<std::size_t> sorted = from;
    std::sort(sorted.begin(), sorted.end());
    if (sorted.size() != rank || std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      throw DimensionError("found dims " + toText(integers(attributes, "dims")) +
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
                            .min = Rational(-1)}},
            .traits = kMoves};
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
    return {.name = "unsqueeze",
            .attributes = {{.key = "dim", .required = true}},
            .traits = kRearranges};
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
            .traits = kRearranges};
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
    evalSources(e, source(e.attributes, fullShape(e.in[0]->dims)));
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
}

}  // namespace shardproof::ops
