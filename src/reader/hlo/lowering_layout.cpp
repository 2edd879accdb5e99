// Instructions that only move elements.
#include <algorithm>
#include <numeric>

#include "reader/hlo/lowering.h"
#include "shardproof/error.h"

namespace shardproof::hlo {
namespace {

std::size_t z(std::int64_t i) { return static_cast<std::size_t>(i); }

// For a reshape by which only dimensions of size 1 come or go: for each new dimension the old one,
// or -1. Nothing where it is another reshape.
std::optional<std::vector<int>> onesOnly(const Sizes& from, const Sizes& to) {
  std::vector<int> old;
  std::size_t next = 0;
  for (const std::int64_t size : to) {
    while (size != 1 && next < from.size() && from[next] == 1) ++next;
    if (size == 1) {
      // A dimension of size 1 that stays may be the same one.
      const bool same = next < from.size() && from[next] == 1;
      old.push_back(same ? static_cast<int>(next++) : -1);
      continue;
    }
    if (next == from.size() || from[next] != size) return std::nullopt;
    old.push_back(static_cast<int>(next++));
  }
  for (; next < from.size(); ++next)
    if (from[next] != 1) return std::nullopt;
  return old;
}

std::vector<int> relabel(const std::vector<int>& labels, const std::vector<int>& old) {
  std::vector<int> result;
  for (const int o : old) result.push_back(o < 0 ? -1 : labels[z(o)]);
  return result;
}

}  // namespace

Value Lowering::broadcastValue(const Value& x, const Shape& shape, const Sizes& dimensions) {
  if (x.isTable()) return tableValue(shape, broadcastTable(*x.table, shape.sizes, dimensions));
  std::vector<int> old(shape.sizes.size(), -1);
  for (std::size_t d = 0; d < dimensions.size(); ++d) old[z(dimensions[d])] = static_cast<int>(d);
  if (x.isIndex()) {
    IndexFunction f = *x.index;
    f.labels = relabel(f.labels, old);
    return indexValue(shape, std::move(f));
  }
  if (x.kind == Value::Kind::kLookup) {
    Lookup l = *x.lookup;
    l.labels = relabel(l.labels, old);
    return lookupValue(shape, std::move(l));
  }
  const std::string name = node(x);
  std::vector<int> labels(x.shape.sizes.size());
  std::iota(labels.begin(), labels.end(), 0);
  return nodeValue(shape, arrange(name, labels, old, shape.sizes));
}

Value Lowering::reshapeValue(const Value& x, const Shape& shape) {
  if (x.shape.sizes == shape.sizes) {
    Value same = x;
    same.shape = shape;
    return same;
  }
  if (x.isTable()) return tableValue(shape, reshapeTable(*x.table, shape.sizes));
  const auto old = onesOnly(x.shape.sizes, shape.sizes);
  if (x.isIndex()) {
    if (!old)
      return asIndex({.kind = Value::Kind::kIndex,
                      .shape = shape,
                      .table = {},
                      .name = {},
                      .guard = {},
                      .index = x.index,
                      .lookup = {},
                      .parts = {},
                      .elements = {}},
                     [&] {
                       const std::string base = baseNode(*x.index, x.shape.sizes);
                       std::string y = view(base, shape.sizes);
                       sameIntegers(base, y);
                       return y;
                     }());
    IndexFunction f = *x.index;
    f.labels = relabel(f.labels, *old);
    return indexValue(shape, std::move(f));
  }
  if (x.kind == Value::Kind::kLookup && old) {
    Lookup l = *x.lookup;
    l.labels = relabel(l.labels, *old);
    return lookupValue(shape, std::move(l));
  }
  Value y = nodeValue(shape, view(node(x), shape.sizes));
  if (x.guard && old) {
    Guard g = *x.guard;
    g.condition.labels = relabel(g.condition.labels, *old);
    g.value = view(g.value, shape.sizes);
    y.guard = std::make_shared<const Guard>(std::move(g));
  }
  return y;
}

Value Lowering::transposeValue(const Value& x, const Shape& shape, const Sizes& permutation) {
  if (x.isTable()) return tableValue(shape, transposeTable(*x.table, permutation));
  const std::vector<int> old(permutation.begin(), permutation.end());
  if (x.isIndex()) {
    IndexFunction f = *x.index;
    f.labels = relabel(f.labels, old);
    return indexValue(shape, std::move(f));
  }
  if (x.kind == Value::Kind::kLookup) {
    Lookup l = *x.lookup;
    l.labels = relabel(l.labels, old);
    return lookupValue(shape, std::move(l));
  }
  return nodeValue(shape, permute(node(x), permutation));
}

Value Lowering::sliceValue(const Value& x, const Shape& shape, const Sizes& start,
                           const Sizes& limit, const Sizes& stride) {
  if (x.shape.sizes == shape.sizes) return x;
  if (x.isTable()) return tableValue(shape, sliceTable(*x.table, start, limit, stride));
  if (x.kind == Value::Kind::kParts && stride[x.parts->dim] == 1) {
    // What lies in one part is a slice of it.
    const std::size_t d = x.parts->dim;
    std::int64_t at = 0;
    for (const auto& [size, part] : x.parts->parts) {
      if (at <= start[d] && limit[d] <= at + size) {
        Sizes low = start, high = limit;
        low[d] -= at;
        high[d] -= at;
        return sliceValue(part, shape, low, high, stride);
      }
      at += size;
    }
  }
  const auto slices = [&](std::string name) {
    for (std::size_t d = 0; d < start.size(); ++d)
      name = sliceDim(name, d, start[d], limit[d], stride[d]);
    return name;
  };
  if (x.isIndex()) {
    const std::string base = baseNode(*x.index, x.shape.sizes);
    std::string y = slices(base);
    sameIntegers(base, y);
    Value sized = x;
    sized.shape = shape;
    return asIndex(sized, y);
  }
  return nodeValue(shape, slices(node(x)));
}

Value Lowering::concatenateValues(const std::vector<Value>& x, const Shape& shape,
                                  std::size_t dim) {
  if (x.size() == 1) return x[0];
  if (std::all_of(x.begin(), x.end(), [](const Value& v) { return v.isTable(); })) {
    std::vector<const Table*> tables;
    for (const Value& v : x) tables.push_back(v.table.get());
    return tableValue(shape, concatenateTables(tables, dim));
  }
  const auto originOf = [&](const Value& v) -> std::int64_t {
    if (!v.isIndex() || !isIdentity(v.index->pieces)) return -1;
    const auto p = parameterOf_.find(v.index->base);
    return p == parameterOf_.end() ? -1 : static_cast<std::int64_t>(p->second);
  };
  const std::int64_t origin = originOf(x[0]);
  if (origin >= 0 &&
      std::all_of(x.begin(), x.end(), [&](const Value& v) { return originOf(v) == origin; })) {
    std::vector<std::string> bases;
    for (const Value& v : x) bases.push_back(baseNode(*v.index, v.shape.sizes));
    const std::string y = cat(bases, dim);
    parameterOf_.emplace(y, z(origin));
    Value sized = x[0];
    sized.shape = shape;
    return asIndex(sized, y);
  }
  Parts parts;
  parts.dim = dim;
  for (const Value& v : x) parts.parts.emplace_back(v.shape.sizes[dim], v);
  return partsValue(shape, std::move(parts));
}

Value Lowering::padValue(const Instruction& i, const Value& x, const Value& value,
                         const Shape& shape, const std::vector<Sizes>& padding) {
  if (!value.isUniform()) unsupported(i, "a padding value that depends on the input");
  const ScalarId fill = value.table->values[0];
  if (x.isTable()) return tableValue(shape, padTable(*x.table, fill, padding));
  std::string name = node(x);
  for (std::size_t d = 0; d < padding.size(); ++d) {
    const std::int64_t interior = padding[d][2];
    if (interior > 0 && sizesOf(name)[d] > 1) {
      // Each element followed by zeros, less those after the last.
      Sizes wide = sizesOf(name), flat = wide;
      wide.insert(wide.begin() + static_cast<std::ptrdiff_t>(d) + 1, 1);
      flat[d] *= interior + 1;
      name = view(padDim(view(name, wide), d + 1, 0, interior), flat);
      name = sliceDim(name, d, 0, flat[d] - interior);
    }
    name = padDim(name, d, padding[d][0], padding[d][1]);
  }
  if (!shared_.scalars.is(fill, 0)) {
    const Table inside =
        padTable(uniformTable(x.shape.sizes, shared_.scalars.rational(0)), fill, padding);
    name = binary("add", name, tableNode(inside, false), shape.sizes);
  }
  return nodeValue(shape, name);
}

Value Lowering::reverseValue(const Value& x, const Sizes& dims) {
  if (x.isTable()) return tableValue(x.shape, reverseTable(*x.table, dims));
  std::string name = node(x);
  for (const std::int64_t d : dims) {
    const std::int64_t n = sizesOf(name)[z(d)];
    if (n > 4096) throw std::invalid_argument("a reversal of more than 4096 positions");
    std::vector<std::string> pieces;
    for (std::int64_t k = n; k-- > 0;) pieces.push_back(sliceDim(name, z(d), k, k + 1));
    name = cat(pieces, z(d));
  }
  return nodeValue(x.shape, name);
}

// Dimensions before `from` are replaced whole.
Value Lowering::updateValue(const Value& x, const Value& update, const Sizes& start,
                            std::size_t from) {
  const Sizes &sizes = x.shape.sizes, &window = update.shape.sizes;
  std::size_t d = from;
  while (d < sizes.size() && window[d] == sizes[d]) ++d;
  if (d == sizes.size()) {
    Value whole = update;
    whole.shape = x.shape;
    return whole;
  }
  const auto piece = [&](std::int64_t low, std::int64_t high) {
    Sizes begin(sizes.size(), 0), end = sizes;
    begin[d] = low;
    end[d] = high;
    Shape shape = x.shape;
    shape.sizes[d] = high - low;
    return sliceValue(x, shape, begin, end, Sizes(sizes.size(), 1));
  };
  Parts parts;
  parts.dim = d;
  const auto add = [&](std::int64_t low, std::int64_t high) {
    if (low >= high) return;
    if (x.kind != Value::Kind::kParts || x.parts->dim != d) {
      parts.parts.emplace_back(high - low, piece(low, high));
      return;
    }
    std::int64_t at = 0;
    for (const auto& [size, part] : x.parts->parts) {
      const std::int64_t first = std::max(low, at), last = std::min(high, at + size);
      if (first < last) parts.parts.emplace_back(last - first, piece(first, last));
      at += size;
    }
  };
  add(0, start[d]);
  parts.parts.emplace_back(
      window[d], updateValue(piece(start[d], start[d] + window[d]), update, start, d + 1));
  add(start[d] + window[d], sizes[d]);
  return partsValue(x.shape, std::move(parts));
}

// Where a dynamic slice begins: moved into bounds, as HLO does.
Sizes Lowering::startsOf(const Frame& frame, const Instruction& i, std::size_t first,
                         const Sizes& sizes, const Sizes& window) {
  Sizes starts;
  if (i.operands.size() != first + sizes.size())
    unsupported(i, "starts that are not one number for each dimension");
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const Value& v = operand(frame, i, first + d);
    const std::int64_t most = sizes[d] - window[d];
    if (most == 0) {
      starts.push_back(0);
      continue;
    }
    if (!v.isUniform() || !shared_.scalars.isRational(v.table->values[0]))
      unsupported(i, "a position that depends on the input");
    const Rational& at = shared_.scalars.value(v.table->values[0]);
    starts.push_back(at.fitsInt64() ? std::clamp<std::int64_t>(at.toInt64(), 0, most)
                                    : (at.sign() < 0 ? 0 : most));
  }
  return starts;
}

std::optional<Value> Lowering::lowerLayout(const Frame& frame, const Instruction& i) {
  const std::string& op = i.opcode;
  const Shape& shape = i.shape;
  if (op == "broadcast") {
    const Sizes dimensions = dims(i, "dimensions");
    const Sizes& from = operand(frame, i, 0).shape.sizes;
    if (dimensions.size() != from.size()) unsupported(i, "'dimensions' of another length");
    for (std::size_t d = 0; d < from.size(); ++d)
      if (dimensions[d] < 0 || dimensions[d] >= static_cast<std::int64_t>(shape.sizes.size()) ||
          shape.sizes[z(dimensions[d])] != from[d] ||
          std::count(dimensions.begin(), dimensions.end(), dimensions[d]) != 1)
        unsupported(i, "'dimensions' that do not fit the operand");
    return broadcastValue(operand(frame, i, 0), shape, dimensions);
  }
  if (op == "reshape" || op == "bitcast") {
    const Value& x = operand(frame, i, 0);
    if (elementsOf(x.shape, file_, i.place) != elementsOf(shape, file_, i.place) ||
        (op == "bitcast" && (x.shape.type != shape.type || !onesOnly(x.shape.sizes, shape.sizes))))
      unsupported(i, "another number of elements, or a bitcast that depends on layouts");
    return reshapeValue(x, shape);
  }
  if (op == "transpose") {
    const Sizes permutation = dims(i, "dimensions");
    Sizes sorted = permutation, sizes;
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t d = 0; d < sorted.size(); ++d)
      if (sorted[d] != static_cast<std::int64_t>(d)) unsupported(i, "no permutation");
    if (permutation.size() != operand(frame, i, 0).shape.sizes.size())
      unsupported(i, "a permutation of another length");
    for (const std::int64_t d : permutation)
      sizes.push_back(operand(frame, i, 0).shape.sizes[z(d)]);
    expectShape(i, sizes);
    return transposeValue(operand(frame, i, 0), shape, permutation);
  }
  if (op == "slice") {
    const Attribute* a = i.attribute("slice");
    if (a == nullptr) unsupported(i, "no attribute 'slice'");
    Cursor c(a->value, file_, a->place);
    Sizes start, limit, stride, sizes;
    c.take("{");
    const Sizes& from = operand(frame, i, 0).shape.sizes;
    while (!c.tryTake("}")) {
      c.take("[");
      start.push_back(c.integer("the start"));
      c.take(":");
      limit.push_back(c.integer("the limit"));
      stride.push_back(c.tryTake(":") ? c.integer("the stride") : 1);
      c.take("]");
      c.tryTake(",");
      const std::size_t d = start.size() - 1;
      if (d >= from.size() || start[d] < 0 || start[d] > limit[d] || limit[d] > from[d] ||
          stride[d] < 1)
        c.fail("found a slice outside of the operand");
      sizes.push_back((limit[d] - start[d] + stride[d] - 1) / stride[d]);
    }
    if (start.size() != from.size()) unsupported(i, "a slice of other dimensions");
    expectShape(i, sizes);
    return sliceValue(operand(frame, i, 0), shape, start, limit, stride);
  }
  if (op == "dynamic-slice") {
    if (auto moving = movingSlice(frame, i)) return *moving;
    const Value& x = operand(frame, i, 0);
    const Sizes window = dims(i, "dynamic_slice_sizes");
    expectShape(i, window);
    if (window.size() != x.shape.sizes.size()) unsupported(i, "sizes of other dimensions");
    for (std::size_t d = 0; d < window.size(); ++d)
      if (window[d] > x.shape.sizes[d]) unsupported(i, "a slice larger than its operand");
    const Sizes start = startsOf(frame, i, 1, x.shape.sizes, window);
    Sizes limit = start;
    for (std::size_t d = 0; d < window.size(); ++d) limit[d] += window[d];
    return sliceValue(x, shape, start, limit, Sizes(window.size(), 1));
  }
  if (op == "dynamic-update-slice") {
    if (auto moving = movingUpdate(frame, i)) return *moving;
    const Value &x = operand(frame, i, 0), &update = operand(frame, i, 1);
    const Sizes& window = update.shape.sizes;
    expectShape(i, x.shape.sizes);
    if (window.size() != x.shape.sizes.size()) unsupported(i, "an update of other dimensions");
    for (std::size_t d = 0; d < window.size(); ++d)
      if (window[d] > x.shape.sizes[d]) unsupported(i, "an update larger than its operand");
    return updateValue(x, update, startsOf(frame, i, 2, x.shape.sizes, window), 0);
  }
  if (op == "concatenate") {
    const Sizes dim = dims(i, "dimensions");
    if (dim.size() != 1 || dim[0] < 0 || dim[0] >= static_cast<std::int64_t>(shape.sizes.size()))
      unsupported(i, "'dimensions' that is not one dimension");
    std::vector<Value> x;
    Sizes sizes = operand(frame, i, 0).shape.sizes;
    if (z(dim[0]) < sizes.size()) sizes[z(dim[0])] = 0;
    for (std::size_t k = 0; k < i.operands.size(); ++k) {
      x.push_back(operand(frame, i, k));
      if (x.back().shape.sizes.size() != sizes.size()) unsupported(i, "operands of other ranks");
      sizes[z(dim[0])] += x.back().shape.sizes[z(dim[0])];
    }
    expectShape(i, sizes);
    return concatenateValues(x, shape, z(dim[0]));
  }
  if (op == "reverse") return reverseValue(operand(frame, i, 0), dims(i, "dimensions"));
  if (op == "pad") {
    const Attribute* a = i.attribute("padding");
    if (a == nullptr) unsupported(i, "no attribute 'padding'");
    Cursor c(a->value, file_, a->place);
    std::vector<Sizes> padding;
    Sizes sizes;
    const Sizes& from = operand(frame, i, 0).shape.sizes;
    do {
      Sizes p{c.integer("the padding before")};
      c.take("_");
      p.push_back(c.integer("the padding after"));
      p.push_back(c.tryTake("_") ? c.integer("the padding between") : 0);
      padding.push_back(std::move(p));
    } while (c.tryTake("x"));
    if (padding.size() != from.size()) unsupported(i, "a padding of other dimensions");
    for (std::size_t d = 0; d < from.size(); ++d)
      sizes.push_back(from[d] + padding[d][0] + padding[d][1] +
                      std::max<std::int64_t>(from[d] - 1, 0) * padding[d][2]);
    expectShape(i, sizes);
    return padValue(i, operand(frame, i, 0), operand(frame, i, 1), shape, padding);
  }
  return std::nullopt;
}

}  // namespace shardproof::hlo
