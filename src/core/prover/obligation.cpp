// SPDX-License-Identifier: Apache-2.0
#include "prover/obligation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "prover/stage_interpreter.h"
#include "shardproof/error.h"
#include "terms/domain.h"
#include "util/stopwatch.h"

namespace shardproof {

namespace {

// Monomials, of one reciprocal's sum.
constexpr std::size_t kMostOpened = 200'000;

// Calls f for each term that t is made of directly, for an atom those of its arguments.
template <class F>
void forEachPart(const TermAlgebra& algebra, Term t, F&& f) {
  const TermKind kind = algebra.kind(t);
  if (kind == TermKind::kSum || kind == TermKind::kProduct) {
    for (const auto& part : algebra.parts(t)) f(part.term);
  } else if (kind == TermKind::kExp || kind == TermKind::kSqrt || kind == TermKind::kFunction ||
             kind == TermKind::kIndicator) {
    for (const Term a : algebra.arguments(t)) f(a);
  }
}

// By term.
template <class V>
using Known = std::unordered_map<std::uint32_t, V>;

// known[t.id] = of(t) for every term that the root is made of and that is not known, parts first.
// Its own stack: a stage may be deeper than the call stack.
template <class V, class F>
void evaluate(const TermAlgebra& algebra, Term root, Known<V>& known, F&& of) {
  std::vector<Term> stack{root};
  while (!stack.empty()) {
    const Term t = stack.back();
    if (known.contains(t.id)) {
      stack.pop_back();
      continue;
    }
    const std::size_t before = stack.size();
    forEachPart(algebra, t, [&](Term part) {
      if (!known.contains(part.id)) stack.push_back(part);
    });
    if (stack.size() > before) continue;
    known.emplace(t.id, of(t));
    stack.pop_back();
  }
}

constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max() / 4;

std::int64_t times(const Rational& power, std::int64_t count) {
  const double product = std::ceil(std::abs(power.toDouble())) * static_cast<double>(count);
  return product < static_cast<double>(kUnbounded) ? static_cast<std::int64_t>(product)
                                                   : kUnbounded;
}

// Of a term, and of its exponential by the logarithms that the term adds up: exp(c log s + t) is
// s^c exp(t), as many factors s as c has units. 0: there are no logarithms; kUnbounded: they may be
// as many as one likes.
struct Count {
  std::int64_t own = 0, asExponent = 0;
  bool onlyLogarithms = false;  // so that t is 0
};

// Of a term whose parts are counted, all but `own`. `each`: of a logarithm, beside what its
// argument counts.
//
// A representative with a weight stands for as many logarithms in a sum, so that the count is that
// of the full size. Only a sum with integers for factors has its logarithms written out. In a
// product the other factors may be a sum of as many units as one likes, and sqrt(x) sqrt(x + 0),
// exp(log(x)/2) exp(log(x + 0)/2) and max(x, x + 0) are x.
Count logarithmsOf(const TermAlgebra& algebra, Term t, const Known<Count>& known,
                   std::int64_t each) {
  const TermKind kind = algebra.kind(t);
  if (kind == TermKind::kFunction && algebra.function(t) == ops::Function::kLog)
    return {.asExponent = std::min(kUnbounded, known.at(algebra.arguments(t)[0].id).own + each),
            .onlyLogarithms = true};
  Count result;
  if (kind == TermKind::kSum) {
    result.onlyLogarithms = algebra.constantValue(t).isZero();
    for (const auto& part : algebra.parts(t)) {
      const Count& own = known.at(part.term.id);
      result.onlyLogarithms = result.onlyLogarithms && own.onlyLogarithms;
      if (own.asExponent == 0) continue;
      result.asExponent =
          part.factor.isInteger()
              ? std::min(kUnbounded, result.asExponent + times(part.factor, own.asExponent))
              : kUnbounded;
    }
    return result;
  }
  const bool mayBeAPart = kind == TermKind::kProduct || kind == TermKind::kSqrt ||
                          kind == TermKind::kExp ||
                          (kind == TermKind::kFunction && ops::isSymmetric(algebra.function(t)));
  if (mayBeAPart)
    forEachPart(algebra, t, [&](Term part) {
      if (known.at(part.id).asExponent != 0) result.asExponent = kUnbounded;
    });
  return result;
}

// What an exponential counts, that of its argument included. Throws Unsupported where no number
// bounds it.
std::int64_t ofExponential(const TermAlgebra& algebra, Term t, const Known<Count>& known) {
  const Count argument = known.at(algebra.arguments(t)[0].id);
  if (argument.asExponent == kUnbounded)
    throw Unsupported("an exponential of logarithms: how many factors it multiplies is not known");
  return std::max(argument.own, argument.asExponent + (argument.onlyLogarithms ? 0 : 1));
}

// An upper bound on how many atoms a monomial of the expansion multiplies together, before anything
// cancels. Inside an atom its argument is compared as a polynomial of its own.
std::int64_t degree(const TermAlgebra& algebra, Term root, Known<Count>& known) {
  evaluate(algebra, root, known, [&](Term t) {
    const TermKind kind = algebra.kind(t);
    Count result = logarithmsOf(algebra, t, known, 0);
    // The size is a number, at no position.
    result.own = kind == TermKind::kSum || kind == TermKind::kConstant || algebra.isSize(t) ? 0 : 1;
    if (kind == TermKind::kProduct) {
      result.own = 0;
      for (const auto& part : algebra.parts(t))
        result.own =
            std::min(kUnbounded, result.own + times(part.factor, known.at(part.term.id).own));
    } else if (kind == TermKind::kExp) {
      result.own = ofExponential(algebra, t, known);
    } else {
      forEachPart(algebra, t,
                  [&](Term part) { result.own = std::max(result.own, known.at(part.id).own); });
    }
    return result;
  });
  return known.at(root.id).own;
}

// Whether the reciprocal of a term may be something to multiply out, and no atom: also that of a
// function, as 1/max(1/c, 1/c + 0) and 1/log(exp(1/c) + 0) are c.
bool mayOpen(TermKind kind) {
  return kind == TermKind::kSum || kind == TermKind::kSqrt || kind == TermKind::kFunction;
}

bool hasLogarithm(const TermAlgebra& algebra, Term root) {
  Known<bool> known;
  evaluate(algebra, root, known, [&](Term t) {
    bool result =
        algebra.kind(t) == TermKind::kFunction && algebra.function(t) == ops::Function::kLog;
    forEachPart(algebra, t, [&](Term part) { result = result || known.at(part.id); });
    return result;
  });
  return known.at(root.id);
}

// An atom that is one in every product, too. exp(log(s)/2) is none: its square is a sum.
bool staysAtom(const TermAlgebra& algebra, Term t) {
  const TermKind kind = algebra.kind(t);
  return kind == TermKind::kVariable || kind == TermKind::kIndicator ||
         (kind == TermKind::kExp && !hasLogarithm(algebra, t));
}

// A reciprocal is an atom as long as its base is one when it is multiplied out. 1/(1/c + 0) is c,
// which is a sum to multiply out. What is a single monomial at full size is one on the
// representatives, too, as they are a special case: so looking there is enough. A number there may
// be a product of sums that is one on few positions only.
bool opens(TermAlgebra& algebra, Term base) {
  const Term r =
      algebra.expand(algebra.power(base, -2), kMostOpened, TermAlgebra::Reciprocals::kAtoms);
  if (algebra.kind(r) != TermKind::kProduct) return !staysAtom(algebra, r);
  const auto parts = algebra.parts(r);
  return std::any_of(parts.begin(), parts.end(), [&](const TermAlgebra::Part& part) {
    return part.factor.sign() > 0 && !staysAtom(algebra, part.term);
  });
}

// Terms that may be divided by: also those whose logarithm stands in an exponential.
bool anyOpens(TermAlgebra& algebra, const std::vector<Term>& roots) {
  Known<bool> seen, inExponentials;
  std::set<std::uint32_t> reciprocals;
  const auto ofLogarithm = [&](Term t) {
    if (algebra.kind(t) != TermKind::kFunction || algebra.function(t) != ops::Function::kLog)
      return true;
    const Term argument = algebra.arguments(t)[0];
    if (mayOpen(algebra.kind(argument))) reciprocals.insert(argument.id);
    if (algebra.kind(argument) == TermKind::kProduct)
      for (const auto& part : algebra.parts(argument))
        if (mayOpen(algebra.kind(part.term))) reciprocals.insert(part.term.id);
    return true;
  };
  for (const Term root : roots) {
    evaluate(algebra, root, seen, [&](Term t) {
      if (algebra.kind(t) == TermKind::kExp) evaluate(algebra, t, inExponentials, ofLogarithm);
      if (algebra.kind(t) == TermKind::kProduct)
        for (const auto& part : algebra.parts(t))
          if (part.factor.sign() < 0 && mayOpen(algebra.kind(part.term)))
            reciprocals.insert(part.term.id);
      return true;
    });
  }
  return std::any_of(reciprocals.begin(), reciprocals.end(),
                     [&](std::uint32_t base) { return opens(algebra, Term{base}); });
}

// An upper bound on how many summands a monomial of the expansion is made of: one for the factors
// of a product that are no sums, and for each sum among them those of its own (for a sum that is
// divided by, and for what stands in an exponential, those of its own polynomial, which is compared
// by itself; what other atoms hold may come out when it is multiplied out, sqrt(c) sqrt(c + 0) is
// c, so that they count as sums). What matters is how many positions a monomial can touch. The
// factors of a product that are no sums were multiplied by one operator, out of elements at its own
// at most m positions: an element is the same whatever permutation fixes its position, so the
// positions that tell it from others are the operator's, however many atoms it consists of. A sum
// that is multiplied out brings in one of its summands, which an operator has made at no more than
// m positions, too. An exponential of logarithms is a product of
// sums: each logarithm, a summand of the argument with at most m positions of its own, brings in a
// summand of its sum.
std::int64_t summands(const TermAlgebra& algebra, Term root, Known<Count>& known) {
  const auto hasLogarithms = [&](Term exponential) {
    return known.at(algebra.arguments(exponential)[0].id).asExponent > 0;
  };
  evaluate(algebra, root, known, [&](Term t) {
    const TermKind kind = algebra.kind(t);
    Count result = logarithmsOf(algebra, t, known, 1);
    result.own = kind == TermKind::kConstant || algebra.isSize(t) ? 0 : 1;
    if (kind == TermKind::kProduct) {
      std::int64_t sums = 0;
      for (const auto& part : algebra.parts(t)) {
        const std::int64_t own = known.at(part.term.id).own;
        const TermKind factor = algebra.kind(part.term);
        if ((factor == TermKind::kSum && part.factor.sign() > 0) || factor == TermKind::kSqrt ||
            factor == TermKind::kFunction || (factor == TermKind::kExp && hasLogarithms(part.term)))
          sums = std::min(kUnbounded, sums + times(part.factor, own));
        else result.own = std::max(result.own, own);
      }
      result.own = std::min(kUnbounded, result.own + sums);
    } else if (kind == TermKind::kExp) {
      result.own = ofExponential(algebra, t, known);
    } else {
      forEachPart(algebra, t,
                  [&](Term part) { result.own = std::max(result.own, known.at(part.id).own); });
    }
    return result;
  });
  return known.at(root.id).own;
}

// On one reduction: executed, paired, and told whether that is conclusive.
Obligation execute(const Stage& stage, const ReductionOptions& options, std::size_t maxTerms,
                   std::map<std::string, double>& seconds) {
  Obligation o;
  o.terms = TermAlgebra(TermAlgebra::Mode::kRaw, maxTerms);
  o.reduction = options;
  {
    Stopwatch watch(seconds["reduce"]);
    o.reduced = reduceStage(stage, options);
  }
  if (o.reduced.largestIteration > kMostIteration)
    throw Unsupported(
        "an operator of the reduced stage runs through too many combinations of indices");
  Stopwatch watch(seconds["execute"]);
  StageInterpreter<TermAlgebra> interpreter(stage, o.reduced, o.terms);
  interpreter.run([&](StageTensorId tensor, std::int64_t index) {
    o.free.push_back({tensor, index});
    return o.terms.variable(stage.tensors[tensor].info.element == ElementKind::kInteger,
                            stage.tensors[tensor].facts);
  });
  o.droppedAssumption = interpreter.droppedAssumption();
  std::unordered_set<std::uint64_t> seen;
  for (const auto& p : interpreter.pairs()) {
    if (seen.insert((std::uint64_t{p.logical.id} << 32) | p.parallel.id).second)
      o.pairs.push_back({p.claim, p.logicalIndex, p.logical, p.parallel});
  }
  return o;
}

}  // namespace

namespace {

// The terms that are divided by, or of which a root or logarithm is taken, in what leads to a term,
// but those for which that is always possible.
class Restrictions {
 public:
  explicit Restrictions(TermAlgebra& terms) : terms_(terms), domain_(terms) {}
  const std::set<std::pair<std::uint32_t, int>>& of(Term root) {
    std::vector<Term> stack{root};
    while (!stack.empty()) {
      const Term t = stack.back();
      if (known_.contains(t.id)) {
        stack.pop_back();
        continue;
      }
      std::vector<Term> below;
      std::set<std::pair<std::uint32_t, int>> own;
      const TermKind kind = terms_.kind(t);
      if (kind == TermKind::kSum || kind == TermKind::kProduct) {
        for (const auto& part : terms_.parts(t)) {
          below.push_back(part.term);
          if (kind == TermKind::kProduct)
            add(part.term,
                part.factor.sign() < 0    ? (part.factor.isInteger() ? -2 : -1)
                : part.factor.isInteger() ? 2
                                          : 1,
                own);
        }
      } else if (kind != TermKind::kConstant && kind != TermKind::kVariable &&
                 kind != TermKind::kNegativeInfinity) {
        below = terms_.arguments(t);
        if (kind == TermKind::kSqrt) add(below[0], 1, own);
        if (kind == TermKind::kFunction && terms_.function(t) == ops::Function::kLog)
          add(below[0], 0, own);
      }
      const std::size_t before = stack.size();
      for (const Term b : below) {
        if (!known_.contains(b.id)) stack.push_back(b);
      }
      if (stack.size() > before) continue;
      for (const Term b : below) own.insert(known_.at(b.id).begin(), known_.at(b.id).end());
      known_.emplace(t.id, std::move(own));
      stack.pop_back();
    }
    return known_.at(root.id);
  }

 private:
  void add(Term base, int halves, std::set<std::pair<std::uint32_t, int>>& own) {
    if (halves == 2 || terms_.kind(base) == TermKind::kExp || domain_.of(base, halves) == 0) return;
    own.emplace(base.id, halves);
  }
  TermAlgebra& terms_;
  Domain domain_;
  std::unordered_map<std::uint32_t, std::set<std::pair<std::uint32_t, int>>> known_;
};

}  // namespace

std::vector<std::pair<Term, Term>> Obligation::equations() const {
  std::vector<std::pair<Term, Term>> equal;
  for (const Pair& p : pairs) equal.emplace_back(p.logical, p.parallel);
  return equal;
}

SmtResult askByDomain(
    TermAlgebra& terms, const std::vector<std::pair<Term, Term>>& pairs, double seconds,
    const std::function<SmtResult(const std::vector<std::pair<Term, Term>>&, unsigned)>& ask) {
  const auto start = ProcessorClock::now();
  std::map<std::set<std::pair<std::uint32_t, int>>, std::vector<std::pair<Term, Term>>> groups;
  Restrictions restrictions(terms);
  for (const auto& pair : pairs) {
    auto both = restrictions.of(pair.first);
    const auto& other = restrictions.of(pair.second);
    both.insert(other.begin(), other.end());
    groups[std::move(both)].push_back(pair);
  }
  SmtResult result;
  result.verdict = SmtVerdict::kUnsat;  // nothing is asked of no pairs
  for (const auto& [domain, asked] : groups) {
    const double left = seconds - secondsSince(start);
    if (left <= 0) {
      result.verdict = SmtVerdict::kUnknown;
      result.reason = "timeout";
      return result;
    }
    result = ask(asked, static_cast<unsigned>(left * 1000));
    if (result.verdict != SmtVerdict::kUnsat) return result;
  }
  return result;
}

std::size_t mostTerms(std::size_t megabytes) {
  // Some 64 bytes a term with its share of the tables.
  return std::max<std::size_t>(1'000'000, megabytes * std::size_t{1024} * 1024 / 64);
}

int extraSummandsFor(const std::vector<std::pair<Term, Term>>& pairs, TermAlgebra& algebra,
                     const Stage& stage, const ReducedStage& reduced, Counting counting) {
  std::vector<Term> roots;
  for (const auto& [a, b] : pairs) roots.insert(roots.end(), {a, b});
  std::int64_t factors = 1;
  Known<Count> known;
  for (const auto& [a, b] : pairs)
    factors = std::max({factors, degree(algebra, a, known), degree(algebra, b, known)});
  // Of a collapsed axis two coordinates are kept apart, no more.
  if (!stage.collapsedAxes.empty() && factors > CollapsedAxis::kApart) {
    throw NeedsRefinement(
        "the proof multiplies more factors than coordinates of an interchangeable axis are kept "
        "apart");
  }
  // Of the positions that are kept apart anyway m are for the element, m for one summand.
  std::int64_t further = factors - 1;
  if (counting == Counting::kSummands && further > 0 && !anyOpens(algebra, roots)) {
    std::int64_t most = 1;
    Known<Count> counted;
    for (const auto& [a, b] : pairs)
      most = std::max({most, summands(algebra, a, counted), summands(algebra, b, counted)});
    // One more than there are besides the first: exponentials are joined, so that the argument of
    // one has the positions of all of them and is a sum over more.
    further = std::min(further, most);
  }
  if (reduced.mostVariables == 0) return 0;  // every position is kept
  return static_cast<int>(std::min<std::int64_t>(further, kMostExtraForSolver + 1));
}

Obligation buildObligation(const Stage& stage, const ReductionOptions& atLeast, Positions positions,
                           std::size_t maxTerms, std::map<std::string, double>& seconds) {
  ReductionOptions options = atLeast;
  try {
    for (;;) {
      Obligation o = execute(stage, options, maxTerms, seconds);
      const int extra =
          extraSummandsFor(o.equations(), o.terms, stage, o.reduced, Counting::kFactors);
      if (extra <= options.extraSummands) return o;
      if (extra * o.reduced.mostVariables > kMostExtraForSolver)
        throw Unsupported(
            "a proof by the solver would need more positions kept apart than is tractable");
      options.extraSummands = extra;
    }
  } catch (const Unsupported&) {
    if (positions == Positions::kConclusive) throw;
  } catch (const NeedsRefinement&) {
    if (positions == Positions::kConclusive) throw;
  }
  Obligation o = execute(stage, atLeast, maxTerms, seconds);
  o.conclusive = false;
  return o;
}

std::string instanceName(const Stage& stage, StageTensorId t) {
  const StageTensor& tensor = stage.tensors[t];
  std::string text = tensorName(stage, t);
  if (!tensor.logical) {
    text = "local " + text + "@rank " + std::to_string(tensor.rank);
    if (tensor.microbatch.isOne())
      text += " microbatch " + std::to_string(tensor.microbatch.number());
  }
  return text;
}

std::string elementName(const Stage& stage, const ReducedStage& reduced, StageTensorId t,
                        std::int64_t index) {
  const StageTensor& tensor = stage.tensors[t];
  std::string text = instanceName(stage, t);
  const auto& dims = reduced.dims[t];
  std::string suffix;
  if (tensor.info.element == ElementKind::kComplex) {
    suffix = index % 2 == 0 ? ".real" : ".imag";
    index /= 2;
  }
  std::vector<std::int64_t> positions(dims.size());
  for (std::size_t d = dims.size(); d-- > 0;) {
    positions[d] = dims[d]->position[index % dims[d]->size()];
    index /= dims[d]->size();
  }
  text += "[";
  for (std::size_t d = 0; d < positions.size(); ++d)
    text += (d ? ", " : "") + std::to_string(positions[d]);
  return text + "]" + suffix;
}

}  // namespace shardproof
