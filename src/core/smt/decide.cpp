// SPDX-License-Identifier: Apache-2.0
#include "smt/decide.h"

#include <algorithm>
#include <chrono>

#include "util/processor_clock.h"

namespace shardproof {

namespace {

// What is left of the time for one question.
class Deadline {
 public:
  explicit Deadline(unsigned milliseconds)
      : end_(ProcessorClock::now() + std::chrono::milliseconds(milliseconds)) {}

  SolverAnswer ask(SolverQuestions& questions, bool different,
                   const std::vector<SolverQuestions::Pinned>& pinned, unsigned parts = 1) const {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end_ - ProcessorClock::now()).count();
    if (left <= 0) return {SmtVerdict::kUnknown, "timeout", {}};
    return questions.ask(different, pinned, std::max(1U, static_cast<unsigned>(left) / parts));
  }

 private:
  ProcessorClock::time_point end_;
};

// Whether some assignment and some functions satisfy all facts. Solvers are slow to find them where
// many roots and reciprocals depend on the same variables. So a few points are tried before: once
// variables have values, and the functions that no fact ties to their arguments, each fact is about
// one root or reciprocal.
SmtVerdict satisfiable(const SmtQuery& query, SolverQuestions& questions,
                       const Deadline& deadline) {
  // cvc5 is slow at points where a root is irrational, and quick where it may choose: a short try
  // without points costs little.
  if (deadline.ask(questions, false, {}, 16).verdict == SmtVerdict::kSat) return SmtVerdict::kSat;
  constexpr unsigned kPoints = 3;
  for (unsigned point = 0; point < kPoints && !query.facts.empty(); ++point) {
    std::vector<SolverQuestions::Pinned> pinned;
    for (std::uint32_t i = 0; i < query.nodes.size(); ++i) {
      const SmtQuery::Node& n = query.nodes[i];
      if (n.kind == SmtKind::kVariable && n.sort == SmtSort::kReal) {
        const std::int64_t eighths =
            1 + static_cast<std::int64_t>((n.data * 7 + point * 3) % 11);  // unequal for neighbours
        pinned.emplace_back(i, Rational(point == 1 && n.data % 2 == 1 ? -eighths : eighths, 8));
      } else if (n.kind == SmtKind::kApply && query.symbols[n.data].constant) {
        pinned.emplace_back(i, *query.symbols[n.data].constant);
      }
    }
    if (deadline.ask(questions, false, pinned, 4).verdict == SmtVerdict::kSat)
      return SmtVerdict::kSat;
  }
  return deadline.ask(questions, false, {}).verdict;
}

}  // namespace

SmtResult decide(const SmtQuery& query, SolverQuestions& questions, const std::string& solver,
                 unsigned milliseconds) {
  SmtResult result;
  const Deadline deadline(milliseconds);
  SolverAnswer answer = deadline.ask(questions, true, {});
  if (answer.verdict == SmtVerdict::kSat) {
    result.verdict = SmtVerdict::kSat;
    result.model = std::move(answer.model);
  } else if (answer.verdict == SmtVerdict::kUnknown) {
    result.reason = solver + ": " + answer.reason;
  } else {
    switch (satisfiable(query, questions, deadline)) {
      case SmtVerdict::kSat:
        result.verdict = SmtVerdict::kUnsat;
        break;
      case SmtVerdict::kUnsat:
        result.reason =
            "no input satisfies the side conditions (reciprocals and roots that are defined "
            "nowhere)";
        break;
      default:
        result.reason = solver + " cannot tell whether the side conditions are satisfiable";
    }
  }
  return result;
}

}  // namespace shardproof
