// Instructions that do the same at every place.
#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>

#include "reader/hlo/lowering.h"

namespace shardproof::hlo {
namespace {

// Operands of opcodes that act on each element.
std::size_t arity(std::string_view op) {
  static const std::map<std::string, std::size_t, std::less<>> kArity{
      {"add", 2},          {"subtract", 2},
      {"multiply", 2},     {"divide", 2},
      {"remainder", 2},    {"maximum", 2},
      {"minimum", 2},      {"power", 2},
      {"and", 2},          {"or", 2},
      {"xor", 2},          {"shift-left", 2},
      {"compare", 2},      {"shift-right-logical", 2},
      {"negate", 1},       {"abs", 1},
      {"sign", 1},         {"not", 1},
      {"exponential", 1},  {"log", 1},
      {"sqrt", 1},         {"rsqrt", 1},
      {"tanh", 1},         {"logistic", 1},
      {"sine", 1},         {"cosine", 1},
      {"is-finite", 1},    {"floor", 1},
      {"ceil", 1},         {"exponential-minus-one", 1},
      {"log-plus-one", 1}, {"cbrt", 1},
      {"select", 3},       {"clamp", 3}};
  const auto found = kArity.find(op);
  return found == kArity.end() ? 0 : found->second;
}

bool isUnsigned(const std::string& type) {
  const auto t = integerType(type);
  return t && !t->isSigned;
}

// Integers that depend on the input are taken for unbounded ones, so below 0 there must be none.
void refuseNegative(const Pieces& pieces) {
  for (const Piece& p : pieces) {
    const std::int64_t end = p.a < 0 ? p.high - 1 : p.low;
    const bool unbounded = p.a != 0 && (p.a < 0 ? p.high >= kNoHigh : p.low <= kNoLow);
    if (unbounded || (Rational(p.a) * Rational(end) + p.b).sign() < 0)
      throw std::invalid_argument("an unsigned integer that may wrap around below 0");
  }
}

bool isPredicate(const Value& v) { return v.shape.type == "pred"; }

}  // namespace

std::optional<Value> Lowering::lowerElementwise(const Frame& frame, const Instruction& i) {
  if (i.opcode == "convert" || i.opcode == "reduce-precision") {
    const Value& x = operand(frame, i, 0);
    expectShape(i, x.shape.sizes);
    return convertValue(i, x, i.shape);
  }
  const std::size_t count = arity(i.opcode);
  if (count == 0) return std::nullopt;
  if (i.operands.size() != count)
    unsupported(i, "another number of operands, expected " + std::to_string(count));
  std::vector<Value> x;
  for (std::size_t k = 0; k < count; ++k) {
    Value v = operand(frame, i, k);
    // A condition, and bounds, may be one number for all.
    const bool scalarAllowed = (i.opcode == "select" && k == 0) || i.opcode == "clamp";
    if (v.shape.sizes != i.shape.sizes) {
      if (!scalarAllowed || !v.shape.sizes.empty()) expectShape(i, v.shape.sizes);
      Shape wide = v.shape;
      wide.sizes = i.shape.sizes;
      v = broadcastValue(v, wide, {});
    }
    x.push_back(std::move(v));
  }
  std::string direction;
  if (i.opcode == "compare") {
    const Attribute* a = i.attribute("direction");
    static const std::set<std::string, std::less<>> kDirections{"EQ", "NE", "LT", "LE", "GT", "GE"};
    if (a == nullptr || !kDirections.contains(a->value))
      unsupported(i, "no direction of the comparison that is known");
    direction = a->value;
  }
  return elementwise(i, i.opcode, direction, x);
}

Value Lowering::elementwise(const Instruction& i, const std::string& opcode,
                            const std::string& direction, const std::vector<Value>& x) {
  const Shape& shape = i.shape;
  const std::string& type = x[opcode == "select" ? 1 : 0].shape.type;
  if (std::all_of(x.begin(), x.end(), [](const Value& v) { return v.isTable(); })) {
    std::vector<const Table*> tables;
    for (const Value& v : x) tables.push_back(v.table.get());
    return tableValue(shape, mapTables(tables, [&](std::span<const ScalarId> a) {
                        return shared_.scalars.apply(opcode, direction, type, a);
                      }));
  }
  if (auto index = elementwiseIndex(opcode, direction, x, shape)) return *index;
  if (opcode == "compare") {
    for (const std::size_t k : {std::size_t{0}, std::size_t{1}}) {
      if (!x[k].isIndex() || !x[1 - k].isTable()) continue;
      if (auto rows = compareWithPositions(direction, x[k], x[1 - k], shape)) return *rows;
    }
    if (const auto sure = compareKnown(direction, x[0], x[1]))
      return tableValue(shape, uniformTable(shape.sizes, shared_.scalars.rational(*sure ? 1 : 0)));
    return nodeValue(shape, compareNode(direction, x[0], x[1], shape));
  }
  if (opcode == "select") {
    if (auto lookup = selectLookup(x, shape)) return *lookup;
    return selectNode(x, shape);
  }
  if (opcode == "clamp") {
    const Value raised = elementwise(i, "maximum", {}, {x[1], x[0]});
    return elementwise(i, "minimum", {}, {raised, x[2]});
  }
  std::optional<std::string> name;
  if (x.size() == 1) name = unaryNode(opcode, x[0]);
  else name = binaryNode(opcode, x[0], x[1], shape);
  if (!name)
    unsupported(i, "'" + opcode + "' of " + toText(x[0].shape) +
                       " that depends on the input is not supported");
  return nodeValue(shape, expand(*name, shape.sizes));
}

// Functions of one integer tensor, with numbers that are alike everywhere.
std::optional<Value> Lowering::elementwiseIndex(const std::string& opcode,
                                                const std::string& direction,
                                                const std::vector<Value>& x, const Shape& shape) {
  const IndexFunction* first = nullptr;
  for (const Value& v : x) {
    if (v.isIndex()) {
      if (first != nullptr && first->base != v.index->base) return std::nullopt;
      if (first == nullptr) first = v.index.get();
    } else if (!v.isUniform() || !shared_.scalars.isRational(v.table->values[0])) {
      return std::nullopt;
    }
  }
  if (first == nullptr) return std::nullopt;
  std::vector<int> labels = first->labels;
  std::vector<Pieces> constants;
  constants.reserve(x.size());
  std::vector<const Pieces*> operands;
  for (const Value& v : x) {
    if (v.isIndex()) {
      if (v.index->labels != labels) return std::nullopt;
      operands.push_back(&v.index->pieces);
    } else {
      constants.push_back(constantPieces(first->pieces, shared_.scalars.value(v.table->values[0])));
      operands.push_back(&constants.back());
    }
  }
  auto pieces = combinePieces(opcode, direction, operands);
  if (!pieces) return std::nullopt;
  if (isUnsigned(shape.type)) refuseNegative(*pieces);
  if (const auto value = constantValue(*pieces))
    return tableValue(shape, uniformTable(shape.sizes, shared_.scalars.rational(*value)));
  return indexValue(shape, {first->base, std::move(labels), std::move(*pieces)});
}

// An index compared with 0, 1, 2, ... along a dimension of its own: one-hot rows.
std::optional<Value> Lowering::compareWithPositions(const std::string& direction,
                                                    const Value& index, const Value& table,
                                                    const Shape& shape) {
  const IndexFunction& f = *index.index;
  const Table& t = *table.table;
  const auto single = singlePiece(f.pieces);
  if ((direction != "EQ" && direction != "NE") || !single || single->a != 1) return std::nullopt;
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
  const Rational start = s.value(t.values[0]) - single->b + Rational(shiftOf(f.base));
  if (!start.fitsInt64() || start.sign() < 0 || start.toInt64() > kNoHigh / 2) return std::nullopt;
  const std::int64_t from = start.toInt64(), n = static_cast<std::int64_t>(t.values.size());
  Sizes wide = sizesOf(f.base);
  std::vector<int> labels(wide.size() + 1), wanted = f.labels;
  std::iota(labels.begin(), labels.end(), 0);
  wanted[*along] = static_cast<int>(wide.size());
  wide.push_back(n);
  std::string rows =
      graph.emit("one_hot", {f.base},
                 {{"start", std::to_string(from)}, {"stop", std::to_string(from + n)}}, wide);
  graph.tensor(rows).known = Known::kNotNegative;
  rows = arrange(rows, labels, wanted, shape.sizes);
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
    // That out of bounds there is no number is no matter; any other choice is.
    if (other.table->values[0] != shared_.scalars.nan()) observe(f);
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
          part.number = other.table->values[0];
        }
        result.pieces.push_back(part);
      }
    return lookupValue(shape, std::move(result));
  }
  return std::nullopt;
}

Value Lowering::selectNode(const std::vector<Value>& x, const Shape& shape) {
  const Scalars& s = shared_.scalars;
  if (x[0].isUniform()) return s.is(x[0].table->values[0], 0) ? x[2] : x[1];
  const auto zeroTable = [&](const Value& v) {
    return v.isUniform() && s.is(v.table->values[0], 0);
  };
  const auto infinite = [&](const Value& v) {
    return v.isUniform() && v.table->values[0] == s.negativeInfinity();
  };
  const auto nan = [&](const Value& v) { return v.isUniform() && v.table->values[0] == s.nan(); };
  const Sizes& sizes = shape.sizes;
  if (x[0].isTable() && (infinite(x[1]) || infinite(x[2]))) {
    // Minus infinity where it is chosen, added to the other.
    const bool first = infinite(x[1]);
    const Table mask = mapTables(std::array{x[0].table.get()}, [&](std::span<const ScalarId> a) {
      return s.is(a[0], 0) == first ? shared_.scalars.rational(0) : s.negativeInfinity();
    });
    return nodeValue(shape, binary("add", node(x[first ? 2 : 1]), tableNode(mask, false), sizes));
  }
  for (const bool first : {true, false}) {
    if (!nan(x[first ? 1 : 2])) continue;
    // No value where it is not a number: a division by 0 there, by 1 elsewhere.
    const std::string c = node(x[0]);
    return nodeValue(shape, binary("div", node(x[first ? 2 : 1]), first ? oneMinus(c) : c, sizes));
  }
  const auto term = [&](const Value& condition, bool negated, const Value& chosen) {
    if (condition.isTable()) {
      Table c = *condition.table;
      for (ScalarId& id : c.values) id = shared_.scalars.rational(s.is(id, 0) == negated ? 1 : 0);
      if (chosen.isTable()) {
        const Table* both[] = {&c, chosen.table.get()};
        const ScalarId zero = shared_.scalars.rational(0);
        return tableNode(
            mapTables(both,
                      [&](std::span<const ScalarId> a) { return s.is(a[0], 0) ? zero : a[1]; }),
            true);
      }
      return binary("mul", node(chosen), tableNode(c, false), sizes);
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

// A comparison with zero that comes out the same for every input.
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
  const Known known = graph.tensor(x.name).known;
  if (known == Known::kNothing) return std::nullopt;
  if (direction == "GE" || direction == "LT") return direction == "GE";
  if (known != Known::kPositive) return std::nullopt;
  return direction == "GT" || direction == "NE";
}

std::string Lowering::compareNode(const std::string& direction, const Value& x, const Value& y,
                                  const Shape& shape) {
  const Scalars& s = shared_.scalars;
  const Sizes& sizes = shape.sizes;
  if (y.isUniform() && y.table->values[0] == s.negativeInfinity()) {
    // A number is above it; of minus infinity itself nothing is said.
    const std::string number = graph.emit("pow", {node(x)}, {{"scalar", "0"}}, sizes);
    return direction == "EQ" || direction == "LT" || direction == "LE" ? oneMinus(number) : number;
  }
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

std::optional<std::string> Lowering::unaryNode(const std::string& opcode, const Value& x) {
  const Sizes& sizes = x.shape.sizes;
  const std::string a = node(x);
  const Known known = graph.tensor(a).known;
  const auto plain = [&](const char* op, Known result) {
    std::string y = graph.emit(op, {a}, {}, sizes);
    graph.tensor(y).known = result;
    return y;
  };
  if (opcode == "negate" && isUnsigned(x.shape.type)) return std::nullopt;
  if (opcode == "negate") return plain("neg", Known::kNothing);
  // Of minus infinity it is 0.
  if (opcode == "exponential") return plain("exp", Known::kNotNegative);
  if (opcode == "log") return plain("log", Known::kNothing);
  if (opcode == "sqrt")
    return plain("sqrt", known == Known::kPositive ? known : Known::kNotNegative);
  if (opcode == "rsqrt") return plain("rsqrt", Known::kPositive);
  if (opcode == "tanh") return plain("tanh", Known::kNothing);
  if (opcode == "logistic") return plain("sigmoid", Known::kPositive);
  if (opcode == "not" && isPredicate(x)) return oneMinus(a);
  if (opcode == "is-finite")  // 1 of a number; of anything else nothing is said
    return graph.emit("pow", {a}, {{"scalar", "0"}}, sizes);
  if (opcode == "abs") {
    if (known != Known::kNothing) return a;
    std::string y = extremum(true, a, plain("neg", Known::kNothing));
    graph.tensor(y).known = Known::kNotNegative;
    return y;
  }
  if (opcode == "sign") {
    if (known == Known::kPositive) return graph.constant(sizes, false, "1", known);
    const std::string negative = step(plain("neg", Known::kNothing));
    return graph.emit("sub", {step(a), negative}, {}, sizes);
  }
  if (opcode == "exponential-minus-one")
    return scalarOp("add", plain("exp", Known::kNotNegative), Rational(-1));
  if (opcode == "log-plus-one") {
    const std::string sum = scalarOp("add", a, Rational(1));
    return graph.emit("log", {sum}, {}, sizes);
  }
  return std::nullopt;
}

std::optional<std::string> Lowering::binaryNode(const std::string& opcode, const Value& x,
                                                const Value& y, const Shape& shape) {
  const Scalars& s = shared_.scalars;
  const Sizes& sizes = shape.sizes;
  const bool predicates = isPredicate(x) && isPredicate(y);
  const bool integers = integerType(x.shape.type).has_value();
  // A number alike everywhere, on one side.
  const auto number = [&](const Value& v) -> const Rational* {
    return v.isUniform() && s.isRational(v.table->values[0]) ? &s.value(v.table->values[0])
                                                             : nullptr;
  };
  const Rational *left = number(x), *right = number(y);
  if ((opcode == "and" || opcode == "multiply") && predicates)
    return binary("mul", node(x), compactNode(y), sizes);
  if ((opcode == "or" || opcode == "add") && predicates) {
    const std::string neither = binary("mul", oneMinus(node(x)), oneMinus(compactNode(y)), sizes);
    return oneMinus(neither);
  }
  if (opcode == "xor" && predicates) {
    const std::string a = node(x), b = compactNode(y);
    const std::string both = binary("mul", a, b, sizes), sum = binary("add", a, b, sizes);
    return graph.emit("sub", {sum, scalarOp("mul", both, Rational(2))}, {}, sizes);
  }
  if (opcode == "add" || opcode == "multiply") {
    const std::string op = opcode == "add" ? "add" : "mul";
    if (right != nullptr) return scalarOp(op, node(x), *right);
    if (left != nullptr) return scalarOp(op, node(y), *left);
    if (x.isTable()) return binary(op, compactNode(x), node(y), sizes);
    return binary(op, node(x), compactNode(y), sizes);
  }
  if (opcode == "subtract") {
    if (isUnsigned(shape.type)) return std::nullopt;
    if (right != nullptr) return scalarOp("add", node(x), -*right);
    return graph.emit("sub", {x.isTable() ? compactNode(x) : node(x), compactNode(y)}, {}, sizes);
  }
  if (opcode == "divide" && !integers) {
    if (right != nullptr) {
      if (right->isZero()) return std::nullopt;
      return scalarOp("div", node(x), *right);
    }
    return binary("div", x.isTable() ? compactNode(x) : node(x), compactNode(y), sizes);
  }
  if (opcode == "maximum" || opcode == "minimum") {
    // Minus infinity is below everything.
    for (const Value* v : {&x, &y})
      if (opcode == "maximum" && v->isUniform() && v->table->values[0] == s.negativeInfinity())
        return node(v == &x ? y : x);
    for (const Value* v : {&x, &y})
      if (opcode == "minimum" && v->isUniform() && v->table->values[0] == s.infinity())
        return node(v == &x ? y : x);
    return extremum(opcode == "maximum", node(x), node(y));
  }
  if (opcode == "power") {
    const auto halves = right == nullptr ? Rational() : *right * Rational(2);
    if (right != nullptr && halves.fitsInt64() && halves.toInt64() <= 2000 &&
        halves.toInt64() >= -2000)
      return graph.emit("pow", {node(x)}, {{"scalar", decimalJson(*right)}}, sizes);
    // b^x = e^(x log b)
    const std::string base = x.isTable() ? compactNode(x) : node(x);
    const Sizes baseSizes = sizesOf(base);
    const std::string log = graph.emit("log", {base}, {}, baseSizes);
    const std::string product = binary("mul", log, node(y), sizes);
    std::string power = graph.emit("exp", {product}, {}, sizes);
    graph.tensor(power).known = Known::kNotNegative;
    return power;
  }
  return std::nullopt;
}

Value Lowering::convertValue(const Instruction& i, const Value& x, const Shape& shape) {
  const std::string &from = x.shape.type, &to = shape.type;
  if (x.isTable()) {
    Table t = *x.table;
    for (ScalarId& id : t.values) id = shared_.scalars.convert(id, from, to);
    return tableValue(shape, std::move(t));
  }
  const bool toInteger = integerType(to).has_value();
  if (isFloat(from) && toInteger) unsupported(i, "a number made an integer by cutting it off");
  if (to == "pred" && from != "pred") {
    Shape same = x.shape;
    const Value zero = tableValue(same, uniformTable(shape.sizes, shared_.scalars.rational(0)));
    return elementwise(i, "compare", "NE", {x, zero});
  }
  if (isUnsigned(to) && integerType(from) && !isUnsigned(from)) {
    if (!x.isIndex()) unsupported(i, "an integer made unsigned that may be negative");
    refuseNegative(x.index->pieces);
  }
  if (x.isIndex() && isFloat(to)) return nodeValue(shape, node(x));
  Value same = x;
  same.shape = shape;
  return same;
}

}  // namespace shardproof::hlo
