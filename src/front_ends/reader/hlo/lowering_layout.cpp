// SPDX-License-Identifier: Apache-2.0
// Values whose elements are moved, each kind of value in its own way.
#include <algorithm>
#include <numeric>

#include "reader/hlo/dimensions.h"
#include "reader/hlo/formula.h"
#include "reader/hlo/lowering.h"
#include "shardproof/error.h"

namespace shardproof::hlo {
namespace {

std::vector<int> relabel(const std::vector<int>& labels, const std::vector<int>& old) {
  std::vector<int> result;
  for (const int o : old) result.push_back(o < 0 ? -1 : labels[at(o)]);
  return result;
}

}  // namespace

Value Lowering::broadcastValue(const Value& x, const Shape& shape, const Sizes& dimensions) {
  if (x.isKnown()) {
    Value wide = mapTablesOf(
        x, shape.sizes, [&](const Table& t) { return broadcastTable(t, shape.sizes, dimensions); });
    wide.shape = shape;
    return wide;
  }
  std::vector<int> old(shape.sizes.size(), -1);
  for (std::size_t d = 0; d < dimensions.size(); ++d) old[at(dimensions[d])] = static_cast<int>(d);
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
  const auto old = onesOnly(x.shape.sizes, shape.sizes);
  if (x.kind == Value::Kind::kFormula && !old)
    return tableValue(shape, reshapeTable(listed(shared_.scalars, x), shape.sizes));
  if (x.isKnown()) {
    Value same =
        mapTablesOf(x, shape.sizes, [&](const Table& t) { return reshapeTable(t, shape.sizes); });
    same.shape = shape;
    return same;
  }
  if (x.isIndex()) {
    if (!old)
      return asIndex({.kind = Value::Kind::kIndex,
                      .shape = shape,
                      .table = {},
                      .formula = {},
                      .varying = {},
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
  if (x.isKnown()) {
    Value turned =
        mapTablesOf(x, shape.sizes, [&](const Table& t) { return transposeTable(t, permutation); });
    turned.shape = shape;
    return turned;
  }
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
  if (x.isKnown()) {
    Value piece = mapTablesOf(x, shape.sizes,
                              [&](const Table& t) { return sliceTable(t, start, limit, stride); });
    piece.shape = shape;
    return compacted(shared_.scalars, std::move(piece));
  }
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
    parameterOf_.emplace(y, at(origin));
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
    const std::int64_t n = sizesOf(name)[at(d)];
    if (n > 4096) throw std::invalid_argument("a reversal of more than 4096 positions");
    std::vector<std::string> pieces;
    for (std::int64_t k = n; k-- > 0;) pieces.push_back(sliceDim(name, at(d), k, k + 1));
    name = cat(pieces, at(d));
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

}  // namespace shardproof::hlo
