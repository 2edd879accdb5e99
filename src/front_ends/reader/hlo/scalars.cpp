// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/scalars.h"

#include <gmpxx.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "reader/hlo/approximate.h"

namespace shardproof::hlo {
namespace {

[[noreturn]] void refuse(std::string_view opcode, std::string_view why) {
  throw std::invalid_argument(std::string(opcode) +
                              " of numbers that are known: " + std::string(why));
}

mpz_class integerOf(const Rational& value) {
  const mpq_class q = value.toMpq();
  mpz_class n;
  mpz_tdiv_q(n.get_mpz_t(), q.get_num_mpz_t(), q.get_den_mpz_t());  // towards zero, as convert does
  return n;
}

Rational rationalOf(const mpz_class& n) { return Rational(mpq_class(n)); }

std::optional<Rational> exactRoot(const Rational& value) {
  if (value.sign() < 0) return std::nullopt;
  const mpq_class q = value.toMpq();
  if (!mpz_perfect_square_p(q.get_num_mpz_t()) || !mpz_perfect_square_p(q.get_den_mpz_t()))
    return std::nullopt;
  return Rational(mpq_class(sqrt(q.get_num()), sqrt(q.get_den())));
}

// A decimal of so few digits that it is not what rounding left: a person wrote it.
bool isShort(const std::string& text, int bits) {
  if (bits < 24) return false;
  int digits = 0;
  for (const char c : text.substr(0, text.find_first_of("eE"))) {
    if (c >= '1' && c <= '9') ++digits;
    else if (c == '0' && digits > 0) ++digits;
  }
  return digits <= (bits == 24 ? 6 : 15);
}

// The lowest 64 bits of an integer, in two's complement.
std::uint64_t bitsOf(const Rational& value) {
  mpz_class n = integerOf(value), size = 1;
  size <<= 64;
  mpz_fdiv_r(n.get_mpz_t(), n.get_mpz_t(), size.get_mpz_t());
  return std::uint64_t{n.get_ui()};
}

// Random numbers can be followed bit by bit in small models only.
constexpr std::size_t kMostSymbolics = 1'000'000;

}  // namespace

std::optional<IntegerType> integerType(std::string_view type) {
  if (type.size() < 2 || (type[0] != 's' && type[0] != 'u')) return std::nullopt;
  int bits = 0;
  for (const char c : type.substr(1)) {
    if (c < '0' || c > '9' || bits > 64) return std::nullopt;
    bits = bits * 10 + (c - '0');
  }
  if (bits < 2 || bits > 64) return std::nullopt;
  return IntegerType{bits, type[0] == 's'};
}

int significandBits(std::string_view type) {
  if (type == "f64") return 53;
  if (type == "f32") return 24;
  if (type == "f16") return 11;
  if (type == "bf16") return 8;
  if (type.starts_with("f8e4m3")) return 4;
  if (type.starts_with("f8e5m2")) return 3;
  return 0;
}

bool isUnsigned(std::string_view type) {
  const auto t = integerType(type);
  return t && !t->isSigned;
}

bool isFloat(std::string_view type) { return significandBits(type) != 0; }

Scalars::Scalars() {
  entries_.push_back({ScalarKind::kInfinity, {}, {}, {}, false});
  entries_.push_back({ScalarKind::kNegativeInfinity, {}, {}, {}, false});
  entries_.push_back({ScalarKind::kNan, {}, {}, {}, false});
}

ScalarId Scalars::rational(const Rational& value) {
  const auto [it, added] =
      rationals_.emplace(value.toString(), static_cast<ScalarId>(entries_.size()));
  if (added) entries_.push_back({ScalarKind::kRational, value, {}, {}, false});
  return it->second;
}

ScalarId Scalars::expression(const std::string& operation, std::span<const ScalarId> arguments) {
  std::vector<ScalarId> list(arguments.begin(), arguments.end());
  const auto [it, added] =
      expressions_.emplace(std::pair{operation, list}, static_cast<ScalarId>(entries_.size()));
  if (added) entries_.push_back({ScalarKind::kExpression, {}, operation, std::move(list), false});
  return it->second;
}

bool Scalars::is(ScalarId id, std::int64_t n) const {
  return isRational(id) && value(id) == Rational(n);
}

ScalarId Scalars::parse(const std::string& text, std::string_view type, bool exact) {
  if (text == "true" || text == "false") {
    if (type != "pred") throw std::invalid_argument("found " + text + ", expected a number");
    return rational(text == "true" ? 1 : 0);
  }
  const int bits = significandBits(type);
  if (bits != 0) {
    if (text == "inf" || text == "+inf") return infinity();
    if (text == "-inf") return negativeInfinity();
    if (text.starts_with("nan") || text.starts_with("-nan")) return nan();
  }
  Rational value;
  try {
    value = Rational::parse(text);
  } catch (const std::exception&) {
    throw std::invalid_argument("found '" + text + "', expected a number of type " +
                                std::string(type));
  }
  if (bits != 0)
    return rational(exact || isShort(text, bits) ? value : simplestRounding(value, bits));
  if (type == "pred" && (value.isZero() || value.isOne())) return rational(value);
  const auto integer = integerType(type);
  if (!integer || !value.isInteger())
    throw std::invalid_argument("found '" + text + "', expected a number of type " +
                                std::string(type));
  return wrap(value, *integer);
}

ScalarId Scalars::wrap(const Rational& value, const IntegerType& type) {
  mpz_class n = integerOf(value);
  mpz_class size = 1;
  size <<= static_cast<unsigned long>(type.bits);
  mpz_fdiv_r(n.get_mpz_t(), n.get_mpz_t(), size.get_mpz_t());
  if (type.isSigned && 2 * n >= size) n -= size;
  return rational(rationalOf(n));
}

// The order of two numbers where it is known.
std::optional<int> Scalars::compare(ScalarId a, ScalarId b) const {
  if (kind(a) == ScalarKind::kNan || kind(b) == ScalarKind::kNan) return std::nullopt;
  if (a == b) return 0;
  const auto rank = [&](ScalarId id) {
    return kind(id) == ScalarKind::kInfinity           ? 1
           : kind(id) == ScalarKind::kNegativeInfinity ? -1
                                                       : 0;
  };
  if (rank(a) != rank(b)) return rank(a) < rank(b) ? -1 : 1;
  if (isRational(a) && isRational(b)) return value(a) < value(b) ? -1 : 1;
  Approximations approximations(*this);
  const auto x = approximations.of(a), y = approximations.of(b);
  if (!x || !y || std::abs(x->value - y->value) <= 2 * (x->error + y->error)) return std::nullopt;
  return x->value < y->value ? -1 : 1;
}

// Operations on rationals whose result is one.
std::optional<ScalarId> Scalars::exact(std::string_view opcode, std::span<const ScalarId> x) {
  for (const ScalarId id : x)
    if (!isRational(id)) return std::nullopt;
  const Rational& a = value(x[0]);
  if (opcode == "negate") return rational(-a);
  if (opcode == "abs") return rational(a.sign() < 0 ? -a : a);
  if (opcode == "sign") return rational(a.sign());
  if (opcode == "floor" || opcode == "ceil") {
    const mpq_class q = a.toMpq();
    mpz_class n;
    if (opcode == "floor") mpz_fdiv_q(n.get_mpz_t(), q.get_num_mpz_t(), q.get_den_mpz_t());
    else mpz_cdiv_q(n.get_mpz_t(), q.get_num_mpz_t(), q.get_den_mpz_t());
    return rational(rationalOf(n));
  }
  if (opcode == "is-finite") return rational(1);
  if (opcode == "exponential" && a.isZero()) return rational(1);
  if (opcode == "log" && a.isOne()) return rational(0);
  if ((opcode == "sine" || opcode == "tanh") && a.isZero()) return rational(0);
  if (opcode == "cosine" && a.isZero()) return rational(1);
  if (opcode == "sqrt" || opcode == "rsqrt") {
    const auto root = exactRoot(a);
    if (!root || (opcode == "rsqrt" && root->isZero())) return std::nullopt;
    return rational(opcode == "sqrt" ? *root : root->inverse());
  }
  if (x.size() < 2) return std::nullopt;
  const Rational& b = value(x[1]);
  if (opcode == "add") return rational(a + b);
  if (opcode == "subtract") return rational(a - b);
  if (opcode == "multiply") return rational(a * b);
  if (opcode == "divide" && !b.isZero()) return rational(a / b);
  if (opcode == "power") {
    if (b.isZero()) return rational(1);
    const Rational twice = b * Rational(2);
    if (!twice.fitsInt64() || twice.toInt64() > 2000 || twice.toInt64() < -2000)
      return std::nullopt;
    if (a.isZero()) return b.sign() > 0 ? std::optional(rational(0)) : std::nullopt;
    if (b.isInteger()) return rational(a.pow(b.toInt64()));
    const auto root = exactRoot(a);
    return root ? std::optional(rational(root->pow(twice.toInt64()))) : std::nullopt;
  }
  return std::nullopt;
}

// What infinities make of it, where that is certain.
std::optional<ScalarId> Scalars::withInfinity(std::string_view opcode,
                                              std::span<const ScalarId> x) {
  const auto infinite = [&](ScalarId id) { return id == infinity() || id == negativeInfinity(); };
  const auto opposite = [&](ScalarId id) {
    return id == infinity() ? negativeInfinity() : infinity();
  };
  for (const ScalarId id : x)
    if (id == nan()) return opcode == "is-finite" ? rational(0) : nan();
  if (x.size() == 1) {
    if (!infinite(x[0])) return std::nullopt;
    if (opcode == "negate") return opposite(x[0]);
    if (opcode == "abs") return infinity();
    if (opcode == "is-finite") return rational(0);
    if (opcode == "exponential" && x[0] == negativeInfinity()) return rational(0);
    return nan();
  }
  if (!infinite(x[0]) && !infinite(x[1])) return std::nullopt;
  if (opcode == "add" || opcode == "subtract") {
    const ScalarId second = opcode == "add" || !infinite(x[1]) ? x[1] : opposite(x[1]);
    if (infinite(x[0]) && infinite(second)) return x[0] == second ? x[0] : nan();
    return infinite(x[0]) ? x[0] : second;
  }
  if (opcode == "multiply" || opcode == "divide") {
    const ScalarId other = infinite(x[0]) ? x[1] : x[0];
    if (opcode == "divide" && !infinite(x[0])) return rational(0);
    if (!isRational(other) || value(other).isZero()) return nan();
    const ScalarId first = infinite(x[0]) ? x[0] : x[1];
    return value(other).sign() > 0 ? first : opposite(first);
  }
  return nan();
}

// A number that is no rational with 0 or 1. A product with 0 is 0 where the other is a number.
std::optional<ScalarId> Scalars::withUnit(std::string_view opcode, std::span<const ScalarId> x) {
  if (x.size() != 2) return std::nullopt;
  const bool commutes = opcode == "add" || opcode == "multiply";
  const std::int64_t unit = opcode == "multiply" || opcode == "divide" ? 1 : 0;
  if (commutes || opcode == "subtract" || opcode == "divide") {
    if (is(x[1], unit)) return x[0];
    if (commutes && is(x[0], unit)) return x[1];
  }
  if (opcode != "multiply" || (!is(x[0], 0) && !is(x[1], 0))) return std::nullopt;
  if (!Approximations(*this).of(is(x[0], 0) ? x[1] : x[0])) return std::nullopt;
  return rational(0);
}

ScalarId Scalars::bitwise(std::string_view opcode, const IntegerType& type,
                          std::span<const ScalarId> x) {
  const std::uint64_t mask =
      type.bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << type.bits) - 1;
  const auto bits = [&](ScalarId id) { return bitsOf(value(id)) & mask; };
  const std::uint64_t a = bits(x[0]), b = x.size() > 1 ? bits(x[1]) : 0;
  std::uint64_t r = 0;
  const auto width = static_cast<std::uint64_t>(type.bits);
  if (opcode == "and") r = a & b;
  else if (opcode == "or") r = a | b;
  else if (opcode == "xor") r = a ^ b;
  else if (opcode == "not") r = ~a;
  else if (opcode == "shift-left") r = b >= width ? 0 : a << b;
  else if (opcode == "shift-right-logical") r = b >= width ? 0 : a >> b;
  else refuse(opcode, "not supported");
  mpz_class n;
  mpz_import(n.get_mpz_t(), 1, 1, sizeof r, 0, 0, &(r &= mask));
  return wrap(rationalOf(n), type);
}

ScalarId Scalars::apply(std::string_view opcode, std::string_view direction, std::string_view type,
                        std::span<const ScalarId> x) {
  const bool chosen = opcode == "select" && isRational(x[0]);
  if (!chosen && std::any_of(x.begin(), x.end(), [&](ScalarId id) { return isSymbolic(id); }))
    return symbolic(opcode, direction, type, x);
  if (opcode == "select") {
    if (!isRational(x[0])) refuse(opcode, "the condition is not known");
    return value(x[0]).isZero() ? x[2] : x[1];
  }
  if (opcode == "compare") {
    const auto order = compare(x[0], x[1]);
    const bool unordered = x[0] == nan() || x[1] == nan();
    if (!order && !unordered) refuse(opcode, "which is greater is not known exactly");
    bool yes = false;
    if (direction == "EQ") yes = order == 0;
    else if (direction == "NE") yes = order != 0;
    else if (direction == "LT") yes = order && *order < 0;
    else if (direction == "LE") yes = order && *order <= 0;
    else if (direction == "GT") yes = order && *order > 0;
    else if (direction == "GE") yes = order && *order >= 0;
    else refuse(opcode, "unknown direction");
    return rational(yes ? 1 : 0);
  }
  if (opcode == "maximum" || opcode == "minimum") {
    if (x[0] == nan() || x[1] == nan()) return nan();
    if (const auto order = compare(x[0], x[1]))
      return (*order < 0) == (opcode == "maximum") ? x[1] : x[0];
    return expression(std::string(opcode), x);
  }
  if (opcode == "clamp") {
    const ScalarId low[] = {x[0], x[1]};
    const ScalarId high[] = {apply("maximum", {}, type, low), x[2]};
    return apply("minimum", {}, type, high);
  }
  const auto integer = integerType(type);
  if (type == "pred" || integer) {
    const IntegerType t = integer ? *integer : IntegerType{1, false};
    for (const ScalarId id : x)
      if (!isRational(id)) refuse(opcode, "not an integer");
    if (opcode == "divide" || opcode == "remainder") {
      const mpz_class a = integerOf(value(x[0])), b = integerOf(value(x[1]));
      if (b == 0) refuse(opcode, "by zero");
      mpz_class q, r;
      mpz_tdiv_qr(q.get_mpz_t(), r.get_mpz_t(), a.get_mpz_t(), b.get_mpz_t());
      return wrap(rationalOf(opcode == "divide" ? q : r), t);
    }
    if (opcode == "add" || opcode == "subtract" || opcode == "multiply" || opcode == "negate" ||
        opcode == "abs" || opcode == "sign" || opcode == "power") {
      if (type == "pred" && opcode == "add") return bitwise("or", t, x);
      if (type == "pred" && opcode == "multiply") return bitwise("and", t, x);
      const auto result = exact(opcode, x);
      if (!result || !value(*result).isInteger()) refuse(opcode, "no integer");
      return wrap(value(*result), t);
    }
    return bitwise(opcode, t, x);
  }
  if (const auto result = exact(opcode, x)) return *result;
  if (const auto result = withInfinity(opcode, x)) return *result;
  if (const auto result = withUnit(opcode, x)) return *result;
  return expression(std::string(opcode), x);
}

ScalarId Scalars::convert(ScalarId id, std::string_view from, std::string_view to) {
  if (from == to || (isFloat(from) && isFloat(to))) return id;
  if (isSymbolic(id)) return symbolic("convert", from, to, std::array{id});
  if (!isRational(id)) refuse("convert", "not a rational number");
  if (to == "pred") return rational(value(id).isZero() ? 0 : 1);
  if (const auto t = integerType(to)) return wrap(value(id), *t);
  if (isFloat(to)) return id;
  refuse("convert", "to this type");
}

ScalarId Scalars::bitcast(ScalarId id, std::string_view from, std::string_view to) {
  const auto width = [](std::string_view type) {
    const auto integer = integerType(type);
    return integer ? integer->bits : type == "f32" ? 32 : type == "f64" ? 64 : 0;
  };
  if (width(from) == 0 || width(from) != width(to))
    refuse("bitcast-convert", "supported between integers and numbers of the same width only");
  if (!integerType(from)) {
    // What the type has exactly: another number stands for a rounded one, of which the bits depend
    // on how it was computed.
    if (!integerType(to) || kind(id) == ScalarKind::kExpression)
      refuse("bitcast-convert", "the bits of a number that is no rational");
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double number = isRational(id)     ? value(id).toDouble()
                          : id == infinity() ? kInfinity
                          : id == nan()      ? std::numeric_limits<double>::quiet_NaN()
                                             : -kInfinity;
    const bool fits = from == "f64" || static_cast<double>(static_cast<float>(number)) == number;
    if (isRational(id) && (!fits || !(Rational::fromDouble(number) == value(id))))
      refuse("bitcast-convert", "the bits of a number that its type has not exactly");
    const std::uint64_t bits = from == "f64"
                                   ? std::bit_cast<std::uint64_t>(number)
                                   : std::bit_cast<std::uint32_t>(static_cast<float>(number));
    return wrap(Rational::parse(std::to_string(bits)), *integerType(to));
  }
  if (isSymbolic(id)) return symbolic("bitcast-convert", from, to, std::array{id});
  if (!isRational(id)) refuse("bitcast-convert", "not an integer");
  if (const auto integer = integerType(to)) return wrap(value(id), *integer);
  const std::uint64_t bits = bitsOf(value(id));
  const double number = to == "f64"
                            ? std::bit_cast<double>(bits)
                            : double{std::bit_cast<float>(static_cast<std::uint32_t>(bits))};
  if (std::isnan(number)) return nan();
  if (std::isinf(number)) return number > 0 ? infinity() : negativeInfinity();
  return rational(Rational::fromDouble(number));
}

// "opcode|detail|type": the detail is a comparison's direction, or what a conversion is from.
ScalarId Scalars::symbolic(std::string_view opcode, std::string_view detail, std::string_view type,
                           std::span<const ScalarId> arguments) {
  if ((opcode == "add" || opcode == "subtract") && is(arguments[1], 0)) return arguments[0];
  const std::size_t before = entries_.size();
  const ScalarId id = expression(
      std::string(opcode) + "|" + std::string(detail) + "|" + std::string(type), arguments);
  if (entries_.size() == before) return id;
  if (++symbolics_ > kMostSymbolics)
    throw std::length_error("more than " + std::to_string(kMostSymbolics) +
                            " steps in computing with the bits of a random generator's key");
  entries_.back().symbolic = true;
  return id;
}

ScalarId Scalars::bits(std::string_view function, const std::string& detail, std::string_view type,
                       std::span<const ScalarId> arguments) {
  return symbolic(function, detail, type, arguments);
}

ScalarId Scalars::symbol(std::size_t parameter, std::size_t element, bool counts) {
  return symbolic(counts ? "count" : "element", std::to_string(parameter), std::to_string(element),
                  {});
}

ScalarId Scalars::sample(ScalarId id) {
  if (!isSymbolic(id)) return id;
  if (const auto known = samples_.find(id); known != samples_.end()) return known->second;
  const std::string operation = entries_[id].operation;
  const std::vector<ScalarId> arguments = entries_[id].arguments;
  const std::size_t first = operation.find('|'), second = operation.find('|', first + 1);
  const std::string opcode = operation.substr(0, first),
                    detail = operation.substr(first + 1, second - first - 1),
                    type = operation.substr(second + 1);
  std::vector<ScalarId> x;
  for (const ScalarId argument : arguments) x.push_back(sample(argument));
  ScalarId result = nan();
  if (opcode == "count") {  // a step of a schedule, for one
    result = rational(static_cast<std::int64_t>(std::stoull(type) % 16 + 5));
  } else if (opcode == "element") {
    // Any 32 bits: a step of Knuth's multiplicative hash of where it stands.
    const std::uint64_t place = std::stoull(detail) * 64 + std::stoull(type) + 1;
    result = rational(static_cast<std::int64_t>(place * 2654435761U & 0xffffffffU));
  } else if (opcode == "rng-bit-generator" || opcode == "join" || opcode == "split") {
    // Any bits: the FNV-1a hash of what they are made of.
    std::uint64_t hash = 14695981039346656037U;
    const auto add = [&](const std::string& text) {
      for (const char c : text + "|")
        hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
    };
    add(operation);
    for (const ScalarId argument : x) {
      if (!isRational(argument)) refuse(opcode, "not an integer");
      add(value(argument).toString());
    }
    const auto integer = integerType(type);
    if (!integer) refuse(opcode, "of other than integers");
    const ScalarId both[] = {rational(Rational::parse(std::to_string(hash))),
                             rational(Rational::parse(std::to_string(hash)))};
    result = bitwise("and", *integer, both);
  } else if (opcode == "convert") {
    result = convert(x[0], detail, type);
  } else if (opcode == "bitcast-convert") {
    result = bitcast(x[0], detail, type);
  } else {
    result = apply(opcode, detail, type, x);
  }
  samples_.emplace(id, result);
  return result;
}

}  // namespace shardproof::hlo
