// SPDX-License-Identifier: Apache-2.0
// What elementwise opcodes compute of numbers, in operators of the graph.
#include "reader/hlo/lowering.h"

namespace shardproof::hlo {

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
  if (opcode == "logistic") return plain("sigmoid", Known::kNotNegative);
  if (opcode == "not" && isPredicate(x)) return oneMinus(a);
  static const std::map<std::string, const char*, std::less<>> kOpaque{
      {"sine", "sin"},    {"cosine", "cos"}, {"erf", "erf"},
      {"floor", "floor"}, {"ceil", "ceil"},  {"round-nearest-even", "round"}};
  if (const auto named = kOpaque.find(opcode); named != kOpaque.end())
    return plain(named->second, Known::kNothing);
  if (opcode == "tan") {
    const std::string cosine = plain("cos", Known::kNothing);
    return binary("div", plain("sin", Known::kNothing), cosine, sizes);
  }
  if (opcode == "round-nearest-afz") {  // the sign times the floor of the size plus a half
    const std::string negative = plain("neg", Known::kNothing);
    const std::string size = scalarOp("add", extremum(true, a, negative), Rational(1, 2));
    const std::string whole = graph.emit("floor", {size}, {}, sizes);
    return binary("mul", graph.emit("sub", {step(a), step(negative)}, {}, sizes), whole, sizes);
  }
  if (opcode == "is-finite")  // 1 of a number; of anything else nothing is said
    return graph.emit("pow", {a}, {{"scalar", "0"}}, sizes);
  if (opcode == "abs") {
    if (known != Known::kNothing) return a;
    std::string y = extremum(true, a, plain("neg", Known::kNothing));
    graph.tensor(y).known = Known::kNotNegative;
    return y;
  }
  if (opcode == "sign") {
    if (known == Known::kPositive && isValued(a)) return graph.constant(sizes, false, "1", known);
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
    if (x.isKnown()) return binary(op, compactNode(x), node(y), sizes);
    const std::string a = node(x);
    const bool same = x.kind == Value::Kind::kLookup && y.kind == x.kind && x.lookup == y.lookup;
    return binary(op, a, same ? a : compactNode(y), sizes);  // a square is never negative
  }
  if (opcode == "subtract") {
    if (isUnsigned(shape.type)) return std::nullopt;
    if (right != nullptr) return scalarOp("add", node(x), -*right);
    return graph.emit("sub", {x.isKnown() ? compactNode(x) : node(x), compactNode(y)}, {}, sizes);
  }
  if (opcode == "divide" && !integers) {
    if (right != nullptr) {
      if (right->isZero()) return std::nullopt;
      return scalarOp("div", node(x), *right);
    }
    return binary("div", x.isKnown() ? compactNode(x) : node(x), compactNode(y), sizes);
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
    const std::string base = x.isKnown() ? compactNode(x) : node(x);
    const Sizes baseSizes = sizesOf(base);
    const std::string log = graph.emit("log", {base}, {}, baseSizes);
    const std::string product = binary("mul", log, node(y), sizes);
    std::string power = graph.emit("exp", {product}, {}, sizes);
    graph.tensor(power).known = Known::kNotNegative;
    return power;
  }
  return std::nullopt;
}

}  // namespace shardproof::hlo
