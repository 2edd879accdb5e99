// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/index.h"

#include <algorithm>
#include <set>

namespace shardproof::hlo {
namespace {

struct LinearForm {
  std::int64_t a = 0;
  Rational b;
};

// The least integer above (strictly, or not below) a rational, within the range of pieces.
std::int64_t ceiling(const Rational& r) {
  const mpq_class q = r.toMpq();
  mpz_class n;
  mpz_cdiv_q(n.get_mpz_t(), q.get_num_mpz_t(), q.get_den_mpz_t());
  if (n < mpz_class(static_cast<long>(kNoLow))) return kNoLow;
  if (n > mpz_class(static_cast<long>(kNoHigh))) return kNoHigh;
  return n.get_si();
}

bool agreesAt(const LinearForm& f, std::int64_t at, const LinearForm& g) {
  return Rational(f.a) * Rational(at) + f.b == Rational(g.a) * Rational(at) + g.b;
}

// A stretch of one integer goes with the function beside it where that has its value.
void append(Pieces& pieces, std::int64_t low, std::int64_t high, const LinearForm& f) {
  if (low >= high) return;
  if (!pieces.empty()) {
    Piece& last = pieces.back();
    const LinearForm before{last.a, last.b};
    const bool same = last.a == f.a && last.b == f.b;
    const bool beside = last.high == low;
    if (beside && (same || (high == low + 1 && agreesAt(before, low, f)))) {
      last.high = high;
      return;
    }
    if (beside && last.high == last.low + 1 && agreesAt(f, last.low, before)) {
      last = {last.low, high, f.a, f.b};
      return;
    }
  }
  pieces.push_back({low, high, f.a, f.b});
}

// Calls use(low, high, sign of x - y) for the stretches of [low, high) in which it does not change.
template <class F>
void bySign(const LinearForm& x, const LinearForm& y, std::int64_t low, std::int64_t high,
            F&& use) {
  const std::int64_t a = x.a - y.a;
  const Rational b = x.b - y.b;
  if (a == 0) {
    use(low, high, b.sign());
    return;
  }
  const Rational root = -b / Rational(a);
  const std::int64_t at = std::clamp(ceiling(root), low, high);
  const int before = a > 0 ? -1 : 1;
  use(low, at, before);
  const bool hit = at < high && root.fitsInt64() && root.toInt64() == at;
  if (hit) use(at, at + 1, 0);
  use(hit ? at + 1 : at, high, -before);
}

bool holds(std::string_view direction, int sign) {
  if (direction == "EQ") return sign == 0;
  if (direction == "NE") return sign != 0;
  if (direction == "LT") return sign < 0;
  if (direction == "LE") return sign <= 0;
  if (direction == "GT") return sign > 0;
  return sign >= 0;
}

std::optional<LinearForm> linear(std::string_view opcode, const LinearForm& x,
                                 const LinearForm* y) {
  if (opcode == "negate") return LinearForm{-x.a, -x.b};
  if (opcode == "not")
    return x.a == 0 ? std::optional(LinearForm{0, Rational(1) - x.b}) : std::nullopt;
  if (y == nullptr) return std::nullopt;
  if (opcode == "add") return LinearForm{x.a + y->a, x.b + y->b};
  if (opcode == "subtract") return LinearForm{x.a - y->a, x.b - y->b};
  if (opcode == "and" || opcode == "multiply") {
    const LinearForm &c = x.a == 0 ? x : *y, &v = x.a == 0 ? *y : x;
    if (c.a != 0) return std::nullopt;
    if (c.b.isZero()) return LinearForm{};
    if (v.a != 0 && (!c.b.isInteger() || !c.b.fitsInt64() || std::abs(c.b.toInt64()) > 1 << 20))
      return std::nullopt;
    return LinearForm{v.a == 0 ? 0 : v.a * c.b.toInt64(), v.b * c.b};
  }
  if (opcode == "or" && x.a == 0 && y->a == 0)
    return LinearForm{0, Rational(x.b.isZero() && y->b.isZero() ? 0 : 1)};
  if (opcode == "xor" && x.a == 0 && y->a == 0) return LinearForm{0, Rational(x.b == y->b ? 0 : 1)};
  return std::nullopt;
}

}  // namespace

Pieces identityPieces(std::int64_t low, std::int64_t high) { return {{low, high, 1, Rational()}}; }

Pieces constantPieces(const Pieces& domain, const Rational& value) {
  return {{domain.front().low, domain.back().high, 0, value}};
}

std::optional<Piece> singlePiece(const Pieces& pieces) {
  if (pieces.empty()) return std::nullopt;
  for (const Piece& p : pieces)
    if (p.a != pieces[0].a || !(p.b == pieces[0].b)) return std::nullopt;
  return Piece{pieces.front().low, pieces.back().high, pieces[0].a, pieces[0].b};
}

bool isIdentity(const Pieces& pieces) {
  const auto p = singlePiece(pieces);
  return p && p->a == 1 && p->b.isZero();
}

std::optional<Rational> constantValue(const Pieces& pieces) {
  const auto p = singlePiece(pieces);
  return p && p->a == 0 ? std::optional(p->b) : std::nullopt;
}

std::optional<Pieces> rowPieces(const Pieces& pieces, std::int64_t count) {
  constexpr std::int64_t kMostListed = 4096;
  Pieces rows;
  for (const Piece& p : pieces) {
    if (!p.b.isInteger()) return std::nullopt;
    if (p.a != 0 && p.a != 1) {
      // A multiple of the integer: one by one where it is a row.
      const Rational a(p.a), one(-p.b / a), other((Rational(count - 1) - p.b) / a);
      const Rational &least = p.a > 0 ? one : other, &most = p.a > 0 ? other : one;
      const std::int64_t first = std::clamp(ceiling(least), p.low, p.high),
                         last = std::clamp(-ceiling(-most) + 1, first, p.high);
      if (last - first > kMostListed) return std::nullopt;
      append(rows, p.low, first, {0, Rational(-1)});
      for (std::int64_t i = first; i < last; ++i)
        append(rows, i, i + 1, {0, a * Rational(i) + p.b});
      append(rows, last, p.high, {0, Rational(-1)});
      continue;
    }
    if (p.a == 0) {
      const bool inside = p.b.sign() >= 0 && p.b < Rational(count);
      append(rows, p.low, p.high, {0, inside ? p.b : Rational(-1)});
      continue;
    }
    const std::int64_t first = std::clamp(ceiling(-p.b), p.low, p.high),
                       last = std::clamp(ceiling(Rational(count) - p.b), p.low, p.high);
    append(rows, p.low, first, {0, Rational(-1)});
    append(rows, first, last, {1, p.b});
    append(rows, last, p.high, {0, Rational(-1)});
  }
  return rows;
}

std::optional<Pieces> clampPieces(const Pieces& pieces, std::int64_t count) {
  const Pieces bottom = constantPieces(pieces, Rational(0)),
               top = constantPieces(pieces, Rational(count - 1));
  const Pieces* bounds[] = {&bottom, &pieces, &top};
  return combinePieces("clamp", {}, bounds);
}

Pieces insidePieces(const Pieces& pieces, std::int64_t count) {
  const Pieces bottom = constantPieces(pieces, Rational(0)),
               end = constantPieces(pieces, Rational(count));
  const Pieces *low[] = {&pieces, &bottom}, *high[] = {&pieces, &end};
  const auto above = combinePieces("compare", "GE", low),
             below = combinePieces("compare", "LT", high);
  const Pieces* both[] = {&*above, &*below};
  return *combinePieces("and", {}, both);
}

Pieces unwrappedPieces(const Pieces& pieces) {
  Pieces result;
  for (const Piece& p : pieces) {
    const bool negative = p.a != 0 && p.high <= 0;
    append(result, p.low, p.high, {0, Rational(negative ? 0 : 1)});
  }
  return result;
}

std::pair<Rational, Rational> valueRange(const Pieces& pieces) {
  std::optional<std::pair<Rational, Rational>> range;
  for (const Piece& p : pieces)
    for (const std::int64_t at : {p.low, p.high - 1}) {
      const Rational value = Rational(p.a) * Rational(at) + p.b;
      if (!range) range = {value, value};
      if (value < range->first) range->first = value;
      if (range->second < value) range->second = value;
    }
  return range.value_or(std::pair(Rational(), Rational()));
}

Stretch typeRange(const IntegerType& type) {
  if (type.bits >= 64) return {type.isSigned ? kNoLow : 0, kNoHigh};
  const std::int64_t size = std::int64_t{1} << (type.isSigned ? type.bits - 1 : type.bits);
  return {type.isSigned ? -size : 0, size};
}

// Where a x + b lies in the k-th copy of the type's range, k times 2^bits are taken away.
std::optional<Pieces> wrapPieces(const Pieces& pieces, const IntegerType& type) {
  constexpr std::size_t kMostPieces = 256;
  const auto range = typeRange(type);
  const std::int64_t least = range.first, end = range.second;
  const auto [low, high] = valueRange(pieces);
  // Of 64 bits: an input is far from the ends (typeRange), so that little can be added to it.
  const Rational slack(type.bits >= 64 ? kNoHigh : 0), below = type.isSigned ? slack : Rational();
  if (!(low < Rational(least) - below) && high < Rational(end) + slack) return pieces;
  if (type.bits >= 64) return std::nullopt;
  const Rational size(std::int64_t{1} << type.bits);
  const auto copyOf = [&](const Rational& value) {  // floor((value - least) / size)
    return -ceiling((Rational(least) - value) / size);
  };
  Pieces result;
  for (const Piece& p : pieces) {
    if (!p.b.isInteger()) return std::nullopt;
    if (p.a == 0) {
      append(result, p.low, p.high, {0, p.b - size * Rational(copyOf(p.b))});
      continue;
    }
    std::int64_t from = p.low;
    while (from < p.high) {
      if (result.size() >= kMostPieces) return std::nullopt;
      const std::int64_t copy = copyOf(Rational(p.a) * Rational(from) + p.b);
      // Up to where the next copy begins: above this one, or below it.
      const Rational edge = Rational(least) + size * Rational(p.a > 0 ? copy + 1 : copy) - p.b;
      const std::int64_t next =
          p.a > 0 ? ceiling(edge / Rational(p.a)) : -ceiling(-edge / Rational(p.a)) + 1;
      const std::int64_t to = std::clamp(next, from + 1, p.high);
      append(result, from, to, {p.a, p.b - size * Rational(copy)});
      from = to;
    }
  }
  return result;
}

std::optional<Pieces> combinePieces(std::string_view opcode, std::string_view direction,
                                    std::span<const Pieces* const> operands) {
  if (opcode == "clamp") {
    const Pieces* low[] = {operands[0], operands[1]};
    const auto raised = combinePieces("maximum", {}, low);
    if (!raised) return std::nullopt;
    const Pieces* high[] = {&*raised, operands[2]};
    return combinePieces("minimum", {}, high);
  }
  std::set<std::int64_t> bounds;
  for (const Pieces* p : operands)
    for (const Piece& piece : *p) bounds.insert({piece.low, piece.high});
  const std::vector<std::int64_t> cuts(bounds.begin(), bounds.end());
  Pieces result;
  for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
    const std::int64_t low = cuts[c], high = cuts[c + 1];
    std::vector<LinearForm> f;
    for (const Pieces* p : operands)
      for (const Piece& piece : *p)
        if (piece.low <= low && high <= piece.high) f.push_back({piece.a, piece.b});
    if (f.size() != operands.size()) continue;  // no value that the integer can have
    if (opcode == "compare") {
      bySign(f[0], f[1], low, high, [&](std::int64_t from, std::int64_t to, int sign) {
        append(result, from, to, {0, Rational(holds(direction, sign) ? 1 : 0)});
      });
    } else if (opcode == "maximum" || opcode == "minimum") {
      bySign(f[0], f[1], low, high, [&](std::int64_t from, std::int64_t to, int sign) {
        append(result, from, to, f[(sign < 0) == (opcode == "maximum") ? 1 : 0]);
      });
    } else if (opcode == "select") {
      if (f[0].a != 0) return std::nullopt;
      append(result, low, high, f[0].b.isZero() ? f[2] : f[1]);
    } else {
      const auto value = linear(opcode, f[0], f.size() > 1 ? &f[1] : nullptr);
      if (!value) return std::nullopt;
      append(result, low, high, *value);
    }
  }
  return result.empty() ? std::nullopt : std::optional(result);
}

}  // namespace shardproof::hlo
