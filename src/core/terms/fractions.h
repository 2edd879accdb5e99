// SPDX-License-Identifier: Apache-2.0
// Sums over a common denominator, for TermAlgebra::Mode::kFractions. A sum of fractions is written
// as one fraction, its numerator is multiplied out as far as sums that are divided by are
// concerned, and what the denominator has in common with it is taken away:
//
//   1 - B/(A+B)                      = A/(A+B)
//   P/A - B/(A+B) (P/A - Q/B)        = (P+Q)/(A+B)
//
// Soundness. a/s + b/t = (a t + b s)/(s t), and n s/s^k = n/s^(k-1), wherever the left sides are
// defined, as these divide by s and t. Numerators are polynomials over monomials and over *blocks*
// (below), and their arithmetic is that of a ring; a quotient is taken only where it is exact.
//
// Only fractions that belong together are added: their denominators occur in one summand, or the
// summands of one are among those of the other (`components`). Others stay beside one another: a
// sum over rows, each divided by its own, has no common denominator worth having. How many
// summands a numerator multiplies, and how many denominators were made one, is counted
// (`summands`): for so many positions must be kept apart (docs/soundness.md, "Common
// denominators").
//
// Blocks. To multiply sums of hundreds of exponentials out is not needed where they only occur as
// wholes: the monomials of all sums at hand that have the same coefficients in each of them, up to
// one factor for all, are one block, which the polynomials have as a variable. So A, B and A + B
// are a, b and a + b, whatever they consist of.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "terms/term_store.h"

namespace shardproof {

struct TermAlgebra::Fractions {
 public:
  explicit Fractions(Store& store) : s(store) {}

  // A sum in the normal form, with fractions that belong together added up. Other terms:
  // themselves.
  TermId ofSum(TermId t);
  // Is a - b zero when it is multiplied by its denominators? Everything but these is multiplied
  // out if it must be.
  bool equal(TermId a, TermId b, std::size_t budget);
  // Whatever numerator was made so far is made of at most so many summands of sums as operators
  // make them; and no more denominators were made one than that.
  int summands() const {
    return most_ == 0 ? 0 : static_cast<int>(std::min(std::max(most_, joined_), kMany));
  }
  // As soon as summands() is above `most`, what is asked for throws Unsupported.
  void allow(int most) { allowed_ = most; }

 private:
  static constexpr std::int64_t kMany = 1000;
  // Sums within sums that are followed by recursion: a chain of operators may be deeper than the
  // call stack.
  static constexpr int kDeepest = 500;
  // Monomials that the sums of one stage make, some seconds' worth: by far the most of a stage that
  // needs more would have to be multiplied out, which fails for the number of positions. Rings of
  // 4 ranks, backward, make 4,200,000.
  static constexpr std::size_t kMostOfAll = 6'000'000;
  // Sums that may stay as they are because they are too large: where there are many, a stage's
  // difference has hardly a common denominator that can be multiplied out.
  static constexpr int kMostTooLarge = 16;
  class Level {  // for as long as it lives; throws Unsupported beyond kDeepest
   public:
    explicit Level(Fractions& of) : of_(of) {
      if (of_.depth_ >= kDeepest) throw Unsupported("sums are too deep for a common denominator");
      ++of_.depth_;
    }
    ~Level() { --of_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Fractions& of_;
  };
  using Powers = std::map<TermId, std::int64_t>;

  // factor * bare * over / under; over and under are products of sums, `bare` has none.
  struct Fraction {
    Code factor = Store::kOne;
    TermId bare = Store::kOneTerm;
    Powers over, under;
    std::int64_t summands =
        1;  // that were multiplied: its own, and those of each sum multiplied out
  };
  using FractionList = std::vector<Fraction>;

  struct Monomial {
    TermId bare = Store::kOneTerm;
    std::vector<std::pair<std::uint32_t, std::int64_t>> blocks;  // ascending, powers above 0
    friend auto operator<=>(const Monomial&, const Monomial&) = default;
  };
  struct Value {
    Code factor;
    std::int64_t joined;  // so many summands, at most, are multiplied in the bare part
  };
  using Polynomial = std::map<Monomial, Value>;
  struct Summand {  // of a sum; its constant is that of the term 1
    TermId term;
    Code factor;
  };

  // fractions.cpp
  TermId addedUp(TermId sum);
  TermId withoutNegativePowers(TermId sum);
  TermId overOneDenominator(const FractionList& fractions);
  bool isZero(TermId sum, bool everything);
  Fraction fractionOf(TermId t, Code factor);
  FractionList fractionsOf(TermId sum);
  TermId termOf(const Fraction& f);
  FractionList multipliedOut(FractionList open, bool everything);
  const std::set<TermId>& sumsWithin(TermId sum);
  void collectDenominators(const Fraction& f, std::set<TermId>& found, std::set<TermId>& seen);
  TermId remainder(TermId bare);
  struct Components {
    std::vector<std::vector<std::size_t>> groups;  // of fractions
    std::vector<std::size_t> others;
  };
  Components components(const FractionList& fractions);
  // Brings them to their least common denominator, which is returned, and counts.
  Powers bringTogether(FractionList& fractions, std::int64_t& most);

  // fraction_polynomials.cpp
  class Numerators;
  std::vector<Summand> summandsOf(TermId sum);
  // How many summands, as operators make them, a monomial multiplies. One without sums: one, where
  // it is an element (what is no sum is the same under all permutations that fix its own position,
  // so it has no other), and as many as were counted where it was made here, of summands of sums.
  // Counts add up from sum to sum: a product of two sums of such monomials multiplies the summands
  // of both.
  std::int64_t madeWithoutSums(TermId bare) const;
  std::int64_t made(TermId summand);
  std::int64_t mostMade(TermId sum);  // of its summands
  void note(TermId bare, std::int64_t summands);
  std::pair<TermId, Code> times(TermId a, TermId b);
  void charge(std::size_t monomials);
  void count(std::int64_t most, std::int64_t joined);  // for summands()
  bool isFinitePower(TermId atom) const;

  Store& s;
  std::unordered_map<TermId, TermId> done_;
  std::map<TermId, std::set<TermId>> within_;
  std::unordered_map<TermId, std::int64_t> made_;      // where that is more than one
  std::unordered_map<TermId, std::int64_t> mostMade_;  // by sum
  std::int64_t most_ = 0, joined_ = 1, allowed_ = kMany;
  std::size_t budget_ = 0;         // monomials that the sum in hand may still make
  std::size_t left_ = kMostOfAll;  // and all sums
  int tooLarge_ = 0;
  int depth_ = 0;
};

// Polynomials over the blocks of all sums that some fractions are made of.
class TermAlgebra::Fractions::Numerators {
 public:
  Numerators(Fractions& owner, const FractionList& fractions, const Powers& denominator);
  // The sum of all fractions' factor * bare * over.
  Polynomial sum();
  // What is left of the numerator when it is divided by the sum, or nothing where that is not
  // exact.
  std::optional<Polynomial> quotient(const Polynomial& numerator, TermId sum);
  TermId termOf(const Polynomial& p);
  // Of the bare parts of a polynomial, as in Value.
  static std::int64_t joined(const Polynomial& p);

 private:
  void findBlocks();
  std::set<TermId> metOutside();
  Polynomial product(const Polynomial& a, const Polynomial& b);
  void add(Polynomial& p, const Monomial& m, Code factor, std::int64_t joined);
  struct Lead {
    Monomial monomial;
    Code factor = Store::kZero;
    bool isBlock = false;
    std::uint32_t variable = 0;  // a block or an atom, of which no other monomial has that power
  };
  std::optional<Lead> lead(const Polynomial& p);
  Code degree(const Monomial& m, const Lead& by) const;
  std::optional<Monomial> divided(const Monomial& m, const Monomial& by);

  Fractions& owner_;
  Store& s;
  const FractionList& fractions_;
  const Powers& denominator_;
  std::map<TermId, std::vector<Summand>> sums_;
  std::map<TermId, Polynomial> polynomials_;  // of the sums
  std::vector<TermId> blocks_;
};

}  // namespace shardproof
