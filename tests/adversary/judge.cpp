// SPDX-License-Identifier: Apache-2.0
#include "adversary/judge.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "attempts/attempts.h"
#include "executor/interpret.h"
#include "ir/attribute_steps.h"
#include "reader/reader.h"
#include "shardproof/error.h"

namespace shardproof::adversary {
namespace {

using Clock = std::chrono::steady_clock;
using executor::Agreement;
using executor::Array;

// Kinds of special inputs. From kWide on they are ordinary numbers: positive, any, negative.
enum Kind : int {
  kZeros,
  kOnes,
  kFew,
  kIntegers,
  kAlikeIntegers,
  kWide,
  kSpecialKinds = kWide + 3
};

double wide(int kind, Random& random) {
  const double size = std::exp2(static_cast<double>(random.between(-4000, 4000)) / 1000);
  return kind == kWide || (kind == kWide + 1 && random.chance(60)) ? size : -size;
}

// Inputs that random numbers are not: all zero, all one, few small numbers with many zeros; indices
// beside tables and classes, which the executor does not draw where some loss needs a label, and
// ones that are all the same or one of two, which random ones never are; positive numbers, any, and
// negative ones (where the largest of many is below 0), over some orders of magnitude.
std::map<std::string, Array> specialInputs(const Problem& problem, int kind, Random& random) {
  std::map<std::string, Array> inputs;
  for (const Tensor& t : problem.model.graph.tensors) {
    if (t.kind != TensorKind::kInput && t.kind != TensorKind::kParameter) continue;
    const bool complex =
        t.element == ElementKind::kComplex;  // which the executor draws on the unit circle
    const bool integers = kind == kIntegers || kind == kAlikeIntegers;
    if (complex ? kind < kWide
                : t.element != (integers ? ElementKind::kInteger : ElementKind::kReal))
      continue;
    Array array{t.shape, t.element, {}};
    std::int64_t n = complex ? 2 : 1;
    for (const std::int64_t d : t.shape) n *= d;
    const double one = static_cast<double>(random.between(0, 3)), other = one + 1;
    const std::int64_t others = random.pick({0, 10, 50});  // per cent
    const auto draw = [&]() -> double {
      switch (kind) {
        case kZeros:
          return 0;
        case kOnes:
          return 1;
        case kFew:
          return random.pick({0.0, 0.0, 1.0, -1.0, 2.0, -0.5});
        case kIntegers:
          return static_cast<double>(random.between(-1, 9));
        case kAlikeIntegers:
          return random.chance(static_cast<int>(others)) ? other : one;
        default:
          return wide(kind, random);
      }
    };
    for (std::int64_t i = 0; i < n; ++i) array.data.push_back(draw());
    inputs.emplace(problem.names.text(t.name), std::move(array));
  }
  return inputs;
}

std::string digits(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string describe(const Problem& problem, const executor::Result& result) {
  if (result.status == executor::Status::kCannotRun || result.status == executor::Status::kRefused)
    return result.reason;
  for (const executor::EntryResult& e : result.entries) {
    if (!e.difference ||
        problem.plan.lineage[static_cast<std::size_t>(e.entry)].role != Role::kOutput)
      continue;
    std::string where = "output entry " + std::to_string(e.entry) + " at [";
    for (const std::int64_t p : e.difference->position)
      where += (where.back() == '[' ? "" : ", ") + std::to_string(p);
    return where + "]: the model has " + digits(e.difference->logical) + ", the plan " +
           digits(e.difference->parallel);
  }
  for (const executor::EntryResult& e : result.entries)
    if (!e.reason.empty()) return e.reason;
  return result.reason;
}

constexpr int kConfirmations = 120;

void findTruth(const Problem& problem, const JudgeOptions& options, int trials, Judgement& to) {
  executor::Options run;
  run.seed = options.seed;
  run.trials = trials;
  run.cutPoints = false;
  run.seconds = 20;
  run.maxBytes = std::int64_t{1} << 30;
  const executor::Result result = executor::execute(problem, run);
  const Agreement ordinary = result.outputs(problem.plan);
  if (result.status == executor::Status::kCannotRun) to.truth = Truth::kCannotRun;
  else if (ordinary == Agreement::kDiffers) to.truth = Truth::kWrong;
  else to.truth = ordinary == Agreement::kAgrees ? Truth::kRight : Truth::kUnknown;
  if (to.truth != Truth::kRight) to.truthReason = describe(problem, result);
  to.saturated = result.saturated > 0;
  if (to.truth != Truth::kRight && to.truth != Truth::kUnknown) return;
  Random random("special", options.seed, 0);
  run.trials = 1;
  for (int draw = 0; draw < kSpecialKinds + (trials > options.trials ? trials / 2 : 0); ++draw) {
    const int kind = draw < kSpecialKinds ? draw : kAlikeIntegers + draw % 4;
    const auto inputs = specialInputs(problem, kind, random);
    run.inputs = &inputs;
    run.seed = options.seed + static_cast<std::uint64_t>(draw);
    const executor::Result special = executor::execute(problem, run);
    const Agreement found = special.outputs(problem.plan);
    to.open = to.open || (kind >= kWide && found == Agreement::kUnknown);
    if (found == Agreement::kDiffers) {
      to.truth = kind < kWide ? Truth::kThin : Truth::kWrong;
      to.truthReason =
          (kind < kWide ? "with special inputs (" + std::to_string(kind) + "): " : "") +
          describe(problem, special);
      return;
    }
  }
}

// Integers of a rank that lineage does not tie to the model one by one: it is silent about them, of
// some microbatches too, or speaks of sums. They may be anything, but the executor draws indices.
bool leavesIntegersOpen(const Problem& problem) {
  std::set<NameId> tied;
  for (const LineageEntry& entry : problem.plan.lineage) {
    if (entry.role != Role::kInput) continue;
    for (const Shard& shard : entry.shards)
      if (shard.sum.empty() && shard.parts.size() == 1 && shard.parts[0].microbatch.isNone())
        tied.insert(shard.parts[0].local);
  }
  for (const Program& program : problem.plan.programs)
    for (const Tensor& t : program.graph.tensors)
      if ((t.kind == TensorKind::kInput || t.kind == TensorKind::kParameter) &&
          t.element == ElementKind::kInteger && !tied.contains(t.name))
        return true;
  return false;
}

// By what the found entries say.
std::set<std::string> kindsOf(const Problem& problem) {
  std::set<std::string> kinds;
  std::set<EntryId> placed;
  for (const PlacedPart& p : problem.plan.placed) {
    if (!problem.plan.lineage[p.entry].inferred) continue;
    placed.insert(p.entry);
    if (!p.where.box.empty()) kinds.insert("pieces");
    if (!p.where.permute.empty()) kinds.insert("permuted");
    if (!p.where.scale.isOne()) kinds.insert("multiple");
  }
  for (const EntryId e : firstIds<EntryId>(problem.plan.lineage.size())) {
    const LineageEntry& entry = problem.plan.lineage[e];
    if (!entry.inferred) continue;
    const Shard& shard = entry.shards[0];
    if (!shard.sum.empty() || shard.parts.size() > 1) kinds.insert("partial sum");
    else if (!placed.contains(e)) kinds.insert("box");
  }
  return kinds;
}

void findVerdict(std::unique_ptr<Problem>& problem, const JudgeOptions& options, Judgement& to) {
  VerifyOptions verifying;
  verifying.inProcess = !options.forked;
  verifying.jobs = 1;
  verifying.stageSeconds = options.solverSeconds;
  verifying.proofs = options.proofs;
  const Report report = options.bare ? verifyInferring(problem, verifying, Infer::kAlways)
                                     : verify(*problem, verifying);
  to.found = kindsOf(*problem);
  if (report.verdict == Verdict::kEquivalent) to.verdict = Verdict3::kEquivalent;
  else if (report.verdict == Verdict::kNotEquivalent) to.verdict = Verdict3::kNotEquivalent;
  else to.verdict = Verdict3::kUndecided;
  if (!report.defects.empty()) {
    const Defect& d = report.defects.front();
    to.reason = std::string(shardproof::toString(d.kind)) + ": " + d.message;
    to.structural = d.kind != DefectKind::kLineage;
  } else if (to.verdict == Verdict3::kUndecided) {
    to.reason = report.reason;
    for (const StageReport& s : report.stages)
      if (s.verdict == StageVerdict::kUndecided &&
          s.reason.find("relies on lineage") == std::string::npos)
        to.reason = s.reason;
  } else if (to.verdict == Verdict3::kNotEquivalent) {
    to.reason = report.reason;
  }
  if (report.statistics.workersLost > 0 &&
      !options.forked) {  // forked: killed when their time was over
    to.finding = Finding::kInternal;
    for (const StageReport& s : report.stages)
      if (!s.reason.empty()) to.reason += "; " + s.reason;
  }
}

}  // namespace

Judgement judge(const Case& made, const JudgeOptions& options) {
  Judgement result;
  std::unique_ptr<Problem> problem, joined;
  try {
    Json plan = made.plan;
    Json& lineage = plan["lineage"];
    for (std::size_t e = options.bare && lineage.is_array() ? lineage.size() : 0; e-- > 0;)
      if (lineage[e].value("role", "") == "cut_point") lineage.erase(e);
    const std::string model = made.model.dump(), text = plan.dump();
    problem = readProblemText(model, text);  // what is executed is what is written
    joined = readProblemText(model, text, ir::Programs::kJoined);  // as files are read
  } catch (const InputError& error) {
    result.reason = error.what();
    return result;
  }
  const auto start = Clock::now();
  try {
    findVerdict(joined, options, result);
  } catch (const InputError& error) {  // only the join can see it
    result.reason = error.what();
    return result;
  } catch (const std::exception& error) {
    result.finding = Finding::kInternal;
    result.reason = std::string("verify: ") + error.what();
  }
  const ir::FixedAttributes fixed(*problem);
  const Problem& executed = fixed.problem();
  const auto middle = Clock::now();
  result.verifySeconds = std::chrono::duration<double>(middle - start).count();
  try {
    findTruth(executed, options, options.trials, result);
    // Before a right plan is called a false alarm, or a proof is believed: more draws, for what is
    // wrong in rare places only.
    if (result.truth == Truth::kRight && result.verdict == Verdict3::kNotEquivalent) {
      JudgeOptions more = options;
      more.seed += 1000;
      findTruth(executed, more, kConfirmations, result);
      if (result.truth == Truth::kRight && leavesIntegersOpen(executed)) {
        result.truth = Truth::kUnknown;
        result.truthReason = "integers of a rank that may be anything";
      }
      if (result.truth == Truth::kRight && result.saturated) {
        result.truth = Truth::kUnknown;
        result.truthReason = "a sigmoid or tanh at its limit hides what differs before it";
      }
      if (result.truth == Truth::kRight && result.open) {
        result.truth = Truth::kUnknown;
        result.truthReason = "for some signs of the inputs the sides could not be compared";
      }
    }
  } catch (const std::exception& error) {
    result.finding = Finding::kInternal;
    result.truthReason = std::string("execute: ") + error.what();
  }
  result.executeSeconds = std::chrono::duration<double>(Clock::now() - middle).count();
  if (result.finding != Finding::kNothing) return result;
  const bool wrong = result.truth == Truth::kWrong || result.truth == Truth::kThin ||
                     result.truth == Truth::kCannotRun;
  if (wrong && result.verdict == Verdict3::kEquivalent) result.finding = Finding::kUnsound;
  if (result.truth == Truth::kRight && result.verdict == Verdict3::kNotEquivalent)
    result.finding = Finding::kFalseAlarm;
  return result;
}

const char* toString(Truth truth) {
  switch (truth) {
    case Truth::kRight:
      return "right";
    case Truth::kWrong:
      return "wrong";
    case Truth::kThin:
      return "wrong at special inputs";
    case Truth::kCannotRun:
      return "cannot run";
    case Truth::kUnknown:
      return "unknown";
    case Truth::kNone:
      return "input error";
  }
  return "";
}
const char* toString(Verdict3 verdict) {
  switch (verdict) {
    case Verdict3::kEquivalent:
      return "equivalent";
    case Verdict3::kNotEquivalent:
      return "not equivalent";
    case Verdict3::kUndecided:
      return "undecided";
    case Verdict3::kNone:
      return "none";
  }
  return "";
}
const char* toString(Finding finding) {
  switch (finding) {
    case Finding::kNothing:
      return "";
    case Finding::kUnsound:
      return "unsound";
    case Finding::kFalseAlarm:
      return "false alarm";
    case Finding::kInternal:
      return "internal error";
  }
  return "";
}

}  // namespace shardproof::adversary
