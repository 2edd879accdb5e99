// SPDX-License-Identifier: Apache-2.0
// The inside of TermAlgebra, private to this folder: where terms live (term_store.cpp), how the
// cheap normal form is built (term_normal.cpp), the raw mode (term_raw.cpp), the full normal form
// (term_expand.cpp).
//
// A term is a record of eight bytes in `nodes`, its parts are 32-bit words in `words`, and `slots`
// finds it again by content. Sums and products whose coefficients or exponents are all 1 hold only
// the ids of their parts. The product of two variables thus takes 16 bytes and 11 to 21 for its
// slot, the sum of four terms 24 and the same.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "shardproof/error.h"
#include "terms/large_pages.h"
#include "terms/rational_pool.h"
#include "terms/term_algebra.h"

namespace shardproof {

using TermId = std::uint32_t;

struct Entry {  // of a sum: code * term; of a product: term ^ code
  TermId term;
  Code code;
};

struct TermAlgebra::Store {
  static constexpr Code kZero = RationalPool::kZero;
  static constexpr Code kOne = RationalPool::kOne;
  // Fixed ids. isZero relies on the first.
  static constexpr TermId kZeroTerm = 0;
  static constexpr TermId kOneTerm = 1;
  static constexpr TermId kInfinityTerm = 2;

  // Bits of Node::meta.
  static constexpr std::uint32_t kKindMask = 0xf;
  static constexpr std::uint32_t kUnit = 1U << 4;  // all codes are 1 and not stored
  static constexpr std::uint32_t kShifted =
      1U << 5;  // a sum whose constant is not zero: the code of it is the first word
  static constexpr std::uint32_t kSpecial =
      1U << 6;  // an atom whose powers simplify, or a product that contains one
  static constexpr std::uint32_t kPrimitive = 1U << 7;  // a sum known to be its own primitive part
  static constexpr std::uint32_t kMasked =
      1U << 8;  // may be minus infinity, through an entry of a mask
  static constexpr std::uint32_t kIdentity =
      ~(kSpecial | kPrimitive | kMasked);  // what equality looks at
  static constexpr int kLengthShift = 9;
  static constexpr std::size_t kMaxLength = (std::size_t{1} << 23) - 1;

  struct Node {
    std::uint32_t data;  // where the words begin; kConstant: the code; kVariable: its number; kExp,
                         // kSqrt: the argument
    std::uint32_t meta;
  };
  struct Slot {
    std::uint32_t hash;
    TermId term;
  };
  static constexpr TermId kFree = std::numeric_limits<TermId>::max();

  // The parts of a sum or product. Points into `words`: not to be used after another term has been
  // interned.
  struct Parts {
    const std::uint32_t* words;
    std::uint32_t size;
    bool unit;
    Code constant;  // of a sum
    TermId term(std::uint32_t i) const { return unit ? words[i] : words[2 * i]; }
    Code code(std::uint32_t i) const { return unit ? kOne : words[2 * i + 1]; }
    Entry entry(std::uint32_t i) const { return {term(i), code(i)}; }
  };
  struct FunctionParts {
    ops::Function function;
    std::vector<std::int64_t> parameters;
    std::vector<TermId> arguments;
  };

  // A vector of entries borrowed from the store, so that building a term allocates nothing once the
  // algebra is warm.
  class Scratch {
   public:
    explicit Scratch(Store& s) : store_(s) {
      if (s.spare.empty()) {
        entries_ = std::make_unique<std::vector<Entry>>();
      } else {
        entries_ = std::move(s.spare.back());
        s.spare.pop_back();
        entries_->clear();
      }
    }
    ~Scratch() {
      if (entries_) store_.spare.push_back(std::move(entries_));
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    std::vector<Entry>& operator*() const { return *entries_; }
    std::vector<Entry>* operator->() const { return entries_.get(); }

   private:
    Store& store_;
    std::unique_ptr<std::vector<Entry>> entries_;
  };

  struct SumBuilder {
    explicit SumBuilder(Store& s) : entries(s) {}
    Scratch entries;
    Code constant = kZero;
    bool infinite = false;
  };
  struct ProductBuilder {
    explicit ProductBuilder(Store& s) : entries(s) {}
    Scratch entries;
    Code coefficient = kOne;
    bool zero = false;
    bool special = false;  // some entry is an atom whose powers simplify
  };
  // sum = coefficient * monomial * rest
  struct Primitive {
    Code coefficient;
    TermId monomial;
    TermId rest;
  };

  Store(Mode m, std::size_t limit);

  // --- storage (term_store.cpp) ---
  TermKind kind(TermId t) const { return static_cast<TermKind>(nodes[t].meta & kKindMask); }
  bool special(TermId t) const { return (nodes[t].meta & kSpecial) != 0; }
  std::uint32_t length(TermId t) const { return nodes[t].meta >> kLengthShift; }
  Parts parts(TermId t) const {
    const Node n = nodes[t];
    const std::uint32_t* w = words.data() + n.data;
    const bool shifted = (n.meta & kShifted) != 0;
    return {shifted ? w + 1 : w, n.meta >> kLengthShift, (n.meta & kUnit) != 0,
            shifted ? *w : kZero};
  }
  // A sum that is more than a scaled term.
  bool isProperSum(TermId t) const {
    return kind(t) == TermKind::kSum && (length(t) > 1 || (nodes[t].meta & kShifted) != 0);
  }
  FunctionParts functionParts(TermId t) const;
  ops::Function functionOf(TermId t) const {
    return static_cast<ops::Function>(words[nodes[t].data] & 0xff);
  }
  TermId indicatorIndex(TermId t) const { return words[nodes[t].data]; }
  std::int64_t indicatorValue(TermId t) const;
  std::vector<TermId> children(TermId t) const;
  bool mayBeInfinite(TermId t) const { return (nodes[t].meta & kMasked) != 0; }
  bool isIntegral(TermId t) const;

  TermId internConstant(Code c);
  TermId internSum(Code constant,
                   std::span<const Entry> entries);  // sorted and merged by the caller, no zeros
  TermId internProduct(std::span<const Entry> entries);  // likewise
  TermId internUnary(TermKind k, TermId argument);       // kExp, kSqrt
  TermId internFunction(ops::Function f, std::span<const std::int64_t> params,
                        std::span<const TermId> arguments);
  TermId internIndicator(TermId index, std::int64_t value);
  TermId newVariable(bool integer);
  std::size_t memoryBytes() const;

  // --- the cheap normal form (term_normal.cpp) ---
  void sortAndMerge(std::vector<Entry>& entries);
  void addTo(SumBuilder& b, TermId t, Code c);
  Code maskFactor(TermId t, Code c) const;
  TermId finish(SumBuilder& b);
  void multiplyBy(ProductBuilder& b, TermId t, Code exponent);
  void multiplyByExp(ProductBuilder& b, TermId argument, Code exponent);
  void multiplyByExpAtom(ProductBuilder& b, TermId atom, Code exponent);
  void multiplyByRoot(ProductBuilder& b, TermId base);
  void multiplyByRootOf(ProductBuilder& b, Code positive);
  void settle(ProductBuilder& b);
  TermId finish(ProductBuilder& b);
  Primitive primitive(TermId sum);
  void commonFactors(TermId sum, std::vector<Entry>& into);
  TermId dividedBy(TermId t, std::span<const Entry> factors);
  TermId scale(Code c, TermId t);
  TermId multiply(TermId a, TermId b);
  TermId sum(std::span<const Term> terms, std::span<const std::int64_t> weights);
  TermId power(TermId base, int halves);
  TermId exp(TermId a);
  TermId logarithm(TermId a);
  TermId extremum(ops::Function f, std::span<const TermId> arguments);
  TermId apply(ops::Function f, std::span<const std::int64_t> params,
               std::span<const TermId> arguments);
  TermId indicator(TermId index, std::int64_t value);
  // Shared by both modes: what folds exactly, or kFree.
  TermId foldConstants(ops::Function f, std::span<const TermId> arguments);

  // --- raw mode (term_raw.cpp) ---
  TermId rawSum(std::span<const Term> terms, std::span<const std::int64_t> weights);
  TermId rawScale(Code c, TermId t);
  TermId rawMultiply(TermId a, TermId b);
  TermId rawPower(TermId base, int halves);
  TermId rawExp(TermId a);
  TermId rawApply(ops::Function f, std::span<const std::int64_t> params,
                  std::span<const TermId> arguments);
  TermId rawIndicator(TermId index, std::int64_t value);

  // --- the full normal form (term_expand.cpp) ---
  TermId expand(TermId t, std::size_t budget, Reciprocals reciprocals);
  TermId expandWithinBudget(TermId t);
  TermId expandNode(TermId t);
  TermId cancelledInSummands(TermId product);
  TermId multiplyOut(TermId t);
  TermId distribute(TermId product);
  TermId reduceReciprocals(TermId t);
  bool isFlat(TermId t) const;
  bool isFlatMonomial(TermId t) const;
  std::uint32_t leadingEntry(TermId sum);
  TermId multiplyMonomials(TermId a, TermId b);
  void charge(std::size_t monomials);

  Mode mode;
  std::size_t maxTerms;
  LargeVector<Node> nodes;
  LargeVector<std::uint32_t> words;
  LargeVector<Slot> slots;
  std::size_t used = 0;
  RationalPool rationals;
  std::vector<bool> integerVariable;
  std::vector<Sign> variableSign;
  std::vector<std::unique_ptr<std::vector<Entry>>> spare;
  std::vector<std::uint32_t> payload;  // the words of the term being interned
  std::unordered_map<TermId, Primitive>
      primitives;                               // of the sums that are not primitive themselves
  std::unordered_map<TermId, TermId> expanded;  // as `expandedReciprocals` says
  Reciprocals expandedReciprocals = Reciprocals::kDivided;
  std::unordered_map<TermId, std::uint32_t> leading;
  std::size_t budgetLeft = 0;
  std::size_t budgetGiven = 0;

 private:
  TermId intern(std::uint32_t meta, std::span<const std::uint32_t> content);
  TermId internInline(TermKind k, std::uint32_t data);
  void requireRoom() const;
  TermId append(std::uint32_t data, std::uint32_t meta);
  TermId insertAt(std::size_t slot, std::uint32_t hash, std::uint32_t data, std::uint32_t meta);
  TermId internEntries(std::uint32_t meta, Code constant, std::span<const Entry> entries);
  void grow();
};

// A rule that minus infinity must not meet has met it.
[[noreturn]] inline void infinite(const char* what) {
  throw Unsupported(std::string("minus infinity ") + what);
}

}  // namespace shardproof
