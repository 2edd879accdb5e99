#include "smt/solver.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <vector>

#include <z3++.h>

#include "shardproof/error.h"
#include "smt/query.h"

namespace shardproof {

namespace {

// The expressions of a query in Z3. Operands stand before what uses them, so one pass suffices.
class Translation {
 public:
  Translation(const SmtQuery& query, z3::context& context) : query_(query), c_(context) {
    for (const SmtQuery::Symbol& s : query.symbols) {
      z3::sort_vector sorts(c_);
      for (std::uint32_t i = 0; i < s.arity; ++i) sorts.push_back(c_.real_sort());
      functions_.push_back(c_.function(s.name.c_str(), sorts, s.result == SmtSort::kInteger ? c_.int_sort() : c_.real_sort()));
    }
    expressions_.reserve(query.nodes.size());
    for (const SmtQuery::Node& n : query.nodes) {
      expressions_.push_back(build(n));
      if (n.kind == SmtKind::kVariable) variables_.emplace(n.data, expressions_.back());
    }
  }

  const z3::expr& operator[](std::uint32_t node) const { return expressions_[node]; }
  const std::map<std::uint32_t, z3::expr>& variables() const { return variables_; }

  // Numerator and denominator apart: Z3 4.8.12 reads a text such as "1e-05" as 1/0.
  z3::expr number(const Rational& r, SmtSort sort) const {
    if (sort == SmtSort::kInteger) return c_.int_val(r.toString().c_str());
    z3::expr n = c_.real_val(r.numeratorString().c_str());
    return r.isInteger() ? n : n / c_.real_val(r.denominatorString().c_str());
  }

 private:
  z3::expr build(const SmtQuery::Node& n) {
    z3::expr_vector operands(c_);
    for (const std::uint32_t o : query_.operandsOf(n)) operands.push_back(expressions_[o]);
    switch (n.kind) {
      case SmtKind::kNumber: return number(query_.numbers[n.data], n.sort);
      case SmtKind::kVariable: {
        const std::string name = "x" + std::to_string(n.data);
        return n.sort == SmtSort::kInteger ? c_.int_const(name.c_str()) : c_.real_const(name.c_str());
      }
      case SmtKind::kSum: return z3::sum(operands);
      case SmtKind::kProduct: {
        std::vector<Z3_ast> factors;
        for (unsigned i = 0; i < operands.size(); ++i) factors.push_back(operands[static_cast<int>(i)]);
        const z3::expr product(c_, Z3_mk_mul(c_, static_cast<unsigned>(factors.size()), factors.data()));
        c_.check_error();
        return product;
      }
      case SmtKind::kToReal: return z3::to_real(operands[0]);
      case SmtKind::kApply: return functions_[n.data](operands);
      case SmtKind::kEqual: return operands[0] == operands[1];
      case SmtKind::kGreater: return operands[0] > operands[1];
      case SmtKind::kAtLeast: return operands[0] >= operands[1];
      case SmtKind::kOr: return z3::mk_or(operands);
      case SmtKind::kIndicator: return z3::ite(operands[0], c_.real_val(1), c_.real_val(0));
    }
    throw std::logic_error("unknown kind of expression");
  }

  const SmtQuery& query_;
  z3::context& c_;
  std::vector<z3::func_decl> functions_;
  std::vector<z3::expr> expressions_;
  std::map<std::uint32_t, z3::expr> variables_;
};

// What is left of the time for one question.
class Deadline {
 public:
  explicit Deadline(unsigned milliseconds) : end_(std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds)) {}

  z3::check_result check(z3::solver& solver, unsigned parts = 1) const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now()).count();
    if (left <= 0) return z3::unknown;
    z3::params params(solver.ctx());
    params.set("timeout", std::max(1U, static_cast<unsigned>(left) / parts));
    solver.set(params);
    return solver.check();
  }

 private:
  std::chrono::steady_clock::time_point end_;
};

z3::solver solverOf(const std::vector<std::uint32_t>& facts, const Translation& translation, z3::context& context) {
  z3::solver solver(context);
  for (const std::uint32_t fact : facts) solver.add(translation[fact]);
  return solver;
}

// Whether some assignment and some functions satisfy all facts. Z3 is slow to find them where many roots and reciprocals depend on the same variables. So a
// few points are tried before: once variables have values, and the functions that no fact ties to their arguments, each fact is about one root or reciprocal.
z3::check_result satisfiable(const SmtQuery& query, const Translation& translation, z3::context& context, const Deadline& deadline) {
  constexpr unsigned kPoints = 3;
  for (unsigned point = 0; point < kPoints && !query.facts.empty(); ++point) {
    z3::solver solver = solverOf(query.facts, translation, context);
    for (std::uint32_t i = 0; i < query.nodes.size(); ++i) {
      const SmtQuery::Node& n = query.nodes[i];
      if (n.kind == SmtKind::kVariable && n.sort == SmtSort::kReal) {
        const int eighths = 1 + static_cast<int>((n.data * 7 + point * 3) % 11);   // unequal for neighbours
        solver.add(translation[i] == context.real_val(point == 1 && n.data % 2 == 1 ? -eighths : eighths, 8));
      } else if (n.kind == SmtKind::kApply && query.symbols[n.data].constant) {
        solver.add(translation[i] == translation.number(*query.symbols[n.data].constant, n.sort));
      }
    }
    if (deadline.check(solver, 4) == z3::sat) return z3::sat;
  }
  z3::solver solver = solverOf(query.facts, translation, context);
  return deadline.check(solver);
}

}  // namespace

SmtResult findDifference(const TermAlgebra& algebra, const std::vector<std::pair<Term, Term>>& pairs, unsigned timeoutMilliseconds,
                         unsigned memoryMegabytes) {
  SmtResult result;
  try {
    z3::set_param("memory_max_size", static_cast<int>(memoryMegabytes));
    z3::context context;
    const Deadline deadline(timeoutMilliseconds);
    const SmtQuery query = buildQuery(algebra, pairs);
    const Translation translation(query, context);
    z3::solver solver = solverOf(query.facts, translation, context);
    z3::expr_vector differences(context);
    for (const auto& [a, b] : query.claims) differences.push_back(translation[a] != translation[b]);
    solver.add(z3::mk_or(differences));
    const z3::check_result outcome = deadline.check(solver);
    if (outcome == z3::unsat) {
      // Are the side conditions satisfiable at all? Contradictory ones would prove anything.
      switch (satisfiable(query, translation, context, deadline)) {
        case z3::sat: result.verdict = SmtVerdict::kUnsat; break;
        case z3::unsat: result.reason = "no input satisfies the side conditions (reciprocals and roots that are defined nowhere)"; break;
        default: result.reason = "Z3 cannot tell whether the side conditions are satisfiable";
      }
    } else if (outcome == z3::sat) {
      result.verdict = SmtVerdict::kSat;
      const z3::model model = solver.get_model();
      for (const auto& [v, e] : translation.variables()) {
        const z3::expr value = model.eval(e, true);
        double number = 0;
        if (value.is_numeral(number)) result.model[v] = number;
        else if (value.is_algebraic()) result.model[v] = std::stod(value.get_decimal_string(17));
      }
    } else {
      result.reason = "Z3: " + solver.reason_unknown();
    }
  } catch (const z3::exception& error) {
    result.verdict = SmtVerdict::kUnknown;
    result.reason = std::string("Z3: ") + error.msg();
  } catch (const Unsupported& error) {
    result.verdict = SmtVerdict::kUnknown;
    result.reason = std::string("for Z3: ") + error.what();
  }
  return result;
}

std::string solverVersion() {
  unsigned major = 0, minor = 0, build = 0, revision = 0;
  Z3_get_version(&major, &minor, &build, &revision);
  return "Z3 " + std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(build) + "." + std::to_string(revision);
}

}  // namespace shardproof
