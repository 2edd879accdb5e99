// SPDX-License-Identifier: Apache-2.0
#include "attempts/attempts.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/clone.h"
#include "verify/attempt.h"
#include "verify/attempt_memory.h"
#include "worker/total_memory.h"

namespace shardproof {

namespace {

// Cut points of a plan speak of this share of its local tensors, or of more.
enum class Lineage : std::uint8_t { kThin, kModest, kDense };
// Plans that list each layer's input and output list an eighth. Of a thinner one more is inferred
// before it is tried; of a modest one it is tried first, within limits.
constexpr double kModestLineage = 0.125, kDenseLineage = 0.25;
// A plan of so few operators is one stage of a size that is proved at once, or not without more.
// Whether it is, is known sooner than what executing even a small image of it tells.
constexpr std::size_t kMostOfFewNodes = 60;
// In a plan that is probably wrong, and has no more local tensors than these, multiples are looked
// for at once: what is one is taken for the box itself otherwise, and the report calls it wrong.
constexpr std::size_t kMostForMultiples = 5000;
constexpr double kSecondsForWrongLineage = 5;
// Where numbers contradict more than this share of the cut points, and not just a few, the others
// are of little use: they are few, or wrong where a small image does not show it.
constexpr double kFewContradicted = 0.25;
constexpr std::size_t kJustAFew = 8;

// When an attempt is made: what holds of the plan, and of the attempts before.
enum class When : std::uint8_t {
  kFewNodes,          // thin lineage, few operators
  kThin,              // thin lineage, more of them
  kCutPoints,         // lineage is not thin
  kGuessed,           // the plan has cut points, which may be wrong, and was tried as given
  kAsGiven,           // dense lineage, or nothing is to be inferred
  kInferred,          // something may be inferred
  kWithoutCutPoints,  // the same, and the plan has cut points
};

struct PlannedAttempt {
  When when;
  Attempt attempt;
};

// A proof that takes longer is tried with other lemmas first, where numbers contradict a cut point
// or an output: wrong cut points make proofs long, and cost no more than a few of these.
constexpr double kFirstGlance = 5, kGlance = 3;
// Thin lineage is often just what a proof needs: of the ranks' parts of a recorded step, those that
// modules give. Stages are large or small, and a large one is not worth more than this.
constexpr double kThinGlance = 1;
constexpr std::size_t kGlanceMegabytes = 2048;

// What executing an image may take that is only asked whether cut points hold.
constexpr double kSecondsForCutPoints = 1;

std::vector<EntryId> contradictedInNumbers(const Problem& problem) {
  return contradictedCutPoints(problem, kSecondsForCutPoints, kGlanceMegabytes);
}

// In order. An attempt with limits on a stage's time is left out where that time is all there is.
constexpr PlannedAttempt kAttempts[] = {
    {When::kFewNodes, {.name = "as given, 5 s a stage", .stageSeconds = kFirstGlance}},
    {When::kThin,
     {.name = "as given, 1 s a stage",
      .stageSeconds = kThinGlance,
      .megabytes = kGlanceMegabytes,
      .stopAtFirstFailure = true,
      .contradicted = &contradictedInNumbers}},
    {When::kCutPoints,
     {.name = "as given, 5 s a stage",
      .stageSeconds = kFirstGlance,
      .megabytes = kGlanceMegabytes,
      .stopAtFirstFailure = true,
      .contradicted = &contradictedInNumbers}},
    {When::kGuessed,
     {.name = "with inferred lemmas, 3 s a stage",
      .lemmas = Lemmas::kInferred,
      .stageSeconds = kGlance,
      .megabytes = kGlanceMegabytes,
      .stopAtFirstFailure = true}},
    {When::kGuessed,
     {.name = "without the plan's cut points, 3 s a stage",
      .lemmas = Lemmas::kInferredOnly,
      .stageSeconds = kGlance,
      .megabytes = kGlanceMegabytes,
      .stopAtFirstFailure = true}},
    // What is proved with parts is proved soon; without them one stage may take all of its time.
    {When::kGuessed,
     {.name = "with inferred parts, 3 s a stage",
      .lemmas = Lemmas::kInferredParts,
      .stageSeconds = kGlance,
      .megabytes = kGlanceMegabytes,
      .stopAtFirstFailure = true}},
    {When::kAsGiven, {.name = "as given"}},
    {When::kInferred, {.name = "with inferred lemmas", .lemmas = Lemmas::kInferred}},
    {When::kInferred, {.name = "with inferred parts", .lemmas = Lemmas::kInferredParts}},
    {When::kWithoutCutPoints,
     {.name = "without the plan's cut points", .lemmas = Lemmas::kInferredOnly}},
};

// Of HLO programs, before these: each with the indices that the programs tell apart, then with all.
// They take six seconds in all, or twice what reading took.
constexpr double kLookSeconds = 6, kLookOfReading = 2;
constexpr Attempt kLooks[] = {{.name = "a first look", .stageSeconds = 0.5}};
constexpr Attempt kInferringLooks[] = {
    {.name = "a first look with inferred lemmas", .lemmas = Lemmas::kInferred, .stageSeconds = 0.5},
    {.name = "a first look with inferred parts",
     .lemmas = Lemmas::kInferredParts,
     .stageSeconds = 0.5},
};

bool hasWrongLineage(const Report& report) {
  return std::any_of(report.stages.begin(), report.stages.end(), [](const StageReport& s) {
    return s.verdict == StageVerdict::kWrongLineage && !s.inferred;
  });
}

class Attempts {
 public:
  Attempts(std::unique_ptr<Problem>& problem, const VerifyOptions& options, Infer infer,
           const Budget& budget)
      : problem_(problem), options_(options), infer_(infer), budget_(budget) {
    for (const Program& p : problem_->plan.programs) nodes_ += p.graph.nodes.size();
    const double density = infer == Infer::kAuto ? lineageDensity(*problem_) : 1;
    for (const EntryId e : firstIds<EntryId>(problem_->plan.lineage.size()))
      if (const LineageEntry& entry = problem_->plan.lineage[e];
          entry.role == Role::kCutPoint && !entry.inferred)
        cutPoints_.push_back(e);
    lineage_ = density < kModestLineage  ? Lineage::kThin
               : density < kDenseLineage ? Lineage::kModest
                                         : Lineage::kDense;
  }

  Report run() {
    for (const PlannedAttempt& planned : kAttempts) {
      if (!isDue(planned.when, planned.attempt)) continue;
      make(withShare(planned));
      glanced_ = glanced_ || planned.when == When::kThin;
      if (settled()) break;
    }
    // Without any time none was made; one makes the report.
    if (made_ == 0) make({.name = "as given"});
    finish();
    return std::move(report_);
  }

  // These alone. Nothing where they do not settle it.
  std::optional<Report> runOnly(std::span<const Attempt> attempts,
                                std::vector<AttemptReport>& tried) {
    onlyNew_ = true;
    // Each has the same share of the time that is left: one alone could take all of it.
    for (std::size_t left = attempts.size(); left > 0; --left) {
      Attempt attempt = attempts[attempts.size() - left];
      attempt.seconds = budget_.left() / static_cast<double>(left);
      make(attempt);
      if (settled()) break;
    }
    finish();
    // What is refuted by a stage alone, as there was no time for more, is no verdict yet.
    const bool early = report_.verdict == Verdict::kNotEquivalent && budget_.timedOut();
    if (report_.verdict != Verdict::kUndecided && !report_.interrupted && !early)
      return std::move(report_);
    tried.insert(tried.end(), report_.attempts.begin(), report_.attempts.end());
    return std::nullopt;
  }

 private:
  bool settled() const {
    return budget_.over() ||
           (made_ > 0 && (report_.verdict != Verdict::kUndecided || report_.interrupted));
  }

  bool isDue(When when, const Attempt& attempt) const {
    const bool limited = attempt.stageSeconds < options_.stageSeconds;
    switch (when) {
      case When::kFewNodes:
        return isFew() && limited;
      case When::kThin:
        return infer_ == Infer::kAuto && lineage_ == Lineage::kThin && !cutPoints_.empty() &&
               !isFew() && limited;
      case When::kCutPoints:
        return infer_ == Infer::kAuto && lineage_ != Lineage::kThin && !cutPoints_.empty() &&
               limited;
      case When::kGuessed:
        return infer_ == Infer::kAuto && !cutPoints_.empty() && limited &&
               (made_ > 0 || lineage_ == Lineage::kThin);
      case When::kAsGiven:
        return infer_ == Infer::kNever ||
               (infer_ == Infer::kAuto &&
                (lineage_ == Lineage::kDense || (made_ == 0 && lineage_ == Lineage::kModest)));
      case When::kInferred:
        return infer_ != Infer::kNever;
      case When::kWithoutCutPoints:
        return infer_ != Infer::kNever && !cutPoints_.empty();
    }
    return false;
  }
  // Each of the attempts that may be left has the same share of the time that is left.
  Attempt withShare(const PlannedAttempt& planned) const {
    double left = 0;
    for (const PlannedAttempt* one = &planned; one != std::end(kAttempts); ++one)
      left += isDue(one->when, one->attempt) ? 1 : 0;
    Attempt attempt = planned.attempt;
    attempt.seconds = budget_.left() / left;
    attempt.stageSeconds = std::min(attempt.stageSeconds, attempt.seconds);
    return attempt;
  }
  bool isFew() const {
    return infer_ == Infer::kAuto && lineage_ == Lineage::kThin && nodes_ <= kMostOfFewNodes;
  }

  void make(const Attempt& attempt) {
    const auto start = Budget::Clock::now();
    const bool infers = attempt.lemmas != Lemmas::kFile;
    if (infers && !inferMore(attempt)) return;
    if (!infers && found_) {
      problem_ = withoutInferred(*problem_);
      found_.reset();
      replaced_.clear();
    }
    Report report = verifyOnce(*problem_, options_, attempt, budget_, doubtful_,
                               leftOut(attempt.lemmas), &memory_);
    ++made_;
    longest_[attempt.lemmas] = std::max(longest_[attempt.lemmas], attempt.stageSeconds);
    full_ = full_ || (attempt.stageSeconds >= options_.stageSeconds && !attempt.stopAtFirstFailure);
    const std::chrono::duration<double> took = Budget::Clock::now() - start;
    tried_.push_back({std::string(attempt.name), took.count(), infers ? found_->lemmas : 0,
                      report.verdict, report.outputsProved});
    const double before = report_.statistics.secondsTotal;
    // Without time an attempt finds nothing: what is known is what an earlier one found.
    const bool keep = made_ > 1 && budget_.over() && report.verdict == Verdict::kUndecided &&
                      report_.outputsProved >= report.outputsProved;
    if (keep) {
      report_.reason = std::move(report.reason);
      report_.interrupted = report.interrupted;
      return;
    }
    report_ = std::move(report);
    if (made_ == 1) return;
    report_.statistics.secondsByPhase["earlier attempts"] += before;
    report_.statistics.secondsTotal += before;
  }

  // The plan's cut points that an attempt does without.
  std::vector<EntryId> leftOut(Lemmas lemmas) const {
    if (lemmas == Lemmas::kInferredOnly) return cutPoints_;
    std::vector<EntryId> contradicted;
    if (lemmas == Lemmas::kInferred)
      for (const Inferred::Replaced& one : replaced_) contradicted.push_back(one.entry);
    return contradicted;
  }

  // Whether it is worth an attempt.
  bool inferMore(const Attempt& attempt) {
    const std::size_t before = found_ ? found_->lemmas : 0;
    const bool needsDoubt = attempt.stopAtFirstFailure && attempt.lemmas != Lemmas::kInferredParts;
    if (needsDoubt && found_ && !contradicted()) return false;
    if (found_) problem_ = withoutInferred(*problem_);
    stageSeconds_ = std::min(options_.stageSeconds, attempt.stageSeconds);
    look(attempt.lemmas);
    // A glance at thin lineage says nothing against it.
    const bool tried = made_ > (glanced_ ? 1 : 0);
    if (needsDoubt && tried && !contradicted()) return false;
    if (needsDoubt && attempt.lemmas == Lemmas::kInferred && mostContradicted()) return false;
    if (found_->lemmas > before || !tried) return true;
    if (onlyNew_) return false;
    switch (attempt.lemmas) {
      case Lemmas::kFile:
      case Lemmas::kInferredOnly:
        return true;
      case Lemmas::kInferred:  // with more time than before
        return found_->lemmas > 0 && longest_[attempt.lemmas] < attempt.stageSeconds;
      case Lemmas::kInferredParts:  // the last verdict has all of the time, with lemmas or without
        return !full_;
    }
    return true;
  }

  // What no number contradicts is as good as what would be inferred: it needs more time.
  bool contradicted() const { return !replaced_.empty() || !doubtful_.empty(); }

  bool mostContradicted() const {
    return replaced_.size() > kJustAFew &&
           static_cast<double>(replaced_.size()) >
               kFewContradicted * static_cast<double>(cutPoints_.size());
  }

  void look(Lemmas lemmas) {
    const InferParts parts = lemmas == Lemmas::kInferred ? InferParts::kNone : InferParts::kAll;
    if (options_.progress) options_.progress(0, 0, "looking for lineage");
    InferOptions inferOptions;
    inferOptions.cancel = options_.cancel;
    inferOptions.parts = parts;
    inferOptions.trustsCutPoints = lemmas != Lemmas::kInferredOnly;
    // The image beside what the run has in memory already.
    inferOptions.memoryMegabytes =
        std::min(inferOptions.memoryMegabytes, totalMemoryLimit() / 2 >> 20);
    // It takes no longer than a proof may.
    const double most = std::min(inferOptions.seconds, stageSeconds_);
    inferOptions.seconds = std::min(most, budget_.left());
    Inferred found = inferLineage(*problem_, inferOptions);
    inferSeconds_ += found.seconds;
    if (parts == InferParts::kNone && !found.doubtful.empty() &&
        found.looked <= kMostForMultiples) {
      inferOptions.parts = InferParts::kMultiples;
      inferOptions.seconds = std::min(most, budget_.left());
      found = inferLineage(*problem_, inferOptions);
      inferSeconds_ += found.seconds;
    }
    found_ = Inference{found.count, found.looked, found.reason};
    doubtful_ = std::move(found.doubtful);
    replaced_ = std::move(found.replaced);
    if (found.problem) problem_ = std::move(found.problem);
  }

  // Of cut points of the file that are reported as wrong: what they should be.
  static void listReplaced(const Problem& problem, const std::vector<Inferred::Replaced>& replaced,
                           const Report& report, Inference& inference, bool verified) {
    const auto verdictOf = [&](EntryId entry) {
      const auto it = std::find_if(report.stages.begin(), report.stages.end(),
                                   [&](const StageReport& s) { return s.entry == entry.value; });
      return it == report.stages.end() ? StageVerdict::kUndecided : it->verdict;
    };
    for (const Inferred::Replaced& one : replaced) {
      if (one.by.empty() || verdictOf(one.entry) != StageVerdict::kWrongLineage) continue;
      const LineageEntry& entry = problem.plan.lineage[one.entry];
      std::string text = problem.names.text(problem.model.graph.tensors[entry.tensor].name) +
                         " (/lineage/" + std::to_string(one.entry) + "): ";
      bool proved = verified;
      for (const EntryId by : one.by) {
        text += (by == one.by.front() ? "" : "; ") + describeFound(problem, by);
        proved = proved && verdictOf(by) == StageVerdict::kProved;
      }
      inference.replaced.push_back(text + (proved ? " (proved)" : " (not proved)"));
    }
  }

  void finish() {
    if (found_) listReplaced(*problem_, replaced_, report_, *found_, true);
    // The verdict stands; what the cut points should be is looked up for the report alone.
    if (infer_ != Infer::kNever && hasWrongLineage(report_) && !report_.interrupted &&
        (!found_ || found_->replaced.empty()))
      lookUpWrongLineage();
    if (inferSeconds_ > 0) {
      report_.statistics.secondsByPhase["infer"] = inferSeconds_;
      report_.statistics.secondsTotal += inferSeconds_;
    }
    report_.inference = std::move(found_);
    report_.attempts = std::move(tried_);
  }

  void lookUpWrongLineage() {
    InferOptions inferOptions;
    inferOptions.cancel = options_.cancel;
    inferOptions.seconds = std::min({kSecondsForWrongLineage, stageSeconds_, budget_.left()});
    const Inferred found = inferLineage(*withoutInferred(*problem_), inferOptions);
    if (found.problem) {
      Inference only;
      listReplaced(*found.problem, found.replaced, report_, only, false);
      if (found_) found_->replaced = std::move(only.replaced);
      else if (!only.replaced.empty()) found_ = std::move(only);
    }
    inferSeconds_ += found.seconds;
  }

  std::unique_ptr<Problem>& problem_;
  const VerifyOptions& options_;
  const Infer infer_;
  const Budget& budget_;
  AttemptMemory memory_;
  std::size_t nodes_ = 0;
  Lineage lineage_ = Lineage::kDense;
  std::size_t made_ = 0;
  bool onlyNew_ = false;  // an attempt with nothing new is left out
  bool glanced_ = false;  // one of the attempts was When::kThin
  double stageSeconds_ = options_.stageSeconds;
  bool full_ = false;                 // some attempt had all of the time
  std::vector<EntryId> cutPoints_;    // of the plan
  std::map<Lemmas, double> longest_;  // what a stage had at most, by where lemmas come from
  Report report_;
  std::vector<AttemptReport> tried_;
  std::optional<Inference> found_;
  std::vector<EntryId> doubtful_;
  std::vector<Inferred::Replaced> replaced_;
  double inferSeconds_ = 0;
};

}  // namespace

bool hasIndices(const Problem& problem) {
  return std::any_of(
      problem.model.graph.tensors.begin(), problem.model.graph.tensors.end(),
      [](const Tensor& t) { return t.known && t.known->kind == KnownInput::Kind::kWithin; });
}

Report verifyInferring(std::unique_ptr<Problem>& problem, const VerifyOptions& options, Infer infer,
                       const Budget& budget) {
  return Attempts(problem, options, infer, budget).run();
}

Report verifyInferring(std::unique_ptr<Problem>& problem, const VerifyOptions& options,
                       Infer infer) {
  return verifyInferring(problem, options, infer, Budget(options.runSeconds, options.cancel));
}

std::optional<Report> lookFirst(std::unique_ptr<Problem>& problem,
                                const std::function<std::unique_ptr<Problem>(bool)>& read,
                                double seconds, const VerifyOptions& given, const Budget& budget,
                                std::vector<AttemptReport>& tried) {
  VerifyOptions options = given;
  options.smt2Directory.clear();
  options.record = nullptr;
  const bool indices = hasIndices(*problem);
  for (const bool complete : {false, true}) {
    if (complete && !indices) break;
    for (const bool infers : {false, true}) {
      if (budget.over()) return std::nullopt;
      // The first look, which adds nothing, is at what has been read.
      const bool asRead = !complete && !infers;
      std::unique_ptr<Problem> again = asRead ? nullptr : read(complete);
      std::unique_ptr<Problem>& looked = asRead ? problem : again;
      const Budget part = budget.within(std::max(kLookSeconds, kLookOfReading * seconds));
      Attempts attempts(looked, options, infers ? Infer::kAlways : Infer::kNever, part);
      auto report =
          infers ? attempts.runOnly(kInferringLooks, tried) : attempts.runOnly(kLooks, tried);
      if (!report) continue;
      if (!asRead) problem = std::move(again);
      return report;
    }
  }
  return std::nullopt;
}

}  // namespace shardproof
