// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/approximate.h"

#include <cmath>
#include <limits>
#include <string>

namespace shardproof::hlo {
namespace {

// A function of the C library may be wrong by more than half a unit in the last place.
constexpr long double kUnit = 4 * std::numeric_limits<long double>::epsilon();

// And what is as small as this may be nothing.
constexpr long double kLeast = std::numeric_limits<long double>::min();

// Not finite where one of the two integers is too large.
long double wide(const Rational& value) {
  const long double above = std::strtold(value.numeratorString().c_str(), nullptr),
                    below = std::strtold(value.denominatorString().c_str(), nullptr);
  return std::isfinite(below) ? above / below : std::numeric_limits<long double>::infinity();
}

}  // namespace

std::optional<Approximation> Approximations::of(ScalarId id) { return narrowed(compute(id)); }

std::optional<Approximation> Approximations::narrowed(const std::optional<Wide>& x) {
  if (!x) return std::nullopt;
  const auto value = static_cast<double>(x->value);
  // Of what is exact, such as 0, there is none.
  const long double wide = x->error + std::abs(x->value - value);
  const double error =
      wide == 0 ? 0 : static_cast<double>(wide) + std::numeric_limits<double>::min();
  if (!std::isfinite(value) || !std::isfinite(error)) return std::nullopt;
  return Approximation{value, error};
}

std::optional<std::vector<Approximation>> Approximations::of(const Value& formula) {
  const std::vector<std::int64_t>& sizes = formula.shape.sizes;
  std::int64_t count = 1;
  for (const std::int64_t n : sizes) {
    if (count > kMostTableValues / n) return std::nullopt;
    count *= n;
  }
  std::vector<Approximation> all;
  all.reserve(static_cast<std::size_t>(count));
  std::vector<std::int64_t> index(sizes.size(), 0);
  for (std::int64_t k = 0; k < count; ++k) {
    const auto x = narrowed(at(formula, index));
    if (!x) return std::nullopt;
    all.push_back(*x);
    for (std::size_t d = sizes.size(); d-- > 0;) {
      if (++index[d] < sizes[d]) break;
      index[d] = 0;
    }
  }
  return all;
}

std::optional<Approximations::Wide> Approximations::at(const Value& known,
                                                       const std::vector<std::int64_t>& index) {
  if (known.isTable()) {
    const ScalarId id = known.table->value(index);
    return scalars_.isSymbolic(id) ? std::nullopt : compute(id);
  }
  const Formula& f = *known.formula;
  std::vector<Wide> x;
  for (const Value& operand : f.operands) {
    const auto value = at(operand, index);
    if (!value) return std::nullopt;
    x.push_back(*value);
  }
  std::optional<Wide> result;
  const bool floats = isFloat(f.type) && (f.opcode != "convert" || isFloat(f.direction));
  if (floats && f.opcode == "convert") return x[0];
  if (floats && x.size() == 1) result = unary(f.opcode, x[0]);
  if (floats && x.size() == 2) result = binary(f.opcode, x[0], x[1]);
  if (!result || !std::isfinite(result->value) || !std::isfinite(result->error))
    return std::nullopt;
  result->error += kUnit * std::abs(result->value) + kLeast;
  return result;
}

std::optional<Approximations::Wide> Approximations::compute(ScalarId id) {
  if (scalars_.isRational(id)) {
    const long double value = wide(scalars_.value(id));
    if (!std::isfinite(value)) return std::nullopt;
    return Wide{value, scalars_.value(id).isZero() ? 0 : kUnit * std::abs(value) + kLeast};
  }
  if (scalars_.kind(id) != ScalarKind::kExpression) return std::nullopt;
  if (const auto known = known_.find(id); known != known_.end()) return known->second;
  std::vector<Wide> x;
  bool all = true;
  for (const ScalarId argument : scalars_.arguments(id)) {
    const auto value = compute(argument);
    all = all && value;
    x.push_back(value.value_or(Wide{}));
  }
  std::optional<Wide> result;
  if (all && x.size() == 1) result = unary(scalars_.operation(id), x[0]);
  if (all && x.size() == 2) result = binary(scalars_.operation(id), x[0], x[1]);
  if (result && (!std::isfinite(result->value) || !std::isfinite(result->error)))
    result = std::nullopt;
  if (result) result->error += kUnit * std::abs(result->value) + kLeast;
  known_.emplace(id, result);
  return result;
}

// The error of the argument times a bound of the slope between there and the true argument.
std::optional<Approximations::Wide> Approximations::unary(const std::string& op,
                                                          const Wide& x) const {
  const long double v = x.value, e = x.error, low = v - e, high = v + e;
  const long double size = std::max(std::abs(low), std::abs(high));
  if (op == "negate") return Wide{-v, e};
  if (op == "abs") return Wide{std::abs(v), e};
  if (op == "sine") return Wide{std::sin(v), e};
  if (op == "cosine") return Wide{std::cos(v), e};
  if (op == "erf") return Wide{std::erf(v), 1.2L * e};  // a slope of 2 / sqrt(pi) at most
  if (op == "tanh") return Wide{std::tanh(v), e};
  if (op == "logistic") return Wide{1 / (1 + std::exp(-v)), e};
  if (op == "exponential") return Wide{std::exp(v), std::exp(high) * e};
  if (op == "exponential-minus-one") return Wide{std::expm1(v), std::exp(high) * e};
  if (op == "log" && low > 0) return Wide{std::log(v), e / low};
  if (op == "log-plus-one" && low > -1) return Wide{std::log1p(v), e / (1 + low)};
  if (op == "sqrt" && low > 0) return Wide{std::sqrt(v), e / std::sqrt(low)};
  if (op == "rsqrt" && low > 0) return Wide{1 / std::sqrt(v), e / (low * std::sqrt(low))};
  if (op == "cbrt" && low * high > 0)
    return Wide{std::cbrt(v), e / std::pow(std::min(std::abs(low), std::abs(high)), 2 / 3.0L)};
  if (op == "sign" && low * high > 0) return Wide{v > 0 ? 1.0L : -1.0L, 0};
  if ((op == "floor" || op == "ceil") && size < 0x1p62L) {
    const auto round = [&](long double y) { return op == "floor" ? std::floor(y) : std::ceil(y); };
    if (round(low) == round(high)) return Wide{round(v), 0};
  }
  return std::nullopt;
}

std::optional<Approximations::Wide> Approximations::binary(const std::string& op, const Wide& x,
                                                           const Wide& y) const {
  const long double a = x.value, b = y.value;
  if (op == "add") return Wide{a + b, x.error + y.error};
  if (op == "subtract") return Wide{a - b, x.error + y.error};
  if (op == "multiply")
    return Wide{a * b, x.error * (std::abs(b) + y.error) + y.error * std::abs(a)};
  if (op == "divide") {
    const long double least = std::abs(b) - y.error;
    if (least <= 0) return std::nullopt;
    return Wide{a / b, (x.error + std::abs(a / b) * y.error) / least};
  }
  if (op == "maximum") return Wide{std::max(a, b), std::max(x.error, y.error)};
  if (op == "minimum") return Wide{std::min(a, b), std::max(x.error, y.error)};
  if (op == "power") {
    const auto logarithm = unary("log", x);
    if (!logarithm) return std::nullopt;
    Wide rounded = *logarithm;
    rounded.error += kUnit * std::abs(rounded.value);
    const auto product = binary("multiply", rounded, y);
    return unary("exponential",
                 {product->value, product->error + kUnit * std::abs(product->value)});
  }
  return std::nullopt;
}

}  // namespace shardproof::hlo
