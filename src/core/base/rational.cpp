// SPDX-License-Identifier: Apache-2.0
// Exact rationals. Invariant kept by every constructor: the value is in lowest terms, and big_ is
// set exactly when the numerator or the denominator does not fit 64 bits. Equality and hash may
// therefore look at the representation alone.
#include "shardproof/rational.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace shardproof {
namespace {

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 UInt128;

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

static_assert(sizeof(long) == sizeof(std::int64_t), "GMP's native integer must hold 64 bits");

bool fits(Int128 v) { return v >= kMin && v <= kMax; }

std::uint64_t magnitude(std::int64_t v) {
  return v < 0 ? std::uint64_t{0} - static_cast<std::uint64_t>(v) : static_cast<std::uint64_t>(v);
}

mpz_class toMpz(Int128 v) {
  const bool negative = v < 0;
  const UInt128 u = negative ? -static_cast<UInt128>(v) : static_cast<UInt128>(v);
  mpz_class z = static_cast<unsigned long>(u >> 64);
  z <<= 64;
  z += static_cast<unsigned long>(u);
  return negative ? mpz_class(-z) : z;
}

std::uint64_t mix(std::uint64_t h) {
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93ULL;
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93ULL;
  h ^= h >> 32;
  return h;
}

std::uint64_t multiplyModulo(std::uint64_t a, std::uint64_t b, std::uint64_t m) {
  return static_cast<std::uint64_t>(static_cast<UInt128>(a) * b % m);
}

std::uint64_t powerModulo(std::uint64_t base, std::uint64_t exponent, std::uint64_t m) {
  std::uint64_t result = 1 % m;
  for (base %= m; exponent != 0; exponent >>= 1) {
    if (exponent & 1) result = multiplyModulo(result, base, m);
    base = multiplyModulo(base, base, m);
  }
  return result;
}

std::uint64_t hashOf(const mpz_class& z) {
  std::uint64_t h = static_cast<std::uint64_t>(mpz_sgn(z.get_mpz_t()) + 2);
  for (std::size_t i = 0; i < mpz_size(z.get_mpz_t()); ++i)
    h = mix(h + mpz_getlimbn(z.get_mpz_t(), static_cast<mp_size_t>(i)));
  return h;
}

bool isDigit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

Rational::Rational(std::int64_t n, std::int64_t d) {
  if (d == 0) throw std::domain_error("a rational with denominator zero");
  if (d == 1) {
    num_ = n;
    return;
  }
  const std::uint64_t g = std::gcd(magnitude(n), magnitude(d));
  // Through 128 bits, because -kMin does not fit 64.
  Int128 num = static_cast<Int128>(n) / static_cast<Int128>(g);
  Int128 den = static_cast<Int128>(d) / static_cast<Int128>(g);
  if (den < 0) {
    num = -num;
    den = -den;
  }
  if (fits(num) && fits(den)) {
    num_ = static_cast<std::int64_t>(num);
    den_ = static_cast<std::int64_t>(den);
  } else {
    big_ = std::make_unique<mpq_class>(toMpz(num), toMpz(den));
  }
}

Rational::Rational(const mpq_class& q) {
  if (sgn(q.get_den()) == 0) throw std::domain_error("a rational with denominator zero");
  mpq_class canonical = q;
  canonical.canonicalize();
  if (canonical.get_num().fits_slong_p() && canonical.get_den().fits_slong_p()) {
    num_ = canonical.get_num().get_si();
    den_ = canonical.get_den().get_si();
  } else {
    big_ = std::make_unique<mpq_class>(std::move(canonical));
  }
}

Rational::Rational(const Rational& other)
    : num_(other.num_),
      den_(other.den_),
      big_(other.big_ ? std::make_unique<mpq_class>(*other.big_) : nullptr) {}

Rational& Rational::operator=(const Rational& other) {
  if (this != &other) {
    num_ = other.num_;
    den_ = other.den_;
    big_ = other.big_ ? std::make_unique<mpq_class>(*other.big_) : nullptr;
  }
  return *this;
}

Rational Rational::parse(std::string_view text) {
  const auto fail = [&]() -> std::invalid_argument {
    return std::invalid_argument("'" + std::string(text.substr(0, 60)) +
                                 "' is not a number in JSON's notation");
  };
  std::size_t i = 0;
  const auto digits = [&](std::string& into) {
    const std::size_t before = i;
    while (i < text.size() && isDigit(text[i])) into.push_back(text[i++]);
    return i - before;
  };
  const bool negative = !text.empty() && text[0] == '-';
  if (negative) ++i;
  std::string mantissa;
  const std::size_t whole = digits(mantissa);
  if (whole == 0 || (whole > 1 && mantissa[0] == '0')) throw fail();
  std::int64_t exponent = 0;
  if (i < text.size() && text[i] == '.') {
    ++i;
    const std::size_t fraction = digits(mantissa);
    if (fraction == 0) throw fail();
    exponent -= static_cast<std::int64_t>(fraction);
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    const bool below = i < text.size() && text[i] == '-';
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    std::string e;
    if (digits(e) == 0 || i != text.size()) throw fail();
    std::int64_t value = 0;
    for (const char c : e) {
      value = value * 10 + (c - '0');
      // A longer exponent is no number a plan can mean, and its power of ten would eat the memory.
      if (value > 10000)
        throw std::out_of_range("the exponent of '" + std::string(text.substr(0, 60)) +
                                "' exceeds 10000");
    }
    exponent += below ? -value : value;
  }
  if (i != text.size()) throw fail();

  if (mantissa.size() <= 18 && exponent <= 0 && exponent >= -18) {
    std::int64_t n = 0;
    for (const char c : mantissa) n = n * 10 + (c - '0');
    std::int64_t d = 1;
    for (std::int64_t k = exponent; k < 0; ++k) d *= 10;
    return Rational(negative ? -n : n, d);
  }
  mpz_class n(mantissa, 10);
  if (negative) n = -n;
  mpz_class scale;
  mpz_ui_pow_ui(scale.get_mpz_t(), 10,
                static_cast<unsigned long>(exponent < 0 ? -exponent : exponent));
  return exponent < 0 ? Rational(mpq_class(n, scale)) : Rational(mpq_class(n * scale));
}

Rational Rational::fromDouble(double value) {
  if (!std::isfinite(value))
    throw std::invalid_argument("a rational cannot be infinite or not a number");
  return Rational(mpq_class(value));
}

bool Rational::isInteger() const { return big_ ? big_->get_den() == 1 : den_ == 1; }

int Rational::sign() const { return big_ ? sgn(*big_) : (num_ > 0) - (num_ < 0); }

std::int64_t Rational::toInt64() const {
  if (!fitsInt64()) throw std::range_error(toString() + " is not an integer of 64 bits");
  return num_;
}

double Rational::toDouble() const {
  if (big_) return big_->get_d();
  if (den_ == 1) return static_cast<double>(num_);
  // The wider type rounds once where two conversions and a division would round three times.
  return static_cast<double>(static_cast<long double>(num_) / static_cast<long double>(den_));
}

mpq_class Rational::toMpq() const {
  return big_ ? *big_ : mpq_class(static_cast<long>(num_), static_cast<long>(den_));
}

std::string Rational::toString() const {
  if (big_) return big_->get_str();
  return den_ == 1 ? std::to_string(num_) : std::to_string(num_) + "/" + std::to_string(den_);
}

std::string Rational::numeratorString() const {
  return big_ ? big_->get_num().get_str() : std::to_string(num_);
}

std::string Rational::denominatorString() const {
  return big_ ? big_->get_den().get_str() : std::to_string(den_);
}

std::uint64_t Rational::hash() const {
  if (big_) return mix(hashOf(big_->get_num()) ^ (hashOf(big_->get_den()) * 31));
  return mix(static_cast<std::uint64_t>(num_) +
             0x9e3779b97f4a7c15ULL * static_cast<std::uint64_t>(den_));
}

std::uint64_t Rational::modulo(std::uint64_t prime) const {
  std::uint64_t n = 0;
  std::uint64_t d = 0;
  if (big_) {
    n = mpz_fdiv_ui(big_->get_num().get_mpz_t(), prime);
    d = mpz_fdiv_ui(big_->get_den().get_mpz_t(), prime);
  } else {
    n = magnitude(num_) % prime;
    if (num_ < 0 && n != 0) n = prime - n;
    d = static_cast<std::uint64_t>(den_) % prime;
  }
  if (d == 1) return n;
  if (d == 0)
    throw std::domain_error("the denominator of " + toString() + " is a multiple of the modulus");
  return multiplyModulo(n, powerModulo(d, prime - 2, prime), prime);
}

Rational Rational::operator-() const {
  if (big_ || num_ == kMin) return Rational(mpq_class(-toMpq()));
  return lowest(-num_, den_);
}

Rational Rational::inverse() const {
  if (isZero()) throw std::domain_error("the inverse of zero");
  if (big_ || num_ == kMin) return Rational(mpq_class(1 / toMpq()));
  return num_ > 0 ? lowest(den_, num_) : lowest(-den_, -num_);
}

Rational Rational::pow(std::int64_t exponent) const {
  if (exponent < 0) {
    const Rational inverted = inverse();
    if (exponent == kMin) return inverted.pow(kMax) * inverted;
    return inverted.pow(-exponent);
  }
  Rational result = 1;
  Rational square = *this;
  for (;;) {
    if (exponent & 1) result *= square;
    exponent >>= 1;
    if (exponent == 0) return result;
    square *= square;
  }
}

Rational operator+(const Rational& a, const Rational& b) {
  if (!a.big_ && !b.big_) {
    if (a.den_ == 1 && b.den_ == 1) {
      std::int64_t sum = 0;
      if (!__builtin_add_overflow(a.num_, b.num_, &sum)) return Rational(sum);
    } else {
      // Knuth, volume 2, 4.5.1: with g = gcd of the denominators, only a divisor of g can be common
      // to the sum's two sides. So 64-bit gcds suffice, and the numerator stays below 2^127.
      const std::int64_t g =
          static_cast<std::int64_t>(std::gcd(magnitude(a.den_), magnitude(b.den_)));
      Int128 n =
          static_cast<Int128>(a.num_) * (b.den_ / g) + static_cast<Int128>(b.num_) * (a.den_ / g);
      if (n == 0) return Rational();
      std::int64_t common = 1;
      if (g != 1) {
        const std::int64_t remainder = static_cast<std::int64_t>(n % g);
        common = static_cast<std::int64_t>(std::gcd(magnitude(remainder), magnitude(g)));
        n /= common;
      }
      const Int128 d = static_cast<Int128>(a.den_ / g) * (b.den_ / common);
      if (fits(n) && fits(d))
        return Rational::lowest(static_cast<std::int64_t>(n), static_cast<std::int64_t>(d));
    }
  }
  return Rational(mpq_class(a.toMpq() + b.toMpq()));
}

Rational operator-(const Rational& a, const Rational& b) { return a + -b; }

Rational operator*(const Rational& a, const Rational& b) {
  if (!a.big_ && !b.big_) {
    std::int64_t product = 0;
    if (a.den_ == 1 && b.den_ == 1) {
      if (!__builtin_mul_overflow(a.num_, b.num_, &product)) return Rational(product);
    } else {
      if (a.num_ == 0 || b.num_ == 0) return Rational();
      // Reducing crosswise first leaves nothing to reduce in the product. gcd(2^63, den) < 2^63
      // because den < 2^63.
      const std::int64_t g =
          static_cast<std::int64_t>(std::gcd(magnitude(a.num_), magnitude(b.den_)));
      const std::int64_t h =
          static_cast<std::int64_t>(std::gcd(magnitude(b.num_), magnitude(a.den_)));
      std::int64_t denominator = 0;
      if (!__builtin_mul_overflow(a.num_ / g, b.num_ / h, &product) &&
          !__builtin_mul_overflow(a.den_ / h, b.den_ / g, &denominator)) {
        return Rational::lowest(product, denominator);
      }
    }
  }
  return Rational(mpq_class(a.toMpq() * b.toMpq()));
}

Rational operator/(const Rational& a, const Rational& b) { return a * b.inverse(); }

bool operator==(const Rational& a, const Rational& b) {
  if (a.big_ || b.big_) return a.big_ && b.big_ && *a.big_ == *b.big_;
  return a.num_ == b.num_ && a.den_ == b.den_;
}

bool operator<(const Rational& a, const Rational& b) {
  if (a.big_ || b.big_) return a.toMpq() < b.toMpq();
  return static_cast<Int128>(a.num_) * b.den_ < static_cast<Int128>(b.num_) * a.den_;
}

}  // namespace shardproof
