// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "executor/cost.h"
#include "executor/interpret.h"
#include "executor/judge.h"
#include "executor/run.h"
#include "executor/setup.h"
#include "shardproof/error.h"
#include "util/stopwatch.h"

namespace shardproof::executor {
namespace {

using Clock = std::chrono::steady_clock;

// Inputs of one sign are tried where the model has no value on inputs of both.
constexpr int kStyles = 6;

class Execution {
 public:
  Execution(const Options& options, const Setup& setup, const Cost& estimate, Result& result)
      : options_(options),
        setup_(setup),
        estimate_(estimate),
        agree_(estimate.flops < kLargeFlops ? kAgreeSmall : kAgreeLarge),
        result_(result),
        threads_(estimate.flops) {
    limits_.threads = &threads_;
    limits_.maxBytes = options.maxBytes;
    limits_.cancel = options.cancel;
    if (options.seconds > 0)
      limits_.end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(options.seconds));
  }

  void go() {
    for (const std::int32_t e : setup_.entries) {
      result_.entries.emplace_back();
      result_.entries.back().entry = EntryId(e);
    }
    for (int t = 0; t < options_.trials; ++t) trial(t, drawOf(t, 0));
    for (int style = 1; style < kStyles && !everywhereCompared(); ++style)
      trial(options_.trials, drawOf(options_.trials + style, style));
    for (EntryResult& entry : result_.entries) {
      if (entry.agreement != Agreement::kUnknown || !entry.reason.empty()) continue;
      if (entry.compared > 0) entry.agreement = Agreement::kAgrees;
      else entry.reason = "the model has no value at any element, for the inputs that were drawn";
    }
  }

  // Out of time: what was compared counts, but agreement of some trials is only known where there
  // was one.
  void stopped() {
    for (EntryResult& entry : result_.entries) {
      if (entry.agreement != Agreement::kUnknown || !entry.reason.empty()) continue;
      if (entry.compared > 0) entry.agreement = Agreement::kAgrees;
      else entry.reason = result_.reason;
    }
  }

 private:
  Draw drawOf(int trial, int style) const {
    return {.seed = mixed(options_.seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(trial)),
            .style = style};
  }

  bool everywhereCompared() const {
    return std::all_of(result_.entries.begin(), result_.entries.end(),
                       [](const EntryResult& e) { return e.compared > 0 || !e.reason.empty(); });
  }

  void count(const RunResult& run) {
    result_.flops += run.flops;
    result_.saturated += run.saturated;
    result_.peakBytes = std::max(result_.peakBytes, run.peakBytes);
  }

  void trial(int number, const Draw& draw) {
    Arrays keep;
    if (options_.keep && number + 1 == options_.trials) keep = {&result_.model, &result_.local};
    const bool field = options_.arithmetic == Arithmetic::kPrimeField;
    const RunResult first = field ? run<Field>(setup_, draw, 0, limits_, keep)
                                  : run<double>(setup_, draw, agree_, limits_, keep);
    count(first);
    std::vector<EntryResult*> suspects;
    for (EntryResult& entry : result_.entries) {
      const Comparison& c = first.entries.at(entry.entry);
      entry.distance = std::max(entry.distance, c.worst);
      if (c.unknown.empty() && !c.first) {
        entry.compared += c.compared;
        entry.undefined += c.undefined;
      } else if (entry.agreement != Agreement::kDiffers) {
        suspects.push_back(&entry);
      }
    }
    if (field) inField(first, suspects, number);
    else if (!suspects.empty()) lookAgain(first, suspects, number, draw);
    ++result_.trials;
  }

  void settle(EntryResult& entry, const Comparison& c, const Judgement& judgement,
              const std::optional<Difference>& difference, int number) {
    if (judgement.agreement != Agreement::kUnknown) {
      entry.compared += c.compared;
      entry.undefined += c.undefined;
    }
    if (judgement.agreement == Agreement::kAgrees) return;
    if (judgement.agreement == Agreement::kUnknown) {
      if (entry.reason.empty()) entry.reason = judgement.reason;
    } else {
      entry.agreement = Agreement::kDiffers;
      entry.reason.clear();
    }
    if (difference && (judgement.agreement == Agreement::kDiffers || !entry.difference)) {
      entry.difference = difference;
      entry.difference->trial = number;
    }
  }

  void inField(const RunResult& first, const std::vector<EntryResult*>& suspects, int number) {
    for (EntryResult* entry : suspects) {
      const Comparison& c = first.entries.at(entry->entry);
      settle(*entry, c,
             {Agreement::kUnknown,
              !c.unknown.empty()
                  ? c.unknown
                  : "differs modulo the prime, where not all laws of the real functions hold"},
             c.first, number);
    }
  }

  // What was seen in doubles, in a longer type and at moved inputs; in doubles alone where the
  // longer type would take too long or too much memory.
  void lookAgain(const RunResult& first, const std::vector<EntryResult*>& suspects, int number,
                 const Draw& draw) {
    std::vector<EntryResult*> candidates;
    for (EntryResult* entry : suspects) {
      const Comparison& c = first.entries.at(entry->entry);
      if (c.unknown.empty()) candidates.push_back(entry);
      else settle(*entry, c, {Agreement::kUnknown, c.unknown}, c.first, number);
    }
    if (candidates.empty()) return;
    std::optional<RunResult> again;
    if (estimate_.flops <= kNoLongFlops) {
      try {
        again = run<long double>(setup_, draw, kAgreeLong, limits_);
        count(*again);
      } catch (const TooLarge&) {
      }
    }
    const auto judged = [&](const EntryResult& entry, const std::vector<Comparison>& others,
                            bool close) {
      const Comparison& c = first.entries.at(entry.entry);
      return again ? judge(c, again->entries.at(entry.entry), others, close)
                   : judgeInDoubles(c, others, close);
    };
    std::vector<RunResult> moved;
    for (const std::uint64_t way : {1, 2}) {
      // Only what stays is worth moving.
      if (std::none_of(candidates.begin(), candidates.end(), [&](const EntryResult* e) {
            return judged(*e, {}, false).agreement == Agreement::kDiffers;
          }))
        break;
      Draw other = draw;
      other.moved = mixed(way);
      moved.push_back(again ? run<long double>(setup_, other, kAgreeLong, limits_)
                            : run<double>(setup_, other, agree_, limits_));
      count(moved.back());
    }
    bool close = first.closeDecisions > 0 || (again && again->closeDecisions > 0);
    for (const RunResult& m : moved) close = close || m.closeDecisions > 0;
    for (EntryResult* entry : candidates) {
      std::vector<Comparison> others;
      for (const RunResult& m : moved) others.push_back(m.entries.at(entry->entry));
      const Comparison& seen =
          again ? again->entries.at(entry->entry) : first.entries.at(entry->entry);
      settle(*entry, seen, judged(*entry, others, close),
             seen.first ? seen.first : first.entries.at(entry->entry).first, number);
    }
  }

  const Options& options_;
  const Setup& setup_;
  const Cost estimate_;
  const double agree_;  // distances up to here are rounding
  Result& result_;
  Limits limits_;
  Threads threads_;
};

}  // namespace

Agreement Result::outputs(const Plan& plan) const {
  if (status == Status::kCannotRun) return Agreement::kDiffers;
  bool all = true, any = false;
  for (const EntryResult& e : entries) {
    if (plan.lineage[e.entry].role != Role::kOutput) continue;
    if (e.agreement == Agreement::kDiffers) return Agreement::kDiffers;
    any = true;
    all = all && e.agreement == Agreement::kAgrees;
  }
  return any && all ? Agreement::kAgrees : Agreement::kUnknown;
}

Result execute(const Problem& problem, const Options& options) {
  const auto start = Clock::now();
  Result result;
  const auto unknownAll = [&] {
    if (result.entries.empty()) {
      for (std::size_t e = 0; e < problem.plan.lineage.size(); ++e) {
        const Role role = problem.plan.lineage[e].role;
        if (isGiven(role) || (role == Role::kCutPoint && !options.cutPoints)) continue;
        result.entries.emplace_back();
        result.entries.back().entry = EntryId(e);
      }
    }
    for (EntryResult& entry : result.entries) {
      if (entry.agreement == Agreement::kDiffers) continue;
      entry.agreement = Agreement::kUnknown;
      entry.reason = result.reason;
    }
  };
  try {
    const Setup setup(problem, options);
    Cost estimate = cost(setup);
    if (options.keep) estimate.bytes += keptBytes(setup);
    if (estimate.bytes > static_cast<double>(options.maxBytes)) {
      result.status = Status::kRefused;
      result.reason = "needs up to " +
                      std::to_string(static_cast<std::int64_t>(estimate.bytes / (1 << 20))) +
                      " MB of arrays at once, more than the limit of " +
                      std::to_string(options.maxBytes >> 20) + " MB";
      unknownAll();
      return result;
    }
    Execution execution(options, setup, estimate, result);
    try {
      execution.go();
      result.status = Status::kRun;
    } catch (const Stopped& stop) {
      result.status = Status::kStopped;
      result.reason = stop.what();
      execution.stopped();
    } catch (const TooLarge& large) {
      result.status = Status::kRefused;
      result.reason = large.what();
      unknownAll();
    }
  } catch (const CannotRun& cannot) {
    result.status = Status::kCannotRun;
    result.reason = cannot.what();
    unknownAll();
  } catch (const InputError&) {
    throw;
  } catch (const std::bad_alloc&) {  // says nothing about the plan
    throw;
  } catch (const std::exception& error) {  // what the reader should have kept from here
    result.status = Status::kRefused;
    result.reason = error.what();
    unknownAll();
  }
  result.seconds = secondsSince(start);
  return result;
}

}  // namespace shardproof::executor
