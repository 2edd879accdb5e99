// SPDX-License-Identifier: Apache-2.0
// What a value is as a tensor of the graph.
#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "reader/hlo/lowering.h"

namespace shardproof::hlo {
namespace {

constexpr std::int64_t kMostCompared = 4096;                 // negative values of an index
constexpr std::int64_t kMostListed = std::int64_t{1} << 24;  // values of an index

}  // namespace

std::string Lowering::rationalNode(const Rational& value, const Sizes& sizes) {
  const Known known = value.sign() > 0    ? Known::kPositive
                      : value.sign() == 0 ? Known::kNotNegative
                                          : Known::kNothing;
  const std::string text = decimalJson(value);
  if (!text.empty()) return graph.constant(sizes, false, text, known);
  const std::string numerator = graph.constant(sizes, false, value.numeratorString(), known);
  return scalarOp("div", numerator, Rational::parse(value.denominatorString()));
}

// No file can say it: it is the upper entry of a causal mask of two positions.
std::string Lowering::minusInfinity() {
  const std::string two = graph.constant({1, 2}, false, "0");
  const std::string mask = graph.emit("create_mask", {two}, {}, {1, 1, 2, 2});
  return view(sliceDim(sliceDim(mask, 2, 0, 1), 3, 1, 2), {});
}

std::string Lowering::expressionNode(ScalarId id) {
  const Scalars& s = shared_.scalars;
  if (s.isRational(id)) return rationalNode(s.value(id), {});
  if (id == s.negativeInfinity()) return minusInfinity();
  if (s.kind(id) != ScalarKind::kExpression)
    throw std::invalid_argument("infinity or not a number, which has no value here");
  const std::string& op = s.operation(id);
  const std::vector<ScalarId> a = s.arguments(id);
  static const std::map<std::string, std::string, std::less<>> kSame{
      {"add", "add"},   {"subtract", "sub"}, {"multiply", "mul"},    {"divide", "div"},
      {"sqrt", "sqrt"}, {"rsqrt", "rsqrt"},  {"log", "log"},         {"exponential", "exp"},
      {"tanh", "tanh"}, {"negate", "neg"},   {"logistic", "sigmoid"}};
  if (op == "power") {
    const std::string log = graph.emit("log", {expressionNode(a[0])}, {}, {});
    const std::string product = binary("mul", log, expressionNode(a[1]), {});
    std::string y = graph.emit("exp", {product}, {}, {});
    graph.tensor(y).known = Known::kPositive;
    return y;
  }
  const auto same = kSame.find(op);
  if (same == kSame.end())
    return unknownTable(tableValue({"f32", {}, {}, false}, uniformTable({}, id)));
  if (a.size() == 2) return binary(same->second, expressionNode(a[0]), expressionNode(a[1]), {});
  std::string y = graph.emit(same->second, {expressionNode(a[0])}, {}, {});
  if (op == "exponential" || op == "sqrt" || op == "rsqrt" || op == "logistic")
    graph.tensor(y).known = op == "sqrt" ? Known::kNotNegative : Known::kPositive;
  return y;
}

std::string Lowering::compactNode(const Value& v) {
  return v.isKnown() ? knownNode(v, false) : node(v);
}

std::string Lowering::node(const Value& v) {
  switch (v.kind) {
    case Value::Kind::kTable:
    case Value::Kind::kFormula:
      return knownNode(v, true);
    case Value::Kind::kNode:
      return v.name;
    case Value::Kind::kIndex:
      return indexNode(*v.index, v.shape.sizes);
    case Value::Kind::kLookup:
      return lookupNode(*v.lookup, v.shape.sizes);
    case Value::Kind::kParts: {
      std::vector<std::string> parts;
      for (const auto& [size, part] : v.parts->parts) parts.push_back(node(part));
      return cat(parts, v.parts->dim);
    }
    case Value::Kind::kVarying:
      throw std::logic_error("what devices know, not yet told apart");
    case Value::Kind::kTuple:
      break;
  }
  throw std::invalid_argument("a tuple, expected an array");
}

void Shared::observe(std::size_t parameter, const Pieces& function) {
  if (function.size() < 2) return;
  std::vector<Pieces>& functions = observed[parameter];
  if (std::find(functions.begin(), functions.end(), function) != functions.end()) return;
  functions.push_back(function);
  outdated.insert(parameter);
  // Something to go on with: the programs are lowered again.
  if (!ranges.contains(parameter)) updateRanges();
}

void Shared::forget(std::size_t parameter) {
  ranges.erase(parameter);
  observed.erase(parameter);
  outOfBounds.erase(parameter);
  noValue.erase(parameter);
  conditions.erase(parameter);
  asNumbers.erase(parameter);
  outdated.erase(parameter);
}

void Shared::leaveOut(std::size_t parameter, const Pieces& function) {
  std::vector<Pieces>& functions = outOfBounds[parameter];
  if (std::find(functions.begin(), functions.end(), function) != functions.end()) return;
  functions.push_back(function);
  outdated.insert(parameter);
}

namespace {

// Where a lookup of the model is not a number, but for values that a condition of the model tells
// apart from others of these and from all where it is one: labels that are left out.
Pieces withoutValue(const Pieces& none, const std::vector<Pieces>& conditions) {
  const auto stretches = [](const Pieces& pieces, bool one) {
    Stretches result;
    for (const Piece& p : pieces)
      if (p.b.isZero() != one) result.emplace_back(p.low, p.high);
    return result;
  };
  const Stretches missing = stretches(none, true), there = stretches(none, false);
  Pieces result = none;
  for (const Pieces& condition : conditions) {
    const auto inSome = [&](const Piece& p, const Stretches& some) {
      return std::any_of(some.begin(), some.end(), [&](const Stretch& s) {
        return std::max(s.first, p.low) < std::min(s.second, p.high);
      });
    };
    std::set<std::string> definedness;
    for (const Piece& p : condition)
      if (inSome(p, there)) definedness.insert(p.b.toString());
    Pieces kept = condition;
    bool boundsOnly = true;
    for (Piece& p : kept) {
      const bool other = !definedness.contains(p.b.toString());
      boundsOnly = boundsOnly && (other || !inSome(p, missing));
      p.b = Rational(other ? 0 : 1);
    }
    if (boundsOnly) continue;
    const Pieces* both[] = {&result, &kept};
    result = *combinePieces("and", {}, both);
  }
  return result;
}

}  // namespace

void Shared::updateRanges() {
  constexpr std::int64_t kMostOfEach = 16;  // of numbers: that they differ is seen at several
  for (const std::size_t parameter : outdated) {
    const std::vector<Pieces>& told = observed[parameter];
    std::vector<Pieces> out = outOfBounds[parameter];
    if (told.empty() && out.empty()) continue;
    for (const Pieces& none : noValue[parameter])
      out.push_back(withoutValue(none, conditions[parameter]));
    Range range{representatives(typeRange(*integerType(integerTypes.at(parameter))), told, out,
                                asNumbers.contains(parameter) ? kMostOfEach : 1)};
    if (range.values.empty())
      throw std::invalid_argument("parameter " + std::to_string(parameter) +
                                  " has no value for which all that is looked up is there");
    rangesChanged = rangesChanged || !(range == ranges[parameter]);
    ranges[parameter] = std::move(range);
  }
  outdated.clear();
}

void Lowering::observe(const std::string& base, const Pieces& pieces) {
  if (const auto parameter = parameterOf_.find(base); parameter != parameterOf_.end())
    shared_.observe(parameter->second, pieces);
}

void Lowering::observePieces(const std::string& base, const Pieces& pieces) {
  Pieces which = pieces;
  std::vector<std::pair<std::int64_t, Rational>> forms;
  for (Piece& p : which) {
    if (p.a == 0) continue;
    const std::pair form{p.a, p.b};
    auto found = std::find(forms.begin(), forms.end(), form);
    if (found == forms.end()) found = forms.insert(found, form);
    // A number that no constant is.
    p.a = 0;
    p.b = Rational(1, 3) + Rational(found - forms.begin());
  }
  observe(base, which);
  const auto parameter = parameterOf_.find(base);
  if (grouping_ != nullptr || parameter == parameterOf_.end() || which.size() < 2) return;
  std::vector<Pieces>& conditions = shared_.conditions[parameter->second];
  if (std::find(conditions.begin(), conditions.end(), which) != conditions.end()) return;
  conditions.push_back(which);
  shared_.outdated.insert(parameter->second);
}

void Lowering::hasNoValue(const std::string& base, const Pieces& none) {
  if (grouping_ != nullptr) return;
  const auto parameter = parameterOf_.find(base);
  if (parameter == parameterOf_.end()) return;
  if (std::all_of(none.begin(), none.end(), [](const Piece& p) { return p.b.isZero(); })) return;
  std::vector<Pieces>& functions = shared_.noValue[parameter->second];
  if (std::find(functions.begin(), functions.end(), none) != functions.end()) return;
  functions.push_back(none);
  shared_.outdated.insert(parameter->second);
}

// A condition that is no number somewhere must be the same expression in both programs: 1 less what
// is 1 at each value for which there is none.
std::string Lowering::dividedUnless(const std::string& x, const Value& none) {
  const IndexFunction& f = *none.index;
  observe(f.base, f.pieces);
  hasNoValue(f.base, f.pieces);
  if (const auto never = constantOn(f.base, f.pieces); never && never->isZero()) return x;
  Stretches where;
  for (const Piece& p : f.pieces)
    if (!p.b.isZero()) where.emplace_back(p.low, p.high);
  std::vector<int> labels(sizesOf(f.base).size());
  std::iota(labels.begin(), labels.end(), 0);
  const std::string defined = oneMinus(indicatorOf(f.base, where));
  return binary("div", x, arrange(defined, labels, f.labels, none.shape.sizes), none.shape.sizes);
}

// The value of the function at all values of the base, if it is one.
std::optional<Rational> Lowering::constantOn(const std::string& base, const Pieces& pieces) const {
  std::optional<Rational> value;
  for (const Piece& p : pieces) {
    if (valuesOf(base, p.low, p.high).empty()) continue;
    if (p.a != 0 || (value && !(*value == p.b))) return std::nullopt;
    value = p.b;
  }
  return value;
}

void Lowering::assumeInside(const std::string& base, const Pieces& inside) {
  if (!shared_.assumeInBounds || grouping_ != nullptr) return;
  const auto parameter = parameterOf_.find(base);
  if (parameter == parameterOf_.end()) return;
  Pieces outside = inside;
  for (Piece& p : outside) p.b = Rational(1) - p.b;
  shared_.leaveOut(parameter->second, outside);
}

std::int64_t Lowering::shiftOf(const std::string& base) const {
  const auto parameter = parameterOf_.find(base);
  if (parameter == parameterOf_.end()) return 0;
  const auto range = shared_.ranges.find(parameter->second);
  return range == shared_.ranges.end() ? 0 : range->second.shift();
}

Pieces Lowering::domainOf(const std::string& base) const {
  if (const auto p = parameterOf_.find(base); p != parameterOf_.end()) {
    if (const auto range = shared_.ranges.find(p->second); range != shared_.ranges.end()) {
      Pieces pieces;
      for (const auto& [low, high] : range->second.values)
        pieces.push_back({low, high, 1, Rational()});
      return pieces;
    }
  }
  const auto [low, high] = boundsOf(base).value_or(Stretch{kNoLow, kNoHigh});
  return identityPieces(low, high);
}

std::optional<Stretch> Lowering::boundsOf(const std::string& base) const {
  if (const auto known = constantRanges_.find(base); known != constantRanges_.end())
    return known->second;
  if (const auto result = resultTypes_.find(base); result != resultTypes_.end())
    return typeRange(*integerType(result->second));
  if (const auto p = parameterOf_.find(base); p != parameterOf_.end())
    return typeRange(*integerType(shared_.integerTypes.at(p->second)));
  return std::nullopt;
}

Stretches Lowering::valuesOf(const std::string& base, std::int64_t low, std::int64_t high) const {
  Stretches values;
  for (const Piece& p : domainOf(base)) values.emplace_back(p.low, p.high);
  return intersection(values, {low, high});
}

std::string Lowering::baseNode(const IndexFunction& f, const Sizes& sizes) {
  std::vector<int> labels(sizesOf(f.base).size());
  std::iota(labels.begin(), labels.end(), 0);
  std::string x = arrange(f.base, labels, f.labels, sizes);
  sameIntegers(f.base, x);
  return x;
}

void Lowering::sameIntegers(const std::string& from, const std::string& to) {
  if (const auto p = parameterOf_.find(from); p != parameterOf_.end())
    parameterOf_.emplace(to, p->second);
  if (const auto r = constantRanges_.find(from); r != constantRanges_.end())
    constantRanges_.emplace(to, r->second);
  if (const auto t = resultTypes_.find(from); t != resultTypes_.end())
    resultTypes_.emplace(to, t->second);
}

// What made an integer tensor of another one only moves elements: the same is done to the numbers.
std::string Lowering::asNumber(const std::string& name) {
  if (const auto known = numbers_.find(name); known != numbers_.end()) return known->second;
  const GraphTensor t = graph.tensor(name);
  std::string number;
  if (t.kind == "input") {
    if (const auto p = parameterOf_.find(name);
        p != parameterOf_.end() && shared_.asNumbers.insert(p->second).second)
      shared_.outdated.insert(p->second);
    number = name + kAsNumber;
    if (graph.isDispensable(name)) graph.dispensableInput(number, t.sizes, false);
    else graph.input(number, t.sizes, false, "float32");
  } else if (t.kind == "constant") {
    number = graph.constant(t.sizes, false, t.value);
  } else if (graph.nodes()[t.producer].op == "topk") {
    number = placeNumbers(name, constantRanges_.at(name).second);
  } else {
    GraphNode made = graph.nodes()[t.producer];
    std::vector<std::string> in;
    for (const std::string& x : made.in) in.push_back(asNumber(x));
    if (made.communication.empty()) {
      number = graph.emit(made.op, in, made.attributes, t.sizes);
      if (!made.ofDevice.empty())
        graph.setOfDevice(graph.tensor(number).producer, std::move(made.ofDevice));
    } else {
      NodeAttributes communication = made.communication;
      for (auto& [key, value] : communication)
        if (key == "comm") value.insert(value.size() - 1, kAsNumber);
      number = graph.communicate(made.op, in[0], made.attributes, communication, t.sizes);
    }
  }
  if (const auto bounds = boundsOf(name)) {
    GraphTensor& made = graph.tensor(number);
    made.least = static_cast<double>(bounds->first);
    made.greatest = static_cast<double>(bounds->second - 1);
  }
  numbers_.emplace(name, number);
  return number;
}

bool Lowering::isRest(const std::string& base, std::int64_t low) const {
  if (!shared_.completeIndices) return false;
  const Pieces domain = domainOf(base);
  return domain.size() == 1 && domain[0].low == low && domain[0].high - low <= kMostListed &&
         domain[0].high - low > 1;
}

std::string Lowering::oneHot(const std::string& base, std::int64_t low, std::int64_t high) {
  const Sizes own = sizesOf(base);
  Sizes wide = own, one = own;
  wide.push_back(high - low);
  one.push_back(1);
  const std::int64_t shift = shiftOf(base);
  std::string rows;
  if (!isRest(base, low)) {
    rows = graph.emit(
        "one_hot", {base},
        {{"start", std::to_string(low + shift)}, {"stop", std::to_string(high + shift)}}, wide);
  } else {
    rows = view(oneMinus(indicator(base, low + 1, domainOf(base).back().high)), one);
    if (high > low + 1) rows = cat({rows, oneHot(base, low + 1, high)}, own.size());
  }
  graph.tensor(rows).known = Known::kNotNegative;
  return rows;
}

std::string Lowering::indicator(const std::string& base, std::int64_t low, std::int64_t high) {
  return indicatorOf(base, {{low, high}});
}

std::string Lowering::indicatorOf(const std::string& base, const Stretches& where) {
  const Sizes sizes = sizesOf(base);
  const Stretches all = valuesOf(base, kNoLow, kNoHigh);
  Stretches stretches;
  for (const auto& [low, high] : where)
    for (const Stretch& s : valuesOf(base, low, high)) {
      if (!stretches.empty() && stretches.back().second == s.first)
        stretches.back().second = s.second;
      else stretches.push_back(s);
    }
  if (stretches.empty()) return graph.constant(sizes, false, "0", Known::kNotNegative);
  if (stretches == all) return graph.constant(sizes, false, "1", Known::kPositive);
  const std::int64_t shift = shiftOf(base);
  if (stretches.size() == 1 && isRest(base, stretches[0].first)) {
    std::string y = oneMinus(indicator(base, stretches[0].second, all.back().second));
    graph.tensor(y).known = Known::kNotNegative;
    return y;
  }
  std::string result;
  for (const auto& [from, to] : stretches) {
    std::string part;
    if (from + shift >= 0 && to - from <= kMostListed) {
      const std::string rows = oneHot(base, from, to);
      part = graph.emit("sum", {rows}, {{"dim", std::to_string(sizes.size())}}, sizes);
      graph.tensor(part).known = Known::kNotNegative;
    } else {
      part = between(base, from, to);
    }
    result = result.empty() ? part : binary("add", result, part, sizes);
  }
  return result;
}

// By comparisons of numbers: not below low, and not high or above.
std::string Lowering::between(const std::string& base, std::int64_t low, std::int64_t high) {
  const Sizes sizes = sizesOf(base);
  const Pieces all = domainOf(base);
  std::string result;
  if (low > all.front().low) {
    const std::string below = graph.emit("neg", {asNumber(base)}, {}, sizes);
    result = oneMinus(step(scalarOp("add", below, Rational(low))));
  }
  if (high < all.back().high) {
    const std::string below = graph.emit("neg", {asNumber(base)}, {}, sizes);
    const std::string inside = step(scalarOp("add", below, Rational(high)));
    result = result.empty() ? inside : binary("mul", result, inside, sizes);
  }
  return result;
}

// The same as oneHot() of values that may be negative, which only results of functions of which
// nothing is known are: they are compared as numbers.
std::string Lowering::rowsBetween(const std::string& base, std::int64_t low, std::int64_t high) {
  if (low + shiftOf(base) >= 0) return oneHot(base, low, high);
  if (high - low > kMostCompared || !resultTypes_.contains(base))
    throw std::invalid_argument("an index that may be negative");
  const std::string x = scalarOp("add", asNumber(base), Rational(-low));
  const Sizes own = sizesOf(base);
  return positionRows(nodeValue({"s32", own, {}, false}, x), high - low, false);
}

std::string Lowering::rowsOf(const std::string& base, const Pieces& pieces, std::int64_t count) {
  const auto rows = rowPieces(pieces, count);
  if (!rows)
    throw std::invalid_argument("an index that is a multiple of an input, one of too many");
  observe(base, *rows);
  std::vector<LookupPiece> found;
  for (const Piece& p : *rows) {
    const std::int64_t row = p.b.toInt64();
    if (p.a == 0 && row < 0) continue;
    for (const auto& [low, high] : valuesOf(base, p.low, p.high)) {
      LookupPiece piece{low, high};
      piece.offset = row;
      piece.kind = p.a == 1 ? LookupPiece::Kind::kMoving : LookupPiece::Kind::kFixed;
      found.push_back(piece);
    }
  }
  mergePieces(found);
  const Sizes own = sizesOf(base);
  Sizes wide = own, ones = own;
  wide.push_back(count);
  ones.push_back(1);
  std::string total;
  for (const LookupPiece& p : found) {
    std::string part;
    if (p.kind == LookupPiece::Kind::kMoving) {
      part = rowsBetween(base, p.low, p.high);
      part = padDim(part, own.size(), p.low + p.offset, count - p.high - p.offset);
    } else {
      part = padDim(view(indicator(base, p.low, p.high), ones), own.size(), p.offset,
                    count - p.offset - 1);
    }
    total = total.empty() ? part : binary("add", total, part, wide);
  }
  return total.empty() ? rationalNode(Rational(), wide) : total;
}

std::string Lowering::indexNode(const IndexFunction& f, const Sizes& sizes) {
  const Sizes own = sizesOf(f.base);
  const auto affine = [&](const Piece& p) {
    if (p.a == 0) return rationalNode(p.b, own);
    std::string x = asNumber(f.base);
    if (p.a != 1) x = scalarOp("mul", x, Rational(p.a));
    return p.b.isZero() ? x : scalarOp("add", x, p.b);
  };
  std::string total;
  observePieces(f.base, f.pieces);
  if (const auto single = singlePiece(f.pieces)) {
    total = affine(*single);
  } else {
    for (const Piece& p : f.pieces) {
      if (p.a == 0 && p.b.isZero()) continue;
      const std::string where = indicator(f.base, p.low, p.high);
      const bool one = p.a == 0 && p.b.isOne();
      const std::string term = one ? where : binary("mul", where, affine(p), own);
      total = total.empty() ? term : binary("add", total, term, own);
    }
    if (total.empty()) total = rationalNode(Rational(), own);
  }
  const auto [least, greatest] = valueRange(f.pieces);
  graph.tensor(total).least = least.toDouble();
  graph.tensor(total).greatest = greatest.toDouble();
  std::vector<int> labels(own.size());
  std::iota(labels.begin(), labels.end(), 0);
  return arrange(total, labels, f.labels, sizes);
}

Value Lowering::asIndex(const Value& v, std::string newBase) const {
  IndexFunction f = *v.index;
  f.base = std::move(newBase);
  f.labels.resize(v.shape.sizes.size());
  std::iota(f.labels.begin(), f.labels.end(), 0);
  return indexValue(v.shape, std::move(f));
}

}  // namespace shardproof::hlo
