// What a value is as a tensor of the graph.
#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "reader/hlo/lowering.h"

namespace shardproof::hlo {
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

// Values outside of [0, count) for which a function that matters has another value than at the
// nearest one inside: few of each stretch.
void Shared::widenRanges() {
  constexpr std::int64_t kMost = 16;
  for (auto& [parameter, range] : ranges) {
    std::erase_if(range.others, [end = range.count](auto i) { return 0 <= i && i < end; });
    for (const Pieces& pieces : observed[parameter]) {
      const auto at = [&](std::int64_t i) -> const Piece* {
        for (const Piece& p : pieces)
          if (p.low <= i && i < p.high) return &p;
        return nullptr;
      };
      const Piece *first = at(0), *last = at(range.count - 1);
      for (const Piece& p : pieces) {
        const auto differs = [&](const Piece* inside) {
          return inside != nullptr && (p.a != inside->a || !(p.b == inside->b));
        };
        const std::int64_t high = std::min<std::int64_t>(p.high, 0);
        const std::int64_t low = std::max(p.low, range.count);
        if (p.low < high && differs(first))
          for (std::int64_t i =
                   std::max(p.low, p.low > kNoLow && high - p.low <= kMost ? p.low : high - 1);
               i < high; ++i)
            range.others.insert(i);
        if (low < p.high && differs(last))
          for (std::int64_t i = low;
               i < (p.high < kNoHigh && p.high - low <= kMost ? p.high : low + 1); ++i)
            range.others.insert(i);
      }
    }
  }
}

void Lowering::observe(const IndexFunction& f) {
  const auto parameter = parameterOf_.find(f.base);
  if (grouping_ != nullptr || parameter == parameterOf_.end() || f.pieces.size() < 2) return;
  shared_.observed[parameter->second].push_back(f.pieces);
}

std::int64_t Lowering::shiftOf(const std::string& base) const {
  const auto parameter = parameterOf_.find(base);
  if (parameter == parameterOf_.end()) return 0;
  const auto range = shared_.ranges.find(parameter->second);
  return range == shared_.ranges.end() ? 0 : range->second.shift();
}

Pieces Lowering::domainOf(const std::string& base) const {
  if (const auto known = constantRanges_.find(base); known != constantRanges_.end())
    return identityPieces(known->second.first, known->second.second);
  const auto parameter = parameterOf_.find(base);
  if (parameter == parameterOf_.end()) return identityPieces(kNoLow, kNoHigh);
  const auto range = shared_.ranges.find(parameter->second);
  if (range == shared_.ranges.end()) return identityPieces(kNoLow, kNoHigh);
  Pieces pieces;
  const auto add = [&](std::int64_t low, std::int64_t high) {
    if (!pieces.empty() && pieces.back().high == low) pieces.back().high = high;
    else pieces.push_back({low, high, 1, Rational()});
  };
  for (const std::int64_t i : range->second.others)
    if (i < 0) add(i, i + 1);
  add(0, range->second.count);
  for (const std::int64_t i : range->second.others)
    if (i >= range->second.count) add(i, i + 1);
  return pieces;
}

std::pair<std::int64_t, std::int64_t> Lowering::rangeOf(const std::string& base) const {
  const Pieces domain = domainOf(base);
  return {domain.front().low, domain.back().high};
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
}

// What made an integer tensor of another one only moves elements: the same is done to the numbers.
std::string Lowering::asNumber(const std::string& name) {
  if (const auto known = numbers_.find(name); known != numbers_.end()) return known->second;
  const GraphTensor t = graph.tensor(name);
  std::string number;
  if (t.kind == "input") {
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
  numbers_.emplace(name, number);
  return number;
}

bool Lowering::isRest(const std::string& base, std::int64_t low) const {
  if (!shared_.completeIndices) return false;
  const Pieces domain = domainOf(base);
  return domain.size() == 1 && domain[0].low == low && domain[0].high < kNoHigh &&
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
    rows = view(oneMinus(indicator(base, low + 1, rangeOf(base).second)), one);
    if (high > low + 1) rows = cat({rows, oneHot(base, low + 1, high)}, own.size());
  }
  graph.tensor(rows).known = Known::kNotNegative;
  return rows;
}

std::string Lowering::indicator(const std::string& base, std::int64_t low, std::int64_t high) {
  const Sizes sizes = sizesOf(base);
  const auto [first, end] = rangeOf(base);
  low = std::max(low, first);
  high = std::min(high, end);
  if (low >= high) return graph.constant(sizes, false, "0", Known::kNotNegative);
  if (low == first && high == end) return graph.constant(sizes, false, "1", Known::kPositive);
  const std::int64_t shift = shiftOf(base);
  if (isRest(base, low)) {
    std::string y = oneMinus(indicator(base, high, end));
    graph.tensor(y).known = Known::kNotNegative;
    return y;
  }
  if (low + shift >= 0 && low > kNoLow && high < kNoHigh) {
    const std::string rows = oneHot(base, low, high);
    std::string y = graph.emit("sum", {rows}, {{"dim", std::to_string(sizes.size())}}, sizes);
    graph.tensor(y).known = Known::kNotNegative;
    return y;
  }
  // As comparisons of numbers: not below low, and not high or above.
  std::string result;
  if (low > kNoLow) {
    const std::string below = graph.emit("neg", {asNumber(base)}, {}, sizes);
    result = oneMinus(step(scalarOp("add", below, Rational(low))));
  }
  if (high < kNoHigh) {
    const std::string below = graph.emit("neg", {asNumber(base)}, {}, sizes);
    const std::string inside = step(scalarOp("add", below, Rational(high)));
    result = result.empty() ? inside : binary("mul", result, inside, sizes);
  }
  return result;
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
  observe(f);
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
