// SPDX-License-Identifier: Apache-2.0
// Single operators of the graph, with what is known of their results.
#include <algorithm>
#include <stdexcept>

#include "reader/hlo/lowering.h"

namespace shardproof::hlo {
namespace {

Known weaker(Known a, Known b) { return std::min(a, b); }

}  // namespace

std::string Lowering::view(const std::string& x, const Sizes& sizes) {
  if (sizesOf(x) == sizes) return x;
  const GraphTensor& t = graph.tensor(x);
  const Known known = t.known;
  std::string y = graph.emit("view", {x}, {{"size", listJson(sizes)}}, sizes, t.integer);
  graph.tensor(y).known = known;
  return y;
}

std::string Lowering::permute(const std::string& x, const Sizes& dims) {
  bool same = true;
  Sizes sizes;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    same = same && dims[d] == static_cast<std::int64_t>(d);
    sizes.push_back(sizesOf(x)[static_cast<std::size_t>(dims[d])]);
  }
  if (same) return x;
  const bool integer = graph.tensor(x).integer;
  std::string y = graph.emit("permute", {x}, {{"dims", listJson(dims)}}, sizes, integer);
  graph.tensor(y).known = graph.tensor(x).known;
  return y;
}

std::string Lowering::expand(const std::string& x, const Sizes& sizes) {
  if (sizesOf(x) == sizes) return x;
  const bool integer = graph.tensor(x).integer;
  std::string y = graph.emit("expand", {x}, {{"size", listJson(sizes)}}, sizes, integer);
  graph.tensor(y).known = graph.tensor(x).known;
  return y;
}

NodeAttributes Lowering::sliceAttributes(std::size_t d, std::int64_t low, std::int64_t high,
                                         std::int64_t stepSize) {
  NodeAttributes attributes{
      {"dim", std::to_string(d)}, {"start", std::to_string(low)}, {"stop", std::to_string(high)}};
  if (stepSize != 1) attributes.emplace_back("step", std::to_string(stepSize));
  return attributes;
}

std::string Lowering::sliceDim(const std::string& x, std::size_t d, std::int64_t low,
                               std::int64_t high, std::int64_t stepSize) {
  Sizes sizes = sizesOf(x);
  if (low == 0 && high == sizes[d] && stepSize == 1) return x;
  sizes[d] = (high - low + stepSize - 1) / stepSize;
  const bool integer = graph.tensor(x).integer;
  std::string y = graph.emit("slice", {x}, sliceAttributes(d, low, high, stepSize), sizes, integer);
  graph.tensor(y).known = graph.tensor(x).known;
  return y;
}

std::string Lowering::cat(const std::vector<std::string>& xs, std::size_t d) {
  if (xs.size() == 1) return xs[0];
  Sizes sizes = sizesOf(xs[0]);
  sizes[d] = 0;
  Known known = Known::kPositive;
  for (const std::string& x : xs) {
    sizes[d] += sizesOf(x)[d];
    known = weaker(known, graph.tensor(x).known);
  }
  std::string y =
      graph.emit("cat", xs, {{"dim", std::to_string(d)}}, sizes, graph.tensor(xs[0]).integer);
  graph.tensor(y).known = known;
  return y;
}

std::string Lowering::padDim(const std::string& x, std::size_t d, std::int64_t low,
                             std::int64_t high) {
  if (low < 0 || high < 0) {
    const std::int64_t from = std::max<std::int64_t>(-low, 0);
    const std::int64_t to = sizesOf(x)[d] - std::max<std::int64_t>(-high, 0);
    return padDim(sliceDim(x, d, from, to), d, std::max<std::int64_t>(low, 0),
                  std::max<std::int64_t>(high, 0));
  }
  if (low == 0 && high == 0) return x;
  Sizes sizes = sizesOf(x), pairs(2 * (sizes.size() - d), 0);
  sizes[d] += low + high;
  pairs[pairs.size() - 2] = low;
  pairs[pairs.size() - 1] = high;
  std::string y = graph.emit("pad", {x}, {{"pad", listJson(pairs)}}, sizes);
  graph.tensor(y).known = weaker(graph.tensor(x).known, Known::kNotNegative);
  return y;
}

std::string Lowering::binary(const std::string& op, const std::string& x, const std::string& y,
                             const Sizes& sizes) {
  std::string z = graph.emit(op, {x, y}, {}, sizes);
  const Known a = graph.tensor(x).known, b = graph.tensor(y).known;
  Known& known = graph.tensor(z).known;
  if (op == "add" && weaker(a, b) != Known::kNothing) known = std::max(a, b);
  if (op == "mul") known = weaker(a, b);
  if (op == "mul" && x == y) known = std::max(known, Known::kNotNegative);
  if (op == "div") known = weaker(a, b);
  return z;
}

std::string Lowering::scalarOp(const std::string& op, const std::string& x,
                               const Rational& scalar) {
  const std::string text = decimalJson(scalar);
  const Sizes sizes = sizesOf(x);
  if (text.empty()) return binary(op, x, rationalNode(scalar, {}), sizes);
  std::string y = graph.emit(op, {x}, {{"scalar", text}}, sizes);
  const Known known = graph.tensor(x).known;
  if (scalar.sign() >= 0 && op == "add" && known != Known::kNothing)
    graph.tensor(y).known = scalar.sign() > 0 ? Known::kPositive : known;
  if (scalar.sign() > 0 && (op == "mul" || op == "div")) graph.tensor(y).known = known;
  return y;
}

std::string Lowering::oneMinus(const std::string& x) {
  const Sizes sizes = sizesOf(x);
  return scalarOp("add", graph.emit("neg", {x}, {}, sizes), Rational(1));
}

// The derivative of relu is the step from 0 to 1.
std::string Lowering::step(const std::string& x) {
  const Sizes sizes = sizesOf(x);
  const std::string ones = graph.constant(sizes, false, "1", Known::kPositive);
  std::string y = graph.emit("relu_backward", {ones, x}, {}, sizes);
  graph.tensor(y).known = Known::kNotNegative;
  return y;
}

std::string Lowering::extremum(bool maximum, const std::string& x, const std::string& y) {
  const Sizes sizes = sizesOf(x);
  Sizes one = sizes;
  one.insert(one.begin(), 1);
  const Known a = graph.tensor(x).known, b = graph.tensor(y).known;
  const std::string both = cat({view(x, one), view(y, one)}, 0);
  const GraphTensor first = graph.tensor(x), second = graph.tensor(y);
  std::string z = graph.emit(maximum ? "amax" : "amin", {both}, {{"dim", "0"}}, sizes);
  GraphTensor& made = graph.tensor(z);
  made.known = maximum ? std::max(a, b) : weaker(a, b);
  const auto chosen = [&](double k, double l) { return maximum ? std::max(k, l) : std::min(k, l); };
  made.least = chosen(first.least, second.least);
  made.greatest = chosen(first.greatest, second.greatest);
  return z;
}

std::string Lowering::either(const std::string& condition, const std::string& yes,
                             const std::string& no, const Sizes& sizes) {
  const std::string c = expand(condition, sizes), a = expand(yes, sizes), b = expand(no, sizes);
  return graph.emit("where", {c, a, b}, {}, sizes);
}

bool Lowering::isValued(const std::string& x) const {
  return graph.tensor(x).definedness == Definedness::kNumber;
}

std::string Lowering::onlyIf(const std::string& condition, const std::string& x,
                             const Sizes& sizes) {
  if (isValued(x)) return binary("mul", condition, x, sizes);
  return either(condition, x, rationalNode(Rational(), sizes), sizes);
}

std::string Lowering::unless(const std::string& condition, const std::string& x,
                             const Sizes& sizes) {
  if (isValued(x)) return binary("mul", x, oneMinus(condition), sizes);
  return either(condition, rationalNode(Rational(), sizes), x, sizes);
}

// What is not taken need not have a value: a product with 0 would leave the inputs out on which it
// has none, and nothing would be said of them.
std::string Lowering::taken(const std::vector<std::string>& operands, const std::string& equation,
                            const Sizes& sizes) {
  const std::string& x = operands.back();
  if (isValued(x))
    return graph.emit("einsum", operands, {{"equation", quotedJson(equation)}}, sizes);
  const auto [condition, value] = spread(operands, equation);
  Sizes whole = sizesOf(value);
  std::string y = onlyIf(condition, value, whole);
  while (whole.size() > sizes.size()) {
    whole.pop_back();
    y = graph.emit("sum", {y}, {{"dim", std::to_string(whole.size())}}, whole);
  }
  return y;
}

std::pair<std::string, std::string> Lowering::spread(const std::vector<std::string>& operands,
                                                     const std::string& equation) {
  const std::size_t arrow = equation.find("->");
  std::string all = equation.substr(arrow + 2);
  std::vector<std::string> own(1);
  std::map<char, std::int64_t> extent;
  for (const char c : equation.substr(0, arrow)) {
    if (c == ',') {
      own.emplace_back();
      continue;
    }
    extent[c] = sizesOf(operands.at(own.size() - 1)).at(own.back().size());
    own.back() += c;
    if (all.find(c) == std::string::npos) all += c;
  }
  Sizes whole;
  for (const char c : all) whole.push_back(extent.at(c));
  const auto wide = [&](std::size_t k) {
    std::vector<int> to;
    for (const char c : all) to.push_back(own[k].find(c) == std::string::npos ? -1 : c);
    return arrange(operands[k], {own[k].begin(), own[k].end()}, to, whole);
  };
  std::string condition = wide(0);
  for (std::size_t k = 1; k + 1 < operands.size(); ++k)
    condition = binary("mul", condition, wide(k), whole);
  return {condition, wide(operands.size() - 1)};
}

std::string Lowering::arrange(const std::string& name, const std::vector<int>& from,
                              const std::vector<int>& to, const Sizes& sizes) {
  const auto placeIn = [](const std::vector<int>& list, int label) {
    return std::find(list.begin(), list.end(), label) - list.begin();
  };
  // Dimensions that nothing asks for have size 1.
  Sizes kept;
  std::vector<int> labels;
  for (std::size_t d = 0; d < from.size(); ++d) {
    if (placeIn(to, from[d]) == static_cast<std::ptrdiff_t>(to.size())) {
      if (sizesOf(name)[d] != 1) throw std::logic_error("a dimension is lost");
      continue;
    }
    kept.push_back(sizesOf(name)[d]);
    labels.push_back(from[d]);
  }
  std::string x = view(name, kept);
  Sizes order, ones;
  for (std::size_t d = 0; d < to.size(); ++d) {
    if (to[d] >= 0) order.push_back(placeIn(labels, to[d]));
  }
  x = permute(x, order);
  std::size_t next = 0;
  for (const int label : to) ones.push_back(label >= 0 ? sizesOf(x)[next++] : 1);
  return expand(view(x, ones), sizes);
}

}  // namespace shardproof::hlo
