// SPDX-License-Identifier: Apache-2.0
// Bits of what is known, or is an expression of a random generator's key: bitcast-convert, and
// rng-bit-generator, whose bits are a function of its state, of which nothing else is known. It
// belongs to its algorithm and to the shape of all that it makes, so that a device that makes its
// part alone makes other bits.
#include "reader/hlo/dimensions.h"
#include "reader/hlo/lowering.h"

namespace shardproof::hlo {

Value Lowering::bitcastValue(const Instruction& i, const Value& x) {
  if (!x.isTable()) unsupported(i, "the bits of what depends on the input");
  Scalars& s = shared_.scalars;
  const Sizes &from = x.shape.sizes, &to = i.shape.sizes;
  if (from == to) {
    Table t = *x.table;
    for (ScalarId& id : t.values) id = s.bitcast(id, x.shape.type, i.shape.type);
    return tableValue(i.shape, std::move(t));
  }
  // Of another width: the last dimension comes or goes. In which order the parts stand does not
  // matter, as nothing is known of what is made of them but of what.
  const auto old = integerType(x.shape.type), now = integerType(i.shape.type);
  const auto fits = [&](const Sizes& wide, const Sizes& narrow, int wideBits, int narrowBits) {
    Sizes parts = wide;
    parts.push_back(narrowBits == 0 ? 0 : wideBits / narrowBits);
    return parts == narrow;
  };
  if (!old || !now) unsupported(i, "bits of another width of other than integers");
  const Table whole = wholeTable(*x.table);
  Table made{to, to, {}};
  if (old->bits < now->bits && fits(to, from, now->bits, old->bits)) {
    const std::size_t parts = at(from.back());
    for (std::size_t k = 0; k < whole.values.size(); k += parts)
      made.values.push_back(
          s.bits("join", x.shape.type, i.shape.type, std::span(whole.values).subspan(k, parts)));
  } else if (old->bits > now->bits && fits(from, to, old->bits, now->bits)) {
    for (const ScalarId id : whole.values)
      for (std::int64_t part = 0; part < to.back(); ++part)
        made.values.push_back(s.bits("split", std::to_string(part) + " of " + x.shape.type,
                                     i.shape.type, std::span(&id, 1)));
  } else {
    expectShape(i, from);
  }
  return tableValue(i.shape, std::move(made));
}

Value Lowering::randomBits(const Instruction& i, const Value& state) {
  if (!state.isTable())
    unsupported(i, "a state that is neither known nor made of a random generator's key");
  constexpr std::int64_t kMostElements = 1'000'000;
  const Attribute* algorithm = i.attribute("algorithm");
  if (algorithm == nullptr) unsupported(i, "no attribute 'algorithm'");
  const std::vector<Shape> shapes = i.shape.tuple ? i.shape.elements : std::vector<Shape>{i.shape};
  std::string name = algorithm->value + " " + toText(state.shape) + " -> " + toText(i.shape) + " ";
  for (char& c : name)
    if (c == '|') c = '/';
  const Table whole = wholeTable(*state.table);
  std::vector<Value> made;
  for (std::size_t r = 0; r < shapes.size(); ++r) {
    const Shape& shape = shapes[r];
    if (shape.tuple || !integerType(shape.type)) unsupported(i, "a result of other than integers");
    const std::int64_t count = elementsOf(shape, file_, i.place);
    if (count == 0 || count > kMostElements)
      unsupported(i, "none, or more than " + std::to_string(kMostElements) + " random numbers");
    Table t{shape.sizes, shape.sizes, {}};
    for (std::int64_t e = 0; e < count; ++e)
      t.values.push_back(shared_.scalars.bits("rng-bit-generator",
                                              name + std::to_string(r) + "." + std::to_string(e),
                                              shape.type, whole.values));
    made.push_back(tableValue(shape, std::move(t)));
  }
  return i.shape.tuple ? tupleValue(i.shape, std::move(made)) : made[0];
}

std::optional<Value> Lowering::lowerBits(const Frame& frame, const Instruction& i) {
  if (i.opcode == "bitcast-convert") return bitcastValue(i, operand(frame, i, 0));
  if (i.opcode == "rng-bit-generator") return randomBits(i, operand(frame, i, 0));
  return std::nullopt;
}

}  // namespace shardproof::hlo
