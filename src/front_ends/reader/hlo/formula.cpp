// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/formula.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "util/index.h"

namespace shardproof::hlo {
namespace {

// So many numbers are listed whatever they are.
constexpr std::int64_t kListed = std::int64_t{1} << 14;
constexpr std::size_t kMostNodes = 4096;

std::int64_t elementsOf(const Sizes& extent) {
  std::int64_t n = 1;
  for (const std::int64_t s : extent) n = n > (std::int64_t{1} << 50) / s ? n : n * s;
  return n;
}

ScalarId applyTo(Scalars& scalars, const Formula& f, std::span<const ScalarId> x) {
  return f.opcode == "convert" ? scalars.convert(x[0], f.type, f.direction)
                               : scalars.apply(f.opcode, f.direction, f.type, x);
}

using Memory = std::map<const Formula*, std::shared_ptr<const Table>>;

std::shared_ptr<const Table> listedIn(Scalars& scalars, const Value& known, Memory& memory) {
  if (known.isTable()) return known.table;
  if (const auto done = memory.find(known.formula.get()); done != memory.end()) return done->second;
  std::vector<std::shared_ptr<const Table>> kept;
  std::vector<const Table*> tables;
  for (const Value& x : known.formula->operands) {
    kept.push_back(listedIn(scalars, x, memory));
    tables.push_back(kept.back().get());
  }
  auto made = std::make_shared<const Table>(mapTables(
      tables, [&](std::span<const ScalarId> a) { return applyTo(scalars, *known.formula, a); }));
  memory.emplace(known.formula.get(), made);
  return made;
}

bool sameTable(const Table& a, const Table& b) {
  return a.sizes == b.sizes && a.extent == b.extent && a.values == b.values;
}

// Finds where the part's table lies in the whole's, in the dimensions that are not fixed yet.
bool placeTable(const Table& part, const Table& whole,
                std::vector<std::optional<std::int64_t>>& at) {
  std::vector<std::size_t> open;
  Sizes offset(part.sizes.size(), 0);
  for (std::size_t d = 0; d < offset.size(); ++d) {
    if (whole.extent[d] == 1 && part.extent[d] == 1) continue;  // alike wherever it lies
    if (part.extent[d] != part.sizes[d] || whole.extent[d] != whole.sizes[d]) return false;
    if (at[d]) offset[d] = *at[d];
    else open.push_back(d);
  }
  const auto fits = [&] {
    Sizes index(offset.size(), 0);
    for (std::size_t k = 0; k < part.values.size(); ++k) {
      std::int64_t rest = static_cast<std::int64_t>(k);
      for (std::size_t d = offset.size(); d-- > 0;) {
        const std::int64_t place = rest % part.extent[d];
        rest /= part.extent[d];
        index[d] = whole.extent[d] == 1 ? 0 : place + offset[d];
      }
      if (whole.value(index) != part.values[k]) return false;
    }
    return true;
  };
  if (open.empty()) return fits();
  if (open.size() > 1) {
    // Where they are not found one by one, only at the beginning.
    if (!fits()) return false;
    for (const std::size_t d : open) at[d] = 0;
    return true;
  }
  const std::size_t d = open[0];
  for (; offset[d] + part.sizes[d] <= whole.sizes[d]; ++offset[d])
    if (fits()) {
      at[d] = offset[d];
      return true;
    }
  return false;
}

bool place(const Value& part, const Value& whole, std::vector<std::optional<std::int64_t>>& at) {
  const bool same = part.isTable() ? part.table == whole.table : part.formula == whole.formula;
  if (same && std::all_of(at.begin(), at.end(), [](const auto& a) { return !a || *a == 0; })) {
    const Sizes extent = extentOf(part);
    for (std::size_t d = 0; d < at.size(); ++d)
      if (extent[d] != 1) at[d] = 0;
    return true;
  }
  if (part.isTable() && whole.isTable()) return placeTable(*part.table, *whole.table, at);
  if (part.isTable() || whole.isTable()) return false;
  const Formula &a = *part.formula, &b = *whole.formula;
  if (a.opcode != b.opcode || a.direction != b.direction || a.type != b.type ||
      a.operands.size() != b.operands.size())
    return false;
  for (std::size_t k = 0; k < a.operands.size(); ++k)
    if (!place(a.operands[k], b.operands[k], at)) return false;
  return true;
}

// start, start + 1, ... along one dimension, alike along the others.
struct Counting {
  std::size_t dim = 0;
  std::int64_t start = 0;
};
std::optional<Counting> counting(const Scalars& scalars, const Value& known) {
  if (!known.isTable() || known.table->uniform()) return std::nullopt;
  std::optional<Counting> found;
  const Table& t = *known.table;
  for (std::size_t d = 0; d < t.extent.size(); ++d) {
    if (t.extent[d] == 1) continue;
    if (found) return std::nullopt;
    found = Counting{d, 0};
  }
  if (!scalars.isRational(t.values[0]) || !scalars.value(t.values[0]).fitsInt64())
    return std::nullopt;
  found->start = scalars.value(t.values[0]).toInt64();
  if (found->start > (std::int64_t{1} << 40) || found->start < -(std::int64_t{1} << 40))
    return std::nullopt;
  for (std::size_t k = 0; k < t.values.size(); ++k)
    if (!scalars.is(t.values[k], found->start + static_cast<std::int64_t>(k))) return std::nullopt;
  return found;
}

std::optional<TwoNumbers> ofComparison(Scalars& scalars, const Formula& f) {
  const auto a = counting(scalars, f.operands[0]), b = counting(scalars, f.operands[1]);
  if (!a || !b || a->dim == b->dim) return std::nullopt;
  // b's index <= a's index + shift, where the comparison says so, or does not.
  std::int64_t shift = a->start - b->start;
  bool holds = true;
  if (f.direction == "GT") --shift;
  else if (f.direction == "LT") holds = false;
  else if (f.direction == "LE") --shift, holds = false;
  else if (f.direction != "GE") return std::nullopt;
  HalfPlane where{a->dim, b->dim, shift};
  if (where.row > where.column) {
    // Its complement, seen from the other dimension.
    std::swap(where.row, where.column);
    where.shift = -where.shift - 1;
    holds = !holds;
  }
  return TwoNumbers{where, scalars.rational(holds ? 1 : 0), scalars.rational(holds ? 0 : 1)};
}

std::optional<TwoNumbers> ofTable(const Table& t) {
  if (t.uniform()) return TwoNumbers{std::nullopt, t.values[0], t.values[0]};
  Sizes dims;
  for (std::size_t d = 0; d < t.extent.size(); ++d)
    if (t.extent[d] != 1) dims.push_back(static_cast<std::int64_t>(d));
  if (dims.size() != 2) return std::nullopt;
  HalfPlane where{at(dims[0]), at(dims[1]), 0};
  const std::int64_t rows = t.extent[where.row], columns = t.extent[where.column];
  const auto number = [&](std::int64_t r, std::int64_t c) { return t.values[at(r * columns + c)]; };
  // The lower left corner is inside, the upper right one outside, or there is no such half plane.
  TwoNumbers found{where, number(rows - 1, 0), number(0, columns - 1)};
  if (found.inside == found.outside) return std::nullopt;
  std::optional<std::int64_t> shift;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::int64_t c = 0;
    while (c < columns && number(r, c) == found.inside) ++c;
    for (std::int64_t k = c; k < columns; ++k)
      if (number(r, k) != found.outside) return std::nullopt;
    // Rows that are all inside or all outside leave it open.
    if (c == 0 || c == columns) continue;
    if (shift && *shift != c - 1 - r) return std::nullopt;
    shift = c - 1 - r;
  }
  if (!shift) return std::nullopt;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      if (number(r, c) != (c <= r + *shift ? found.inside : found.outside)) return std::nullopt;
  found.where->shift = *shift;
  return found;
}

}  // namespace

Sizes extentOf(const Value& known) {
  if (known.isTable()) return known.table->extent;
  Sizes extent(known.shape.sizes.size(), 1);
  for (const Value& x : known.formula->operands) {
    const Sizes own = extentOf(x);
    for (std::size_t d = 0; d < extent.size(); ++d) extent[d] = std::max(extent[d], own[d]);
  }
  return extent;
}

Value applyKnown(Scalars& scalars, const Shape& shape, const std::string& opcode,
                 const std::string& direction, const std::string& type, std::vector<Value> x) {
  Formula f{opcode, direction, type, {}, 1};
  Sizes extent(shape.sizes.size(), 1);
  std::int64_t most = 0;
  bool tables = true;
  for (const Value& v : x) {
    const Sizes own = extentOf(v);
    for (std::size_t d = 0; d < extent.size(); ++d) extent[d] = std::max(extent[d], own[d]);
    most = std::max(most, elementsOf(own));
    tables = tables && v.isTable();
    f.nodes += v.isTable() ? 1 : v.formula->nodes;
  }
  f.operands = std::move(x);
  const std::int64_t count = elementsOf(extent);
  Value made = formulaValue(shape, std::move(f));
  if (count <= kListed || (tables && count <= most) || made.formula->nodes > kMostNodes)
    return tableValue(shape, listed(scalars, made));
  return made;
}

Value compacted(Scalars& scalars, Value known) {
  if (known.isTable() || elementsOf(extentOf(known)) > kListed) return known;
  return tableValue(known.shape, listed(scalars, known));
}

Table listed(Scalars& scalars, const Value& known) {
  Memory memory;
  return *listedIn(scalars, known, memory);
}

Value mapTablesOf(const Value& known, const Sizes& sizes,
                  const std::function<Table(const Table&)>& move) {
  Shape shape = known.shape;
  shape.sizes = sizes;
  if (known.isTable()) return tableValue(std::move(shape), move(*known.table));
  Formula f = *known.formula;
  for (Value& x : f.operands) x = mapTablesOf(x, sizes, move);
  return formulaValue(std::move(shape), std::move(f));
}

bool sameKnown(const Value& a, const Value& b) {
  if (a.shape.sizes != b.shape.sizes || a.kind != b.kind || !a.isKnown()) return false;
  if (a.isTable()) return a.table == b.table || sameTable(*a.table, *b.table);
  const Formula &f = *a.formula, &g = *b.formula;
  if (&f == &g) return true;
  if (f.opcode != g.opcode || f.direction != g.direction || f.type != g.type ||
      f.operands.size() != g.operands.size())
    return false;
  for (std::size_t k = 0; k < f.operands.size(); ++k)
    if (!sameKnown(f.operands[k], g.operands[k])) return false;
  return true;
}

std::optional<Sizes> boxOf(const Value& part, const Value& whole) {
  const Sizes &own = part.shape.sizes, &all = whole.shape.sizes;
  if (own.size() != all.size()) return std::nullopt;
  for (std::size_t d = 0; d < own.size(); ++d)
    if (own[d] > all[d]) return std::nullopt;
  std::vector<std::optional<std::int64_t>> at(own.size());
  if (!place(part, whole, at)) return std::nullopt;
  Sizes begin;
  for (std::size_t d = 0; d < own.size(); ++d) {
    begin.push_back(at[d].value_or(0));
    if (begin[d] + own[d] > all[d]) return std::nullopt;
  }
  return begin;
}

bool isFinite(const Scalars& scalars, const Value& known) {
  if (known.isTable())
    return std::all_of(known.table->values.begin(), known.table->values.end(), [&](ScalarId id) {
      return scalars.isRational(id) || scalars.kind(id) == ScalarKind::kExpression;
    });
  // Of numbers these are numbers.
  static const std::set<std::string, std::less<>> kClosed{
      "add",     "subtract",    "multiply", "negate", "compare",  "select",
      "and",     "or",          "not",      "xor",    "abs",      "sign",
      "maximum", "minimum",     "clamp",    "sine",   "cosine",   "tanh",
      "floor",   "exponential", "convert",  "ceil",   "logistic", "round-nearest-even"};
  return kClosed.contains(known.formula->opcode) &&
         std::all_of(known.formula->operands.begin(), known.formula->operands.end(),
                     [&](const Value& x) { return isFinite(scalars, x); });
}

std::optional<TwoNumbers> twoNumbers(Scalars& scalars, const Value& known) {
  if (known.isTable()) return ofTable(*known.table);
  const Formula& f = *known.formula;
  if (f.opcode == "compare")
    if (auto found = ofComparison(scalars, f)) return found;
  TwoNumbers result;
  std::vector<ScalarId> inside, outside;
  for (const Value& x : f.operands) {
    // A formula's tables are no half planes by themselves, or it would have been listed.
    const auto own = x.isTable() && !x.table->uniform() ? std::nullopt : twoNumbers(scalars, x);
    if (!own) return std::nullopt;
    if (own->where) {
      if (result.where && *result.where != *own->where) return std::nullopt;
      result.where = own->where;
    }
    inside.push_back(own->inside);
    outside.push_back(own->outside);
  }
  try {
    result.inside = applyTo(scalars, f, inside);
    result.outside = applyTo(scalars, f, outside);
  } catch (const std::invalid_argument&) {  // not where it is listed, either
    return std::nullopt;
  }
  return result;
}

}  // namespace shardproof::hlo
