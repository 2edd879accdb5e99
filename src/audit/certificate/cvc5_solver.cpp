// SPDX-License-Identifier: Apache-2.0
#include "certificate/cvc5_solver.h"

#include <stdexcept>

#include <cvc5/cvc5.h>

#include "obligations/smtlib.h"
#include "shardproof/error.h"
#include "smt/decide.h"
#include "smt/query.h"

namespace shardproof {

namespace {

// A solver of its own for each question, so that none depends on what was asked before.
class Cvc5Questions : public SolverQuestions {
 public:
  explicit Cvc5Questions(const SmtQuery& query) : query_(query) {}

  SolverAnswer ask(bool different, const std::vector<Pinned>& pinned,
                   unsigned milliseconds) override {
    cvc5::Solver solver;
    solver.setLogic(logicOf(query_));
    solver.setOption("tlimit-per", std::to_string(milliseconds));
    const std::vector<cvc5::Term> nodes = translate(solver);
    for (const std::uint32_t fact : query_.facts) solver.assertFormula(nodes[fact]);
    for (const auto& [node, value] : pinned)
      solver.assertFormula(solver.mkTerm(
          cvc5::EQUAL, {nodes[node], number(solver, value, query_.nodes[node].sort)}));
    if (different) {
      std::vector<cvc5::Term> differences;
      for (const auto& [a, b] : query_.claims)
        differences.push_back(solver.mkTerm(cvc5::DISTINCT, {nodes[a], nodes[b]}));
      solver.assertFormula(differences.empty()       ? solver.mkFalse()
                           : differences.size() == 1 ? differences[0]
                                                     : solver.mkTerm(cvc5::OR, differences));
    }
    const cvc5::Result result = solver.checkSat();
    if (result.isUnsat()) return {SmtVerdict::kUnsat, {}, {}};
    if (result.isSat()) return {SmtVerdict::kSat, {}, {}};
    return {SmtVerdict::kUnknown, result.toString(), {}};
  }

 private:
  // Numerator and denominator apart, as for Z3: no decimal text is read.
  static cvc5::Term number(const cvc5::Solver& solver, const Rational& r, SmtSort sort) {
    return sort == SmtSort::kInteger
               ? solver.mkInteger(r.toString())
               : solver.mkReal(r.numeratorString() + "/" + r.denominatorString());
  }

  // Operands stand before what uses them, so one pass suffices.
  std::vector<cvc5::Term> translate(const cvc5::Solver& solver) const {
    const cvc5::Sort real = solver.getRealSort(), integer = solver.getIntegerSort();
    std::vector<cvc5::Term> functions;
    for (const SmtQuery::Symbol& s : query_.symbols) {
      const cvc5::Sort result = s.result == SmtSort::kInteger ? integer : real;
      functions.push_back(solver.mkConst(
          s.arity == 0 ? result
                       : solver.mkFunctionSort(std::vector<cvc5::Sort>(s.arity, real), result),
          s.name));
    }
    std::vector<cvc5::Term> nodes;
    nodes.reserve(query_.nodes.size());
    for (const SmtQuery::Node& n : query_.nodes) {
      std::vector<cvc5::Term> operands;
      for (const std::uint32_t o : query_.operandsOf(n)) operands.push_back(nodes[o]);
      nodes.push_back(build(solver, n, std::move(operands), functions));
    }
    return nodes;
  }

  cvc5::Term build(const cvc5::Solver& solver, const SmtQuery::Node& n,
                   std::vector<cvc5::Term> operands,
                   const std::vector<cvc5::Term>& functions) const {
    switch (n.kind) {
      case SmtKind::kNumber:
        return number(solver, query_.numbers[n.data], n.sort);
      case SmtKind::kVariable:
        return solver.mkConst(
            n.sort == SmtSort::kInteger ? solver.getIntegerSort() : solver.getRealSort(),
            "x" + std::to_string(n.data));
      case SmtKind::kSum:
        return solver.mkTerm(cvc5::ADD, operands);
      case SmtKind::kProduct:
        return solver.mkTerm(cvc5::MULT, operands);
      case SmtKind::kToReal:
        return solver.mkTerm(cvc5::TO_REAL, operands);
      case SmtKind::kApply:
        if (operands.empty()) return functions[n.data];
        operands.insert(operands.begin(), functions[n.data]);
        return solver.mkTerm(cvc5::APPLY_UF, operands);
      case SmtKind::kEqual:
        return solver.mkTerm(cvc5::EQUAL, operands);
      case SmtKind::kGreater:
        return solver.mkTerm(cvc5::GT, operands);
      case SmtKind::kAtLeast:
        return solver.mkTerm(cvc5::GEQ, operands);
      case SmtKind::kOr:
        return operands.size() == 1 ? operands[0] : solver.mkTerm(cvc5::OR, operands);
      case SmtKind::kIndicator:
        return solver.mkTerm(cvc5::ITE, {operands[0], solver.mkReal(1), solver.mkReal(0)});
    }
    throw std::logic_error("unknown kind of expression");
  }

  const SmtQuery& query_;
};

}  // namespace

SmtResult findDifferenceByCvc5(const TermAlgebra& algebra,
                               const std::vector<std::pair<Term, Term>>& pairs,
                               unsigned timeoutMilliseconds, Laws laws) {
  try {
    const SmtQuery query = buildQuery(algebra, pairs, laws);
    Cvc5Questions questions(query);
    return decide(query, questions, "cvc5", timeoutMilliseconds);
  } catch (const cvc5::CVC5ApiException& error) {
    return {SmtVerdict::kUnknown, std::string("cvc5: ") + error.what(), {}};
  } catch (const Unsupported& error) {
    return {SmtVerdict::kUnknown, std::string("for cvc5: ") + error.what(), {}};
  }
}

}  // namespace shardproof
