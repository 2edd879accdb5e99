// SPDX-License-Identifier: Apache-2.0
#include "confirm/confirm.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "attempts/attempts.h"
#include "executor/interpret.h"
#include "ir/attribute_steps.h"
#include "report/format.h"
#include "shardproof/error.h"
#include "shardproof/verify.h"
#include "shrink/shrink.h"
#include "util/stopwatch.h"
#include "worker/pool.h"

namespace shardproof {

namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

constexpr double kFlopsPerSecond = 1e9;  // that are counted on: small arrays are slower than large
                                         // ones, and a plan that does not end says nothing
constexpr double kMostElements = 2e8;    // of a smaller plan
constexpr double kShrinkShare = 0.5;     // of the time, for making it
constexpr double kNodesPerSecond = 1e5;  // of a plan without attributes that move, and made smaller
constexpr int kTrials = 3;
constexpr double kSlackSeconds = 10;  // until a process that does not keep to its time is killed

std::string outputName(const Problem& problem, EntryId entry) {
  const TensorId t = problem.plan.lineage[entry].tensor;
  return problem.names.text(problem.model.graph.tensors[t].name);
}

// Two numbers with as many digits as it takes to see that they differ.
std::pair<std::string, std::string> apart(double a, double b) {
  std::pair<std::string, std::string> text{std::to_string(a), std::to_string(b)};
  for (int digits = 8; text.first == text.second && digits <= 17; ++digits) {
    const auto written = [&](double x) {
      std::ostringstream out;
      out << std::setprecision(digits) << x;
      return out.str();
    };
    text = {written(a), written(b)};
  }
  return text;
}

// What the process that executes says: an outcome and why, and of a smaller plan that disagrees its
// files.
struct Answer {
  Confirmation::Outcome outcome = Confirmation::Outcome::kNotExecuted;
  std::string text, model, plan;
};

// Of all programs, for a plan that is made smaller.
std::size_t mostNodes(const ConfirmOptions& options) {
  return static_cast<std::size_t>(kNodesPerSecond * options.seconds);
}

std::size_t nodesOf(const Problem& problem) {
  std::size_t nodes = 0;
  for (const Program& program : problem.plan.programs) nodes += program.graph.nodes.size();
  return nodes;
}

class Execution {
 public:
  // `refuted`: the plan is known to be wrong, so a smaller one that disagrees is as it should be.
  Execution(const Problem& problem, const ConfirmOptions& options, bool refuted)
      : problem_(problem), options_(options), refuted_(refuted), start_(Clock::now()) {}

  Answer run() {
    Answer answer;
    try {
      if (fits(problem_)) return judge(problem_, "the plan itself");
      if (const std::size_t nodes = nodesOf(problem_); nodes > mostNodes(options_)) {
        answer.text = "not executed: to make a plan of " + grouped(static_cast<double>(nodes)) +
                      " nodes smaller takes longer than " + seconds();
        return answer;
      }
      ShrinkOptions shrink;
      shrink.seconds = options_.seconds * kShrinkShare;
      shrink.maxElements = kMostElements;
      Shrunk small = shrinkProblem(problem_, shrink);
      if (!fits(*small.problem)) {
        answer.text = "not executed: even a smaller plan, of " + grouped(small.elements) +
                      " elements, takes longer than " + seconds();
        return answer;
      }
      answer = judge(*small.problem, "a smaller plan (" + whatChanged(small) + ")");
      if (answer.outcome == Confirmation::Outcome::kDisagrees && !refuted_) {
        VerifyOptions verifyOptions;
        verifyOptions.jobs = 1;
        verifyOptions.inProcess = true;
        if (!isProved(verifyInferring(small.problem, verifyOptions, Infer::kAuto).verdict)) {
          return {Confirmation::Outcome::kNotExecuted,
                  "not confirmed: the smaller plan that was executed is not equivalent itself, so "
                  "it is another plan than this one",
                  {},
                  {}};
        }
        answer.model = small.modelText;
        answer.plan = small.planText;
      }
    } catch (const Unsupported& error) {
      answer.text = std::string("not executed: ") + error.what();
    } catch (const InputError& error) {
      answer.text = std::string("not executed: ") + error.what();
    }
    return answer;
  }

 private:
  double left() const { return std::max(0.05, options_.seconds - secondsSince(start_)); }
  std::string seconds() const {
    std::string text = std::to_string(options_.seconds);
    text.erase(text.find_last_not_of('0') + 1);
    if (text.ends_with('.')) text.pop_back();
    return text + " s (--confirm)";
  }
  bool fits(const Problem& problem) const {
    return executor::costsAtMost(
        problem, {.bytes = static_cast<double>(options_.memoryMegabytes) * 1024 * 1024 / 2,
                  .flops = left() * kFlopsPerSecond});
  }

  static std::string whatChanged(const Shrunk& small) {
    std::string axes;
    std::size_t dimensions = 0;
    for (const Shrunk::Change& c : small.changes) {
      if (c.full == c.shrunk) continue;
      if (c.what.starts_with("axis ") || c.what == "microbatches")
        axes += (axes.empty() ? "" : ", ") + c.what + " " + std::to_string(c.full) + " -> " +
                std::to_string(c.shrunk);
      else ++dimensions;
    }
    if (dimensions > 0) axes += std::string(axes.empty() ? "" : ", ") + "shorter dimensions";
    return axes.empty() ? "of the same sizes" : axes;
  }

  Answer judge(const Problem& problem, const std::string& what) const {
    executor::Options options;
    options.trials = kTrials;
    options.seconds = left();
    options.maxBytes = static_cast<std::int64_t>(options_.memoryMegabytes) * 1024 * 1024;
    options.cutPoints = false;
    const executor::Result result = executor::execute(problem, options);
    if (result.status == executor::Status::kRefused)
      return {
          Confirmation::Outcome::kNotExecuted, what + " is not executed: " + result.reason, {}, {}};
    if (result.status == executor::Status::kCannotRun)
      return {Confirmation::Outcome::kDisagrees, what + " cannot run: " + result.reason, {}, {}};
    std::size_t elements = 0;
    std::size_t agreed = 0, outputs = 0;
    std::string unknown;
    for (const executor::EntryResult& e : result.entries) {
      ++outputs;
      elements += static_cast<std::size_t>(e.compared);
      if (e.agreement == executor::Agreement::kDiffers) {
        std::string text = what + " disagrees at output '" + outputName(problem, e.entry) + "'";
        if (e.difference) {
          const auto [logical, parallel] = apart(e.difference->logical, e.difference->parallel);
          text += ": the model computes " + logical + ", rank " +
                  std::to_string(e.difference->rank) + " " + parallel;
        }
        return {Confirmation::Outcome::kDisagrees, std::move(text), {}, {}};
      }
      if (e.agreement == executor::Agreement::kAgrees) ++agreed;
      else if (e.compared == 0 && e.undefined > 0)
        return {Confirmation::Outcome::kNoValue,
                "the model has no value at output '" + outputName(problem, e.entry) +
                    "' for any of the inputs that were tried",
                {},
                {}};
      else if (unknown.empty()) unknown = e.reason;
    }
    const std::string counts = grouped(elements) + " elements of " + std::to_string(outputs) +
                               (outputs == 1 ? " output entry" : " output entries");
    if (agreed == outputs && outputs > 0)
      return {Confirmation::Outcome::kAgrees,
              what + " at " + std::to_string(result.trials) +
                  (result.trials == 1 ? " random input: " : " random inputs: ") + counts + " agree",
              {},
              {}};
    return {Confirmation::Outcome::kNotExecuted,
            what +
                (result.trials == 0 ? " was not executed to its end in " + seconds()
                                    : ": " + std::to_string(agreed) + " of " +
                                          std::to_string(outputs) + " output entries agree") +
                (unknown.empty() ? "" : "; " + unknown),
            {},
            {}};
  }

  const Problem& problem_;
  const ConfirmOptions& options_;
  const bool refuted_;
  Clock::time_point start_;
};

Answer answerOf(const Problem& problem, const ConfirmOptions& options, bool refuted) {
  try {
    const ir::FixedAttributes fixed(problem, mostNodes(options));
    return Execution(fixed.problem(), options, refuted).run();
  } catch (const Unsupported& tooMany) {
    Answer answer;
    answer.text = std::string("not executed: ") + tooMany.what();
    return answer;
  }
}

}  // namespace

void confirm(const Problem& problem, Report& report, const ConfirmOptions& options) {
  const auto start = Clock::now();
  Answer answer;
  PoolOptions pool;
  pool.timeoutSeconds = options.seconds + kSlackSeconds;
  pool.memoryMegabytes = options.memoryMegabytes;
  pool.cancel = whenSet(options.cancel);
  const TaskResult result = runAlone(
      [&] {
        const Answer a = answerOf(problem, options, report.verdict == Verdict::kNotEquivalent);
        const auto bytes =
            json::to_cbor(json{static_cast<int>(a.outcome), a.text, a.model, a.plan});
        return std::string(bytes.begin(), bytes.end());
      },
      pool);
  if (result.outcome == TaskOutcome::kDone) {
    const json j = json::from_cbor(result.payload);
    answer = {static_cast<Confirmation::Outcome>(j[0].get<int>()), j[1].get<std::string>(),
              j[2].get<std::string>(), j[3].get<std::string>()};
  } else {
    answer.text = "not executed: " + result.reason;
  }
  Confirmation made;
  made.outcome = answer.outcome;
  made.text = answer.text;
  made.modelText = answer.model;
  made.planText = answer.plan;
  report.statistics.secondsByPhase["confirm"] = secondsSince(start);
  report.statistics.secondsTotal += secondsSince(start);
  if (isProved(report.verdict)) {
    if (made.outcome == Confirmation::Outcome::kDisagrees) {
      report.verdict = Verdict::kUndecided;
      report.reason =
          "the plan was proved, but " + made.text +
          ": one of the two is an error of shardproof; please report it with these files";
    } else if (made.outcome == Confirmation::Outcome::kNoValue) {
      report.verdict = Verdict::kUndecided;
      report.reason = made.text + ", so what was proved is about no input that could be found";
    }
  } else if (made.outcome == Confirmation::Outcome::kDisagrees) {
    made.outcome = Confirmation::Outcome::kDiffers;
  }
  report.confirmation = std::move(made);
}

}  // namespace shardproof
