// SPDX-License-Identifier: Apache-2.0
// Comparisons, and what is chosen by them: conditions are the numbers 0 and 1.
#include <numeric>

#include "reader/hlo/formula.h"
#include "reader/hlo/lowering.h"

namespace shardproof::hlo {

// An index compared with 0, 1, 2, ... along a dimension of its own: one-hot rows.
std::optional<Value> Lowering::compareWithPositions(const std::string& direction,
                                                    const Value& index, const Value& table,
                                                    const Shape& shape) {
  const IndexFunction& f = *index.index;
  const Table& t = *table.table;
  if (direction != "EQ" && direction != "NE") return std::nullopt;
  std::optional<std::size_t> along;
  for (std::size_t d = 0; d < t.extent.size(); ++d) {
    if (t.extent[d] == 1) continue;
    if (along || f.labels[d] >= 0) return std::nullopt;
    along = d;
  }
  if (!along) return std::nullopt;
  const Scalars& s = shared_.scalars;
  for (std::size_t k = 0; k < t.values.size(); ++k)
    if (!s.isRational(t.values[k]) ||
        !(s.value(t.values[k]) == s.value(t.values[0]) + Rational(static_cast<std::int64_t>(k))))
      return std::nullopt;
  Pieces pieces = f.pieces;
  for (Piece& p : pieces) p.b = p.b - s.value(t.values[0]);
  const std::int64_t n = static_cast<std::int64_t>(t.values.size());
  if (!rowPieces(pieces, n)) return std::nullopt;
  const std::string hot = rowsOf(f.base, pieces, n);
  std::vector<int> labels(sizesOf(hot).size()), wanted = f.labels;
  std::iota(labels.begin(), labels.end(), 0);
  wanted[*along] = static_cast<int>(labels.size()) - 1;
  const std::string rows = arrange(hot, labels, wanted, shape.sizes);
  return nodeValue(shape, direction == "EQ" ? rows : oneMinus(rows));
}

// A choice between a lookup and a number by a function of the same integer: fewer rows are looked
// up, or numbers stand for them.
std::optional<Value> Lowering::selectLookup(const std::vector<Value>& x, const Shape& shape) {
  for (const bool taken : {true, false}) {
    const Value &lookup = x[taken ? 1 : 2], &other = x[taken ? 2 : 1];
    if (!x[0].isIndex() || lookup.kind != Value::Kind::kLookup || !other.isUniform()) continue;
    const Lookup& l = *lookup.lookup;
    const IndexFunction& f = *x[0].index;
    const int base = static_cast<int>(sizesOf(l.base).size());
    bool same = f.base == l.base;
    for (std::size_t d = 0; same && d < f.labels.size(); ++d)
      same = f.labels[d] == (l.labels[d] < base ? l.labels[d] : -1);
    if (!same) continue;
    Lookup result = l;
    result.pieces.clear();
    for (const LookupPiece& p : l.pieces)
      for (const Piece& c : f.pieces) {
        LookupPiece part = p;
        part.low = std::max(p.low, c.low);
        part.high = std::min(p.high, c.high);
        if (part.low >= part.high) continue;
        if (c.b.isZero() == taken) {
          part.kind = LookupPiece::Kind::kNumber;
          part.outside = false;
          part.number = other.table->values[0];
        }
        result.pieces.push_back(part);
      }
    mergePieces(result.pieces);
    return lookupValue(shape, std::move(result));
  }
  return std::nullopt;
}

Value Lowering::selectNode(const std::vector<Value>& x, const Shape& shape) {
  const Scalars& s = shared_.scalars;
  if (dependsOnBits(x[0]))
    return selectNode({nodeValue(x[0].shape, node(x[0])), x[1], x[2]}, shape);
  if (x[0].isUniform()) return s.is(x[0].table->values[0], 0) ? x[2] : x[1];
  if (x[0].isIndex()) {
    // The same at all values that are looked at.
    observePieces(x[0].index->base, x[0].index->pieces);
    if (const auto condition = constantOn(x[0].index->base, x[0].index->pieces))
      return condition->isZero() ? x[2] : x[1];
  }
  // Chosen where a number is infinite or none: never, wherever the condition has a value.
  for (const bool first : {true, false}) {
    const Value& never = x[first ? 1 : 2];
    if (x[0].kind != Value::Kind::kNode || !never.isUniform() ||
        s.kind(never.table->values[0]) == ScalarKind::kExpression ||
        s.isRational(never.table->values[0]))
      continue;
    const double is = first ? 0 : 1;
    const GraphTensor& condition = graph.tensor(x[0].name);
    if (condition.least != is || condition.greatest != is) continue;
    const std::string zero = first ? x[0].name : oneMinus(x[0].name);
    return nodeValue(shape, binary("add", node(x[first ? 2 : 1]), zero, shape.sizes));
  }
  const auto zeroTable = [&](const Value& v) {
    return v.isUniform() && s.is(v.table->values[0], 0);
  };
  const auto infinite = [&](const Value& v) {
    return v.isUniform() && v.table->values[0] == s.negativeInfinity();
  };
  const auto nan = [&](const Value& v) { return v.isUniform() && v.table->values[0] == s.nan(); };
  const Sizes& sizes = shape.sizes;
  // Known values chosen by known conditions.
  const auto either = [&](const Value& condition, const Value& yes, const Value& no) {
    return applyKnown(shared_.scalars, shape, "select", {}, shape.type, {condition, yes, no});
  };
  const Value zeros = tableValue(shape, uniformTable(sizes, shared_.scalars.rational(0)));
  if (x[0].isKnown() && (infinite(x[1]) || infinite(x[2]))) {
    // Minus infinity where it is chosen, added to the other.
    const bool first = infinite(x[1]);
    const Value mask = first ? either(x[0], x[1], zeros) : either(x[0], zeros, x[2]);
    std::string other = node(x[first ? 2 : 1]);
    if (graph.tensor(other).definedness < Definedness::kMaybeMasked)
      other = node(first ? selectNode({x[0], zeros, x[2]}, shape)
                         : selectNode({x[0], x[1], zeros}, shape));
    return nodeValue(shape, binary("add", other, knownNode(mask, false), sizes));
  }
  for (const bool first : {true, false}) {
    if (!nan(x[first ? 1 : 2])) continue;
    // No value where it is not a number: a division by 0 there, by 1 elsewhere.
    if (x[0].isIndex()) {
      Value none = x[0];
      if (!first) {
        Pieces pieces = x[0].index->pieces;
        for (Piece& p : pieces) p.b = Rational(p.b.isZero() ? 1 : 0);
        none = indexValue(x[0].shape, {x[0].index->base, x[0].index->labels, std::move(pieces)});
      }
      return nodeValue(shape, dividedUnless(node(x[first ? 2 : 1]), none));
    }
    const std::string c = node(x[0]);
    return nodeValue(shape, binary("div", node(x[first ? 2 : 1]), first ? oneMinus(c) : c, sizes));
  }
  // Where one of the two need not have a value, what is not chosen must not count: a product with 0
  // would leave the inputs out on which it has none, or have none itself (in a row of which all is
  // masked).
  const auto number = [&](const Value& v) {
    return v.isKnown() ? isFinite(s, v) : isValued(node(v));
  };
  if (!number(x[1]) || !number(x[2])) {
    const std::string condition = node(x[0]), yes = node(x[1]), no = node(x[2]);
    Value y = nodeValue(shape, graph.emit("where", {condition, yes, no}, {}, sizes));
    if (zeroTable(x[2]) && x[0].isIndex())
      y.guard = std::make_shared<const Guard>(Guard{*x[0].index, yes});
    return y;
  }
  const auto term = [&](const Value& condition, bool negated, const Value& chosen) {
    if (condition.isKnown()) {
      if (chosen.isKnown())
        return knownNode(
            negated ? either(condition, zeros, chosen) : either(condition, chosen, zeros), true);
      const Value ones = tableValue(shape, uniformTable(sizes, shared_.scalars.rational(1)));
      const Value where = negated ? either(condition, zeros, ones) : either(condition, ones, zeros);
      return binary("mul", node(chosen), knownNode(where, false), sizes);
    }
    const std::string c = negated ? oneMinus(node(condition)) : node(condition);
    return binary("mul", c, compactNode(chosen), sizes);
  };
  if (zeroTable(x[2])) {
    Value y = nodeValue(shape, term(x[0], false, x[1]));
    if (x[0].isIndex()) y.guard = std::make_shared<const Guard>(Guard{*x[0].index, node(x[1])});
    return y;
  }
  if (zeroTable(x[1])) return nodeValue(shape, term(x[0], true, x[2]));
  const std::string yes = term(x[0], false, x[1]);
  std::string y = binary("add", yes, term(x[0], true, x[2]), sizes);
  return nodeValue(shape, y);
}

// A comparison with zero that comes out the same for every input, as there is a number for each.
std::optional<bool> Lowering::compareKnown(const std::string& direction, const Value& x,
                                           const Value& y) {
  const auto zero = [&](const Value& v) {
    return v.isUniform() && shared_.scalars.is(v.table->values[0], 0);
  };
  if (zero(x) && !zero(y)) {
    static const std::map<std::string, std::string, std::less<>> kTurned{
        {"EQ", "EQ"}, {"NE", "NE"}, {"LT", "GT"}, {"LE", "GE"}, {"GT", "LT"}, {"GE", "LE"}};
    return compareKnown(kTurned.at(direction), y, x);
  }
  if (!zero(y) || x.kind != Value::Kind::kNode) return std::nullopt;
  if (!isValued(x.name)) return std::nullopt;
  const bool positive = graph.positive(x.name) == Positive::kYes;
  if (!positive && graph.tensor(x.name).known == Known::kNothing) return std::nullopt;
  if (direction == "GE" || direction == "LT") return direction == "GE";
  if (!positive) return std::nullopt;
  return direction == "GT" || direction == "NE";
}

std::string Lowering::compareNode(const std::string& direction, const Value& x, const Value& y,
                                  const Shape& shape) {
  const Scalars& s = shared_.scalars;
  const Sizes& sizes = shape.sizes;
  // What is so of every number: 1 of a number, or 0; of anything else nothing is said.
  const auto certainly = [&](bool yes) {
    std::string z = graph.emit("pow", {node(x)}, {{"scalar", "0"}}, sizes);
    if (!yes) z = oneMinus(z);
    graph.tensor(z).least = graph.tensor(z).greatest = yes ? 1 : 0;
    return z;
  };
  const bool less = direction == "LT" || direction == "LE", equal = direction == "EQ";
  if (y.isUniform() && y.table->values[0] == s.negativeInfinity())
    return certainly(!equal && !less);
  if (y.isUniform() && y.table->values[0] == s.infinity())
    return certainly(less || direction == "NE");
  const bool same = x.kind == Value::Kind::kNode && y.kind == x.kind && x.name == y.name;
  if (same && isFloat(x.shape.type))
    return certainly(equal || direction == "LE" || direction == "GE");
  const std::string a = node(x);
  const std::string b = compactNode(y);
  const auto above = [&] { return step(graph.emit("sub", {a, b}, {}, sizes)); };
  const auto below = [&] { return step(graph.emit("sub", {b, a}, {}, sizes)); };
  if (direction == "GT") return above();
  if (direction == "LT") return below();
  if (direction == "GE") return oneMinus(below());
  if (direction == "LE") return oneMinus(above());
  const std::string neither =
      oneMinus(binary("add", above(), below(), sizes));  // of both at most one is 1
  return direction == "EQ" ? neither : oneMinus(neither);
}

}  // namespace shardproof::hlo
