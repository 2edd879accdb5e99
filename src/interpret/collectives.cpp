#include "interpret/collectives.h"

#include <algorithm>

namespace shardproof::interpret {
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
    if (o->shape != first.shape)
      throw Misfit("a member's operand has shape " + text(o->shape) + ", another's " +
                   text(first.shape));
    if (o->element != first.element)
      throw Misfit("members' operands hold different kinds of element");
    if (o->unknown) unknown = o->unknown;
  }
  const auto count = static_cast<std::int64_t>(members);
  std::vector<Value<T>> results;
  switch (spec.kind) {
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

}  // namespace shardproof::interpret
