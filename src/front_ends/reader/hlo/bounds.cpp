// SPDX-License-Identifier: Apache-2.0
// Between which numbers the elements of a tensor lie, by the operator that makes them. It shows
// that sums and products of integers fit their types. Doubles: integers of 32 bits and their sums
// are exact, what is larger is too large anyway.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "reader/hlo/graph.h"

namespace shardproof::hlo {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Bounds {
  double least = -kInfinity, greatest = kInfinity;
};

double product(double x, double y) { return x == 0 || y == 0 ? 0 : x * y; }

Bounds operator*(const Bounds& x, const Bounds& y) {
  const double all[] = {product(x.least, y.least), product(x.least, y.greatest),
                        product(x.greatest, y.least), product(x.greatest, y.greatest)};
  return {*std::min_element(std::begin(all), std::end(all)),
          *std::max_element(std::begin(all), std::end(all))};
}

Bounds operator+(const Bounds& x, const Bounds& y) {
  return {x.least + y.least, x.greatest + y.greatest};
}

Bounds operator-(const Bounds& x) { return {-x.greatest, -x.least}; }

Bounds either(const Bounds& x, const Bounds& y) {
  return {std::min(x.least, y.least), std::max(x.greatest, y.greatest)};
}

// How many products are added to one element of an einsum's result.
double summedBy(const std::string& equation, const std::vector<Sizes>& sizes) {
  const std::size_t arrow = equation.find("->");
  if (arrow == std::string::npos) return kInfinity;
  const std::string result = equation.substr(arrow + 2);
  std::map<char, std::int64_t> extent;
  std::size_t operand = 0, d = 0;
  for (const char c : equation.substr(equation.find_first_not_of('"'), arrow)) {
    if (c == '-') break;
    if (c == ',') {
      ++operand;
      d = 0;
      continue;
    }
    if (operand >= sizes.size() || d >= sizes[operand].size()) return kInfinity;
    extent[c] = sizes[operand][d++];
  }
  double count = 1;
  for (const auto& [letter, size] : extent)
    if (result.find(letter) == std::string::npos) count *= static_cast<double>(size);
  return count;
}

double elements(const Sizes& sizes) {
  double n = 1;
  for (const std::int64_t s : sizes) n *= static_cast<double>(s);
  return n;
}

}  // namespace

std::pair<double, double> boundsOfNumbers(const std::string& json) {
  Bounds bounds{kInfinity, -kInfinity};
  const char* at = json.c_str();
  while (*at != '\0') {
    if (*at == '[' || *at == ']' || *at == ',' || std::isspace(static_cast<unsigned char>(*at))) {
      ++at;
      continue;
    }
    char* end = nullptr;
    const double number = std::strtod(at, &end);
    if (end == at || !std::isfinite(number)) return {-kInfinity, kInfinity};
    bounds = either(bounds, {number, number});
    at = end;
  }
  return bounds.least <= bounds.greatest ? std::pair(bounds.least, bounds.greatest)
                                         : std::pair(-kInfinity, kInfinity);
}

void Graph::bound(const GraphNode& node, GraphTensor& made) const {
  if (!node.communication.empty()) return;
  const std::string& op = node.op;
  const auto of = [&](std::size_t k) {
    const GraphTensor& t = tensor(node.in[k]);
    return Bounds{t.least, t.greatest};
  };
  const auto attribute = [&](const char* name) -> const std::string* {
    for (const auto& [key, value] : node.attributes)
      if (key == name) return &value;
    return nullptr;
  };
  const std::string* scalar = attribute("scalar");
  const auto second = [&] {
    if (scalar == nullptr) return of(1);
    const auto [least, greatest] = boundsOfNumbers(*scalar);
    return Bounds{least, greatest};
  };
  Bounds result;
  if ((traitsOf(op).picks && op != "where") || op == "pad" || op == "embedding") {
    if (op == "embedding") {
      result = either({0, 0}, of(1));
    } else {
      result = of(0);
      for (std::size_t k = 1; k < node.in.size(); ++k) result = either(result, of(k));
      if (op == "pad") result = either(result, {0, 0});
    }
  } else if (op == "add") {
    result = of(0) + second();
  } else if (op == "sub") {
    result = of(0) + -second();
  } else if (op == "mul") {
    result = of(0) * second();
    if (scalar == nullptr && node.in[0] == node.in[1]) result.least = std::max(result.least, 0.0);
  } else if (op == "neg") {
    result = -of(0);
  } else if (op == "where") {
    result = either(of(1), of(2));
  } else if (op == "relu_backward") {
    result = either({0, 0}, of(0));
  } else if (op == "one_hot") {
    result = {0, 1};
  } else if (op == "sum") {
    const double count = elements(tensor(node.in[0]).sizes) / elements(made.sizes);
    result = of(0) * Bounds{count, count};
  } else if (op == "einsum") {
    std::vector<Sizes> sizes;
    result = {1, 1};
    for (std::size_t k = 0; k < node.in.size(); ++k) {
      sizes.push_back(tensor(node.in[k]).sizes);
      result = result * of(k);
    }
    const std::string* equation = attribute("equation");
    const double count = equation == nullptr ? kInfinity : summedBy(*equation, sizes);
    result = result * Bounds{count, count};
  } else if (op == "trunc" || op == "floor" || op == "ceil" || op == "round") {
    result = {std::floor(of(0).least), std::ceil(of(0).greatest)};
  }
  if (std::isnan(result.least) || std::isnan(result.greatest)) return;
  made.least = result.least;
  made.greatest = result.greatest;
}

}  // namespace shardproof::hlo
