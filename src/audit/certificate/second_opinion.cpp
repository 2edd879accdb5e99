// SPDX-License-Identifier: Apache-2.0
#include "certificate/second_opinion.h"

#include "prover/model_facts.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include <nlohmann/json.hpp>

#include "shardproof/error.h"
#include "stages/canonical_reader.h"
#include "stages/cutter.h"
#include "util/index.h"

namespace shardproof {

namespace {

// Beyond so many operators on single coordinates a stage is not cut for execution.
constexpr std::size_t kMostNodes = 200'000;

// Execution stops by itself after so much of the time for one attempt, as processor time, and tells
// what it has found by then; the cut takes the rest. The pool stops it after so many times that on
// the clock, which other processes share.
constexpr double kSampleShare = 0.7, kWallClock = 10;

std::string packed(const nlohmann::json& j) {
  const auto bytes = nlohmann::json::to_cbor(j);
  return {bytes.begin(), bytes.end()};
}

class SecondOpinions {
 public:
  SecondOpinions(const ProofLog& log, const Problem& problem, const PlanIndex& planIndex,
                 const std::vector<std::size_t>& classes, const SecondOpinionOptions& options,
                 PoolOptions pool,
                 const std::function<void(std::size_t, std::size_t, const char*)>& progress)
      : log_(log),
        problem_(problem),
        planIndex_(planIndex),
        facts_(modelFacts(problem)),
        options_(options),
        pool_(pool),
        progress_(progress),
        evidence_(classes.size()) {
    std::map<std::size_t, std::int32_t> first;  // entry by class
    for (const EntryId e : firstIds<EntryId>(log.lineage.size())) {
      if (log.lineage[e].proof.proved) first.emplace(at(log.lineage[e].proof.classId), e);
    }
    for (std::size_t i = 0; i < classes.size(); ++i) {
      evidence_[i].classId = classes[i];
      evidence_[i].entry = EntryId(first.at(classes[i]));
    }
    pool_.timeoutSeconds = options.timeoutSeconds;
  }

  std::vector<ClassEvidence> run() {
    if (options_.execution) execute();
    for (std::size_t round = 0; options_.methods && !cancelled(); ++round) {
      std::vector<std::size_t> tasks;
      for (std::size_t i = 0; i < evidence_.size(); ++i) {
        if (!evidence_[i].provedBy && round < methodsOf(i).size()) tasks.push_back(i);
      }
      if (tasks.empty()) break;
      proveBy(round, std::move(tasks));
    }
    return std::move(evidence_);
  }

 private:
  bool cancelled() const { return pool_.cancelled(); }
  const ProofLog::Class& classOf(std::size_t i) const { return log_.classes[evidence_[i].classId]; }
  std::vector<SecondMethod> methodsOf(std::size_t i) const {
    return options_.only ? std::vector{*options_.only}
                         : methodsBesides(classOf(i).method, log_.checker);
  }

  // The largest first.
  void sort(std::vector<std::size_t>& tasks) const {
    std::stable_sort(tasks.begin(), tasks.end(), [&](std::size_t a, std::size_t b) {
      return classOf(a).form.size() > classOf(b).form.size();
    });
  }

  // ---- another method: from the form alone, as the proofs are made again

  void proveBy(std::size_t round, std::vector<std::size_t> tasks) {
    sort(tasks);
    const SecondLimits check{pool_.timeoutSeconds, pool_.memoryMegabytes};
    std::size_t done = 0;
    runPool(
        tasks,
        [&](std::size_t i) -> std::string {
          const Stage stage = readCanonicalForm(classOf(i).form);
          SecondOutcome outcome = checkStageBy(stage, methodsOf(i)[round], check);
          // Some proofs need more coordinates of an interchangeable axis than a stage keeps: the
          // stage with all of them is then as good.
          try {
            if (outcome.needsRefinement)
              outcome = checkStageBy(uncollapsed(evidence_[i].entry), methodsOf(i)[round], check);
          } catch (const Unsupported& error) {
            return error.what();
          }
          return outcome.proved           ? std::string()
                 : outcome.reason.empty() ? "not decided"
                                          : outcome.reason;
        },
        [&](std::size_t i, const TaskResult& task) {
          if (progress_) progress_(++done, tasks.size(), "proving otherwise");
          if (task.outcome == TaskOutcome::kCancelled) return;
          const std::string& why = task.outcome == TaskOutcome::kDone ? task.payload : task.reason;
          if (task.outcome == TaskOutcome::kDone && why.empty())
            evidence_[i].provedBy = methodsOf(i)[round];
          else
            evidence_[i].failed.emplace_back(methodsOf(i)[round],
                                             why.empty() ? "not decided" : why);
        },
        pool_);
  }

  // ---- execution: the stage of one entry, cut again with every coordinate of every axis

  void execute() {
    std::vector<std::size_t> tasks;
    for (std::size_t i = 0; i < evidence_.size(); ++i) tasks.push_back(i);
    sort(tasks);
    PoolOptions pool = pool_;
    pool.timeoutSeconds *= kWallClock;
    std::size_t done = 0;
    runPool(
        tasks, [&](std::size_t i) { return packed(toJson(executed(evidence_[i].entry))); },
        [&](std::size_t i, const TaskResult& task) {
          if (progress_) progress_(++done, tasks.size(), "executing");
          if (task.outcome == TaskOutcome::kCancelled) return;
          evidence_[i].attempted = true;
          if (task.outcome == TaskOutcome::kDone)
            evidence_[i].executed = fromJson(nlohmann::json::from_cbor(task.payload));
          else evidence_[i].executed.reason = task.reason.empty() ? "not decided" : task.reason;
        },
        pool);
  }

  // Of one entry, with what the log says that its stage may not assume, and every coordinate of
  // every axis. Throws Unsupported.
  Stage uncollapsed(EntryId entry) const {
    std::vector<char> excluded(problem_.plan.lineage.size(), 0);
    for (const EntryId f : log_.forbidden[log_.lineage[entry].proof.forbidden]) excluded[f] = 1;
    CutOptions cut;
    cut.excluded = &excluded;
    cut.collapse = false;
    cut.facts = &facts_;
    cut.maxNodes = kMostNodes;
    return cutStage(planIndex_, entry, cut);
  }

  unreduced::SampleOutcome executed(EntryId entry) const {
    unreduced::SampleOptions sample = options_.sample;
    sample.seconds = options_.timeoutSeconds * kSampleShare;
    sample.mostElements = static_cast<std::uint64_t>(static_cast<double>(sample.mostElements) *
                                                     options_.timeoutSeconds);
    try {
      return sampleStage(uncollapsed(entry), sample);
    } catch (const Unsupported& error) {
      unreduced::SampleOutcome outcome;
      outcome.reason = error.what();
      return outcome;
    }
  }

  // Numbers as text: they may be none.
  static nlohmann::json toJson(const unreduced::SampleOutcome& o) {
    nlohmann::json j{o.asked, o.agreed, o.agreedInField, o.reason};
    if (o.difference)
      j.push_back({o.difference->claim, o.difference->element, number(o.difference->logical),
                   number(o.difference->parallel)});
    return j;
  }
  static unreduced::SampleOutcome fromJson(const nlohmann::json& j) {
    unreduced::SampleOutcome o;
    o.asked = j.at(0).get<int>();
    o.agreed = j.at(1).get<int>();
    o.agreedInField = j.at(2).get<int>();
    o.reason = j.at(3).get<std::string>();
    if (j.size() > 4) {
      const auto& d = j.at(4);
      o.difference = {d.at(0).get<std::int32_t>(), d.at(1).get<std::string>(),
                      std::strtod(d.at(2).get<std::string>().c_str(), nullptr),
                      std::strtod(d.at(3).get<std::string>().c_str(), nullptr)};
    }
    return o;
  }
  static std::string number(double x) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", x);
    return text;
  }

  const ProofLog& log_;
  const Problem& problem_;
  const PlanIndex& planIndex_;
  ModelFacts facts_;
  const SecondOpinionOptions& options_;
  PoolOptions pool_;
  const std::function<void(std::size_t, std::size_t, const char*)>& progress_;
  std::vector<ClassEvidence> evidence_;
};

}  // namespace

std::vector<ClassEvidence> secondOpinions(
    const ProofLog& log, const Problem& problem, const PlanIndex& planIndex,
    const std::vector<std::size_t>& classes, const SecondOpinionOptions& options,
    const PoolOptions& pool,
    const std::function<void(std::size_t, std::size_t, const char*)>& progress) {
  return SecondOpinions(log, problem, planIndex, classes, options, pool, progress).run();
}

}  // namespace shardproof
