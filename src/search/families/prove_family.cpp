// SPDX-License-Identifier: Apache-2.0
#include "families/prove_family.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "check/checker.h"
#include "refute/stage_refuter.h"
#include "shardproof/error.h"
#include "worker/pool.h"

namespace shardproof {

namespace {

constexpr std::size_t kMostShown = 10;

// Shows that the model has a value somewhere, as the check of a single stage does.
class Witness : public ValueWitness {
 public:
  explicit Witness(const Stage& stage) : refuter_(stage, outcome_) {}
  std::optional<ClaimedElement> withoutValue(const ReducedStage& reduced,
                                             std::set<ClaimedElement> elements) override {
    return refuter_.withoutValue(reduced, std::move(elements));
  }

 private:
  StageOutcome outcome_;
  StageRefuter refuter_;
};

class FamilySearch {
 public:
  FamilySearch(FamilyChain& chain, const VerifyOptions& options, const Budget& budget)
      : chain_(chain), options_(options), budget_(budget) {}

  FamilyReport run() {
    FamilyReport report;
    report.unit = chain_.unit();
    report.outputs = chain_.problem().model.outputs.size();
    const auto& lineage = chain_.problem().plan.lineage;
    for (const EntryId e : firstIds<EntryId>(lineage.size()))
      if (lineage[e].role == Role::kAssumed) report.approved.push_back(chain_.tensorName(e));
    if (!chain_.obstacle().empty()) {
      report.reason = chain_.obstacle();
      return report;
    }
    report.stages = chain_.order().size();
    cut(chain_.order(), true);
    prove();
    std::vector<EntryId> again;
    for (const EntryId e : chain_.order())
      if (needRefinement_.contains(chain_.kindOf(e))) again.push_back(e);
    if (!again.empty()) {
      cut(again, false);
      prove();
    }
    conclude(report);
    return report;
  }

 private:
  void cut(const std::vector<EntryId>& todo, bool collapse) {
    for (std::size_t i = 0; i < todo.size() && !budget_.over(); ++i) {
      if (options_.progress && i % 64 == 0) options_.progress(i, todo.size(), "cutting stages");
      chain_.cut(todo[i], collapse, &budget_);
    }
  }

  void prove() {
    std::vector<std::size_t> order;
    for (; decided_ < chain_.kinds(); ++decided_) order.push_back(decided_);
    PoolOptions pool;
    pool.jobs = options_.jobs;
    pool.inProcess = options_.inProcess;
    pool.timeoutSeconds = std::min(options_.stageSeconds, budget_.left());
    pool.processorTime = true;
    pool.memoryMegabytes = options_.memoryMegabytes;
    pool.cancel = [&] { return budget_.over(); };
    std::size_t done = 0;
    runPool(
        order, [&](std::size_t k) { return decide(KindId(k)); },
        [&](std::size_t k, const TaskResult& result) {
          if (result.outcome == TaskOutcome::kDone) take(KindId(k), result.payload);
          else reasons_[KindId(k)] = result.reason;
          if (options_.progress) options_.progress(++done, order.size(), "proving");
        },
        pool);
  }

  // What a worker sends begins with one of these.
  static constexpr char kOutcome = 'o', kProof = 'p', kOpen = 'u', kRefine = 'r', kNotWhole = 'w';

  std::string decide(KindId kind) const {
    const double seconds = std::min(options_.stageSeconds, budget_.left());
    try {
      const StageFamily family = chain_.family(kind);
      if (chain_.onlyForm(kind) != nullptr) {
        CheckOptions check;
        check.checker = options_.checker;
        check.timeoutSeconds = seconds;
        check.memoryMegabytes = options_.memoryMegabytes;
        return kOutcome + serialize(checkStage(family.at(1), check));
      }
      return kProof +
             proveForAllSizes(family, {.seconds = seconds, .megabytes = options_.memoryMegabytes},
                              [](const Stage& stage) { return std::make_unique<Witness>(stage); })
                 .bytes();
    } catch (const NeedsRefinement& needed) {
      return std::string(1, kRefine) + needed.what();
    } catch (const NotWhole& error) {
      return std::string(1, kNotWhole) + error.what();
    } catch (const Unsupported& error) {
      return std::string(1, kOpen) + error.what();
    }
  }

  void take(KindId kind, const std::string& payload) {
    const std::string rest = payload.substr(1);
    switch (payload[0]) {
      case kProof:
        chain_.prove(kind, FamilyProof::fromBytes(rest));
        return;
      case kOutcome: {
        const StageOutcome outcome = deserialize(rest);
        if (outcome.proof) return chain_.prove(kind, *outcome.proof);
        if (outcome.needsRefinement) needRefinement_.insert(kind);
        reasons_[kind] = outcome.verdict() == StageVerdict::kRefuted
                             ? "the plan computes something else here, at every size"
                             : outcome.reason;
        return;
      }
      case kRefine:
        needRefinement_.insert(kind);
        [[fallthrough]];
      default:
        notWhole_ = notWhole_ || payload[0] == kNotWhole;
        reasons_[kind] = rest;
    }
  }

  void conclude(FamilyReport& report) const {
    std::set<KindId> used;
    for (const EntryId e : chain_.order()) {
      const KindId kind = chain_.kindOf(e);
      if (kind.valid() && used.insert(kind).second && chain_.onlyForm(kind) == nullptr)
        ++report.withSize;
      if (kind.valid() && chain_.holds(kind)) continue;
      ++report.openStages;
      if (report.open.size() >= kMostShown) continue;
      const auto reason = reasons_.find(kind);
      report.open.push_back({chain_.tensorName(e), !kind.valid() ? chain_.failure(e)
                                                   : reason != reasons_.end()
                                                       ? reason->second
                                                       : "it was not tried"});
    }
    report.kinds = used.size();
    report.notWhole = notWhole_;
    report.outputsProved = chain_.outputsProved();
    if (auto result = chain_.result(options_)) {
      report.verdict = result->verdict;
      report.least = result->least;
      report.most = result->most;
      report.conditions = std::move(result->conditions);
      return;
    }
    report.reason = budget_.over() ? "the time for the run is over (--timeout)"
                                   : std::to_string(report.openStages) + " of " +
                                         std::to_string(report.stages) +
                                         " stages are not proved for all sizes";
  }

  FamilyChain& chain_;
  const VerifyOptions& options_;
  const Budget& budget_;
  std::size_t decided_ = 0;  // kinds
  std::map<KindId, std::string> reasons_;
  std::set<KindId> needRefinement_;
  bool notWhole_ = false;
};

}  // namespace

FamilyReport proveFamily(FamilyChain& chain, const VerifyOptions& options, const Budget& budget) {
  return FamilySearch(chain, options, budget).run();
}

}  // namespace shardproof
