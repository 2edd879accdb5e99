// SPDX-License-Identifier: Apache-2.0
// Slices, updates, gathers and scatters at places that are computed: products with rows that are 1
// at the place and 0 elsewhere.
#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "reader/hlo/dimensions.h"
#include "reader/hlo/lowering.h"
#include "util/index.h"

namespace shardproof::hlo {
namespace {

constexpr std::int64_t kMostPlaces = 256;  // of a window of several elements

}  // namespace

std::string Lowering::positionRows(const Value& v, std::int64_t count, bool moved) {
  Sizes wide = v.shape.sizes;
  wide.push_back(count);
  Sizes dimensions(v.shape.sizes.size());
  std::iota(dimensions.begin(), dimensions.end(), std::int64_t{0});
  Shape shape{v.shape.type, wide, {}, false};
  const Value places = tableValue(shape, iotaTable(wide, v.shape.sizes.size(), shared_.scalars));
  if (v.isTable()) {
    Instruction compare;
    compare.shape = {"pred", wide, {}, false};
    Value x = v;
    if (moved) {
      Table t = *v.table;
      for (ScalarId& id : t.values) {
        const Rational& r = shared_.scalars.value(id);
        if (r.sign() < 0) id = shared_.scalars.rational(0);
        else if (Rational(count - 1) < r) id = shared_.scalars.rational(count - 1);
      }
      x = tableValue(v.shape, std::move(t));
    }
    return node(
        elementwise(compare, "compare", "EQ", {broadcastValue(x, shape, dimensions), places}));
  }
  if (!v.isIndex()) {
    std::string x = node(v);
    if (moved) {
      x = extremum(true, x, rationalNode(Rational(), sizesOf(x)));
      x = extremum(false, x, rationalNode(Rational(count - 1), sizesOf(x)));
    }
    const Value own = broadcastValue(nodeValue(v.shape, x), shape, dimensions);
    return compareNode("EQ", own, places, {"pred", wide, {}, false});
  }
  const IndexFunction& f = *v.index;
  Pieces pieces = f.pieces;
  if (moved) {
    assumeInside(f.base, insidePieces(pieces, count));
    assumeInside(f.base, unwrappedPieces(pieces));
    const auto clamped = clampPieces(pieces, count);
    if (!clamped) throw std::invalid_argument("an index that is no simple function of an input");
    pieces = *clamped;
  }
  const std::string total = rowsOf(f.base, pieces, count);
  const Sizes base = sizesOf(f.base);
  std::vector<int> labels(base.size() + 1), wanted = f.labels;
  std::iota(labels.begin(), labels.end(), 0);
  wanted.push_back(static_cast<int>(base.size()));
  return arrange(total, labels, wanted, wide);
}

std::optional<Value> Lowering::movingSlice(const Frame& frame, const Instruction& i) {
  const Value& x = operand(frame, i, 0);
  const Sizes &sizes = x.shape.sizes, window = dims(i, "dynamic_slice_sizes");
  if (i.operands.size() != sizes.size() + 1 || window.size() != sizes.size()) return std::nullopt;
  Sizes moving, begin(sizes.size(), 0), end = sizes;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const Value& start = operand(frame, i, 1 + d);
    if (window[d] > sizes[d] || window[d] < 1) return std::nullopt;
    if (window[d] == sizes[d]) continue;
    if (!start.shape.sizes.empty()) unsupported(i, "a position that is no single number");
    if (!start.isUniform() || !shared_.scalars.isRational(start.table->values[0])) {
      moving.push_back(static_cast<std::int64_t>(d));
      continue;
    }
    const Rational& at = shared_.scalars.value(start.table->values[0]);
    const std::int64_t most = sizes[d] - window[d];
    begin[d] = at.fitsInt64() ? std::clamp<std::int64_t>(at.toInt64(), 0, most)
                              : (at.sign() < 0 ? 0 : most);
    end[d] = begin[d] + window[d];
  }
  if (moving.empty()) return std::nullopt;
  Shape shape = x.shape;
  for (std::size_t d = 0; d < sizes.size(); ++d) shape.sizes[d] = end[d] - begin[d];
  std::string y = node(sliceValue(x, shape, begin, end, Sizes(sizes.size(), 1)));
  const std::string whole = y;
  const bool integers = integerType(x.shape.type).has_value();
  if (sizes.size() + 1 > kLetters.size()) unsupported(i, "more than 51 dimensions");
  const std::string letters(kLetters.substr(0, sizes.size()));
  for (const std::int64_t m : moving) {
    const std::size_t d = at(m);
    const Value& start = operand(frame, i, 1 + d);
    const std::int64_t places = sizes[d] - window[d] + 1;
    const std::string rows = positionRows(start, places, true);
    Sizes result = sizesOf(y);
    result[d] = window[d];
    if (window[d] == 1) {
      std::string rest = letters;
      rest.erase(d, 1);
      Sizes without = result;
      without.erase(without.begin() + m);
      y = view(taken({rows, y}, std::string(1, letters[d]) + "," + letters + "->" + rest, without),
               result);
      continue;
    }
    if (places > kMostPlaces)
      unsupported(i, "a window of several elements at one of more than 256 places");
    std::vector<std::string> windows;
    Sizes one = result;
    one.insert(one.begin(), 1);
    for (std::int64_t p = 0; p < places; ++p)
      windows.push_back(view(sliceDim(y, d, p, p + window[d]), one));
    const std::string text = "Z,Z" + letters + "->" + letters;
    y = taken({rows, cat(windows, 0)}, text, result);
  }
  Shape own = i.shape;
  if (integers) own.type = x.shape.type;
  boundBy(y, {whole});
  return nodeValue(own, y);
}

std::optional<Value> Lowering::movingUpdate(const Frame& frame, const Instruction& i) {
  const Value &x = operand(frame, i, 0), &update = operand(frame, i, 1);
  const Sizes &sizes = x.shape.sizes, &window = update.shape.sizes;
  if (i.operands.size() != sizes.size() + 2 || window.size() != sizes.size()) return std::nullopt;
  std::optional<std::size_t> moving;
  Sizes begin(sizes.size(), 0), end = sizes;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const Value& start = operand(frame, i, 2 + d);
    if (window[d] > sizes[d] || window[d] < 1) return std::nullopt;
    if (window[d] == sizes[d]) continue;
    if (!start.shape.sizes.empty()) unsupported(i, "a position that is no single number");
    if (!start.isUniform() || !shared_.scalars.isRational(start.table->values[0])) {
      if (moving) unsupported(i, "several positions that depend on the input");
      moving = d;
      continue;
    }
    const Rational& at = shared_.scalars.value(start.table->values[0]);
    const std::int64_t most = sizes[d] - window[d];
    begin[d] = at.fitsInt64() ? std::clamp<std::int64_t>(at.toInt64(), 0, most)
                              : (at.sign() < 0 ? 0 : most);
    end[d] = begin[d] + window[d];
  }
  if (!moving) return std::nullopt;
  const std::size_t d = *moving;
  const std::int64_t n = sizes[d], w = window[d], places = n - w + 1;
  const Value& start = operand(frame, i, 2 + d);
  Shape region = x.shape;
  for (std::size_t e = 0; e < sizes.size(); ++e) region.sizes[e] = end[e] - begin[e];
  const std::string old = node(sliceValue(x, region, begin, end, Sizes(sizes.size(), 1)));
  const std::string rows = positionRows(start, places, true);
  Sizes along(sizes.size(), 1);
  along[d] = n;
  std::string placed, covered;
  if (w == 1) {
    covered = view(rows, along);
    placed = onlyIf(covered, node(update), region.sizes);
  } else {
    if (places > kMostPlaces)
      unsupported(i, "a window of several elements at one of more than 256 places");
    const std::string letters(kLetters.substr(0, sizes.size()));
    std::vector<std::string> windows, covers;
    Sizes one = region.sizes;
    one.insert(one.begin(), 1);
    const std::string ones = graph.constant({1, w}, false, "1", Known::kPositive);
    for (std::int64_t p = 0; p < places; ++p) {
      windows.push_back(view(padDim(node(update), d, p, n - p - w), one));
      covers.push_back(padDim(ones, 1, p, n - p - w));
    }
    placed = taken({rows, cat(windows, 0)}, "Z,Z" + letters + "->" + letters, region.sizes);
    covered = view(graph.emit("einsum", {rows, cat(covers, 0)}, {{"equation", "\"z,zn->n\""}}, {n}),
                   along);
  }
  const std::string kept = unless(covered, old, region.sizes);
  const Value updated = nodeValue(region, binary("add", kept, placed, region.sizes));
  boundBy(updated.name, {old, node(update)});
  return updateValue(x, updated, begin, 0);
}

// Each element is one of these tensors'.
void Lowering::boundBy(const std::string& name, const std::vector<std::string>& chosen) {
  GraphTensor& t = graph.tensor(name);
  t.least = graph.tensor(chosen[0]).least;
  t.greatest = graph.tensor(chosen[0]).greatest;
  for (const std::string& x : chosen) {
    t.least = std::min(t.least, graph.tensor(x).least);
    t.greatest = std::max(t.greatest, graph.tensor(x).greatest);
  }
}

// Index dimensions have letters, and dimensions of the operand: those that go along with the
// indices the same, those that a coordinate chooses one that is in its rows, too.
Value Lowering::computedGather(const Instruction& i, const Value& table, const Coordinates& c,
                               const Sizes& offset, const Sizes& window) {
  const Sizes& sizes = table.shape.sizes;
  if (c.indexSizes.size() + sizes.size() > kLetters.size())
    unsupported(i, "more than 52 dimensions");
  const std::string index(kLetters.substr(0, c.indexSizes.size()));
  std::string own(kLetters.substr(c.indexSizes.size(), sizes.size()));
  for (std::size_t k = 0; k < c.batching.size(); ++k)
    own[at(c.batching[k])] = index[at(c.indexBatching[k])];
  std::vector<std::string> operands;
  std::string equation, seen = own;
  for (std::size_t k = 0; k < c.map.size(); ++k) {
    const std::size_t d = at(c.map[k]);
    if (window[d] == sizes[d] && sizes[d] != 1) continue;  // moved to the only place there is
    if (window[d] != 1)
      unsupported(i, "a gather of slices that are neither rows nor whole dimensions");
    operands.push_back(positionRows(c.values[k], sizes[d], true));
    equation += index + own[d] + ",";
    seen += index;
  }
  operands.push_back(node(table));
  equation += own + "->";
  std::size_t nextIndex = 0, nextOwn = 0;
  Sizes made;
  for (std::size_t d = 0; d < i.shape.sizes.size(); ++d) {
    char letter = 0;
    std::int64_t size = 0;
    if (!contains(offset, d)) {
      if (nextIndex >= index.size()) unsupported(i, "more dimensions than the indices have");
      letter = index[nextIndex];
      size = c.indexSizes[nextIndex++];
    } else {
      while (nextOwn < sizes.size() &&
             (contains(c.collapsed, nextOwn) || contains(c.batching, nextOwn)))
        ++nextOwn;
      if (nextOwn >= sizes.size()) unsupported(i, "more dimensions than the operand has");
      size = window[nextOwn];
      if (size == sizes[nextOwn] && (size != 1 || !contains(c.map, nextOwn))) letter = own[nextOwn];
      ++nextOwn;
    }
    if (size != i.shape.sizes[d]) unsupported(i, "a shape that its operands do not make");
    if (letter == 0) continue;  // one of those a coordinate chooses
    if (seen.find(letter) == std::string::npos)
      unsupported(i, "a gather of the same for several indices");
    equation += letter;
    made.push_back(size);
  }
  const std::string y = taken(operands, equation, made);
  boundBy(y, {operands.back()});
  return nodeValue(i.shape, view(y, i.shape.sizes));
}

Value Lowering::computedScatter(const Instruction& i, const Value& target, const Value& updates,
                                const Coordinates& c, const Sizes& window,
                                const std::string& combined) {
  const bool replaces = combined.empty();
  const Sizes &sizes = target.shape.sizes, &own = updates.shape.sizes;
  std::int64_t count = 1;
  for (const std::int64_t n : c.indexSizes) count *= n;
  const Attribute* unique = i.attribute("unique_indices");
  if (replaces && count != 1 && (unique == nullptr || unique->value != "true"))
    unsupported(i, "a scatter that replaces elements at indices that may be equal");
  if (c.indexSizes.size() + sizes.size() > kLetters.size())
    unsupported(i, "more than 52 dimensions");
  expectShape(i, sizes);
  const std::string index(kLetters.substr(0, c.indexSizes.size()));
  std::string result(kLetters.substr(c.indexSizes.size(), sizes.size()));
  for (std::size_t k = 0; k < c.batching.size(); ++k)
    result[at(c.batching[k])] = index[at(c.indexBatching[k])];
  std::vector<std::string> operands;
  std::string equation, whole;
  for (std::size_t k = 0; k < c.map.size(); ++k) {
    const std::size_t d = at(c.map[k]);
    if (!contains(c.collapsed, d))
      unsupported(i, "a scatter of windows at places that are computed");
    operands.push_back(positionRows(c.values[k], sizes[d], false));
    equation += index + result[d] + ",";
  }
  // The updates' dimensions: of the indices, or of the operand.
  std::size_t nextIndex = 0, nextOwn = 0;
  for (std::size_t d = 0; d < own.size(); ++d) {
    if (!contains(window, d)) {
      if (nextIndex >= index.size() || own[d] != c.indexSizes[nextIndex])
        unsupported(i, "updates and indices of different sizes");
      whole += index[nextIndex++];
      continue;
    }
    while (nextOwn < sizes.size() &&
           (contains(c.collapsed, nextOwn) || contains(c.batching, nextOwn)))
      ++nextOwn;
    if (nextOwn >= sizes.size() || own[d] != sizes[nextOwn])
      unsupported(i, "windows that do not fill the operand");
    whole += result[nextOwn++];
  }
  if (nextIndex != index.size()) unsupported(i, "fewer dimensions than the indices");
  const auto summed = [&](const std::string& what) {
    std::vector<std::string> all = operands;
    all.push_back(what);
    return taken(all, equation + whole + "->" + result, sizes);
  };
  if (!replaces && combined != "add") {
    operands.push_back(node(updates));
    return nodeValue(
        i.shape, combinedScatter(i, target, operands, equation + whole + "->" + result, combined));
  }
  const std::string added = summed(node(updates));
  const bool zero = target.isUniform() && shared_.scalars.is(target.table->values[0], 0);
  if (zero) return nodeValue(i.shape, added);
  std::string old = node(target);
  if (replaces) {
    const std::string covered = summed(graph.constant(own, false, "1", Known::kPositive));
    old = unless(covered, old, sizes);
  }
  return nodeValue(i.shape, binary("add", old, added, sizes));
}

// The greatest or least of the element and of all updates of it, or their product. An update that
// is another element's counts as minus infinity, or as 1. Each update is compared with each
// element: so it does not matter whether indices are equal, or in which order updates are made.
std::string Lowering::combinedScatter(const Instruction& i, const Value& target,
                                      const std::vector<std::string>& operands,
                                      const std::string& equation, const std::string& combined) {
  constexpr std::int64_t kMostFactors = 64;
  const Sizes& sizes = target.shape.sizes;
  if (operands.size() < 2) unsupported(i, "a scatter without coordinates");
  const auto [condition, update] = spread(operands, equation);
  const Sizes whole = sizesOf(update);
  Sizes trailing;
  std::int64_t count = 1;
  for (std::size_t d = sizes.size(); d < whole.size(); ++d) {
    trailing.push_back(static_cast<std::int64_t>(d));
    count *= whole[d];
  }
  if (combined == "multiply") {
    if (count > kMostFactors)
      unsupported(i, "more than " + std::to_string(kMostFactors) +
                         " updates that are multiplied at indices that may be equal");
    const std::string ones = graph.constant(whole, false, "1", Known::kPositive);
    Sizes flat = sizes;
    flat.push_back(count);
    const std::string factors = view(either(condition, update, ones, whole), flat);
    std::string product = node(target);
    for (std::int64_t k = 0; k < count; ++k)
      product =
          binary("mul", product, view(sliceDim(factors, sizes.size(), k, k + 1), sizes), sizes);
    return product;
  }
  const bool maximum = combined == "maximum";
  const auto turned = [&](const std::string& x) {
    const Sizes own = sizesOf(x);
    return maximum ? x : graph.emit("neg", {x}, {}, own);
  };
  const std::string mine = turned(update);
  const auto along = [&](const char* op, const std::string& x) {
    return trailing.empty() ? x : graph.emit(op, {x}, {{"dim", listJson(trailing)}}, sizes);
  };
  Sizes ones = sizes;
  ones.resize(whole.size(), 1);
  const ScalarId none = maximum ? shared_.scalars.negativeInfinity() : shared_.scalars.infinity();
  if (!target.isUniform() || target.table->values[0] != none) {
    // The element itself stands for updates of others.
    const std::string old = turned(node(target));
    const std::string masked = either(condition, mine, expand(view(old, ones), whole), whole);
    return turned(extremum(true, old, along("amax", masked)));
  }
  // The least update stands for those of others. An element that has none is infinite, which is no
  // number: it is divided by 0.
  const std::string least = expand(view(along("amin", mine), ones), whole);
  const std::string most = along("amax", either(condition, mine, least, whole));
  const std::string some = along("amax", condition);
  return turned(binary("div", most, some, sizes));
}

}  // namespace shardproof::hlo
