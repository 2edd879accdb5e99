// SPDX-License-Identifier: Apache-2.0
// Rows of tensors chosen by integers, as operators of the graph.
#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "reader/hlo/dimensions.h"
#include "reader/hlo/lowering.h"

namespace shardproof::hlo {
namespace {

char letter(std::size_t n) {
  if (n >= kLetters.size()) throw std::invalid_argument("more than 52 dimensions in one product");
  return kLetters[n];
}

Sizes rest(const Sizes& sizes, std::size_t without) {
  Sizes result;
  for (std::size_t d = 0; d < sizes.size(); ++d)
    if (d != without) result.push_back(sizes[d]);
  return result;
}

bool sameRows(const LookupPiece& x, const LookupPiece& y) {
  return x.kind == y.kind && x.outside == y.outside &&
         (x.kind == LookupPiece::Kind::kNumber ? x.number == y.number : x.offset == y.offset);
}

// Whether `one`, a single index, has the row that `moving` would give it.
bool fits(const LookupPiece& one, const LookupPiece& moving) {
  return moving.kind == LookupPiece::Kind::kMoving && moving.outside == one.outside &&
         one.kind == LookupPiece::Kind::kFixed && one.high == one.low + 1 &&
         one.offset == one.low + moving.offset;
}

}  // namespace

void mergePieces(std::vector<LookupPiece>& pieces) {
  std::vector<LookupPiece> merged;
  for (const LookupPiece& p : pieces) {
    if (!merged.empty() && merged.back().high == p.low) {
      LookupPiece& last = merged.back();
      if (sameRows(last, p) || fits(p, last)) {
        last.high = p.high;
        continue;
      }
      if (fits(last, p)) {
        const std::int64_t low = last.low;
        last = p;
        last.low = low;
        continue;
      }
    }
    merged.push_back(p);
  }
  pieces = std::move(merged);
}

// One piece, of dimensions [those of base..., those of the table that are neither tied nor the
// axis...].
std::string Lowering::lookupRows(const Lookup& l, const LookupPiece& p) {
  const Sizes base = sizesOf(l.base), table = sizesOf(l.table);
  const bool anyTied = std::any_of(l.tied.begin(), l.tied.end(), [](int t) { return t >= 0; });
  Sizes result = base;
  for (std::size_t d = 0; d < table.size(); ++d)
    if (d != l.axis && l.tied[d] < 0) result.push_back(table[d]);
  if (p.kind == LookupPiece::Kind::kNumber) {
    if (shared_.scalars.kind(p.number) == ScalarKind::kNan)
      throw std::invalid_argument("not a number where an index is out of bounds");
    Sizes ones = base;
    ones.resize(result.size(), 1);
    const std::string where = view(indicator(l.base, p.low, p.high), ones);
    return expand(onlyIf(where, expressionNode(p.number), ones), result);
  }
  const std::int64_t shift = shiftOf(l.base);
  const std::string start = std::to_string(p.low + shift), stop = std::to_string(p.high + shift);
  if (p.low + shift < 0 || p.high >= kNoHigh)
    throw std::invalid_argument("an index that may be negative or as large as it likes");
  const std::int64_t from = p.kind == LookupPiece::Kind::kMoving ? p.low + p.offset : p.offset;
  const std::int64_t to = p.kind == LookupPiece::Kind::kMoving ? p.high + p.offset : p.offset + 1;
  const std::string rows = sliceDim(l.table, l.axis, from, to);
  if (p.kind == LookupPiece::Kind::kMoving && !anyTied && !isRest(l.base, p.low)) {
    Sizes order{static_cast<std::int64_t>(l.axis)};
    std::int64_t width = 1;
    for (std::size_t d = 0; d < table.size(); ++d)
      if (d != l.axis) {
        order.push_back(static_cast<std::int64_t>(d));
        width *= table[d];
      }
    const std::string matrix = view(permute(rows, order), {to - from, width});
    Sizes found = base;
    found.push_back(width);
    const std::string looked =
        graph.emit("embedding", {l.base, matrix}, {{"start", start}, {"stop", stop}}, found);
    graph.tensor(looked).known = std::min(graph.tensor(l.table).known, Known::kNotNegative);
    return view(looked, result);
  }
  // By what is 1 where the row is the one that is looked up.
  std::string left, right, both;
  std::string chosen;
  std::string table2 = rows;
  for (std::size_t d = 0; d < base.size(); ++d) left += letter(d);
  both = left;
  const std::size_t axisLetter = base.size();
  if (p.kind == LookupPiece::Kind::kMoving) {
    chosen = oneHot(l.base, p.low, p.high);
    left += letter(axisLetter);
  } else {
    chosen = indicator(l.base, p.low, p.high);
    table2 = view(rows, rest(table, l.axis));
  }
  for (std::size_t d = 0; d < table.size(); ++d) {
    if (d == l.axis) {
      if (p.kind == LookupPiece::Kind::kMoving) right += letter(axisLetter);
      continue;
    }
    const std::size_t own =
        l.tied[d] >= 0 ? static_cast<std::size_t>(l.tied[d]) : axisLetter + 1 + d;
    right += letter(own);
    if (l.tied[d] < 0) both += letter(own);
  }
  std::string y = taken({chosen, table2}, left + "," + right + "->" + both, result);
  graph.tensor(y).known = std::min(graph.tensor(l.table).known, Known::kNotNegative);
  return y;
}

// What the index has of it: rows that are told apart, numbers by negative ones.
void Lowering::observeLookup(const Lookup& l) {
  Pieces rows, inside, none;
  for (const LookupPiece& p : l.pieces) {
    const bool number = p.kind == LookupPiece::Kind::kNumber;
    rows.push_back(
        {p.low, p.high, p.kind == LookupPiece::Kind::kMoving ? 1 : 0,
         number ? Rational(-1 - static_cast<std::int64_t>(p.number)) : Rational(p.offset)});
    const bool nothing = number && p.number == shared_.scalars.nan(), out = p.outside || nothing;
    none.push_back({p.low, p.high, 0, Rational(nothing ? 1 : 0)});
    inside.push_back({p.low, p.high, 0, Rational(out ? 0 : 1)});
  }
  observe(l.base, rows);
  assumeInside(l.base, inside);
  hasNoValue(l.base, none);
}

std::string Lowering::lookupNode(const Lookup& l, const Sizes& sizes) {
  std::string total;
  const Scalars& s = shared_.scalars;
  observeLookup(l);
  std::vector<LookupPiece> undefined, pieces;
  for (LookupPiece p : l.pieces)
    for (const auto& [low, high] : valuesOf(l.base, p.low, p.high)) {
      p.low = low;
      p.high = high;
      pieces.push_back(p);
    }
  mergePieces(pieces);
  for (const LookupPiece& p : pieces) {
    if (p.kind == LookupPiece::Kind::kNumber && s.is(p.number, 0)) continue;
    if (p.kind == LookupPiece::Kind::kNumber && p.number == s.nan()) {
      undefined.push_back(p);
      continue;
    }
    const std::string term = lookupRows(l, p);
    total = total.empty() ? term : binary("add", total, term, sizesOf(term));
  }
  const Sizes base = sizesOf(l.base), table = sizesOf(l.table);
  std::vector<int> labels(base.size());
  std::iota(labels.begin(), labels.end(), 0);
  Sizes whole = base;
  for (std::size_t d = 0; d < table.size(); ++d)
    if (d != l.axis && l.tied[d] < 0) {
      labels.push_back(static_cast<int>(base.size() + d));
      whole.push_back(table[d]);
    }
  if (total.empty()) total = rationalNode(Rational(), whole);
  // No value where there is none: see dividedUnless().
  if (!undefined.empty()) {
    Stretches where;
    for (const LookupPiece& p : undefined) where.emplace_back(p.low, p.high);
    Sizes ones = base;
    ones.resize(whole.size(), 1);
    const std::string defined = view(oneMinus(indicatorOf(l.base, where)), ones);
    total = binary("div", total, defined, whole);
  }
  // One row, or one of the numbers.
  GraphTensor& made = graph.tensor(total);
  made.least = graph.tensor(l.table).least;
  made.greatest = graph.tensor(l.table).greatest;
  for (const LookupPiece& p : pieces)
    if (p.kind == LookupPiece::Kind::kNumber && s.isRational(p.number)) {
      made.least = std::min(made.least, s.value(p.number).toDouble());
      made.greatest = std::max(made.greatest, s.value(p.number).toDouble());
    }
  return arrange(total, labels, l.labels, sizes);
}

}  // namespace shardproof::hlo
