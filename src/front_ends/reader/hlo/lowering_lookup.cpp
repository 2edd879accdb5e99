// SPDX-License-Identifier: Apache-2.0
// gather: embedding, take, take_along_axis; and which elements indices name.
#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "reader/hlo/dimensions.h"
#include "reader/hlo/lowering.h"

namespace shardproof::hlo {
namespace {

// Dimensions of the indices, counted without the one that lists coordinates.
Sizes withoutVector(Sizes list, std::int64_t vectorDim) {
  for (std::int64_t& d : list)
    if (d > vectorDim) --d;
  return list;
}

}  // namespace

std::optional<Value> Lowering::lowerLookup(const Frame& frame, const Instruction& i) {
  if (i.opcode == "gather") {
    if (auto window = lowerKnownGather(frame, i)) return *window;
    return lowerGather(frame, i);
  }
  if (i.opcode == "scatter") {
    if (auto window = lowerKnownScatter(frame, i)) return *window;
    return lowerScatter(frame, i);
  }
  return std::nullopt;
}

// Where a window begins whose place is known, one coordinate for each dimension of `sizes`; nothing
// where there are several windows, or it depends on the input.
std::optional<Sizes> Lowering::knownStart(const Value& indices, const Sizes& map,
                                          const Sizes& sizes) const {
  if (!indices.isTable()) return std::nullopt;
  const Table whole = wholeTable(*indices.table);
  if (whole.values.size() != map.size()) return std::nullopt;
  Sizes start(sizes.size(), 0);
  for (std::size_t k = 0; k < map.size(); ++k) {
    const ScalarId id = whole.values[k];
    if (map[k] < 0 || at(map[k]) >= sizes.size() || !shared_.scalars.isRational(id) ||
        !shared_.scalars.value(id).fitsInt64())
      return std::nullopt;
    start[at(map[k])] = shared_.scalars.value(id).toInt64();
  }
  return start;
}

std::optional<Value> Lowering::lowerKnownGather(const Frame& frame, const Instruction& i) {
  const Value& x = operand(frame, i, 0);
  const Sizes &sizes = x.shape.sizes, window = dims(i, "slice_sizes");
  auto start = knownStart(operand(frame, i, 1), dims(i, "start_index_map"), sizes);
  if (!start || window.size() != sizes.size() || i.attribute("operand_batching_dims") != nullptr)
    return std::nullopt;
  // The result's dimensions are the window's, but for those of size 1.
  Sizes limit = *start, result;
  Shape slice = x.shape;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    if (window[d] < 0 || window[d] > sizes[d]) unsupported(i, "a slice larger than its operand");
    (*start)[d] = std::clamp<std::int64_t>((*start)[d], 0, sizes[d] - window[d]);
    limit[d] = (*start)[d] + window[d];
    slice.sizes[d] = window[d];
    if (window[d] != 1) result.push_back(window[d]);
  }
  Sizes expected = i.shape.sizes;
  std::erase(expected, 1);
  if (result != expected) return std::nullopt;
  return reshapeValue(sliceValue(x, slice, *start, limit, Sizes(sizes.size(), 1)), i.shape);
}

Value Lowering::indexValueOf(const Value& known) {
  const Table whole = wholeTable(*known.table);
  std::string text;
  std::vector<std::size_t> blocks;
  std::size_t block = whole.values.size();
  for (const std::int64_t s : whole.sizes) {
    blocks.push_back(block);
    block /= at(s);
  }
  for (std::size_t k = 0; k < whole.values.size(); ++k) {
    if (k > 0) text += ",";
    for (const std::size_t b : blocks) text += k % b == 0 ? "[" : "";
    text += shared_.scalars.value(whole.values[k]).toString();
    for (const std::size_t b : blocks) text += (k + 1) % b == 0 ? "]" : "";
  }
  std::vector<int> labels(known.shape.sizes.size());
  std::iota(labels.begin(), labels.end(), 0);
  const std::string constant = graph.constant(known.shape.sizes, true, text);
  auto& range = constantRanges_.emplace(constant, std::pair(kNoHigh, kNoLow)).first->second;
  for (const ScalarId id : whole.values) {
    const std::int64_t v = shared_.scalars.value(id).toInt64();
    range = {std::min(range.first, v), std::max(range.second, v + 1)};
  }
  return indexValue(known.shape,
                    {constant, std::move(labels), identityPieces(range.first, range.second)});
}

// A coordinate that counts 0, 1, 2, ... along a dimension of the indices goes along with it.
Lowering::Coordinates Lowering::coordinatesOf(const Instruction& i, const Value& indices,
                                              const Sizes& sizes, const char* map,
                                              const char* collapsed, const char* batching,
                                              const char* indexBatching) {
  const auto list = [&](const char* name) {
    return i.attribute(name) == nullptr ? Sizes{} : dims(i, name);
  };
  const Attribute* vector = i.attribute("index_vector_dim");
  const std::int64_t rank = static_cast<std::int64_t>(indices.shape.sizes.size());
  const std::int64_t vectorDim = vector == nullptr ? -1 : parseInteger(*vector, file_);
  if (vectorDim < 0 || vectorDim > rank) unsupported(i, "an index_vector_dim that is not there");
  Coordinates c;
  c.collapsed = list(collapsed);
  c.batching = list(batching);
  c.indexBatching = withoutVector(list(indexBatching), vectorDim);
  c.indexSizes = indices.shape.sizes;
  if (vectorDim < rank) c.indexSizes.erase(c.indexSizes.begin() + vectorDim);
  if (c.batching.size() != c.indexBatching.size())
    unsupported(i, "batch dimensions that do not pair up");
  for (std::size_t k = 0; k < c.batching.size(); ++k)
    if (c.batching[k] < 0 || at(c.batching[k]) >= sizes.size() || c.indexBatching[k] < 0 ||
        at(c.indexBatching[k]) >= c.indexSizes.size() ||
        sizes[at(c.batching[k])] != c.indexSizes[at(c.indexBatching[k])])
      unsupported(i, "batch dimensions of different sizes");
  const Sizes all = list(map);
  if (static_cast<std::int64_t>(all.size()) !=
      (vectorDim < rank ? indices.shape.sizes[at(vectorDim)] : 1))
    unsupported(i, "another number of coordinates than the indices have");
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (all[k] < 0 || at(all[k]) >= sizes.size()) unsupported(i, "a dimension that is not there");
    Value v = indices;
    if (vectorDim < rank) {
      Sizes begin(at(rank), 0), end = indices.shape.sizes;
      begin[at(vectorDim)] = static_cast<std::int64_t>(k);
      end[at(vectorDim)] = begin[at(vectorDim)] + 1;
      Shape shape = indices.shape;
      shape.sizes[at(vectorDim)] = 1;
      v = sliceValue(indices, shape, begin, end, Sizes(at(rank), 1));
      shape.sizes = c.indexSizes;
      v = reshapeValue(v, shape);
    }
    std::optional<std::size_t> along;
    for (std::size_t d = 0; all.size() > 1 && d < c.indexSizes.size(); ++d)
      if (c.indexSizes[d] == sizes[at(all[k])] && contains(c.collapsed, at(all[k])) &&
          !contains(c.indexBatching, d) && countsAlong(v, d, shared_.scalars) == 0)
        along = d;
    if (!along) {
      c.map.push_back(all[k]);
      c.values.push_back(std::move(v));
      continue;
    }
    c.batching.push_back(all[k]);
    c.indexBatching.push_back(static_cast<std::int64_t>(*along));
    std::erase(c.collapsed, all[k]);
  }
  return c;
}

Value Lowering::lowerGather(const Frame& frame, const Instruction& i) {
  const Value& table = operand(frame, i, 0);
  const Sizes& sizes = table.shape.sizes;
  const Sizes offset = dims(i, "offset_dims"), window = dims(i, "slice_sizes");
  if (window.size() != sizes.size()) unsupported(i, "'slice_sizes' of another length");
  const Coordinates coordinates =
      coordinatesOf(i, operand(frame, i, 1), sizes, "start_index_map", "collapsed_slice_dims",
                    "operand_batching_dims", "start_indices_batching_dims");
  const Sizes &map = coordinates.map, &collapsed = coordinates.collapsed,
              &batching = coordinates.batching, &indexBatching = coordinates.indexBatching;
  const bool simple =
      map.size() == 1 && (coordinates.values[0].isIndex() || coordinates.values[0].isTable());
  if (!simple) return computedGather(i, table, coordinates, offset, window);
  const std::size_t axis = at(map[0]);
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const bool one = d == axis || contains(batching, d);
    if (axis >= sizes.size() || window[d] != (one ? 1 : sizes[d]))
      unsupported(i, "a gather of slices that are neither rows nor whole dimensions");
  }
  const Value& known = coordinates.values[0];
  const Value indices = known.isTable() ? indexValueOf(known) : known;
  const IndexFunction& f = *indices.index;
  // Out of bounds is moved to the nearest row.
  auto clamped = clampPieces(f.pieces, sizes[axis]);
  if (clamped) clamped = rowPieces(*clamped, sizes[axis]);
  if (!clamped) unsupported(i, "an index that is no simple function of an input");
  const Pieces within = insidePieces(f.pieces, sizes[axis]), unwrapped = unwrappedPieces(f.pieces);
  const Pieces* both[] = {&within, &unwrapped};
  const Pieces inside = *combinePieces("and", {}, both);
  Lookup lookup;
  lookup.base = f.base;
  lookup.axis = axis;
  const int rank = static_cast<int>(sizesOf(f.base).size());
  for (const Piece& p : *clamped) {
    LookupPiece piece{p.low, p.high};
    piece.kind = p.a == 1 ? LookupPiece::Kind::kMoving : LookupPiece::Kind::kFixed;
    piece.offset = p.b.toInt64();
    if (!shared_.assumeInBounds) {
      lookup.pieces.push_back(piece);
      continue;
    }
    for (const Piece& in : inside) {
      piece.low = std::max(p.low, in.low);
      piece.high = std::min(p.high, in.high);
      piece.outside = in.b.isZero();
      if (piece.low < piece.high) lookup.pieces.push_back(piece);
    }
  }
  lookup.tied.assign(sizes.size(), -1);
  for (std::size_t k = 0; k < batching.size(); ++k) {
    const int label = f.labels.at(at(indexBatching[k]));
    if (label >= 0) lookup.tied[at(batching[k])] = label;
  }
  // Result dimensions: those of offset_dims are the table's, the others the indices'.
  std::size_t nextIndex = 0, nextTable = 0;
  Sizes expected;
  for (std::size_t d = 0; d < i.shape.sizes.size(); ++d) {
    if (!contains(offset, d)) {
      if (nextIndex >= f.labels.size()) unsupported(i, "more dimensions than the indices have");
      int label = f.labels[nextIndex];
      // Along what is alike for all indices a batch dimension of the table runs.
      if (label < 0 && contains(indexBatching, nextIndex))
        label = rank + static_cast<int>(batching[placeOf(indexBatching, nextIndex)]);
      lookup.labels.push_back(label);
      expected.push_back(indices.shape.sizes[nextIndex]);
      ++nextIndex;
      continue;
    }
    while (nextTable < sizes.size() &&
           (contains(collapsed, nextTable) || contains(batching, nextTable)))
      ++nextTable;
    if (nextTable >= sizes.size()) unsupported(i, "more dimensions than the operand has");
    expected.push_back(window[nextTable]);
    lookup.labels.push_back(nextTable == axis ? -1 : rank + static_cast<int>(nextTable));
    ++nextTable;
  }
  for (; nextTable < sizes.size(); ++nextTable)
    if (!contains(collapsed, nextTable) && !contains(batching, nextTable))
      unsupported(i, "fewer dimensions than the operand has");
  if (nextIndex != f.labels.size() || expected != i.shape.sizes)
    unsupported(i, "its shape is " + toText(i.shape) + ", but its operands make sizes " +
                       listJson(expected));
  lookup.table = node(table);
  return lookupValue(i.shape, std::move(lookup));
}

}  // namespace shardproof::hlo
