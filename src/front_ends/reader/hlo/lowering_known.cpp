// SPDX-License-Identifier: Apache-2.0
// What is known as a tensor of the graph: numbers, lists, masks, tables of what is not rational.
#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "reader/hlo/formula.h"
#include "reader/hlo/lowering.h"
#include "util/index.h"

namespace shardproof::hlo {
namespace {

// Nested lists of these sizes, from row-major entries.
std::string nested(const Sizes& sizes, const std::vector<std::string>& entries) {
  if (sizes.empty()) return entries[0];
  std::string text;
  std::size_t block = entries.size();
  std::vector<std::size_t> blocks;
  for (const std::int64_t s : sizes) {
    blocks.push_back(block);
    block /= at(s);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) text += ",";
    for (const std::size_t b : blocks)
      if (i % b == 0) text += "[";
    text += entries[i];
    for (const std::size_t b : blocks)
      if ((i + 1) % b == 0) text += "]";
  }
  return text;
}

Sizes withoutLeadingOnes(const Sizes& sizes) {
  std::size_t first = 0;
  while (first < sizes.size() && sizes[first] == 1) ++first;
  return Sizes(sizes.begin() + static_cast<std::ptrdiff_t>(first), sizes.end());
}

// The sizes that a box of a table of sizes `whole` may have that holds the numbers of a table of
// sizes `own` in the same order: the same ones, with other dimensions of size 1, or of consecutive
// numbers.
std::vector<Sizes> boxSizes(const Sizes& own, const Sizes& whole) {
  constexpr std::size_t kMostBoxes = 64;
  std::vector<Sizes> found;
  if (own.size() == whole.size()) found.push_back(own);
  Sizes larger;
  std::int64_t count = 1;
  for (const std::int64_t n : own) {
    if (n > 1) larger.push_back(n);
    count *= n;
  }
  // One by one, the dimensions along which it differs take their places.
  std::vector<std::pair<Sizes, std::size_t>> open{{Sizes(), 0}};
  while (!open.empty() && found.size() < kMostBoxes) {
    const Sizes sizes = std::move(open.back().first);
    const std::size_t used = open.back().second;
    open.pop_back();
    const std::size_t d = sizes.size();
    if (d == whole.size()) {
      if (used == larger.size()) found.push_back(sizes);
      continue;
    }
    const auto with = [&](std::int64_t size, std::size_t next) {
      Sizes more = sizes;
      more.push_back(size);
      open.emplace_back(std::move(more), next);
    };
    if (whole.size() - d > larger.size() - used) with(1, used);
    if (used < larger.size() && larger[used] <= whole[d]) with(larger[used], used + 1);
  }
  Sizes stretch(whole.size(), 1);
  for (std::size_t d = whole.size(); d-- > 0 && count > 1;) {
    stretch[d] = std::min(count, whole[d]);
    if (count % stretch[d] != 0) return found;
    count /= stretch[d];
  }
  if (count == 1) found.push_back(std::move(stretch));
  return found;
}

}  // namespace

// Numbers that are no rationals are unknowns of the model: what is proved for all of them holds for
// these. A rank's table is looked for as a box of one that is there already, so that the ranks'
// pieces of one table stay pieces of one tensor.
std::string Lowering::unknownTable(const Value& known) {
  std::vector<Shared::Unknown>& unknowns = shared_.unknowns;
  // Dimensions along which all is alike have size 1.
  const Sizes sizes = extentOf(known);
  const Value own = mapTablesOf(known, sizes, [&](const Table& t) {
    return Table{sizes, t.extent, t.values};
  });
  const auto boxAt = [](const Table& u, const Table& t, const Sizes& box, const Sizes& offset) {
    for (std::size_t k = 0; k < t.values.size(); ++k) {
      std::int64_t rest = static_cast<std::int64_t>(k), place = 0, stride = 1;
      for (std::size_t d = box.size(); d-- > 0;) {
        place += (rest % box[d] + offset[d]) * stride;
        rest /= box[d];
        stride *= u.sizes[d];
      }
      if (u.values[at(place)] != t.values[k]) return false;
    }
    return true;
  };
  const auto boxIn = [&](const Value& whole, const Sizes& box) -> std::optional<Sizes> {
    if (!whole.isTable() || !own.isTable()) return box == sizes ? boxOf(own, whole) : std::nullopt;
    const Table &u = *whole.table, &t = *own.table;
    for (std::size_t first = 0; first < u.values.size(); ++first) {
      if (u.values[first] != t.values[0]) continue;
      Sizes offset(box.size());
      std::int64_t rest = static_cast<std::int64_t>(first);
      bool fits = true;
      for (std::size_t d = box.size(); d-- > 0;) {
        offset[d] = rest % u.sizes[d];
        rest /= u.sizes[d];
        fits = fits && offset[d] + box[d] <= u.sizes[d];
      }
      if (fits && boxAt(u, t, box, offset)) return offset;
    }
    return std::nullopt;
  };
  const auto use = [&](std::size_t unknown, const Sizes& offset, const Sizes& part) {
    if (grouping_ == nullptr) {
      // In the model it is the tensor itself.
      const Shared::Unknown& u = unknowns[unknown];
      if (!graph.has(u.name)) graph.input(u.name, u.content.shape.sizes, false, "float32");
      std::string box = u.name;
      for (std::size_t d = 0; d < part.size(); ++d)
        box = sliceDim(box, d, offset[d], offset[d] + part[d]);
      return view(box, sizes);
    }
    const std::string name = graph.fresh("table " + path_);
    graph.input(name, part, false, "float32");
    localUnknowns.push_back({name, unknown, offset});
    return view(name, sizes);
  };
  for (std::size_t u = 0; u < unknowns.size(); ++u)
    for (const Sizes& part : boxSizes(sizes, unknowns[u].content.shape.sizes))
      if (const auto offset = boxIn(unknowns[u].content, part)) return use(u, *offset, part);
  unknowns.push_back({"table." + std::to_string(unknowns.size()), own});
  return use(unknowns.size() - 1, Sizes(sizes.size(), 0), sizes);
}

// The entries of a causal mask: 0 where column <= row + shift, else minus infinity. Of the result
// the dimensions before the first of the two are left out, others have size 1.
std::string Lowering::maskNode(const HalfPlane& where, const Sizes& sizes, bool turned) {
  // Turned, rows are counted along the second dimension, and it is 0 in the other half:
  // row <= column - shift - 1.
  const std::size_t row = turned ? where.column : where.row,
                    column = turned ? where.row : where.column;
  const std::int64_t shift = turned ? -where.shift - 1 : where.shift;
  const std::int64_t rows = sizes[row], columns = sizes[column];
  const std::int64_t up = std::max<std::int64_t>(-shift, 0),
                     down = std::max<std::int64_t>(shift, 0);
  const std::int64_t n = std::max(rows + down, columns + up);
  const std::string positions = graph.constant({1, n}, false, "0");
  std::string mask = graph.emit("create_mask", {positions}, {}, {1, 1, n, n});
  mask = sliceDim(sliceDim(mask, 2, down, down + rows), 3, up, up + columns);
  mask = view(mask, {rows, columns});
  if (turned) mask = permute(mask, {1, 0});
  Sizes placed(sizes.size() - where.row, 1);
  placed[0] = sizes[where.row];
  placed[where.column - where.row] = sizes[where.column];
  return view(mask, placed);
}

// Two numbers inside and outside of a half plane: exp of a mask is 1 and 0. Nothing where one of
// them is neither rational nor minus infinity.
std::optional<std::string> Lowering::halfPlaneNode(const Value& known) {
  Scalars& s = shared_.scalars;
  const auto found = twoNumbers(s, known);
  if (!found || !found->where) return std::nullopt;
  const Sizes& sizes = known.shape.sizes;
  const bool in = s.isRational(found->inside), out = s.isRational(found->outside);
  const auto added = [&](const std::string& x, ScalarId id) {
    return s.is(id, 0) ? x : scalarOp("add", x, s.value(id));
  };
  if (in && found->outside == s.negativeInfinity())
    return added(maskNode(*found->where, sizes, false), found->inside);
  if (out && found->inside == s.negativeInfinity())
    return added(maskNode(*found->where, sizes, true), found->outside);
  if (!in || !out) return std::nullopt;
  // Below the diagonal is where the other one is not on or above it: that is a square, too.
  const bool turned = found->where->shift == -1;
  const std::string mask = maskNode(*found->where, sizes, turned);
  std::string x = graph.emit("exp", {mask}, {}, sizesOf(mask));
  graph.tensor(x).known = Known::kNotNegative;
  const Rational inside = s.value(turned ? found->outside : found->inside),
                 outside = s.value(turned ? found->inside : found->outside);
  if (inside.isZero()) {
    x = oneMinus(x);
    graph.tensor(x).known = Known::kNotNegative;
    return outside.isOne() ? x : scalarOp("mul", x, outside);
  }
  const Rational difference = inside - outside;
  if (!difference.isOne()) x = scalarOp("mul", x, difference);
  return outside.isZero() ? x : scalarOp("add", x, outside);
}

// Conditions as 0 and 1 where they are made of half planes; nothing for others.
std::optional<std::string> Lowering::conditionNode(const Value& known) {
  if (auto half = halfPlaneNode(known)) return half;
  if (known.isTable()) return tableNode(*known.table, false);
  const Formula& f = *known.formula;
  if (f.opcode != "and" && f.opcode != "or" && f.opcode != "not") return std::nullopt;
  std::vector<std::string> x;
  for (const Value& operand : f.operands) {
    const auto made = conditionNode(operand);
    if (!made) return std::nullopt;
    x.push_back(f.opcode == "and" ? *made : oneMinus(*made));
  }
  if (f.opcode == "not") return x[0];
  Sizes sizes = extentOf(known);
  std::size_t rank = 0;
  for (const std::string& name : x) rank = std::max(rank, sizesOf(name).size());
  sizes.erase(sizes.begin(), sizes.end() - static_cast<std::ptrdiff_t>(rank));
  const std::string both = binary("mul", x[0], x[1], sizes);
  return f.opcode == "and" ? both : oneMinus(both);
}

// A choice between two rationals, or a number and minus infinity, by such conditions.
std::optional<std::string> Lowering::choiceNode(const Value& known) {
  if (known.kind != Value::Kind::kFormula) return std::nullopt;
  Scalars& s = shared_.scalars;
  const Formula& f = *known.formula;
  if (isPredicate(known)) return conditionNode(known);
  if (f.opcode != "select" || !f.operands[1].isUniform() || !f.operands[2].isUniform() ||
      !isPredicate(f.operands[0]))
    return std::nullopt;
  const ScalarId yes = f.operands[1].table->values[0], no = f.operands[2].table->values[0];
  if (s.isRational(yes) && s.isRational(no)) {
    const auto condition = conditionNode(f.operands[0]);
    if (!condition) return std::nullopt;
    const Rational difference = s.value(yes) - s.value(no);
    const std::string x = difference.isOne() ? *condition : scalarOp("mul", *condition, difference);
    return s.is(no, 0) ? x : scalarOp("add", x, s.value(no));
  }
  // Where both hold it is there, else minus infinity: masks are added.
  const Value& condition = f.operands[0];
  if (!s.is(yes, 0) || no != s.negativeInfinity() || condition.isTable() ||
      condition.formula->opcode != "and")
    return std::nullopt;
  std::string total;
  for (const Value& part : condition.formula->operands) {
    const Value mask =
        applyKnown(s, known.shape, "select", {}, f.type, {part, f.operands[1], f.operands[2]});
    const std::string x = knownNode(mask, false);
    if (total.empty()) {
      total = x;
      continue;
    }
    Sizes sizes = extentOf(known);
    const std::size_t rank = std::max(sizesOf(total).size(), sizesOf(x).size());
    sizes.erase(sizes.begin(), sizes.end() - static_cast<std::ptrdiff_t>(rank));
    total = binary("add", total, x, sizes);
  }
  return total;
}

bool Lowering::dependsOnBits(const Value& v) const {
  if (v.kind == Value::Kind::kFormula)
    return std::any_of(v.formula->operands.begin(), v.formula->operands.end(),
                       [&](const Value& x) { return dependsOnBits(x); });
  return v.isTable() && std::any_of(v.table->values.begin(), v.table->values.end(),
                                    [&](ScalarId id) { return shared_.scalars.isSymbolic(id); });
}

// Of conditions that depend on random bits: 0 or 1, whatever stands for them.
std::string Lowering::knownNode(const Value& v, bool whole) {
  if (v.isUniform() && !(isPredicate(v) && dependsOnBits(v))) return tableNode(*v.table, whole);
  const void* content = v.isTable() ? static_cast<const void*>(v.table.get()) : v.formula.get();
  auto& known = knownNodes_[{content, isPredicate(v)}];
  // The tensor may have got another name since, or have been undone, and its name be another's.
  if (known.name.empty() || !graph.has(known.name, known.serial)) {
    known.content = v;
    known.name = newKnownNode(v);
    known.serial = graph.tensor(known.name).serial;
  }
  return whole ? expand(known.name, v.shape.sizes) : known.name;
}

std::string Lowering::newKnownNode(const Value& v) {
  if (isPredicate(v) && dependsOnBits(v))
    return step(v.isTable() ? tableNode(*v.table, false) : unknownTable(v));
  if (const auto half = halfPlaneNode(v)) return *half;
  if (const auto choice = choiceNode(v)) return *choice;
  if (v.isTable()) return tableNode(*v.table, false);
  if (isFinite(shared_.scalars, v)) return unknownTable(v);
  return tableNode(listed(shared_.scalars, v), false);
}

std::string Lowering::listedTable(const Table& t, const Sizes& sizes) {
  const Scalars& s = shared_.scalars;
  Known known = Known::kPositive;
  mpz_class common = 1;
  for (const ScalarId id : t.values) {
    const Rational& v = s.value(id);
    known = std::min(known, v.sign() > 0    ? Known::kPositive
                            : v.sign() == 0 ? Known::kNotNegative
                                            : Known::kNothing);
    if (decimalJson(v).empty()) common = lcm(common, v.toMpq().get_den());
  }
  std::vector<std::string> entries;
  entries.reserve(t.values.size());
  const Rational scale{mpq_class(common)};
  for (const ScalarId id : t.values) {
    entries.push_back(decimalJson(s.value(id) * scale));
    if (entries.back().empty())
      throw std::invalid_argument("numbers without a common denominator of moderate length");
  }
  const std::string listed = graph.constant(sizes, false, nested(sizes, entries), known);
  return common == 1 ? listed : scalarOp("div", listed, scale);
}

std::string Lowering::tableNode(const Table& t, bool whole) {
  const Scalars& s = shared_.scalars;
  if (t.uniform() && s.isRational(t.values[0]))
    return rationalNode(s.value(t.values[0]), whole ? t.sizes : Sizes{});
  std::string x;
  if (t.uniform()) {
    x = expressionNode(t.values[0]);
  } else {
    bool rational = true, finite = true;
    for (const ScalarId id : t.values) {
      rational = rational && s.isRational(id);
      finite = finite && (s.isRational(id) || s.kind(id) == ScalarKind::kExpression);
    }
    if (rational) {
      x = listedTable(t, withoutLeadingOnes(t.extent));
    } else if (finite) {
      x = unknownTable(tableValue({"f32", t.sizes, {}, false}, t));
    } else {
      // Numbers and minus infinity: rows of a list of what occurs.
      std::vector<ScalarId> distinct(t.values);
      std::sort(distinct.begin(), distinct.end());
      distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
      std::vector<std::string> rows, choice;
      for (const ScalarId id : distinct) rows.push_back(view(expressionNode(id), {1, 1}));
      for (const ScalarId id : t.values)
        choice.push_back(std::to_string(std::lower_bound(distinct.begin(), distinct.end(), id) -
                                        distinct.begin()));
      const Sizes sizes = withoutLeadingOnes(t.extent);
      Sizes looked = sizes;
      looked.push_back(1);
      const std::string ids = graph.constant(sizes, true, nested(sizes, choice));
      x = view(graph.emit("embedding", {ids, cat(rows, 0)}, {}, looked), sizes);
    }
  }
  return whole ? expand(x, t.sizes) : x;
}

}  // namespace shardproof::hlo
