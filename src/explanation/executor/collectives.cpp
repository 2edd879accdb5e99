// SPDX-License-Identifier: Apache-2.0
#include "executor/collectives.h"

#include <algorithm>
#include <numeric>

namespace shardproof::executor {
namespace {

// A tensor as rows of `size` slices along a dimension.
struct Along {
  std::size_t dim;
  std::int64_t outer = 1, size, inner;
  Along(const Shape& shape, std::int64_t d, std::int64_t planes)
      : dim(dimensionOf(d, shape.size())), size(shape[dim]), inner(planes) {
    for (std::size_t i = 0; i < dim; ++i) outer *= shape[i];
    for (std::size_t i = dim + 1; i < shape.size(); ++i) inner *= shape[i];
  }
};

std::int64_t piece(const Along& a, std::int64_t members) {
  if (a.size % members != 0)
    throw Misfit("dimension " + std::to_string(a.dim) + " of size " + std::to_string(a.size) +
                 " is not divisible by the group's " + std::to_string(members) + " members");
  return a.size / members;
}

// The piece [from, from + size) along a dimension.
template <class T>
Value<T> cut(Context& context, const Value<T>& x, const Along& a, std::int64_t from,
             std::int64_t size) {
  Shape shape = x.shape;
  shape[a.dim] = size;
  Value<T> y(context.memory, shape, x.element);
  const T* source = x.data();
  T* to = y.writable();
  forEachRow(a.outer, size * a.inner, [&](std::int64_t o) {
    std::copy_n(source + (o * a.size + from) * a.inner, size * a.inner, to + o * size * a.inner);
  });
  return y;
}

template <class T>
Value<T> joined(Context& context, const std::vector<Value<T>>& parts, std::int64_t dim) {
  const Along a(parts[0].shape, dim, parts[0].planes());
  Shape shape = parts[0].shape;
  const auto count = static_cast<std::int64_t>(parts.size());
  shape[a.dim] *= count;
  Value<T> y(context.memory, shape, parts[0].element);
  T* to = y.writable();
  const std::int64_t row = a.size * a.inner;
  for (std::int64_t i = 0; i < count; ++i) {
    const T* from = parts[i].data();
    forEachRow(a.outer, row, [&](std::int64_t o) {
      std::copy_n(from + o * row, row, to + (o * count + i) * row);
    });
  }
  return y;
}

template <class T>
Value<T> reduced(Context& context, Reduction reduction,
                 const std::vector<const Value<T>*>& operands) {
  const Value<T>& first = *operands[0];
  if (reduction == Reduction::kMean && first.element == ElementKind::kInteger)
    throw NoMeaning("the mean of integers");
  if ((reduction == Reduction::kMax || reduction == Reduction::kMin) &&
      first.element == ElementKind::kComplex)
    throw NoMeaning("the largest or smallest of complex numbers");
  Value<T> y(context.memory, first.shape, first.element);
  T* to = y.writable();
  std::vector<const T*> from;
  for (const Value<T>* o : operands) from.push_back(o->data());
  const T factor = fromRational<T>(Rational(1, static_cast<std::int64_t>(operands.size())));
  forEach(y.size(), [&](std::int64_t i) {
    T s = from[0][i];
    for (std::size_t m = 1; m < from.size(); ++m) {
      const T x = from[m][i];
      s = reduction == Reduction::kMax   ? maximumOf(s, x)
          : reduction == Reduction::kMin ? minimumOf(s, x)
                                         : s + x;
    }
    to[i] = reduction == Reduction::kMean ? s * factor : s;
  });
  return y;
}

// As `joined`, of pieces of any lengths.
template <class T>
Value<T> joinedUneven(Context& context, const std::vector<Value<T>>& parts, std::int64_t dim) {
  Shape shape = parts[0].shape;
  const std::size_t along = dimensionOf(dim, shape.size());
  shape[along] = 0;
  for (const Value<T>& part : parts) {
    Shape other = part.shape;
    if (other.size() != shape.size()) throw Misfit("pieces of different numbers of dimensions");
    shape[along] += other[along];
    other[along] = shape[along];
    if (other != shape)
      throw Misfit("a member's piece has shape " + text(part.shape) + ", another's " +
                   text(parts[0].shape));
  }
  Value<T> y(context.memory, shape, parts[0].element);
  const Along whole(shape, dim, y.planes());
  T* to = y.writable();
  std::int64_t begin = 0;
  for (const Value<T>& part : parts) {
    const T* from = part.data();
    const std::int64_t row = part.shape[along] * whole.inner;
    for (std::int64_t o = 0; o < whole.outer; ++o)
      std::copy_n(from + o * row, row, to + (o * whole.size + begin) * whole.inner);
    begin += part.shape[along];
  }
  return y;
}

// Pieces of the lengths that `sizes` has. A member without an operand gives none, one that gets
// none has no result.
template <class T>
std::vector<Value<T>> uneven(Context& context, const CommunicationSpec& spec,
                             const std::vector<const Value<T>*>& operands) {
  const std::size_t members = operands.size();
  const bool exchange = spec.kind == Communication::kAllToAll;
  if (spec.sizes.size() != (exchange ? members * members : members))
    throw Misfit("there are " + std::to_string(spec.sizes.size()) + " sizes for " +
                 std::to_string(members) + " members");
  // What member `from` sends to member `to`, along `dim` beginning at `begin`.
  const auto taken = [&](const Value<T>& x, std::int64_t begin, std::int64_t size) {
    return cut(context, x, Along(x.shape, spec.dim, x.planes()), begin, size);
  };
  const auto expectLength = [&](const Value<T>* x, std::int64_t length) {
    const std::int64_t own = x == nullptr ? 0 : Along(x->shape, spec.dim, x->planes()).size;
    if (own != length)
      throw Misfit("a member gives " + std::to_string(own) + " along dimension " +
                   std::to_string(spec.dim) + ", but its sizes are " + std::to_string(length) +
                   " together");
  };
  std::vector<Value<T>> results(members);
  if (spec.kind == Communication::kReduceScatter) {
    const auto total = std::accumulate(spec.sizes.begin(), spec.sizes.end(), std::int64_t{0});
    for (const Value<T>* o : operands) {
      expectLength(o, total);
      if (o->shape != operands[0]->shape)
        throw Misfit("a member's operand has shape " + text(o->shape) + ", another's " +
                     text(operands[0]->shape));
    }
    const Value<T> whole = reduced(context, spec.reduction, operands);
    std::int64_t begin = 0;
    for (std::size_t m = 0; m < members; begin += spec.sizes[m++])
      if (spec.sizes[m] > 0) results[m] = taken(whole, begin, spec.sizes[m]);
    return results;
  }
  std::vector<std::vector<Value<T>>> parts(members);  // of each member that gets something
  for (std::size_t from = 0; from < members; ++from) {
    const Value<T>* const x = operands[from];
    if (!exchange) {
      expectLength(x, spec.sizes[from]);
      if (x != nullptr) parts[0].push_back(*x);
      continue;
    }
    const auto row = spec.sizes.begin() + static_cast<std::ptrdiff_t>(from * members);
    expectLength(x,
                 std::accumulate(row, row + static_cast<std::ptrdiff_t>(members), std::int64_t{0}));
    std::int64_t begin = 0;
    for (std::size_t to = 0; to < members; ++to) {
      const std::int64_t size = spec.sizes[from * members + to];
      if (size > 0) parts[to].push_back(taken(*x, begin, size));
      begin += size;
    }
  }
  if (!exchange) {
    results.assign(members, joinedUneven(context, parts[0], spec.dim));
    return results;
  }
  for (std::size_t to = 0; to < members; ++to)
    if (!parts[to].empty()) results[to] = joinedUneven(context, parts[to], spec.odim);
  return results;
}

// Each target gets its source's operand, the others zeros.
template <class T>
std::vector<Value<T>> permuted(Context& context, const CommunicationSpec& spec,
                               const std::vector<const Value<T>*>& operands) {
  std::vector<Value<T>> results;
  for (std::size_t to = 0; to < operands.size(); ++to) {
    const auto pair = std::find_if(spec.pairs.begin(), spec.pairs.end(), [&](const auto& p) {
      return static_cast<std::size_t>(p.second) == to;
    });
    if (pair != spec.pairs.end()) {
      results.push_back(*operands.at(static_cast<std::size_t>(pair->first)));
      continue;
    }
    Value<T> zeros(context.memory, operands[to]->shape, operands[to]->element);
    std::fill_n(zeros.writable(), zeros.size(), fromRational<T>(Rational(0)));
    results.push_back(std::move(zeros));
  }
  return results;
}

}  // namespace

template <class T>
std::vector<Value<T>> communicated(Context& context, const CommunicationSpec& spec,
                                   const std::vector<const Value<T>*>& operands) {
  const std::size_t members = operands.size();
  const auto given = std::find_if(operands.begin(), operands.end(),
                                  [](const Value<T>* v) { return v != nullptr; });
  if (given == operands.end()) return std::vector<Value<T>>(members);  // a barrier
  const Value<T>& first = **given;
  std::shared_ptr<const std::string> unknown;
  for (const Value<T>* o : operands) {
    if (o == nullptr) continue;
    if (o->shape != first.shape && spec.sizes.empty())
      throw Misfit("a member's operand has shape " + text(o->shape) + ", another's " +
                   text(first.shape));
    if (o->element != first.element)
      throw Misfit("members' operands hold different kinds of element");
    if (o->unknown) unknown = o->unknown;
  }
  const auto count = static_cast<std::int64_t>(members);
  std::vector<Value<T>> results;
  if (!spec.sizes.empty()) {
    results = uneven(context, spec, operands);
    for (Value<T>& r : results) r.unknown = unknown;
    return results;
  }
  switch (spec.kind) {
    case Communication::kPermute:
      results = permuted(context, spec, operands);
      break;
    case Communication::kScatter: {
      const Along a(first.shape, spec.dim, first.planes());
      const std::int64_t size = piece(a, count);
      for (std::int64_t m = 0; m < count; ++m)
        results.push_back(cut(context, first, a, m * size, size));
      break;
    }
    case Communication::kReduce:
    case Communication::kAllReduce:
      results.assign(members, reduced(context, spec.reduction, operands));
      break;
    case Communication::kReduceScatter: {
      const Along a(first.shape, spec.dim, first.planes());
      const std::int64_t size = piece(a, count);
      const Value<T> whole = reduced(context, spec.reduction, operands);
      for (std::int64_t m = 0; m < count; ++m)
        results.push_back(cut(context, whole, a, m * size, size));
      break;
    }
    case Communication::kGather:
    case Communication::kAllGather: {
      std::vector<Value<T>> parts;
      for (const Value<T>* o : operands) parts.push_back(*o);
      results.assign(members, joined(context, parts, spec.dim));
      break;
    }
    case Communication::kAllToAll: {
      const Along a(first.shape, spec.dim, first.planes());
      const std::int64_t size = piece(a, count);
      for (std::int64_t m = 0; m < count; ++m) {
        std::vector<Value<T>> parts;
        for (const Value<T>* o : operands) parts.push_back(cut(context, *o, a, m * size, size));
        results.push_back(joined(context, parts, spec.odim));
      }
      break;
    }
    default:
      results.assign(members, first);
      break;  // broadcast, message
  }
  for (Value<T>& r : results) r.unknown = unknown;
  return results;
}

template std::vector<Value<double>> communicated(Context&, const CommunicationSpec&,
                                                 const std::vector<const Value<double>*>&);
template std::vector<Value<long double>> communicated(
    Context&, const CommunicationSpec&, const std::vector<const Value<long double>*>&);
template std::vector<Value<Field>> communicated(Context&, const CommunicationSpec&,
                                                const std::vector<const Value<Field>*>&);

}  // namespace shardproof::executor
