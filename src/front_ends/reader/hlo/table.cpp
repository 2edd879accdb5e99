// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/table.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "util/index.h"

namespace shardproof::hlo {
namespace {

using Sizes = std::vector<std::int64_t>;

std::int64_t countOf(const Sizes& sizes) {
  std::int64_t n = 1;
  for (const std::int64_t s : sizes) {
    if (s != 0 && n > kMostTableValues / s)
      throw std::length_error("more than " + std::to_string(kMostTableValues) +
                              " numbers of a tensor are known one by one");
    n *= s;
  }
  return n;
}

// Calls f(index) for all indices, row-major.
template <class F>
void walk(const Sizes& sizes, F&& f) {
  if (countOf(sizes) == 0) return;
  Sizes index(sizes.size(), 0);
  for (;;) {
    f(std::as_const(index));
    std::size_t d = sizes.size();
    for (;;) {
      if (d == 0) return;
      --d;
      if (++index[d] < sizes[d]) break;
      index[d] = 0;
    }
  }
}

// A table of these sizes and extents, filled by value(index).
template <class F>
Table fill(Sizes sizes, Sizes extent, F&& value) {
  Table t{std::move(sizes), std::move(extent), {}};
  t.values.reserve(at(countOf(t.extent)));
  walk(t.extent, [&](const Sizes& index) { t.values.push_back(value(index)); });
  return t;
}

bool alike(const Table& t, std::size_t d) { return t.extent[d] == 1 && t.sizes[d] != 1; }

}  // namespace

ScalarId Table::value(std::span<const std::int64_t> index) const {
  std::size_t place = 0;
  for (std::size_t d = 0; d < extent.size(); ++d)
    place = place * at(extent[d]) + (extent[d] == 1 ? 0 : at(index[d]));
  return values[place];
}

Table uniformTable(Sizes sizes, ScalarId value) {
  Sizes extent(sizes.size(), 1);
  return {std::move(sizes), std::move(extent), {value}};
}

Table iotaTable(const Sizes& sizes, std::size_t dim, Scalars& scalars, std::string_view type) {
  Sizes extent(sizes.size(), 1);
  extent[dim] = sizes[dim];
  const bool wraps = integerType(type).has_value();
  return fill(sizes, extent, [&](const Sizes& i) {
    const ScalarId place = scalars.rational(i[dim]);
    return wraps ? scalars.convert(place, "s64", type) : place;
  });
}

Table broadcastTable(const Table& t, const Sizes& sizes, std::span<const std::int64_t> dimensions) {
  Sizes extent(sizes.size(), 1), index(t.sizes.size(), 0);
  for (std::size_t d = 0; d < dimensions.size(); ++d) extent[at(dimensions[d])] = t.extent[d];
  return fill(sizes, extent, [&](const Sizes& i) {
    for (std::size_t d = 0; d < dimensions.size(); ++d) index[d] = i[at(dimensions[d])];
    return t.value(index);
  });
}

Table wholeTable(const Table& t) {
  return fill(t.sizes, t.sizes, [&](const Sizes& i) { return t.value(i); });
}

Table reshapeTable(const Table& t, const Sizes& sizes) {
  if (t.uniform()) return uniformTable(sizes, t.values[0]);
  // Only dimensions of size 1 come or go: the others keep how they are stored.
  Sizes extent, kept, wanted;
  for (std::size_t d = 0; d < t.sizes.size(); ++d)
    if (t.sizes[d] != 1) {
      kept.push_back(t.sizes[d]);
      extent.push_back(t.extent[d]);
    }
  for (const std::int64_t s : sizes)
    if (s != 1) wanted.push_back(s);
  if (kept == wanted) {
    Table result{sizes, {}, t.values};
    std::size_t next = 0;
    for (const std::int64_t s : sizes) result.extent.push_back(s == 1 ? 1 : extent[next++]);
    return result;
  }
  Table whole = wholeTable(t);
  return {sizes, sizes, std::move(whole.values)};
}

Table transposeTable(const Table& t, std::span<const std::int64_t> permutation) {
  Sizes sizes, extent, index(t.sizes.size());
  for (const std::int64_t d : permutation) {
    sizes.push_back(t.sizes[at(d)]);
    extent.push_back(t.extent[at(d)]);
  }
  return fill(sizes, extent, [&](const Sizes& i) {
    for (std::size_t d = 0; d < i.size(); ++d) index[at(permutation[d])] = i[d];
    return t.value(index);
  });
}

Table sliceTable(const Table& t, std::span<const std::int64_t> start,
                 std::span<const std::int64_t> limit, std::span<const std::int64_t> stride) {
  Sizes sizes, extent, index(t.sizes.size());
  for (std::size_t d = 0; d < t.sizes.size(); ++d) {
    sizes.push_back((limit[d] - start[d] + stride[d] - 1) / stride[d]);
    extent.push_back(alike(t, d) ? 1 : sizes[d]);
  }
  return fill(sizes, extent, [&](const Sizes& i) {
    for (std::size_t d = 0; d < i.size(); ++d) index[d] = start[d] + i[d] * stride[d];
    return t.value(index);
  });
}

Table concatenateTables(std::span<const Table* const> tables, std::size_t dim) {
  Sizes sizes = tables[0]->sizes, extent = tables[0]->extent;
  bool same = tables[0]->uniform();
  sizes[dim] = 0;
  for (const Table* t : tables) {
    sizes[dim] += t->sizes[dim];
    same = same && t->uniform() && t->values == tables[0]->values;
    for (std::size_t d = 0; d < extent.size(); ++d) extent[d] = std::max(extent[d], t->extent[d]);
  }
  if (same) return uniformTable(sizes, tables[0]->values[0]);
  extent[dim] = sizes[dim];
  Sizes index;
  return fill(sizes, extent, [&](const Sizes& i) {
    index = i;
    for (const Table* t : tables) {
      if (index[dim] < t->sizes[dim]) return t->value(index);
      index[dim] -= t->sizes[dim];
    }
    throw std::logic_error("concatenate: index beyond the end");
  });
}

Table reverseTable(const Table& t, std::span<const std::int64_t> dims) {
  Sizes index;
  return fill(t.sizes, t.extent, [&](const Sizes& i) {
    index = i;
    for (const std::int64_t d : dims)
      if (!alike(t, at(d))) index[at(d)] = t.sizes[at(d)] - 1 - i[at(d)];
    return t.value(index);
  });
}

Table padTable(const Table& t, ScalarId value, const std::vector<Sizes>& padding) {
  Sizes sizes, extent, index(t.sizes.size());
  for (std::size_t d = 0; d < t.sizes.size(); ++d) {
    const Sizes& p = padding[d];
    sizes.push_back(t.sizes[d] + p[0] + p[1] + std::max<std::int64_t>(t.sizes[d] - 1, 0) * p[2]);
    const bool same = std::all_of(p.begin(), p.end(), [](std::int64_t n) { return n == 0; });
    extent.push_back(same ? t.extent[d] : sizes[d]);
  }
  return fill(sizes, extent, [&](const Sizes& i) {
    for (std::size_t d = 0; d < i.size(); ++d) {
      const std::int64_t at = i[d] - padding[d][0], step = padding[d][2] + 1;
      if (at < 0 || at % step != 0 || at / step >= t.sizes[d]) return value;
      index[d] = at / step;
    }
    return t.value(index);
  });
}

Table mapTables(std::span<const Table* const> tables,
                const std::function<ScalarId(std::span<const ScalarId>)>& f) {
  Sizes extent(tables[0]->sizes.size(), 1);
  for (const Table* t : tables)
    for (std::size_t d = 0; d < extent.size(); ++d) extent[d] = std::max(extent[d], t->extent[d]);
  std::vector<ScalarId> arguments(tables.size());
  return fill(tables[0]->sizes, extent, [&](const Sizes& i) {
    for (std::size_t k = 0; k < tables.size(); ++k) arguments[k] = tables[k]->value(i);
    return f(arguments);
  });
}

Table reduceTable(const Table& t, std::span<const std::int64_t> dims, ScalarId start,
                  const std::function<ScalarId(ScalarId, ScalarId)>& f) {
  std::vector<bool> reduced(t.sizes.size(), false);
  for (const std::int64_t d : dims) reduced[at(d)] = true;
  Sizes sizes, extent, inner;
  for (std::size_t d = 0; d < t.sizes.size(); ++d) {
    if (reduced[d]) {
      inner.push_back(t.sizes[d]);
    } else {
      sizes.push_back(t.sizes[d]);
      extent.push_back(t.extent[d]);
    }
  }
  countOf(inner);
  Sizes index(t.sizes.size());
  return fill(sizes, extent, [&](const Sizes& i) {
    ScalarId total = start;
    walk(inner, [&](const Sizes& j) {
      std::size_t o = 0, k = 0;
      for (std::size_t d = 0; d < index.size(); ++d) index[d] = reduced[d] ? j[k++] : i[o++];
      total = f(total, t.value(index));
    });
    return total;
  });
}

}  // namespace shardproof::hlo
