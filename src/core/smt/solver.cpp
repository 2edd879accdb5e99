// SPDX-License-Identifier: Apache-2.0
#include "smt/solver.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include <z3++.h>

#include "shardproof/error.h"
#include "smt/decide.h"
#include "smt/query.h"
#include "util/processor_clock.h"

namespace shardproof {

namespace {

// The expressions of a query in Z3. Operands stand before what uses them, so one pass suffices.
class Translation {
 public:
  Translation(const SmtQuery& query, z3::context& context) : query_(query), c_(context) {
    for (const SmtQuery::Symbol& s : query.symbols) {
      z3::sort_vector sorts(c_);
      for (std::uint32_t i = 0; i < s.arity; ++i) sorts.push_back(c_.real_sort());
      functions_.push_back(c_.function(
          s.name.c_str(), sorts, s.result == SmtSort::kInteger ? c_.int_sort() : c_.real_sort()));
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
      case SmtKind::kNumber:
        return number(query_.numbers[n.data], n.sort);
      case SmtKind::kVariable: {
        const std::string name = "x" + std::to_string(n.data);
        return n.sort == SmtSort::kInteger ? c_.int_const(name.c_str())
                                           : c_.real_const(name.c_str());
      }
      case SmtKind::kSum:
        return z3::sum(operands);
      case SmtKind::kProduct: {
        std::vector<Z3_ast> factors;
        for (unsigned i = 0; i < operands.size(); ++i)
          factors.push_back(operands[static_cast<int>(i)]);
        const z3::expr product(
            c_, Z3_mk_mul(c_, static_cast<unsigned>(factors.size()), factors.data()));
        c_.check_error();
        return product;
      }
      case SmtKind::kToReal:
        return z3::to_real(operands[0]);
      case SmtKind::kApply:
        return functions_[n.data](operands);
      case SmtKind::kEqual:
        return operands[0] == operands[1];
      case SmtKind::kGreater:
        return operands[0] > operands[1];
      case SmtKind::kAtLeast:
        return operands[0] >= operands[1];
      case SmtKind::kOr:
        return z3::mk_or(operands);
      case SmtKind::kIndicator:
        return z3::ite(operands[0], c_.real_val(1), c_.real_val(0));
    }
    throw std::logic_error("unknown kind of expression");
  }

  const SmtQuery& query_;
  z3::context& c_;
  std::vector<z3::func_decl> functions_;
  std::vector<z3::expr> expressions_;
  std::map<std::uint32_t, z3::expr> variables_;
};

// Interrupts a context once the thread that made this has used so much processor time: Z3 itself
// knows only the time of day, and on a busy machine a proof would be found or not by what else
// runs.
class ProcessorLimit {
 public:
  ProcessorLimit(z3::context& context, std::chrono::milliseconds most) : context_(context) {
    ::pthread_getcpuclockid(::pthread_self(), &clock_);
    end_ = ProcessorClock::at(clock_) + most;
    watcher_ = std::thread([this] { watch(); });
  }
  ~ProcessorLimit() { end(); }
  ProcessorLimit(const ProcessorLimit&) = delete;
  ProcessorLimit& operator=(const ProcessorLimit&) = delete;
  // Nothing is interrupted after this. Whether something was.
  bool end() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_one();
    if (watcher_.joinable()) watcher_.join();
    return reached_;
  }

 private:
  // Processor time passes no faster than time does, so it can sleep for what is left. An interrupt
  // is lost where Z3 is between two searches, so it is repeated.
  void watch() {
    constexpr ProcessorClock::duration kShortest = std::chrono::milliseconds(1);
    std::unique_lock lock(mutex_);
    while (!done_) {
      const auto left = end_ - ProcessorClock::at(clock_);
      if (left <= ProcessorClock::duration::zero()) {
        reached_ = true;
        context_.interrupt();
      }
      wake_.wait_for(lock, std::max(left, kShortest));
    }
  }

  z3::context& context_;
  clockid_t clock_{};
  ProcessorClock::time_point end_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  bool reached_ = false;  // of the watcher, until it was joined
  std::thread watcher_;
};

class Z3Questions : public SolverQuestions {
 public:
  explicit Z3Questions(const SmtQuery& query) : query_(query) {}

  SolverAnswer ask(bool different, const std::vector<Pinned>& pinned,
                   unsigned milliseconds) override {
    // A context that was interrupted may stay so.
    if (interrupted_ || !translation_) translateAnew();
    const Translation& translation = *translation_;
    z3::solver solver(*context_);
    for (const std::uint32_t fact : query_.facts) solver.add(translation[fact]);
    for (const auto& [node, value] : pinned)
      solver.add(translation[node] == translation.number(value, query_.nodes[node].sort));
    if (different) {
      z3::expr_vector differences(*context_);
      for (const auto& [a, b] : query_.claims)
        differences.push_back(translation[a] != translation[b]);
      solver.add(z3::mk_or(differences));
    }
    z3::params params(*context_);
    params.set("timeout", std::min(milliseconds,
                                   std::numeric_limits<unsigned>::max() / kMostSecondsPerSecond) *
                              kMostSecondsPerSecond);
    solver.set(params);
    z3::check_result answer = z3::unknown;
    {
      ProcessorLimit limit(*context_, std::chrono::milliseconds(milliseconds));
      answer = solver.check();
      interrupted_ = limit.end();
    }
    switch (answer) {
      case z3::unsat:
        return {SmtVerdict::kUnsat, {}, {}};
      case z3::unknown:
        return {SmtVerdict::kUnknown, interrupted_ ? "timeout" : solver.reason_unknown(), {}};
      case z3::sat:
        break;
    }
    return {SmtVerdict::kSat,
            {},
            different ? values(solver.get_model()) : std::map<std::uint32_t, double>{}};
  }

 private:
  void translateAnew() {
    translation_.reset();
    context_.emplace();
    translation_.emplace(query_, *context_);
    interrupted_ = false;
  }

  std::map<std::uint32_t, double> values(const z3::model& model) const {
    std::map<std::uint32_t, double> result;
    for (const auto& [v, e] : translation_->variables()) {
      const z3::expr value = model.eval(e, true);
      double number = 0;
      if (value.is_numeral(number)) result[v] = number;
      else if (value.is_algebraic()) result[v] = std::stod(value.get_decimal_string(17));
    }
    return result;
  }

  const SmtQuery& query_;
  std::optional<z3::context> context_;
  std::optional<Translation> translation_;  // refers to the context
  bool interrupted_ = false;
};

}  // namespace

SmtResult findDifference(const TermAlgebra& algebra,
                         const std::vector<std::pair<Term, Term>>& pairs,
                         unsigned timeoutMilliseconds, unsigned memoryMegabytes, Laws laws) {
  try {
    z3::set_param("memory_max_size", static_cast<int>(memoryMegabytes));
    const SmtQuery query = buildQuery(algebra, pairs, laws);
    Z3Questions questions(query);
    return decide(query, questions, "Z3", timeoutMilliseconds);
  } catch (const z3::exception& error) {
    return {SmtVerdict::kUnknown, std::string("Z3: ") + error.msg(), {}};
  } catch (const Unsupported& error) {
    return {SmtVerdict::kUnknown, std::string("for Z3: ") + error.what(), {}};
  }
}

std::string solverVersion() {
  unsigned major = 0, minor = 0, build = 0, revision = 0;
  Z3_get_version(&major, &minor, &build, &revision);
  return "Z3 " + std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(build) +
         "." + std::to_string(revision);
}

}  // namespace shardproof
