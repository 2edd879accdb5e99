// SPDX-License-Identifier: Apache-2.0
// dot and reduce.
#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "reader/hlo/dimensions.h"
#include "reader/hlo/lowering.h"
#include "util/index.h"

namespace shardproof::hlo {
namespace {}  // namespace

std::optional<Value> Lowering::lowerSums(Frame& frame, const Instruction& i) {
  if (i.opcode == "dot") return lowerDot(frame, i);
  if (i.opcode == "reduce") return lowerReduce(frame, i);
  if (i.opcode == "convolution") return lowerConvolution(frame, i);
  if (i.opcode == "reduce-window") return lowerReduceWindow(frame, i);
  if (i.opcode == "select-and-scatter") return lowerSelectAndScatter(frame, i);
  return std::nullopt;
}

// Result: batch dimensions, those of the left that are left, those of the right.
Value Lowering::lowerDot(const Frame& frame, const Instruction& i) {
  if (i.operands.size() != 2) unsupported(i, "another number of operands, expected 2");
  if (i.attribute("sparsity") != nullptr) unsupported(i, "sparse operands");
  if (i.shape.type == "pred") unsupported(i, "a product of predicates, which is true or false");
  const auto optionalDims = [&](const char* name) {
    return i.attribute(name) == nullptr ? Sizes{} : dims(i, name);
  };
  const Sizes batch[] = {optionalDims("lhs_batch_dims"), optionalDims("rhs_batch_dims")};
  const Sizes contracted[] = {optionalDims("lhs_contracting_dims"),
                              optionalDims("rhs_contracting_dims")};
  if (batch[0].size() != batch[1].size() || contracted[0].size() != contracted[1].size())
    unsupported(i, "dimensions of both sides that do not pair up");
  std::size_t next = 0;
  const auto fresh = [&] {
    if (next == kLetters.size()) unsupported(i, "more than 52 dimensions");
    return kLetters[next++];
  };
  std::string text[2], result, in[2];
  Sizes sizes;
  for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
    const Sizes& own = operand(frame, i, side).shape.sizes;
    text[side].assign(own.size(), '?');
    for (const Sizes* list : {&batch[side], &contracted[side]})
      for (const std::int64_t d : *list)
        if (d < 0 || at(d) >= own.size()) unsupported(i, "a dimension that is not there");
  }
  const Sizes &left = operand(frame, i, 0).shape.sizes, &right = operand(frame, i, 1).shape.sizes;
  const auto pair = [&](std::int64_t l, std::int64_t r) {
    if (left[at(l)] != right[at(r)]) unsupported(i, "paired dimensions of different sizes");
    if (text[0][at(l)] != '?' || text[1][at(r)] != '?') unsupported(i, "a dimension listed twice");
    return text[0][at(l)] = text[1][at(r)] = fresh();
  };
  for (std::size_t k = 0; k < batch[0].size(); ++k) {
    result += pair(batch[0][k], batch[1][k]);
    sizes.push_back(left[at(batch[0][k])]);
  }
  for (std::size_t k = 0; k < contracted[0].size(); ++k) pair(contracted[0][k], contracted[1][k]);
  for (const std::size_t side : {std::size_t{0}, std::size_t{1}}) {
    const Sizes& own = side == 0 ? left : right;
    for (std::size_t d = 0; d < own.size(); ++d) {
      if (text[side][d] != '?') continue;
      result += text[side][d] = fresh();
      sizes.push_back(own[d]);
    }
    in[side] = node(operand(frame, i, side));
  }
  expectShape(i, sizes);
  std::string y =
      graph.emit("einsum", {in[0], in[1]},
                 {{"equation", quotedJson(text[0] + "," + text[1] + "->" + result)}}, sizes);
  graph.tensor(y).known = std::min({graph.tensor(in[0]).known, graph.tensor(in[1]).known});
  return nodeValue(i.shape, y);
}

Value Lowering::lowerReduce(const Frame& frame, const Instruction& i) {
  if (i.operands.size() != 2)
    unsupported(i, "several operands, expected one (a choice of the greatest is not supported)");
  const Value &x = operand(frame, i, 0), &start = operand(frame, i, 1);
  const Sizes reduced = dims(i, "dimensions");
  Sizes sizes;
  for (std::size_t d = 0; d < x.shape.sizes.size(); ++d)
    if (std::find(reduced.begin(), reduced.end(), static_cast<std::int64_t>(d)) == reduced.end())
      sizes.push_back(x.shape.sizes[d]);
  if (sizes.size() + reduced.size() != x.shape.sizes.size())
    unsupported(i, "dimensions that are not there, or twice");
  expectShape(i, sizes);
  if (addsExponentials(called(i, "to_apply")) && !reduced.empty()) {
    if (!start.isUniform() || start.table->values[0] != shared_.scalars.negativeInfinity())
      unsupported(i, "a first value that is not minus infinity");
    return nodeValue(
        i.shape, graph.emit("logsumexp", {node(x)}, {{"dim", listJson(reduced)}}, i.shape.sizes));
  }
  return reduceValue(i, x, start, binaryRegion(i, called(i, "to_apply")), reduced, i.shape);
}

bool Lowering::isNeutral(const std::string& region, const std::string& type, ScalarId first) const {
  const Scalars& s = shared_.scalars;
  if (region == "and") return type == "pred" && s.is(first, 1);
  if (region == "multiply") return s.is(first, 1);
  if (region == "or" || region == "add") return s.is(first, 0);
  if (type == "pred") return s.is(first, region == "maximum" ? 0 : 1);
  return first == (region == "maximum" ? s.negativeInfinity() : s.infinity());
}

Value Lowering::reduceValue(const Instruction& i, const Value& x, const Value& start,
                            const std::string& region, const Sizes& reduced, const Shape& shape) {
  Scalars& s = shared_.scalars;
  if (!start.isUniform()) unsupported(i, "a first value that depends on the input");
  const ScalarId first = start.table->values[0];
  const bool pred = x.shape.type == "pred";
  const bool all = region == "and" || (pred && region == "multiply");
  const bool any = region == "or" || (pred && region == "add");
  if (x.isTable())
    return tableValue(shape, reduceTable(*x.table, reduced, first, [&](ScalarId a, ScalarId b) {
                        const ScalarId both[] = {a, b};
                        return s.apply(region, {}, x.shape.type, both);
                      }));
  const bool neutral = isNeutral(region, x.shape.type, first);
  if (x.kind == Value::Kind::kParts && !isFloat(x.shape.type) && reduced.size() == 1 &&
      at(reduced[0]) == x.parts->dim && neutral) {
    std::optional<Value> total;
    for (const auto& [size, part] : x.parts->parts) {
      const Value one = reduceValue(i, part, start, region, reduced, shape);
      total = total ? elementwise(i, region, {}, {*total, one}) : one;
    }
    return *total;
  }
  std::int64_t count = 1;
  for (const std::int64_t d : reduced) count *= x.shape.sizes[at(d)];
  if (count == 0) unsupported(i, "nothing to reduce: a dimension of size 0");
  if (count == 1 && neutral) return reshapeValue(x, shape);
  const char* op = nullptr;
  if ((all || any) && !pred) unsupported(i, "bits of integers");
  if (all) op = "amin";
  else if (any) op = "amax";
  else if (region == "add") op = "sum";
  else if (region == "maximum") op = "amax";
  else if (region == "minimum") op = "amin";
  else unsupported(i, "a reduction by '" + region + "' is not supported");
  const std::string a = node(x);
  std::string y = a;
  if (!reduced.empty()) {
    y = graph.emit(op, {a}, {{"dim", listJson(reduced)}}, shape.sizes);
    graph.tensor(y).known = graph.tensor(a).known;
  }
  Value result = nodeValue(shape, y);
  if (neutral) return result;
  Shape wide = start.shape;
  wide.sizes = shape.sizes;
  return elementwise(i, region, {}, {result, broadcastValue(start, wide, {})});
}

}  // namespace shardproof::hlo
