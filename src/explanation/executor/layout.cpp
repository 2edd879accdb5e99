// SPDX-License-Identifier: Apache-2.0
// Operators that only move elements, and their gradients (docs/operators.md, "Layout"). Each but
// `cat` and `pad` reads its operand with strides and an offset; its gradient writes with the same.
#include <algorithm>

#include "executor/call.h"

namespace shardproof::executor {
namespace {

struct Reading {
  Shape shape, strides;
  std::int64_t offset = 0;
};

Shape viewOf(const Shape& x, const Attributes& attributes) {
  Shape size = integersOf(attributes, "size");
  std::int64_t known = 1, free = -1;
  for (std::size_t d = 0; d < size.size(); ++d) {
    if (size[d] == -1) {
      if (free >= 0) throw Misfit("'size' has more than one -1");
      free = static_cast<std::int64_t>(d);
    } else if (size[d] < 1 || __builtin_mul_overflow(known, size[d], &known)) {
      throw Misfit("'size' is " + text(size) + ", expected sizes of at least 1");
    }
  }
  const std::int64_t all = positionsOf(x);
  if (free >= 0) {
    if (all % known != 0) throw Misfit("shape " + text(x) + " cannot be viewed as " + text(size));
    size[free] = all / known;
  } else if (known != all) {
    throw Misfit("shape " + text(x) + " cannot be viewed as " + text(size));
  }
  return size;
}

Reading transposeOf(const Shape& x, const Attributes& a) {
  Reading r{x, stridesOf(x)};
  const std::size_t d0 = dimensionOf(integerOf(a, "dim0"), x.size()),
                    d1 = dimensionOf(integerOf(a, "dim1"), x.size());
  std::swap(r.shape[d0], r.shape[d1]);
  std::swap(r.strides[d0], r.strides[d1]);
  return r;
}

Reading permuteOf(const Shape& x, const Attributes& a) {
  const std::vector<std::int64_t> dims = integersOf(a, "dims");
  const Shape own = stridesOf(x);
  std::vector<char> seen(x.size(), 0);
  Reading r;
  for (const std::int64_t dim : dims) {
    const std::size_t d = dimensionOf(dim, x.size());
    if (seen[d]++) throw Misfit("'dims' names a dimension twice");
    r.shape.push_back(x[d]);
    r.strides.push_back(own[d]);
  }
  if (dims.size() != x.size())
    throw Misfit("'dims' has " + std::to_string(dims.size()) + " entries, expected " +
                 std::to_string(x.size()));
  return r;
}

Reading expandOf(const Shape& x, const Attributes& a) {
  Reading r;
  r.shape = integersOf(a, "size");
  if (r.shape.size() < x.size())
    throw Misfit("'size' has fewer dimensions than the operand of shape " + text(x));
  const Shape own = stridesOf(x);
  const std::size_t lead = r.shape.size() - x.size();
  r.strides.assign(r.shape.size(), 0);
  for (std::size_t d = 0; d < r.shape.size(); ++d) {
    if (d < lead) {
      if (r.shape[d] < 1)
        throw Misfit("'size' is " + text(r.shape) +
                     ", expected sizes of at least 1 for new dimensions");
      continue;
    }
    const std::int64_t n = x[d - lead];
    if (r.shape[d] == -1) r.shape[d] = n;
    if (r.shape[d] != n && (n != 1 || r.shape[d] < 1))
      throw Misfit("shape " + text(x) + " cannot be expanded to " + text(r.shape));
    if (n != 1) r.strides[d] = own[d - lead];
  }
  return r;
}

Reading unsqueezeOf(const Shape& x, const Attributes& a) {
  Reading r{x, stridesOf(x)};
  const auto d = static_cast<std::ptrdiff_t>(dimensionOf(integerOf(a, "dim"), x.size() + 1));
  r.shape.insert(r.shape.begin() + d, 1);
  r.strides.insert(r.strides.begin() + d, 0);
  return r;
}

Reading squeezeOf(const Shape& x, const Attributes& a) {
  std::vector<char> goes(x.size(), hasAttribute(a, "dim") ? 0 : 1);
  if (hasAttribute(a, "dim")) {
    for (const std::int64_t dim : integersOf(a, "dim")) {
      if (x.empty() && (dim == 0 || dim == -1)) continue;
      goes[dimensionOf(dim, x.size())] = 1;
    }
  }
  const Shape own = stridesOf(x);
  Reading r;
  for (std::size_t d = 0; d < x.size(); ++d) {
    if (goes[d] && x[d] == 1) continue;
    r.shape.push_back(x[d]);
    r.strides.push_back(own[d]);
  }
  return r;
}

// Python's slices, with a step of at least 1.
Reading sliceOf(const Shape& x, const Attributes& a) {
  Reading r{x, stridesOf(x)};
  const std::size_t d = dimensionOf(integerOf(a, "dim"), x.size());
  const std::int64_t n = x[d], step = integerOf(a, "step", 1);
  const auto bound = [n](std::int64_t i) {
    return std::clamp<std::int64_t>(i < 0 ? i + n : i, 0, n);
  };
  const std::int64_t start = bound(integerOf(a, "start", 0)), stop = bound(integerOf(a, "stop", n));
  if (start >= stop)
    throw Misfit("the slice of a dimension of size " + std::to_string(n) + " is empty");
  r.shape[d] = (stop - start - 1) / step + 1;
  r.offset = start * r.strides[d];
  r.strides[d] *= step;
  return r;
}

Reading selectOf(const Shape& x, const Attributes& a) {
  Reading r{x, stridesOf(x)};
  const std::size_t d = dimensionOf(integerOf(a, "dim"), x.size());
  const std::int64_t given = integerOf(a, "index"), index = given < 0 ? given + x[d] : given;
  if (index < 0 || index >= x[d])
    throw Misfit("index " + std::to_string(given) + " does not exist in a dimension of size " +
                 std::to_string(x[d]));
  r.offset = index * r.strides[d];
  r.shape.erase(r.shape.begin() + static_cast<std::ptrdiff_t>(d));
  r.strides.erase(r.strides.begin() + static_cast<std::ptrdiff_t>(d));
  return r;
}

Reading chunkOf(const Shape& x, const Attributes& a) {
  Reading r{x, stridesOf(x)};
  const std::size_t d = dimensionOf(integerOf(a, "dim"), x.size());
  const std::int64_t parts = integerOf(a, "parts"), index = integerOf(a, "index");
  if (parts < 1 || x[d] % parts != 0)
    throw Misfit("a dimension of size " + std::to_string(x[d]) + " cannot be cut into " +
                 std::to_string(parts) + " equal pieces");
  if (index < 0 || index >= parts)
    throw Misfit("there is no piece " + std::to_string(index) + " of " + std::to_string(parts));
  r.shape[d] = x[d] / parts;
  r.offset = index * r.shape[d] * r.strides[d];
  return r;
}

using Rule = Reading (*)(const Shape&, const Attributes&);

bool inPlace(const Reading& r, const Shape& x) {  // the operand's elements, all of them, in order
  if (r.offset != 0 || positionsOf(r.shape) != positionsOf(x)) return false;
  const Shape dense = stridesOf(r.shape);
  for (std::size_t d = 0; d < r.shape.size(); ++d)
    if (r.shape[d] != 1 && r.strides[d] != dense[d]) return false;
  return true;
}

template <class T, Rule rule>
void read(Call<T>& c) {
  const Value<T>& x = c.operand(0);
  Reading r = rule(x.shape, c.attributes);
  c.out[0] = inPlace(r, x.shape) ? x.as(r.shape) : strided(c, x, r.shape, r.strides, r.offset);
}

template <class T, Rule rule>
void readBackward(Call<T>& c) {
  const Value<T>& x = c.operand(1);
  if (x.element != ElementKind::kReal) throw NoMeaning("only real operands have gradients");
  const Reading r = rule(x.shape, c.attributes);
  const Value<T>& g = c.gradient(0, r.shape);
  c.out[0] = inPlace(r, x.shape) ? g.as(x.shape) : scattered(c, g, x.shape, r.strides, r.offset);
}

template <class T>
void view(Call<T>& c) {
  const Value<T>& x = c.operand(0);
  c.out[0] = x.as(viewOf(x.shape, c.attributes));
}
template <class T>
void viewBackward(Call<T>& c) {
  const Value<T>& x = c.operand(1);
  if (x.element != ElementKind::kReal) throw NoMeaning("only real operands have gradients");
  c.out[0] = c.gradient(0, viewOf(x.shape, c.attributes)).as(x.shape);
}

// The result's shape; operands from `first` on.
template <class T>
Shape catShape(const Call<T>& c, std::size_t first, std::size_t dim) {
  Shape shape = c.operand(first).shape;
  for (std::size_t i = first + 1; i < c.in.size(); ++i) {
    const Value<T>& x = c.operand(i);
    Shape expected = shape;
    if (x.shape.size() == shape.size()) expected[dim] = x.shape[dim];
    c.expect(i, expected);
    if (x.element != c.operand(first).element)
      throw Misfit("operands hold different kinds of element");
    shape[dim] += x.shape[dim];
  }
  return shape;
}

// Where operand-sized pieces lie in the whole: rows of so many positions.
struct Pieces {
  std::int64_t outer = 1, inner = 1;
  Pieces(const Shape& shape, std::size_t dim) {
    for (std::size_t d = 0; d < dim; ++d) outer *= shape[d];
    for (std::size_t d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
  }
};

template <class T>
void cat(Call<T>& c) {
  if (c.in.empty()) throw Misfit("no operands");
  const std::size_t dim = dimensionOf(integerOf(c.attributes, "dim"), c.operand(0).shape.size());
  const Shape shape = catShape(c, 0, dim);
  const Pieces pieces(shape, dim);
  Value<T> y = c.make(shape, c.operand(0).element);
  const std::int64_t planes = y.planes(), whole = shape[dim] * pieces.inner * planes;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < c.in.size(); ++i) {
    const Value<T>& x = c.operand(i);
    const std::int64_t row = x.shape[dim] * pieces.inner * planes;
    const T* from = x.data();
    T* to = y.writable() + at;
    forEachRow(pieces.outer, row, [=](std::int64_t o) {
      std::copy(from + o * row, from + (o + 1) * row, to + o * whole);
    });
    at += row;
  }
  c.out[0] = std::move(y);
}

template <class T>
void catBackward(Call<T>& c) {
  const std::size_t dim = dimensionOf(integerOf(c.attributes, "dim"), c.operand(1).shape.size());
  const Shape shape = catShape(c, 1, dim);
  const Value<T>& g = c.gradient(0, shape);
  const Shape strides = stridesOf(shape);
  std::int64_t at = 0;
  for (std::size_t i = 1; i < c.in.size(); ++i) {
    const Value<T>& x = c.real(i);
    if (c.wants(i - 1)) c.out[i - 1] = strided(c, g, x.shape, strides, at * strides[dim]);
    at += x.shape[dim];
  }
}

// Where the operand lies in the padded result.
struct Padding {
  Shape shape;
  std::int64_t offset = 0;
  Padding(const Shape& x, const Attributes& a) : shape(x) {
    if (textOf(a, "mode", "constant") != "constant")
      throw NoMeaning("padding of another mode than 'constant'");
    const std::vector<std::int64_t> pad = integersOf(a, "pad");
    if (pad.size() % 2 != 0 || pad.size() / 2 > x.size())
      throw Misfit("'pad' has " + std::to_string(pad.size()) +
                   " entries, expected pairs for at most " + std::to_string(x.size()) +
                   " dimensions");
    Shape before(x.size(), 0);
    for (std::size_t i = 0; i < pad.size(); i += 2) {
      const std::size_t d = x.size() - 1 - i / 2;
      if (pad[i] < 0 || pad[i + 1] < 0) throw Misfit("'pad' has negative entries");
      before[d] = pad[i];
      shape[d] += pad[i] + pad[i + 1];
    }
    const Shape strides = stridesOf(shape);
    for (std::size_t d = 0; d < before.size(); ++d) offset += before[d] * strides[d];
  }
};

template <class T>
void pad(Call<T>& c) {
  const Value<T>& x = c.real(0);
  const Padding p(x.shape, c.attributes);
  Value<T> y = filled(c, p.shape, fromRational<T>(numberOf(c.attributes, "value", Rational(0))));
  const Walk walk(x.shape, stridesOf(x.shape), stridesOf(p.shape));
  const T* from = x.data();
  T* to = y.writable() + p.offset;
  forEachRow(walk.runs, walk.length, [&](std::int64_t run) {
    const auto [a, b] = walk.start(run);
    for (std::int64_t i = 0; i < walk.length; ++i)
      to[b + i * walk.strideB] = from[a + i * walk.strideA];
  });
  c.out[0] = std::move(y);
}

template <class T>
void padBackward(Call<T>& c) {
  const Value<T>& x = c.real(1);
  const Padding p(x.shape, c.attributes);
  c.out[0] = strided(c, c.gradient(0, p.shape), x.shape, stridesOf(p.shape), p.offset);
}

}  // namespace

template <class T>
void addLayout(std::vector<NamedKernel<T>>& k) {
  for (const char* name : {"view", "reshape"}) k.push_back({name, view<T>});
  for (const char* name : {"view_backward", "reshape_backward"})
    k.push_back({name, viewBackward<T>});
  k.push_back({"transpose", read<T, transposeOf>});
  k.push_back({"transpose_backward", readBackward<T, transposeOf>});
  k.push_back({"permute", read<T, permuteOf>});
  k.push_back({"permute_backward", readBackward<T, permuteOf>});
  k.push_back({"expand", read<T, expandOf>});
  k.push_back({"expand_backward", readBackward<T, expandOf>});
  k.push_back({"unsqueeze", read<T, unsqueezeOf>});
  k.push_back({"unsqueeze_backward", readBackward<T, unsqueezeOf>});
  k.push_back({"squeeze", read<T, squeezeOf>});
  k.push_back({"squeeze_backward", readBackward<T, squeezeOf>});
  k.push_back({"slice", read<T, sliceOf>});
  k.push_back({"slice_backward", readBackward<T, sliceOf>});
  k.push_back({"select", read<T, selectOf>});
  k.push_back({"select_backward", readBackward<T, selectOf>});
  k.push_back({"chunk", read<T, chunkOf>});
  k.push_back({"chunk_backward", readBackward<T, chunkOf>});
  k.push_back({"cat", cat<T>});
  k.push_back({"cat_backward", catBackward<T>});
  k.push_back({"pad", pad<T>});
  k.push_back({"pad_backward", padBackward<T>});
}

template void addLayout(std::vector<NamedKernel<double>>&);
template void addLayout(std::vector<NamedKernel<long double>>&);
template void addLayout(std::vector<NamedKernel<Field>>&);

}  // namespace shardproof::executor
