// SPDX-License-Identifier: Apache-2.0
// What a solver is asked: terms and the facts about them, as a list of expressions of the two
// theories that every solver has (reals and integers, uninterpreted functions). The one place that
// says how terms are put to a solver; Z3 (solver.cpp) and SMT-LIB text (smtlib.cpp) only spell it
// out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardproof/rational.h"
#include "terms/term_algebra.h"

namespace shardproof {

enum class SmtSort : std::uint8_t { kReal, kInteger, kBoolean };

enum class SmtKind : std::uint8_t {
  kNumber,     // data: index into numbers; sort says how it is written
  kVariable,   // data: the term variable
  kSum,        // two operands or more, all real
  kProduct,    // likewise
  kToReal,     // of an integer
  kApply,      // data: index into symbols; operands are real
  kEqual,      // two operands of one sort
  kGreater,    // two reals
  kAtLeast,    // two reals
  kOr,         // booleans
  kIndicator,  // 1 if the operand, a boolean, holds, else 0
};

struct SmtQuery {
  struct Node {
    SmtKind kind;
    SmtSort sort;
    std::uint32_t data;
    std::uint32_t first, count;  // in `operands`
  };
  struct Symbol {      // an uninterpreted function of reals
    std::string name;  // a simple symbol of SMT-LIB, none that a theory has
    std::uint32_t arity;
    SmtSort result;
    std::optional<Rational> constant;  // it may be this everywhere, as far as `facts` goes; none:
                                       // they tie its value to its arguments
    bool lawless;  // it is any function of its arguments: normal forms know no law of it that
                   // `facts` does not state
  };

  std::vector<Node> nodes;  // operands stand before what they are operands of
  std::vector<std::uint32_t> operands;
  std::vector<Rational> numbers;
  std::vector<Symbol> symbols;
  std::vector<std::uint32_t> facts;  // side conditions: what holds wherever both sides are defined
  std::vector<std::pair<std::uint32_t, std::uint32_t>>
      claims;  // of one sort each; asked is whether some two can differ

  std::span<const std::uint32_t> operandsOf(const Node& n) const {
    return {operands.data() + n.first, n.count};
  }
};

// What a solver is told of functions.
enum class Laws : std::uint8_t {
  kAll,   // what holds for them
  kNone,  // nothing but that equal arguments give equal results, of indicators and maxima, too; all
          // variables are real. Two sides are then equal only if they are the same polynomials of
          // functions of the same polynomials.
};

// exp, roots, reciprocals and the opaque functions become uninterpreted functions. With kAll with
// the facts that hold for them: exp(x) > 0 (>= 0 where x may be minus infinity); x >= 0, sqrt(x) >=
// 0 and sqrt(x)^2 = x; x (1/x) = 1; exp(0) = 1 and the like; a maximum is one of its arguments and
// none is larger. Where a part is only needed if an indicator is 1 (TermAlgebra::select), x need
// not be positive or other than 0: then roots and reciprocals have their facts only where it is.
// Throws Unsupported for terms that no solver can be told (minus infinity outside of an
// exponential, powers above 64).
SmtQuery buildQuery(const TermAlgebra& algebra, const std::vector<std::pair<Term, Term>>& pairs,
                    Laws laws = Laws::kAll);

}  // namespace shardproof
