// SPDX-License-Identifier: Apache-2.0
// What is chosen by order: topk, sort, and a reduction that finds the greatest and its place.
#include <numeric>
#include <stdexcept>

#include "reader/hlo/lowering.h"
#include "util/index.h"

namespace shardproof::hlo {
namespace {

// The base itself, counted from some start.
bool startsAnywhere(const Pieces& pieces) {
  const auto piece = singlePiece(pieces);
  return piece && piece->a == 1;
}

// From dimensions with `dim` last to the order of the tensor: where each is.
std::vector<int> backFromLast(std::size_t rank, std::size_t dim) {
  std::vector<int> at;
  for (std::size_t d = 0; d < rank; ++d)
    at.push_back(static_cast<int>(d == dim ? rank - 1 : d < dim ? d : d - 1));
  return at;
}

// The parameter that an instruction of a sort's region stands for: itself, or with its zeros and
// what is no number made alike.
std::optional<std::int64_t> parameterBehind(const Computation& c, const Instruction& i) {
  const auto operand = [&](const Instruction& of, std::size_t k) -> const Instruction& {
    return c.instructions[c.byName.at(of.operands.at(k).name)];
  };
  const Instruction* at = &i;
  while (at->opcode != "parameter") {
    if (at->opcode == "copy") {
      at = &operand(*at, 0);
      continue;
    }
    if (at->opcode != "select") return std::nullopt;
    // select(x = 0, 0, x) or select(x != x, nan, x)
    const Instruction &condition = operand(*at, 0), &constant = operand(*at, 1);
    if (condition.opcode != "compare" || constant.opcode != "constant") return std::nullopt;
    const Attribute* direction = condition.attribute("direction");
    const auto x = parameterBehind(c, operand(condition, 0));
    if (direction == nullptr || !x || x != parameterBehind(c, operand(*at, 2))) return std::nullopt;
    const Instruction& other = operand(condition, 1);
    const bool zero = direction->value == "EQ" && other.opcode == "constant" &&
                      other.literal == "0" && constant.literal == "0";
    const bool nan =
        direction->value == "NE" && constant.literal == "nan" && parameterBehind(c, other) == x;
    if (!zero && !nan) return std::nullopt;
    at = &operand(*at, 2);
  }
  return std::stoll(at->literal);
}

}  // namespace

std::optional<std::int64_t> countsAlong(const Value& v, std::size_t dim, const Scalars& s) {
  if (!v.isTable()) return std::nullopt;
  const Table& t = *v.table;
  for (std::size_t d = 0; d < t.extent.size(); ++d)
    if (d != dim && t.extent[d] != 1) return std::nullopt;
  if (t.extent[dim] != v.shape.sizes[dim]) return std::nullopt;
  for (std::size_t k = 0; k < t.values.size(); ++k)
    if (!s.isRational(t.values[k]) || !s.isRational(t.values[0]) ||
        !(s.value(t.values[k]) == s.value(t.values[0]) + Rational(static_cast<std::int64_t>(k))))
      return std::nullopt;
  const Rational& start = s.value(t.values[0]);
  return start.fitsInt64() ? std::optional(start.toInt64()) : std::nullopt;
}

std::pair<std::string, std::string> Lowering::ordered(const std::string& x, std::size_t dim,
                                                      std::int64_t k, bool largest) {
  Sizes order, sizes = sizesOf(x);
  for (std::size_t d = 0; d < sizes.size(); ++d)
    if (d != dim) order.push_back(static_cast<std::int64_t>(d));
  order.push_back(static_cast<std::int64_t>(dim));
  const std::string rows = permute(x, order);
  const std::int64_t count = sizes[dim];
  Sizes result = sizesOf(rows);
  result.back() = k;
  NodeAttributes attributes{{"topk", std::to_string(k)}};
  if (!largest) attributes.emplace_back("largest", "false");
  auto both = graph.emitPair("topk", rows, std::move(attributes), std::move(result));
  constantRanges_.emplace(both.second, std::pair<std::int64_t, std::int64_t>(0, count));
  return both;
}

Value Lowering::placesValue(const std::string& places, const Shape& shape,
                            const std::vector<int>& labels, std::int64_t start) const {
  Pieces pieces = domainOf(places);
  for (Piece& p : pieces) p.b = Rational(start);
  return indexValue(shape, {places, labels, std::move(pieces)});
}

std::string Lowering::placeNumbers(const std::string& places, std::int64_t count) {
  const Sizes sizes = sizesOf(places);
  Sizes wide = sizes;
  wide.push_back(count);
  const std::string rows = oneHot(places, 0, count);
  Sizes numbers(at(count));
  std::iota(numbers.begin(), numbers.end(), std::int64_t{0});
  const std::string list = graph.constant({count}, false, listJson(numbers), Known::kNotNegative);
  const std::string terms = binary("mul", rows, list, wide);
  std::string y = graph.emit("sum", {terms}, {{"dim", std::to_string(sizes.size())}}, sizes);
  graph.tensor(y).known = Known::kNotNegative;
  return y;
}

// The elements of x along a dimension at these places; `labels` says for each dimension of the
// result which of `places` it is.
Value Lowering::alongPlaces(const Value& x, std::size_t dim, const std::string& places,
                            const std::vector<int>& labels) {
  Lookup lookup;
  lookup.base = places;
  lookup.table = node(x);
  lookup.axis = dim;
  lookup.tied = labels;
  lookup.tied[dim] = -1;
  lookup.labels = labels;
  const auto range = constantRanges_.at(places);
  lookup.pieces.push_back({range.first, range.second});
  Shape shape = x.shape;
  shape.sizes[dim] = sizesOf(places)[at(labels[dim])];
  const std::string y = lookupNode(lookup, shape.sizes);
  return nodeValue(shape, y);
}

Value Lowering::lowerTopK(const Frame& frame, const Instruction& i) {
  const Value& x = operand(frame, i, 0);
  const Attribute *k = i.attribute("k"), *largest = i.attribute("largest");
  if (k == nullptr || x.shape.sizes.empty()) unsupported(i, "no attribute 'k', or a scalar");
  const std::int64_t count = parseInteger(*k, file_);
  const std::size_t last = x.shape.sizes.size() - 1;
  if (count < 1 || count > x.shape.sizes[last]) unsupported(i, "'k' that is none of the sizes");
  const auto [values, places] =
      ordered(node(x), last, count, largest == nullptr || largest->value != "false");
  std::vector<int> labels(last + 1);
  std::iota(labels.begin(), labels.end(), 0);
  Shape shape = x.shape, integers = x.shape;
  shape.sizes[last] = integers.sizes[last] = count;
  integers.type = "s32";
  Shape tuple;
  tuple.tuple = true;
  tuple.elements = {shape, integers};
  return tupleValue(std::move(tuple),
                    {nodeValue(shape, values), placesValue(places, integers, labels, 0)});
}

// By one of the operands, which a region compares; the others go along.
Value Lowering::lowerSort(const Frame& frame, const Instruction& i) {
  const Sizes dimensions = dims(i, "dimensions");
  const Computation& region = called(i, "to_apply");
  const Instruction& root = region.instructions[region.root];
  const Attribute* direction = root.attribute("direction");
  std::optional<std::int64_t> left, right;
  if (root.opcode == "compare" && direction != nullptr) {
    left = parameterBehind(region, region.instructions[region.byName.at(root.operands[0].name)]);
    right = parameterBehind(region, region.instructions[region.byName.at(root.operands[1].name)]);
  }
  const bool less = direction != nullptr && direction->value == "LT";
  if (dimensions.size() != 1 || !left || !right || *left / 2 != *right / 2 || *left == *right ||
      (!less && direction->value != "GT"))
    unsupported(i, "a sort by other than one operand, ascending or descending");
  const Attribute* stable = i.attribute("is_stable");
  if (i.operands.size() > 1 && (stable == nullptr || stable->value != "true"))
    unsupported(i, "a sort of several operands that is not stable");
  const std::size_t dim = at(dimensions[0]), key = at(*left / 2);
  const Value& by = operand(frame, i, key);
  if (dim >= by.shape.sizes.size()) unsupported(i, "a dimension that is not there");
  const bool ascending = less == (*left < *right);
  const auto [values, places] = ordered(node(by), dim, by.shape.sizes[dim], !ascending);
  const std::vector<int> labels = backFromLast(by.shape.sizes.size(), dim);
  std::vector<Value> sorted;
  for (std::size_t k = 0; k < i.operands.size(); ++k) {
    const Value& x = operand(frame, i, k);
    if (x.shape.sizes != by.shape.sizes) unsupported(i, "operands of different sizes");
    if (k == key)
      sorted.push_back(nodeValue(x.shape, permute(values, Sizes(labels.begin(), labels.end()))));
    else if (const auto start = countsAlong(x, dim, shared_.scalars))
      sorted.push_back(placesValue(places, x.shape, labels, *start));
    else sorted.push_back(alongPlaces(x, dim, places, labels));
  }
  if (sorted.size() == 1) return sorted[0];
  Shape tuple;
  tuple.tuple = true;
  for (const Value& v : sorted) tuple.elements.push_back(v.shape);
  return tupleValue(std::move(tuple), std::move(sorted));
}

// A region that does nothing but compare its parameters and choose among them sees their order
// only, so that what it does for each order is what it does.
std::optional<bool> Lowering::choosesGreater(const Computation& region) {
  static const std::set<std::string, std::less<>> kOrderOnly{
      "parameter", "compare", "select", "and", "or", "not", "xor", "tuple", "copy"};
  std::vector<const Shape*> own(4, nullptr);
  for (const Instruction& i : region.instructions) {
    if (!kOrderOnly.contains(i.opcode)) return std::nullopt;
    if (i.opcode != "parameter") continue;
    const std::size_t k = static_cast<std::size_t>(std::stoull(i.literal));
    if (k >= own.size()) return std::nullopt;
    own[k] = &i.shape;
  }
  for (std::size_t k = 0; k < 4; ++k)
    if (own[k] == nullptr || !own[k]->sizes.empty() ||
        (k % 2 == 0 ? !isFloat(own[k]->type) : !integerType(own[k]->type)))
      return std::nullopt;
  std::optional<bool> greater;
  Scalars& s = shared_.scalars;
  for (const int first : {0, 1, 2})
    for (const int firstPlace : {0, 1}) {
      const int second = 1, secondPlace = 1 - firstPlace;
      std::vector<Value> arguments;
      for (const auto& [k, n] :
           {std::pair{0, first}, {1, firstPlace}, {2, second}, {3, secondPlace}})
        arguments.push_back(tableValue(*own[at(k)], uniformTable({}, s.rational(n))));
      const Value chosen = lowerComputation(region, arguments, path_ + "/", "");
      if (chosen.elements.size() != 2 || !chosen.elements[0].isUniform() ||
          !chosen.elements[1].isUniform())
        return std::nullopt;
      const auto is = [&](std::size_t k, int n) {
        return s.is(chosen.elements[k].table->values[0], n);
      };
      if (first == second) {
        if (!is(0, first) || !is(1, 0)) return std::nullopt;
        continue;
      }
      const bool takesFirst = is(0, first) && is(1, firstPlace);
      if (!takesFirst && !(is(0, second) && is(1, secondPlace))) return std::nullopt;
      const bool takesGreater = takesFirst == (first > second);
      if (greater && *greater != takesGreater) return std::nullopt;
      greater = takesGreater;
    }
  return greater;
}

// The greatest of a row of which each member of a group has a piece: of each piece it was chosen
// with its place, and is chosen now among these. That is the greatest of the row: of equal ones the
// first piece's was the first of its piece, and of equal ones of several pieces the region takes
// the smaller place, which is the first of all, since the pieces are counted one after the other.
// So it is said as a choice in the whole row, gathered.
std::optional<Value> Lowering::greatestOfPieces(const Instruction& i, const Value& x,
                                                const Value& places, std::size_t dim,
                                                bool greater) {
  const auto withoutOnes = [&](const std::string& name) {
    Sizes sizes = sizesOf(name);
    std::erase(sizes, 1);
    return sizes;
  };
  // Through what only adds or takes away dimensions of size 1.
  const auto behind = [&](std::string name) {
    for (;;) {
      const GraphTensor& t = graph.tensor(name);
      if (!t.kind.empty()) return name;
      const GraphNode& n = graph.nodes()[t.producer];
      if ((n.op != "view" && n.op != "identity") || withoutOnes(n.in[0]) != withoutOnes(name))
        return name;
      name = n.in[0];
    }
  };
  if (x.kind != Value::Kind::kNode || (places.kind != Value::Kind::kNode &&
                                       !(places.isIndex() && startsAnywhere(places.index->pieces))))
    return std::nullopt;
  const auto gathering = [&](const std::string& name) -> const Gathered* {
    const GraphTensor& t = graph.tensor(behind(name));
    const auto found = t.kind.empty() ? gathered_.find(t.producer) : gathered_.end();
    return found == gathered_.end() ? nullptr : &found->second;
  };
  const Gathered *values = gathering(x.name),
                 *numbers = gathering(places.isIndex() ? places.index->base : places.name);
  if (values == nullptr || numbers == nullptr || numbers->places.empty() ||
      values->groups != numbers->groups || values->group != numbers->group)
    return std::nullopt;
  const auto count = static_cast<std::int64_t>(values->members.size());
  // One from each, along the dimension that is chosen along, of both.
  const auto lies = [&](const Gathered& g, const std::string& name) {
    const Sizes& sizes = sizesOf(behind(name));
    if (g.dim >= sizes.size() || sizes[g.dim] != count || x.shape.sizes[dim] != count) return false;
    const auto product = [](const Sizes& s, std::size_t end) {
      std::int64_t n = 1;
      for (std::size_t d = 0; d < end; ++d) n *= s[d];
      return n;
    };
    return product(sizes, g.dim) == product(x.shape.sizes, dim);
  };
  if (!lies(*values, x.name) ||
      !lies(*numbers, places.isIndex() ? places.index->base : places.name))
    return std::nullopt;
  if (places.isIndex() && !keepsOrder(*places.index, places.shape.sizes)) return std::nullopt;
  const std::string value = behind(values->in), place = behind(numbers->places);
  if (!graph.tensor(value).kind.empty() || !graph.tensor(place).kind.empty() ||
      graph.tensor(value).producer != graph.tensor(place).producer)
    return std::nullopt;
  const GraphNode& chosen = graph.nodes()[graph.tensor(value).producer];
  const NodeAttributes expected =
      greater ? NodeAttributes{{"topk", "1"}} : NodeAttributes{{"topk", "1"}, {"largest", "false"}};
  if (chosen.op != "topk" || chosen.attributes != expected || !chosen.ofDevice.empty() ||
      chosen.out[0] != value || chosen.out[1] != place)
    return std::nullopt;
  const std::string piece = chosen.in[0];
  const std::int64_t length = sizesOf(piece).back();
  // Counted one after the other, alike in all groups, as devices of others may share this graph:
  // known when the devices have been gone through.
  const auto& starts = shared_.gatheredStarts[numbers->communication];
  const std::int64_t first = [&] {
    const auto found = starts.find(values->members[0]);
    return found == starts.end() ? 0 : found->second;
  }();
  bool complete = true;
  for (const std::vector<std::int64_t>& group : values->groups) {
    for (std::size_t m = 0; m < group.size(); ++m) {
      const auto found = starts.find(group[m]);
      if (found == starts.end()) complete = false;
      else if (complete && found->second != first + static_cast<std::int64_t>(m) * length)
        return std::nullopt;
    }
  }
  if (!complete) {
    if (shared_.forgetTables) return std::nullopt;
    shared_.communicatedChanged = true;
  }
  NodeAttributes communication{{"comm", quotedJson(values->communication + " rows")}};
  communication.insert(communication.end(), values->group.begin(), values->group.end());
  Sizes whole = sizesOf(piece);
  const std::size_t last = whole.size() - 1;
  whole[last] *= count;
  const std::string rows = graph.communicate("all_gather", piece, {{"dim", std::to_string(last)}},
                                             std::move(communication), whole);
  const auto [greatest, which] = ordered(rows, last, 1, greater);
  Shape shape = x.shape, integers = places.shape;
  shape.sizes.erase(shape.sizes.begin() + static_cast<std::ptrdiff_t>(dim));
  integers.sizes = shape.sizes;
  if (withoutOnes(greatest) != [&] {
        Sizes sizes = shape.sizes;
        std::erase(sizes, 1);
        return sizes;
      }())
    unsupported(i, "a choice of the greatest of pieces that lie otherwise");
  const std::string flat = view(which, shape.sizes);
  sameIntegers(which, flat);
  std::vector<int> labels(shape.sizes.size());
  std::iota(labels.begin(), labels.end(), 0);
  Shape tuple;
  tuple.tuple = true;
  tuple.elements = {shape, integers};
  return tupleValue(std::move(tuple), {nodeValue(shape, view(greatest, shape.sizes)),
                                       placesValue(flat, integers, labels, first)});
}

Value Lowering::lowerGreatest(const Frame& frame, const Instruction& i) {
  const Value &x = operand(frame, i, 0), &places = operand(frame, i, 1),
              &start = operand(frame, i, 2);
  const Sizes reduced = dims(i, "dimensions");
  const auto greater = choosesGreater(called(i, "to_apply"));
  if (!greater || reduced.size() != 1 || at(reduced[0]) >= x.shape.sizes.size() ||
      places.shape.sizes != x.shape.sizes)
    unsupported(i,
                "several operands that are not values and their places, of which the greatest "
                "or the least along one dimension is chosen");
  const std::size_t dim = at(reduced[0]);
  const Scalars& s = shared_.scalars;
  if (!start.isUniform() ||
      start.table->values[0] != (*greater ? s.negativeInfinity() : s.infinity()))
    unsupported(i, "a choice of the greatest that begins with a number");
  const auto from = countsAlong(places, dim, shared_.scalars);
  if (!from) {
    if (auto chosen = greatestOfPieces(i, x, places, dim, *greater)) return *chosen;
    unsupported(i, "a choice of the greatest among places that are not counted");
  }
  const auto [values, chosen] = ordered(node(x), dim, 1, *greater);
  Shape shape = x.shape, integers = places.shape;
  shape.sizes.erase(shape.sizes.begin() + static_cast<std::ptrdiff_t>(dim));
  integers.sizes = shape.sizes;
  const std::string flat = view(chosen, shape.sizes);
  sameIntegers(chosen, flat);
  std::vector<int> labels(shape.sizes.size());
  std::iota(labels.begin(), labels.end(), 0);
  Shape tuple;
  tuple.tuple = true;
  tuple.elements = {shape, integers};
  return tupleValue(std::move(tuple), {nodeValue(shape, view(values, shape.sizes)),
                                       placesValue(flat, integers, labels, *from)});
}

std::optional<Value> Lowering::lowerOrder(Frame& frame, const Instruction& i) {
  if (i.opcode == "topk") return lowerTopK(frame, i);
  if (i.opcode == "sort") return lowerSort(frame, i);
  if (i.opcode == "reduce" && i.operands.size() == 4) return lowerGreatest(frame, i);
  return std::nullopt;
}

}  // namespace shardproof::hlo
