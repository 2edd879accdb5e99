// SPDX-License-Identifier: Apache-2.0
#include "certificate/check_log.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "cache/cache_file.h"
#include "certificate/reprove.h"
#include "ir/coordinates.h"
#include "ir/output_coverage.h"
#include "plan/plan_index.h"
#include "prover/model_facts.h"
#include "shardproof/error.h"
#include "stages/canonical_reader.h"
#include "stages/cutter.h"
#include "util/sha256.h"

namespace shardproof {

namespace {

constexpr std::size_t kMostFindings = 20;

std::string entryPlace(EntryId e) { return "/lineage/" + std::to_string(e); }
std::string classPlace(std::int64_t c) { return "/classes/" + std::to_string(c); }

std::string listed(const std::vector<EntryId>& ids) {
  std::string text;
  for (const EntryId id : ids) text += (text.empty() ? "" : ", ") + std::to_string(id);
  return text.empty() ? "none" : text;
}

class LogCheck {
 public:
  LogCheck(const ProofLog& log, const Problem& problem, const CheckLogOptions& options)
      : log_(log),
        problem_(problem),
        plan_(problem.plan),
        options_(options),
        planIndex_(problem),
        facts_(modelFacts(problem)) {}

  CheckLogResult run() {
    if (log_.version != proofVersion()) {
      throw InputError(log_.file, "/rules",
                       "found proofs made by \"" + log_.version + "\", expected \"" +
                           proofVersion() + "\", which is what this program can replay");
    }
    using Step = void (LogCheck::*)();
    // The cheap ones first; each may rely on those before it.
    for (const Step step :
         {&LogCheck::checkFiles, &LogCheck::checkJoin, &LogCheck::checkLineage,
          &LogCheck::checkChain, &LogCheck::checkGoals, &LogCheck::checkClasses,
          &LogCheck::checkStages, &LogCheck::proveAgain, &LogCheck::seekEvidence}) {
      result_.interrupted = cancelled();
      if (result_.interrupted) break;
      (this->*step)();
      if (!result_.findings.empty()) break;
    }
    result_.interrupted = cancelled();
    return std::move(result_);
  }

 private:
  bool cancelled() const { return options_.pool.cancelled(); }
  void fail(std::string place, std::string why, bool limits = false) {
    if (result_.findings.size() < kMostFindings)
      result_.findings.push_back({std::move(place), std::move(why), limits});
  }
  const ProofRecord::Entry& proof(EntryId e) const { return log_.lineage[e].proof; }
  const std::string& tensorName(TensorId t) const {
    return problem_.names.text(problem_.model.graph.tensors[t].name);
  }

  void checkFiles() {
    const auto compare = [&](const char* place, const std::string& file, const std::string& now,
                             const std::string& then) {
      if (now != then)
        fail(place, file +
                        " has another content than the one that the log is about (its SHA-256 is " +
                        now + ")");
    };
    compare("/model/sha256", problem_.model.file, problem_.model.sha256, log_.model.sha256);
    compare("/plan/sha256", plan_.file, plan_.sha256, log_.plan.sha256);
  }

  void checkJoin() {
    for (const Defect& defect : planIndex_.defects()) fail("/plan", defect.message);
  }

  // The log speaks of the plan's entries, all of them and in their order.
  void checkLineage() {
    if (log_.lineage.size() != plan_.lineage.size()) {
      return fail("/lineage", "has " + std::to_string(log_.lineage.size()) +
                                  " entries, but the plan's lineage " +
                                  std::to_string(plan_.lineage.size()));
    }
    for (const EntryId e : firstIds<EntryId>(log_.lineage.size())) {
      const ProofLog::Entry& entry = log_.lineage[e];
      const LineageEntry& real = plan_.lineage[e];
      const std::string place = entryPlace(e);
      if (entry.tensor != tensorName(real.tensor))
        fail(place + "/tensor",
             "is \"" + entry.tensor + "\", but \"" + tensorName(real.tensor) + "\" in the plan");
      if (entry.role != real.role)
        fail(place + "/role", std::string("is \"") + toString(entry.role) + "\", but \"" +
                                  toString(real.role) + "\" in the plan");
      if (real.role == Role::kAssumed) result_.approved.push_back(e);
      if (!entry.proof.proved) continue;
      ++result_.lemmas;
      const std::int64_t key = planIndex_.entryKey(EntryId(e));
      if (entry.proof.key != key)
        fail(place + "/key", "is " + std::to_string(entry.proof.key) + ", but " +
                                 std::to_string(key) + " in the indexed plan");
    }
  }

  // Every lemma rests on proved ones, and none on itself: entries leave in an order in which what
  // they assume has left before. Nothing is taken from the order of lemmas that the cutter keeps
  // to; this looks at the log's edges alone.
  void checkChain() {
    const std::size_t n = log_.lineage.size();
    std::vector<std::size_t> waitsFor(n, 0);
    std::vector<std::vector<EntryId>> waiting(n);
    std::vector<EntryId> ready;
    for (const EntryId entry : firstIds<EntryId>(n)) {
      if (!proof(entry).proved) continue;
      for (const EntryId f : proof(entry).assumes) {
        if (isGiven(log_.lineage[f].role))
          fail(entryPlace(entry) + "/assumes",
               "names " + std::to_string(f) + ", which is given and not to be proved");
        else if (!proof(f).proved)
          fail(entryPlace(entry) + "/assumes",
               "names " + std::to_string(f) + ", which the log does not call proved");
        else waiting[f].push_back(entry), ++waitsFor[entry];
      }
      if (waitsFor[entry] == 0) ready.push_back(entry);
    }
    if (!result_.findings.empty()) return;
    std::size_t left = result_.lemmas;
    while (!ready.empty()) {
      const EntryId f = ready.back();
      ready.pop_back();
      --left;
      for (const EntryId e : waiting[f]) {
        if (--waitsFor[e] == 0) ready.push_back(e);
      }
    }
    if (left == 0) return;
    // Each that is left waits for one that is left: following these ends up in a cycle.
    EntryId e(0);
    while (waitsFor[e] == 0) ++e;
    std::set<EntryId> seen;
    while (seen.insert(e).second) {
      const auto& assumed = proof(e).assumes;
      e = EntryId(*std::find_if(assumed.begin(), assumed.end(),
                                [&](EntryId f) { return waitsFor[f] > 0; }));
    }
    fail(entryPlace(e) + "/assumes", "leads back to the entry itself");
  }

  // Proved entries cover every element of every output, and all that the verdict rests on besides
  // is proved.
  void checkGoals() {
    const auto& outputs = problem_.model.outputs;
    if (outputs.empty())
      fail("/outputs", "the model names no outputs, so there is nothing that could be equivalent");
    if (log_.outputs.size() != outputs.size())
      return fail("/outputs", "has " + std::to_string(log_.outputs.size()) +
                                  " outputs, but the model " + std::to_string(outputs.size()));
    for (std::size_t o = 0; o < outputs.size(); ++o) checkOutput(o, outputs[o]);
    for (const EntryId e : firstIds<EntryId>(plan_.lineage.size())) {
      if (plan_.lineage[e].role == Role::kOutput && !log_.lineage[e].proof.proved)
        fail(entryPlace(e), "is an output and not proved");
    }
    if (log_.positioning != plan_.positioning)
      fail("/positioning", "is " + listed(log_.positioning) + ", but " + listed(plan_.positioning) +
                               " in the plan");
    for (const EntryId e : plan_.positioning) {
      if (!isGiven(plan_.lineage[e].role) && !proof(e).proved)
        fail(entryPlace(e), "says which part of a dropout's mask a rank draws, and is not proved");
    }
  }

  void checkOutput(std::size_t o, TensorId output) {
    const std::string place = "/outputs/" + std::to_string(o);
    const Tensor& tensor = problem_.model.graph.tensors[output];
    if (log_.outputs[o].tensor != tensorName(output))
      return fail(place + "/tensor", "is \"" + log_.outputs[o].tensor + "\", but \"" +
                                         tensorName(output) + "\" in the model");
    std::vector<ir::Box> boxes;
    for (const EntryId e : log_.outputs[o].entries) {
      const LineageEntry& entry = plan_.lineage[e];
      if (entry.tensor != output || entry.role != Role::kOutput)
        return fail(place + "/entries",
                    "names " + std::to_string(e) + ", which is no output lineage of this tensor");
      if (!proof(e).proved)
        return fail(place + "/entries", "names " + std::to_string(e) + ", which is not proved");
      for (const Shard& shard : entry.shards) ir::appendBoxes(plan_, shard, boxes);
    }
    const auto gap = ir::firstUncovered(tensor.shape, boxes);
    const bool none = boxes.empty() && tensor.shape.empty();  // a scalar has no position to name
    if (none || !gap.empty()) fail(place + "/entries", "do not cover the whole tensor");
  }

  void checkClasses() {
    std::vector<char> used(log_.classes.size(), 0);
    for (const auto& entry : log_.lineage) {
      if (entry.proof.proved) used[entry.proof.classId] = 1;
    }
    result_.proofs = log_.classes.size();
    for (std::size_t c = 0; c < log_.classes.size(); ++c) {
      const std::string place = classPlace(static_cast<std::int64_t>(c));
      if (!used[c]) fail(place, "no entry is of this class");
      if (sha256Hex(log_.classes[c].form) != log_.classes[c].sha256)
        fail(place + "/sha256", "is not the digest of the form");
    }
  }

  // Empty where the stage that model and plan give for this entry, under the assumptions that the
  // log states, is the one of its class.
  std::string whyOtherStage(EntryId e, std::vector<char>& excluded) const {
    const ProofRecord::Entry& logged = proof(e);
    // Whatever the log forbids, a stage that may assume less proves no less. What it does not
    // forbid the cutter assumes only where it comes before this entry.
    const auto& forbidden = log_.forbidden[logged.forbidden];
    for (const EntryId f : forbidden) excluded[f] = 1;
    CutOptions cut;
    cut.excluded = &excluded;
    cut.collapse = logged.collapse;
    cut.facts = &facts_;
    std::string why;
    try {
      const Stage stage = cutStage(planIndex_, e, cut);
      if (stage.usedEntries != logged.assumes)
        why = "its stage assumes " + listed(stage.usedEntries) + ", but " + listed(logged.assumes) +
              " in the log";
      else if (canonicalForm(stage) != log_.classes[logged.classId].form)
        why = "the stage that model and plan give for it is another than that of " +
              classPlace(logged.classId);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      why = std::string("its stage cannot be cut: ") + error.what();
    }
    for (const EntryId f : forbidden) excluded[f] = 0;
    return why;
  }

  void checkStages() {
    std::vector<EntryId> todo;
    for (const EntryId e : firstIds<EntryId>(log_.lineage.size())) {
      if (log_.lineage[e].proof.proved) todo.push_back(EntryId(e));
    }
    constexpr std::size_t kBatch = 512;
    for (std::size_t from = 0; from < todo.size() && !cancelled() && result_.findings.empty();
         from += kBatch) {
      if (options_.progress) options_.progress(from, todo.size(), "cutting");
      const std::size_t count = std::min(kBatch, todo.size() - from);
      std::vector<std::string> why(count);
      std::vector<std::exception_ptr> errors(count);  // must not leave a parallel region
#pragma omp parallel num_threads(std::max(1, options_.pool.jobs)) if (count > 8)
      {
        std::vector<char> excluded(plan_.lineage.size(), 0);
#pragma omp for schedule(dynamic, 4)
        for (std::size_t i = 0; i < count; ++i) {
          try {
            if (!cancelled()) why[i] = whyOtherStage(todo[from + i], excluded);
          } catch (...) {
            errors[i] = std::current_exception();
          }
        }
      }
      for (std::size_t i = 0; i < count; ++i) {
        if (errors[i]) std::rethrow_exception(errors[i]);
        if (!why[i].empty()) fail(entryPlace(todo[from + i]), why[i]);
      }
    }
  }

  // The classes that are to be proved again, ascending.
  std::vector<std::size_t> drawnClasses() const {
    std::vector<std::int64_t> drawn(log_.classes.size());
    std::iota(drawn.begin(), drawn.end(), std::int64_t{0});
    if (options_.sample) drawn = drawSample(std::move(drawn), *options_.sample, options_.seed);
    return {drawn.begin(), drawn.end()};
  }

  void proveAgain() {
    std::vector<std::size_t> order = drawnClasses();
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return log_.classes[a].form.size() > log_.classes[b].form.size();
    });
    CheckOptions check;
    check.checker = options_.checker.value_or(log_.checker);
    check.timeoutSeconds = options_.pool.timeoutSeconds;
    check.memoryMegabytes = options_.pool.memoryMegabytes;
    std::map<std::size_t, std::pair<std::string, bool>>
        wrong;  // by class, so that the findings are in the log's order
    std::size_t done = 0;
    runPool(
        order, [&](std::size_t c) { return answer(log_.classes[c], check); },
        [&](std::size_t c, const TaskResult& task) {
          if (options_.progress) options_.progress(++done, order.size(), "proving");
          if (task.outcome == TaskOutcome::kCancelled) return;
          if (task.outcome == TaskOutcome::kDone && task.payload.empty()) {
            ++result_.provedAgain;
            return;
          }
          if (task.outcome == TaskOutcome::kDone)
            wrong[c] = {task.payload.substr(1), task.payload.front() == kUndecided};
          else
            wrong[c] = {"is not proved again: " + task.reason,
                        task.outcome != TaskOutcome::kCrashed};
        },
        options_.pool);
    for (auto& [c, why] : wrong)
      fail(classPlace(static_cast<std::int64_t>(c)), why.first, why.second);
  }

  // No class needs it; one that execution refutes is wrong, whatever proved it.
  void seekEvidence() {
    if (!options_.second) return;
    result_.evidence = secondOpinions(log_, problem_, planIndex_, drawnClasses(), *options_.second,
                                      options_.pool, options_.progress);
    for (const ClassEvidence& e : result_.evidence) {
      if (!e.executed.difference) continue;
      const auto& d = *e.executed.difference;
      fail(classPlace(static_cast<std::int64_t>(e.classId)),
           "its stage is refuted by executing that of " + entryPlace(e.entry) +
               " at full size: " + d.element + " is " + shown(d.logical) + " in the model and " +
               shown(d.parallel) + " in the plan");
    }
  }
  static std::string shown(double x) {
    if (std::isnan(x)) return "undefined";
    char text[40];
    std::snprintf(text, sizeof text, "%.8g", x);
    return text;
  }

  // A worker's answer: empty, or one of the two letters and why. Normal forms give the same answer
  // each time, so what they leave open now was never proved by them; with a solver in it that is a
  // matter of time.
  static constexpr char kUndecided = 'u', kWrong = 'w';
  std::string answer(const ProofLog::Class& cls, const CheckOptions& check) const {
    const bool sameChecker = check.checker == log_.checker;
    const auto again = whyNotProvedAgain(
        cls.form, sameChecker ? std::optional(StoredProof{cls.method, {}}) : std::nullopt, check);
    if (again.why.empty()) return {};
    return (again.undecided && (!sameChecker || cls.method == Method::kSolver) ? kUndecided
                                                                               : kWrong) +
           again.why;
  }

  const ProofLog& log_;
  const Problem& problem_;
  const Plan& plan_;
  const CheckLogOptions& options_;
  PlanIndex planIndex_;
  ModelFacts facts_;
  CheckLogResult result_;
};

}  // namespace

bool CheckLogResult::anyWrong() const {
  return std::any_of(findings.begin(), findings.end(), [](const Finding& f) { return !f.limits; });
}

CheckLogResult checkLog(const ProofLog& log, const Problem& problem,
                        const CheckLogOptions& options) {
  return LogCheck(log, problem, options).run();
}

}  // namespace shardproof
