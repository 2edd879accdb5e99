// SPDX-License-Identifier: Apache-2.0
#include "terms/rational_pool.h"

#include <cstdlib>

#include "shardproof/error.h"

namespace shardproof {

Code RationalPool::floor(Code a) {
  if (isSmall(a)) return a;
  const Rational value = decode(a);
  if (value.isInteger()) return a;
  const mpq_class q = value.toMpq();
  mpz_class result;
  mpz_fdiv_q(result.get_mpz_t(), q.get_num().get_mpz_t(), q.get_den().get_mpz_t());
  return encode(Rational(mpq_class(result)));
}

Code RationalPool::power(Code base, Code exponent) {
  if (base == kOne || exponent == kOne) return base;
  if (!isSmall(exponent))
    throw Unsupported("a constant is raised to a power that is not a small integer");
  const std::int64_t e = small(exponent);
  if (base == kMinusOne) return e % 2 == 0 ? kOne : kMinusOne;
  const Rational value = decode(base);
  const mpq_class q = value.toMpq();
  const std::size_t bits =
      mpz_sizeinbase(q.get_num().get_mpz_t(), 2) + mpz_sizeinbase(q.get_den().get_mpz_t(), 2);
  constexpr std::size_t kMaxBits = std::size_t{1} << 20;
  if (bits * static_cast<std::size_t>(std::abs(e)) > kMaxBits)
    throw Unsupported("the power of a constant exceeds the memory allowed for one number");
  return encode(value.pow(e));
}

Code RationalPool::intern(const Rational& r) {
  if ((values_.size() + 1) * 2 > slots_.size()) grow();
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = r.hash() & mask;
  for (; slots_[i] != 0; i = (i + 1) & mask) {
    if (values_[slots_[i] - 1] == r) return kPooled + slots_[i] - 1;
  }
  if (values_.size() >= kPooled - 1)
    throw Unsupported("the number of distinct coefficients exceeds the memory allowed");
  values_.push_back(r);
  slots_[i] = static_cast<std::uint32_t>(values_.size());
  return kPooled + static_cast<Code>(values_.size() - 1);
}

void RationalPool::grow() {
  std::vector<std::uint32_t> slots(slots_.empty() ? 64 : slots_.size() * 2);
  const std::size_t mask = slots.size() - 1;
  for (std::size_t v = 0; v < values_.size(); ++v) {
    std::size_t i = values_[v].hash() & mask;
    while (slots[i] != 0) i = (i + 1) & mask;
    slots[i] = static_cast<std::uint32_t>(v + 1);
  }
  slots_.swap(slots);
}

}  // namespace shardproof
