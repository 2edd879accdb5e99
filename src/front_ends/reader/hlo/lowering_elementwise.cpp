// SPDX-License-Identifier: Apache-2.0
// Instructions that do the same at every place.
#include <algorithm>
#include <stdexcept>

#include "reader/hlo/formula.h"
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
      {"erf", 1},          {"round-nearest-even", 1},
      {"tan", 1},          {"round-nearest-afz", 1},
      {"select", 3},       {"clamp", 3}};
  const auto found = kArity.find(op);
  return found == kArity.end() ? 0 : found->second;
}

// Types of fewer bits hold what is stored, not what is counted with: that an integer without known
// bounds fits one is not assumed.
constexpr int kFewestBits = 32;

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
  if (std::all_of(x.begin(), x.end(), [](const Value& v) { return v.isKnown(); }))
    return applyKnown(shared_.scalars, shape, opcode, direction, type, x);
  if (auto same = ofBits(opcode, x, shape)) return *same;
  if (integerType(type)) askForBits(opcode, x);
  if (auto parts = elementwiseParts(i, opcode, direction, x)) return *parts;
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
  if (!name) {
    // Integers that are divided, shifted, or whose bits are looked at.
    if (i.opcode != opcode)
      unsupported(i, "'" + opcode + "' of " + toText(x[0].shape) +
                         " that depends on the input is not supported");
    return opaqueCall(i, "'" + opcode + "'", x, shape.sizes.size());
  }
  return nodeValue(shape, expand(*name, shape.sizes));
}

// All bits of an integer, or none, whatever it is.
std::optional<Value> Lowering::ofBits(const std::string& opcode, const std::vector<Value>& x,
                                      const Shape& shape) const {
  const auto integer = integerType(shape.type);
  if (!integer || x.size() != 2) return std::nullopt;
  const auto number = [&](const Value& v) -> const Rational* {
    return v.isUniform() && shared_.scalars.isRational(v.table->values[0])
               ? &shared_.scalars.value(v.table->values[0])
               : nullptr;
  };
  const Rational* const second = number(x[1]);
  const bool right = opcode == "shift-right-logical";
  if (second != nullptr && (right || opcode == "shift-left")) {
    if (second->isZero()) return x[0];
    if (!(*second < Rational(integer->bits)) && second->sign() > 0)
      return tableValue(shape, uniformTable(shape.sizes, shared_.scalars.rational(0)));
  }
  if (opcode != "and" && opcode != "or" && opcode != "xor") return std::nullopt;
  for (const std::size_t k : {std::size_t{0}, std::size_t{1}}) {
    const Rational* const mask = number(x[k]);
    if (mask == nullptr) continue;
    const std::int64_t end = typeRange(*integer).second;
    const bool all = integer->isSigned ? *mask == Rational(-1)
                                       : integer->bits < 64 && *mask == Rational(end - 1);
    if (mask->isZero()) return opcode == "and" ? x[k] : x[1 - k];
    if (all && opcode == "and") return x[1 - k];
  }
  return std::nullopt;
}

std::optional<Value> Lowering::elementwiseParts(const Instruction& i, const std::string& opcode,
                                                const std::string& direction,
                                                const std::vector<Value>& x) {
  const Parts* first = nullptr;
  for (const Value& v : x) {
    if (isFloat(v.shape.type)) return std::nullopt;
    if (v.kind == Value::Kind::kParts && first == nullptr) first = v.parts.get();
  }
  if (first == nullptr) return std::nullopt;
  Parts result;
  result.dim = first->dim;
  std::int64_t at = 0;
  for (const auto& [size, part] : first->parts) {
    std::vector<Value> operands;
    for (const Value& v : x) {
      Sizes begin(v.shape.sizes.size(), 0), end = v.shape.sizes;
      begin[result.dim] = at;
      end[result.dim] = at + size;
      Shape shape = v.shape;
      shape.sizes[result.dim] = size;
      operands.push_back(sliceValue(v, shape, begin, end, Sizes(begin.size(), 1)));
    }
    Instruction piece = i;
    piece.shape.sizes = operands[0].shape.sizes;
    result.parts.emplace_back(size, elementwise(piece, opcode, direction, operands));
    at += size;
  }
  return partsValue(i.shape, std::move(result));
}

// Functions of one integer tensor, with numbers that are alike everywhere.
std::optional<Value> Lowering::elementwiseIndex(const std::string& opcode,
                                                const std::string& direction,
                                                const std::vector<Value>& x, const Shape& shape) {
  // Of integers these look at bits; of conditions sums are "or".
  static const std::set<std::string, std::less<>> kLogical{"and", "or", "xor", "not"};
  const std::string& type = x[opcode == "select" ? 1 : 0].shape.type;
  if (kLogical.contains(opcode) && type != "pred") return std::nullopt;
  if (type == "pred" && opcode == "add") return elementwiseIndex("or", direction, x, shape);
  if (type == "pred" && (opcode == "subtract" || opcode == "negate")) return std::nullopt;
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
  if (const auto integers = integerType(shape.type)) {
    pieces = wrapPieces(*pieces, *integers);
    if (!pieces) return std::nullopt;
  }
  if (const auto value = constantValue(*pieces))
    return tableValue(shape, uniformTable(shape.sizes, shared_.scalars.rational(*value)));
  return indexValue(shape, {first->base, std::move(labels), std::move(*pieces)});
}

void Lowering::refuseNarrow(const Instruction& i, const Value& x, const std::string& type) {
  const int bits = integerType(type)->bits;
  if (bits >= kFewestBits) return;
  const auto [least, end] = typeRange(*integerType(type));
  const GraphTensor& t = graph.tensor(node(x));
  if (t.least < static_cast<double>(least) || t.greatest > static_cast<double>(end - 1))
    unsupported(
        i, "a number made an integer of " + std::to_string(bits) + " bits, which it may not fit");
}

// A number made an integer that it does not fit becomes the greatest or the least of them, as XLA
// computes it everywhere. Of 32 bits and more with a sign that is left out: numbers are not
// expected there, and comparisons with them would be in the way of proofs.
std::string Lowering::saturated(const Value& x, const std::string& type) {
  std::string y = node(x);
  const IntegerType integer = *integerType(type);
  if (integer.isSigned && integer.bits >= kFewestBits) return y;
  const auto [least, end] = typeRange(integer);
  const GraphTensor& t = graph.tensor(y);
  const bool below =
      t.least<static_cast<double>(least), above = t.greatest> static_cast<double>(end - 1);
  if (below) y = extremum(true, y, rationalNode(Rational(least), x.shape.sizes));
  if (above) y = extremum(false, y, rationalNode(Rational(end - 1), x.shape.sizes));
  return y;
}

Value Lowering::convertValue(const Instruction& i, const Value& x, const Shape& shape) {
  const std::string &from = x.shape.type, &to = shape.type;
  if (x.isKnown()) return applyKnown(shared_.scalars, shape, "convert", to, from, {x});
  const bool toInteger = integerType(to).has_value();
  if (isFloat(from) && toInteger) {
    return nodeValue(shape, graph.emit("trunc", {saturated(x, to)}, {}, shape.sizes));
  }
  if (to == "pred" && from != "pred") {
    Shape same = x.shape;
    const Value zero = tableValue(same, uniformTable(shape.sizes, shared_.scalars.rational(0)));
    return elementwise(i, "compare", "NE", {x, zero});
  }
  if (toInteger && x.isIndex()) {
    auto pieces = wrapPieces(x.index->pieces, *integerType(to));
    if (!pieces) unsupported(i, "an integer that may not fit the type it is converted to");
    if (const auto value = constantValue(*pieces))
      return tableValue(shape, uniformTable(shape.sizes, shared_.scalars.rational(*value)));
    return indexValue(shape, {x.index->base, x.index->labels, std::move(*pieces)});
  }
  if (toInteger && integerType(from)) {
    // The same number, if it fits: see checkOverflow().
    const auto [least, end] = typeRange(*integerType(to));
    const auto own = typeRange(*integerType(from));
    if (isUnsigned(to) && !isUnsigned(from))
      unsupported(i, "an integer made unsigned that may be negative");
    if (own.first < least || end < own.second) refuseNarrow(i, x, to);
  }
  if (x.isIndex() && isFloat(to)) return nodeValue(shape, node(x));
  Value same = x;
  same.shape = shape;
  return same;
}

}  // namespace shardproof::hlo
