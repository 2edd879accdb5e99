// SPDX-License-Identifier: Apache-2.0
// scatter: gradients of lookups, windows at known places.
#include <algorithm>

#include "reader/hlo/dimensions.h"
#include "reader/hlo/lowering.h"

namespace shardproof::hlo {

// One window that takes the place of what was there, or is added to it. A window that does not fit
// is left out.
std::optional<Value> Lowering::lowerKnownScatter(const Frame& frame, const Instruction& i) {
  if (i.operands.size() != 3 || i.attribute("input_batching_dims") != nullptr) return std::nullopt;
  const Value &x = operand(frame, i, 0), &update = operand(frame, i, 2);
  const Sizes &sizes = x.shape.sizes, inserted = dims(i, "inserted_window_dims"),
              windows = dims(i, "update_window_dims");
  const auto start =
      knownStart(operand(frame, i, 1), dims(i, "scatter_dims_to_operand_dims"), sizes);
  if (!start) return std::nullopt;
  const Computation& region = called(i, "to_apply");
  const Instruction& root = region.instructions[region.root];
  const bool replaces = root.opcode == "parameter" && root.literal == "1";
  if (!replaces && binaryRegion(i, region) != "add") return std::nullopt;
  Shape window = x.shape;
  std::size_t next = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (contains(inserted, d)) {
      window.sizes[d] = 1;
      continue;
    }
    if (next >= windows.size() || at(windows[next]) >= update.shape.sizes.size())
      unsupported(i, "fewer dimensions than the operand");
    window.sizes[d] = update.shape.sizes[at(windows[next++])];
  }
  if (elementsOf(window, file_, i.place) != elementsOf(update.shape, file_, i.place))
    unsupported(i, "several windows");
  for (std::size_t d = 0; d < sizes.size(); ++d)
    if ((*start)[d] < 0 || (*start)[d] + window.sizes[d] > sizes[d]) return x;
  Value placed = reshapeValue(update, window);
  if (!replaces) {
    Sizes limit = *start;
    for (std::size_t d = 0; d < sizes.size(); ++d) limit[d] += window.sizes[d];
    const Value old = sliceValue(x, window, *start, limit, Sizes(sizes.size(), 1));
    placed = nodeValue(window, binary("add", node(old), node(placed), window.sizes));
  }
  return updateValue(x, placed, *start, 0);
}

Value Lowering::lowerScatter(const Frame& frame, const Instruction& i) {
  if (i.operands.size() != 3) unsupported(i, "several operands, expected one");
  const Computation& region = called(i, "to_apply");
  const Instruction& root = region.instructions[region.root];
  const bool replaces = root.opcode == "parameter" && root.literal == "1";
  const std::string combined = replaces ? "" : binaryRegion(i, region);
  const Value &target = operand(frame, i, 0), &updates = operand(frame, i, 2);
  if (combined == "multiply" && isFloat(i.shape.type)) {
    // Where indices are unique each element is multiplied by one update at most: by 1 plus what is
    // added of update - 1.
    const Attribute* unique = i.attribute("unique_indices");
    if (unique == nullptr || unique->value != "true")
      return scattered(frame, i, target, updates, combined);
    const Value less = nodeValue(updates.shape, scalarOp("add", node(updates), Rational(-1)));
    const Value ones =
        tableValue(target.shape, uniformTable(target.shape.sizes, shared_.scalars.rational(1)));
    const Value factor = scattered(frame, i, ones, less, "add");
    return nodeValue(i.shape, binary("mul", node(target), node(factor), i.shape.sizes));
  }
  static const std::set<std::string, std::less<>> kCombined{"", "add", "maximum", "minimum"};
  if (!kCombined.contains(combined) || (isPredicate(target) && !replaces))
    unsupported(i, "a scatter by '" + combined + "' of " + toText(target.shape));
  return scattered(frame, i, target, updates, combined);
}

// Rows of `updates` added to (or combined otherwise with; "": put in the place of) the rows of the
// target that the indices name; those out of bounds are left out.
Value Lowering::scattered(const Frame& frame, const Instruction& i, const Value& target,
                          const Value& updates, const std::string& combined) {
  const Sizes &sizes = target.shape.sizes, &own = updates.shape.sizes;
  const Sizes window = dims(i, "update_window_dims");
  const Coordinates coordinates =
      coordinatesOf(i, operand(frame, i, 1), sizes, "scatter_dims_to_operand_dims",
                    "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims");
  const Sizes &map = coordinates.map, &inserted = coordinates.collapsed,
              &batching = coordinates.batching, &indexBatching = coordinates.indexBatching;
  // Known indices below 0, of a device whose rows begin elsewhere, are compared one by one.
  const Value& named = coordinates.values.empty() ? target : coordinates.values[0];
  const bool counted =
      named.isTable() &&
      std::none_of(named.table->values.begin(), named.table->values.end(), [&](const auto& v) {
        return shared_.scalars.isRational(v) && shared_.scalars.value(v).sign() < 0;
      });
  const bool simple =
      combined == "add" && map.size() == 1 && inserted == map && (named.isIndex() || counted);
  if (!simple) return computedScatter(i, target, updates, coordinates, window, combined);
  expectShape(i, sizes);
  const std::size_t axis = at(map[0]);
  if (axis >= sizes.size()) unsupported(i, "a dimension that is not there");
  const Value& known = coordinates.values[0];
  const Value indices = known.isTable() ? indexValueOf(known) : known;
  const IndexFunction& f = *indices.index;
  const Sizes base = sizesOf(f.base);
  if (base.size() + own.size() + 1 > kLetters.size()) unsupported(i, "more than 52 dimensions");
  // Letters: dimensions of the base, then the row, then one for each dimension of the updates.
  std::string baseText(kLetters.substr(0, base.size())), updateText;
  const char row = kLetters[base.size()];
  std::vector<int> expected;  // how a guard of the updates must be labelled
  Sizes indexDims;            // the updates' dimension for each dimension of the indices
  std::vector<std::size_t> windowDims;
  for (std::size_t d = 0; d < own.size(); ++d) {
    const char letter = kLetters[base.size() + 1 + d];
    if (contains(window, d)) {
      updateText += letter;
      expected.push_back(-1);
      windowDims.push_back(d);
      continue;
    }
    if (indexDims.size() >= f.labels.size()) unsupported(i, "more dimensions than the indices");
    const int label = f.labels[indexDims.size()];
    if (own[d] != indices.shape.sizes[indexDims.size()])
      unsupported(i, "updates and indices of different sizes");
    indexDims.push_back(static_cast<std::int64_t>(d));
    updateText += label < 0 ? letter : baseText[static_cast<std::size_t>(label)];
    expected.push_back(label);
  }
  if (indexDims.size() != f.labels.size()) unsupported(i, "fewer dimensions than the indices");
  std::string result, resultWithoutRow;
  Sizes without;
  std::size_t nextWindow = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (d == axis) {
      result += row;
      continue;
    }
    std::size_t from = 0;
    if (contains(batching, d)) {
      from = at(indexDims.at(at(indexBatching[placeOf(batching, d)])));
    } else {
      if (nextWindow >= windowDims.size()) unsupported(i, "fewer dimensions than the operand");
      from = windowDims[nextWindow++];
    }
    if (own[from] != sizes[d]) unsupported(i, "windows that do not fill the operand");
    result += updateText[from];
    resultWithoutRow += updateText[from];
    without.push_back(sizes[d]);
  }
  // What is added where, in terms of the index itself where that is known.
  struct Added {
    std::int64_t low, high;
    std::string value;
  };
  std::vector<Added> additions;
  if (updates.guard && updates.guard->condition.base == f.base &&
      updates.guard->condition.labels == expected) {
    observePieces(f.base, updates.guard->condition.pieces);
    for (const Piece& g : updates.guard->condition.pieces)
      if (!g.b.isZero()) additions.push_back({g.low, g.high, updates.guard->value});
  } else if (updates.isIndex() && updates.index->base == f.base &&
             updates.index->labels == expected &&
             std::all_of(updates.index->pieces.begin(), updates.index->pieces.end(),
                         [](const Piece& p) { return p.a == 0; })) {
    observePieces(f.base, updates.index->pieces);
    for (const Piece& g : updates.index->pieces)
      if (!g.b.isZero()) additions.push_back({g.low, g.high, rationalNode(g.b, own)});
  } else {
    additions.push_back({kNoLow, kNoHigh, node(updates)});
  }
  std::string total;
  const auto add = [&](const LookupPiece& p, const std::string& added) {
    const std::int64_t from = p.low, to = p.high;
    const bool moving = p.kind == LookupPiece::Kind::kMoving;
    std::string part;
    if (moving) {
      Sizes rows = sizes;
      rows[axis] = to - from;
      const std::string hot = rowsBetween(f.base, from, to);
      const std::string text = baseText + row + "," + updateText + "->" + result;
      part = taken({hot, added}, text, rows);
      const std::int64_t first = from + p.offset;
      part = padDim(part, axis, first, sizes[axis] - first - (to - from));
    } else {
      const std::string where = indicator(f.base, from, to);
      const std::string text = baseText + "," + updateText + "->" + resultWithoutRow;
      part = taken({where, added}, text, without);
      Sizes one = sizes;
      one[axis] = 1;
      part = padDim(view(part, one), axis, p.offset, sizes[axis] - p.offset - 1);
    }
    total = total.empty() ? part : binary("add", total, part, sizes);
  };
  // In which rows, of those that are there.
  const auto rows = rowPieces(f.pieces, sizes[axis]);
  if (!rows) unsupported(i, "an index that is a multiple of an input");
  observe(f.base, *rows);
  for (const Added& addition : additions) {
    std::vector<LookupPiece> pieces;
    for (const Piece& p : *rows) {
      LookupPiece piece;
      piece.offset = p.b.toInt64();
      piece.kind = p.a == 1 ? LookupPiece::Kind::kMoving : LookupPiece::Kind::kFixed;
      if (p.a == 0 && piece.offset < 0) continue;
      const std::int64_t low = std::max(addition.low, p.low),
                         high = std::min(addition.high, p.high);
      for (const auto& [from, to] : valuesOf(f.base, low, high)) {
        piece.low = from;
        piece.high = to;
        pieces.push_back(piece);
      }
    }
    mergePieces(pieces);
    for (const LookupPiece& p : pieces) add(p, addition.value);
  }
  const bool zero = target.isUniform() && shared_.scalars.is(target.table->values[0], 0);
  if (total.empty()) return target;
  if (!zero) total = binary("add", total, node(target), sizes);
  return nodeValue(i.shape, total);
}

}  // namespace shardproof::hlo
