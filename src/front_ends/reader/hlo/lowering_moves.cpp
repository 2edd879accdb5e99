// SPDX-License-Identifier: Apache-2.0
// Instructions that only move elements: what their attributes say, and that it fits the operands.
// What becomes of values is in lowering_layout.cpp.
#include <algorithm>

#include "reader/hlo/dimensions.h"
#include "reader/hlo/lowering.h"

namespace shardproof::hlo {

// Where a dynamic slice begins: moved into bounds, as HLO does.
Sizes Lowering::startsOf(const Frame& frame, const Instruction& i, std::size_t first,
                         const Sizes& sizes, const Sizes& window) {
  Sizes starts;
  if (i.operands.size() != first + sizes.size())
    unsupported(i, "starts that are not one number for each dimension");
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    const Value& v = operand(frame, i, first + d);
    const std::int64_t most = sizes[d] - window[d];
    if (most == 0) {
      starts.push_back(0);
      continue;
    }
    if (!v.isUniform() || !shared_.scalars.isRational(v.table->values[0]))
      unsupported(i, "a position that depends on the input");
    const Rational& at = shared_.scalars.value(v.table->values[0]);
    starts.push_back(at.fitsInt64() ? std::clamp<std::int64_t>(at.toInt64(), 0, most)
                                    : (at.sign() < 0 ? 0 : most));
  }
  return starts;
}

// Of each dimension: before, after, between.
std::vector<Sizes> Lowering::paddingOfPad(const Frame& frame, const Instruction& i) const {
  const Attribute* a = i.attribute("padding");
  if (a == nullptr) unsupported(i, "no attribute 'padding'");
  Cursor c(a->value, file_, a->place);
  std::vector<Sizes> padding;
  do {
    Sizes p{c.integer("the padding before")};
    c.take("_");
    p.push_back(c.integer("the padding after"));
    p.push_back(c.tryTake("_") ? c.integer("the padding between") : 0);
    padding.push_back(std::move(p));
  } while (c.tryTake("x"));
  if (padding.size() != operand(frame, i, 0).shape.sizes.size())
    unsupported(i, "a padding of other dimensions");
  return padding;
}

// The elements in the order in which they lie in memory, from the operand's layout to the result's.
Value Lowering::bitcastValue(const Frame& frame, const Instruction& i) {
  const Value& x = operand(frame, i, 0);
  const Shape& shape = i.shape;
  if (x.shape.type != shape.type) unsupported(i, "a bitcast to another type");
  const auto isLarge = [](std::int64_t n) { return n != 1; };
  const auto large = [&](const Sizes& sizes) {
    return std::count_if(sizes.begin(), sizes.end(), isLarge);
  };
  // A row of elements lies in one way.
  if (large(x.shape.sizes) <= 1 && large(shape.sizes) <= 1) return reshapeValue(x, shape);
  const auto& byName = frame.computation->byName;
  const auto made = byName.find(i.operands[0].name);
  const auto& from = made == byName.end()
                         ? std::nullopt
                         : frame.computation->instructions[made->second].shape.minorToMajor;
  const auto& to = shape.minorToMajor;
  if (!from || !to || from->size() != x.shape.sizes.size())
    unsupported(i, "a bitcast whose layouts are not written, or are in tiles");
  const Sizes major(from->rbegin(), from->rend()), wantedMajor(to->rbegin(), to->rend());
  const auto isRowMajor = [&](const Sizes& sizes, Sizes order) {
    std::erase_if(order, [&](std::int64_t d) { return sizes[at(d)] == 1; });
    return std::is_sorted(order.begin(), order.end());
  };
  if (isRowMajor(x.shape.sizes, major) && isRowMajor(shape.sizes, wantedMajor))
    return reshapeValue(x, shape);
  Shape inMemory = x.shape, wanted = shape;
  for (std::size_t k = 0; k < major.size(); ++k) inMemory.sizes[k] = x.shape.sizes[at(major[k])];
  Sizes back(wantedMajor.size());
  for (std::size_t k = 0; k < wantedMajor.size(); ++k) {
    wanted.sizes[k] = shape.sizes[at(wantedMajor[k])];
    back[at(wantedMajor[k])] = static_cast<std::int64_t>(k);
  }
  return transposeValue(reshapeValue(transposeValue(x, inMemory, major), wanted), shape, back);
}

std::optional<Value> Lowering::lowerLayout(const Frame& frame, const Instruction& i) {
  const std::string& op = i.opcode;
  const Shape& shape = i.shape;
  if (op == "broadcast") {
    const Sizes dimensions = dims(i, "dimensions");
    const Sizes& from = operand(frame, i, 0).shape.sizes;
    if (dimensions.size() != from.size()) unsupported(i, "'dimensions' of another length");
    for (std::size_t d = 0; d < from.size(); ++d)
      if (dimensions[d] < 0 || dimensions[d] >= static_cast<std::int64_t>(shape.sizes.size()) ||
          shape.sizes[at(dimensions[d])] != from[d] ||
          std::count(dimensions.begin(), dimensions.end(), dimensions[d]) != 1)
        unsupported(i, "'dimensions' that do not fit the operand");
    return broadcastValue(operand(frame, i, 0), shape, dimensions);
  }
  if (op == "reshape" || op == "bitcast") {
    const Value& x = operand(frame, i, 0);
    if (elementsOf(x.shape, file_, i.place) != elementsOf(shape, file_, i.place))
      unsupported(i, "another number of elements");
    return op == "reshape" ? reshapeValue(x, shape) : bitcastValue(frame, i);
  }
  if (op == "transpose") {
    const Sizes permutation = dims(i, "dimensions");
    Sizes sorted = permutation, sizes;
    std::sort(sorted.begin(), sorted.end());
    for (std::size_t d = 0; d < sorted.size(); ++d)
      if (sorted[d] != static_cast<std::int64_t>(d)) unsupported(i, "no permutation");
    if (permutation.size() != operand(frame, i, 0).shape.sizes.size())
      unsupported(i, "a permutation of another length");
    for (const std::int64_t d : permutation)
      sizes.push_back(operand(frame, i, 0).shape.sizes[at(d)]);
    expectShape(i, sizes);
    return transposeValue(operand(frame, i, 0), shape, permutation);
  }
  if (op == "slice") {
    const Attribute* a = i.attribute("slice");
    if (a == nullptr) unsupported(i, "no attribute 'slice'");
    Cursor c(a->value, file_, a->place);
    Sizes start, limit, stride, sizes;
    c.take("{");
    const Sizes& from = operand(frame, i, 0).shape.sizes;
    while (!c.tryTake("}")) {
      c.take("[");
      start.push_back(c.integer("the start"));
      c.take(":");
      limit.push_back(c.integer("the limit"));
      stride.push_back(c.tryTake(":") ? c.integer("the stride") : 1);
      c.take("]");
      c.tryTake(",");
      const std::size_t d = start.size() - 1;
      if (d >= from.size() || start[d] < 0 || start[d] > limit[d] || limit[d] > from[d] ||
          stride[d] < 1)
        c.fail("found a slice outside of the operand");
      sizes.push_back((limit[d] - start[d] + stride[d] - 1) / stride[d]);
    }
    if (start.size() != from.size()) unsupported(i, "a slice of other dimensions");
    expectShape(i, sizes);
    return sliceValue(operand(frame, i, 0), shape, start, limit, stride);
  }
  if (op == "dynamic-slice") {
    if (auto moving = movingSlice(frame, i)) return *moving;
    const Value& x = operand(frame, i, 0);
    const Sizes window = dims(i, "dynamic_slice_sizes");
    expectShape(i, window);
    if (window.size() != x.shape.sizes.size()) unsupported(i, "sizes of other dimensions");
    for (std::size_t d = 0; d < window.size(); ++d)
      if (window[d] > x.shape.sizes[d]) unsupported(i, "a slice larger than its operand");
    const Sizes start = startsOf(frame, i, 1, x.shape.sizes, window);
    Sizes limit = start;
    for (std::size_t d = 0; d < window.size(); ++d) limit[d] += window[d];
    return sliceValue(x, shape, start, limit, Sizes(window.size(), 1));
  }
  if (op == "dynamic-update-slice") {
    if (auto moving = movingUpdate(frame, i)) return *moving;
    const Value &x = operand(frame, i, 0), &update = operand(frame, i, 1);
    const Sizes& window = update.shape.sizes;
    expectShape(i, x.shape.sizes);
    if (window.size() != x.shape.sizes.size()) unsupported(i, "an update of other dimensions");
    for (std::size_t d = 0; d < window.size(); ++d)
      if (window[d] > x.shape.sizes[d]) unsupported(i, "an update larger than its operand");
    return updateValue(x, update, startsOf(frame, i, 2, x.shape.sizes, window), 0);
  }
  if (op == "concatenate") {
    const Sizes dim = dims(i, "dimensions");
    if (dim.size() != 1 || dim[0] < 0 || dim[0] >= static_cast<std::int64_t>(shape.sizes.size()))
      unsupported(i, "'dimensions' that is not one dimension");
    std::vector<Value> x;
    Sizes sizes = operand(frame, i, 0).shape.sizes;
    if (at(dim[0]) < sizes.size()) sizes[at(dim[0])] = 0;
    for (std::size_t k = 0; k < i.operands.size(); ++k) {
      x.push_back(operand(frame, i, k));
      if (x.back().shape.sizes.size() != sizes.size()) unsupported(i, "operands of other ranks");
      sizes[at(dim[0])] += x.back().shape.sizes[at(dim[0])];
    }
    expectShape(i, sizes);
    return concatenateValues(x, shape, at(dim[0]));
  }
  if (op == "reverse") return reverseValue(operand(frame, i, 0), dims(i, "dimensions"));
  if (op == "pad") {
    const std::vector<Sizes> padding = paddingOfPad(frame, i);
    const Sizes& from = operand(frame, i, 0).shape.sizes;
    Sizes sizes;
    for (std::size_t d = 0; d < from.size(); ++d)
      sizes.push_back(from[d] + padding[d][0] + padding[d][1] +
                      std::max<std::int64_t>(from[d] - 1, 0) * padding[d][2]);
    expectShape(i, sizes);
    return padValue(i, operand(frame, i, 0), operand(frame, i, 1), shape, padding);
  }
  return std::nullopt;
}

}  // namespace shardproof::hlo
