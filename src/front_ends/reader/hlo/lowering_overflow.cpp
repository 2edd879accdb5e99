// SPDX-License-Identifier: Apache-2.0
// Integers of a type wrap around where they do not fit it. What is known is computed so, and so are
// functions of an index. Others are numbers of the graph, which have no bounds: where the result
// may not fit, it is assumed that it does.
#include <cmath>

#include "reader/hlo/lowering.h"

namespace shardproof::hlo {

void Lowering::mayOverflow(const Instruction& i, int bits) {
  const std::string place = file_ + ":" + std::to_string(i.place.line);
  const std::string& location = graph.location();
  shared_.mayOverflow[{file_, i.place.line}] = {location.empty() ? place : location, bits};
}

void Lowering::checkOverflow(const Instruction& i, const Value& made) {
  static const std::set<std::string, std::less<>> kArithmetic{
      "add",        "subtract",       "multiply",       "negate",      "abs",     "power", "dot",
      "reduce",     "reduce-window",  "scatter",        "convolution", "convert", "map",   "clamp",
      "all-reduce", "reduce-scatter", "all-reduce-done"};
  if (made.kind == Value::Kind::kTuple) {
    for (const Value& element : made.elements) checkOverflow(i, element);
    return;
  }
  if (made.kind == Value::Kind::kParts) {
    for (const auto& [size, part] : made.parts->parts) checkOverflow(i, part);
    return;
  }
  const auto type = integerType(made.shape.type);
  if (made.kind != Value::Kind::kNode || !type) return;
  // The sum of what wraps around is that of the numbers, wrapped around: it is the end that counts.
  const double size = std::ldexp(1.0, type->isSigned ? type->bits - 1 : type->bits),
               least = type->isSigned ? -size : 0.0;
  GraphTensor& t = graph.tensor(made.name);
  if (t.least >= least && t.greatest <= size - 1) return;
  if (kArithmetic.contains(i.opcode)) mayOverflow(i, type->bits);
  t.least = std::max(t.least, least);
  t.greatest = std::min(t.greatest, size - 1);
}

}  // namespace shardproof::hlo
