#include "smt/solver.h"

#include <unordered_map>

#include <z3++.h>

#include "shardproof/error.h"

namespace shardproof {

namespace {

class Translator {
 public:
  Translator(const TermAlgebra& algebra, z3::context& context, z3::solver& solver) : algebra_(algebra), c_(context), solver_(solver) {}

  // Terms are deep: translated without recursion.
  z3::expr translate(Term root) {
    std::vector<Term> stack{root};
    while (!stack.empty()) {
      const Term t = stack.back();
      if (done_.contains(t.id)) {
        stack.pop_back();
        continue;
      }
      bool ready = true;
      for (const Term child : children(t)) {
        if (!done_.contains(child.id)) {
          stack.push_back(child);
          ready = false;
        }
      }
      if (!ready) continue;
      done_.emplace(t.id, build(t));
      stack.pop_back();
    }
    return done_.at(root.id);
  }

  const std::map<std::uint32_t, z3::expr>& variables() const { return variables_; }

 private:
  std::vector<Term> children(Term t) const {
    switch (algebra_.kind(t)) {
      case TermKind::kSum:
      case TermKind::kProduct: {
        std::vector<Term> result;
        for (const auto& part : algebra_.parts(t)) result.push_back(part.term);
        return result;
      }
      case TermKind::kExp:
      case TermKind::kSqrt:
      case TermKind::kFunction:
      case TermKind::kIndicator: return algebra_.arguments(t);
      default: return {};
    }
  }

  // Numerator and denominator apart: Z3 4.8.12 reads a text such as "1e-05" as 1/0.
  z3::expr number(const Rational& r) {
    z3::expr n = c_.real_val(r.numeratorString().c_str());
    return r.isInteger() ? n : n / c_.real_val(r.denominatorString().c_str());
  }
  z3::expr real(const z3::expr& e) { return e.is_int() ? z3::to_real(e) : e; }

  z3::expr build(Term t) {
    switch (algebra_.kind(t)) {
      case TermKind::kConstant: return number(algebra_.constantValue(t));
      case TermKind::kNegativeInfinity: throw Unsupported("minus infinity outside of an exponential");
      case TermKind::kVariable: {
        const std::uint32_t v = algebra_.variableIndex(t);
        const std::string name = "x" + std::to_string(v);
        z3::expr e = algebra_.variableIsInteger(v) ? c_.int_const(name.c_str()) : c_.real_const(name.c_str());
        variables_.emplace(v, e);
        return e;
      }
      case TermKind::kSum: {
        z3::expr sum = number(algebra_.constantValue(t));
        for (const auto& part : algebra_.parts(t)) {
          const z3::expr e = real(done_.at(part.term.id));
          sum = sum + (part.factor.isOne() ? e : number(part.factor) * e);
        }
        return sum;
      }
      case TermKind::kProduct: {
        z3::expr product = c_.real_val(1);
        for (const auto& part : algebra_.parts(t)) product = product * power(part.term, part.factor);
        return product;
      }
      case TermKind::kExp: {
        const z3::expr e = c_.function("exp", c_.real_sort(), c_.real_sort())(real(done_.at(algebra_.arguments(t)[0].id)));
        solver_.add(e > 0);
        return e;
      }
      case TermKind::kSqrt: {
        const z3::expr x = real(done_.at(algebra_.arguments(t)[0].id));
        const z3::expr e = c_.function("sqrt", c_.real_sort(), c_.real_sort())(x);
        // Both sides are compared only where the model is defined, and there every argument of a root is positive.
        solver_.add(x > 0 && e > 0 && e * e == x);
        return e;
      }
      case TermKind::kFunction: {
        const auto arguments = algebra_.arguments(t);
        std::string name = std::string("f_") + ops::name(algebra_.function(t));
        for (const std::int64_t p : algebra_.parameters(t)) name += "_" + std::to_string(p);
        name += "/" + std::to_string(arguments.size());
        z3::sort_vector sorts(c_);
        z3::expr_vector values(c_);
        for (const Term a : arguments) {
          sorts.push_back(c_.real_sort());
          values.push_back(real(done_.at(a.id)));
        }
        const bool integer = algebra_.function(t) == ops::Function::kGateChoice;
        return c_.function(name.c_str(), sorts, integer ? c_.int_sort() : c_.real_sort())(values);
      }
      case TermKind::kIndicator: {
        const z3::expr index = done_.at(algebra_.arguments(t)[0].id);
        const z3::expr value = index.is_int() ? c_.int_val(static_cast<int64_t>(algebra_.parameters(t)[0])) : c_.real_val(static_cast<int64_t>(algebra_.parameters(t)[0]));
        return z3::ite(index == value, c_.real_val(1), c_.real_val(0));
      }
    }
    throw std::logic_error("unknown term kind");
  }

  z3::expr power(Term base, const Rational& exponent) {
    const z3::expr x = real(done_.at(base.id));
    if (!exponent.fitsInt64()) {
      // base^(p/2) or exp(a)^q: an uninterpreted function of the base that is at least positive.
      const z3::expr e = c_.function(("pow_" + exponent.toString()).c_str(), c_.real_sort(), c_.real_sort())(x);
      solver_.add(e > 0);
      if ((exponent * Rational(2)).fitsInt64()) solver_.add(e * e == integerPower(x, (exponent * Rational(2)).toInt64()));
      return e;
    }
    return integerPower(x, exponent.toInt64());
  }
  z3::expr integerPower(const z3::expr& x, std::int64_t n) {
    if (n < 0) {
      // 1/x as a fresh-by-name number: Z3's own division is total and would say nothing about x = 0, which neither side is defined for.
      const z3::expr inverse = c_.function("inverse", c_.real_sort(), c_.real_sort())(x);
      solver_.add(x * inverse == 1);
      return integerPower(inverse, -n);
    }
    if (n > 64) throw Unsupported("a power above 64 for the solver");
    z3::expr result = c_.real_val(1);
    for (std::int64_t i = 0; i < n; ++i) result = i == 0 ? x : result * x;
    return result;
  }

  const TermAlgebra& algebra_;
  z3::context& c_;
  z3::solver& solver_;
  std::unordered_map<std::uint32_t, z3::expr> done_;
  std::map<std::uint32_t, z3::expr> variables_;
};

}  // namespace

SmtResult findDifference(const TermAlgebra& algebra, const std::vector<std::pair<Term, Term>>& pairs, unsigned timeoutMilliseconds,
                         unsigned memoryMegabytes) {
  SmtResult result;
  try {
    z3::set_param("memory_max_size", static_cast<int>(memoryMegabytes));
    z3::context context;
    z3::solver solver(context);
    z3::params params(context);
    params.set("timeout", timeoutMilliseconds);
    solver.set(params);
    Translator translator(algebra, context, solver);
    z3::expr_vector differences(context);
    for (const auto& [a, b] : pairs) {
      z3::expr x = translator.translate(a), y = translator.translate(b);
      if (x.is_int() != y.is_int()) {
        if (x.is_int()) x = z3::to_real(x);
        if (y.is_int()) y = z3::to_real(y);
      }
      differences.push_back(x != y);
    }
    // Are the side conditions satisfiable at all? Contradictory ones would prove anything.
    const z3::check_result domain = solver.check();
    if (domain == z3::unsat) {
      result.reason = "no input satisfies the side conditions (reciprocals and roots that are defined nowhere)";
      return result;
    }
    solver.add(z3::mk_or(differences));
    const z3::check_result outcome = solver.check();
    if (outcome == z3::unsat) {
      if (domain == z3::unknown) {
        result.reason = "Z3 cannot tell whether the side conditions are satisfiable";
        return result;
      }
      result.verdict = SmtVerdict::kUnsat;
    } else if (outcome == z3::sat) {
      result.verdict = SmtVerdict::kSat;
      const z3::model model = solver.get_model();
      for (const auto& [v, e] : translator.variables()) {
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
