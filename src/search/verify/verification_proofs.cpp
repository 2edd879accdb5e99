// SPDX-License-Identifier: Apache-2.0
// Proofs of classes: looked up by canonical form where there is a store, else made by workers, each
// stage whole in a process of its own. What a worker says is taken for its task alone.
#include <algorithm>
#include <exception>

#include "obligations/obligation_files.h"
#include "shape_reduction/reduction.h"
#include "verify/verification.h"

namespace shardproof {

CheckOptions Verification::checkOptions() const {
  CheckOptions check;
  check.checker = options_.checker;
  check.timeoutSeconds = std::min(proofSeconds_, budget_.left());
  check.memoryMegabytes = options_.memoryMegabytes;
  return check;
}

PoolOptions Verification::poolOptions(int jobs, double timeoutSeconds) const {
  PoolOptions pool;
  pool.jobs = jobs;
  pool.inProcess = options_.inProcess;
  pool.timeoutSeconds = std::min(timeoutSeconds, budget_.left());
  pool.processorTime = true;
  pool.memoryMegabytes = options_.memoryMegabytes;
  pool.cancel = [this] {
    tellAgain();
    return cancelled();
  };
  return pool;
}

bool Verification::recall(std::int32_t id, const PoolOptions& pool) {
  ClassState& state = classes_[index(id)];
  const auto from = [&](ProofStore& store) {
    return store.recall(chain_->form(id), options_.checker, *state.representative);
  };
  auto known = memory() ? from(memory()->proofs()) : std::nullopt;
  if (!known && proofs()) {
    known = from(*proofs());
    if (known) ++report_.statistics.classesFromCache;
  }
  if (known) {
    state.decided = true;
    state.outcome.proof = known->proof;
    state.outcome.reducedShapes = std::move(known->reducedShapes);
    chain_->prove(id, known->proof);
    release(state);
    return true;
  }
  if (!memory() || hurry_ == Hurry::kBesideDoubtful) return false;
  const std::string* reason =
      memory()->undecidedWith(chain_->form(id), pool.timeoutSeconds, pool.memoryMegabytes);
  if (!reason) return false;
  state.decided = true;
  state.outcome.reason = *reason;
  noteOutOfTime();
  return true;
}

// What a worker sends is taken for its task: the chain refuses a proof of another stage.
void Verification::take(std::int32_t id) {
  const ClassState& state = classes_[index(id)];
  if (!state.outcome.proof) return;
  const Proof& proof = *state.outcome.proof;
  chain_->prove(id, proof);
  const auto keep = [&](ProofStore& store) {
    store.remember(chain_->form(id), options_.checker, *state.representative, proof,
                   state.outcome.reducedShapes);
  };
  if (memory()) keep(memory()->proofs());
  if (proofs()) keep(*proofs());
}

void Verification::release(ClassState& state) const {
  if (options_.smt2Directory.empty()) state.representative.reset();
}

namespace {

// A proof that ended undecided after this share of its time has run out of it.
constexpr double kShareOfLate = 0.8;

double secondsOf(const StageOutcome& outcome) {
  double seconds = 0;
  for (const auto& [phase, part] : outcome.seconds) seconds += part;
  return seconds;
}

}  // namespace

void Verification::runClasses() {
  const auto start = Clock::now();
  PoolOptions pool = poolOptions(options_.jobs, proofSeconds_);
  std::vector<std::size_t> order;
  for (std::size_t c = 0; c < classes_.size(); ++c) {
    if (!classes_[c].decided && !recall(static_cast<std::int32_t>(c), pool)) order.push_back(c);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return classes_[a].size > classes_[b].size;
  });
  const CheckOptions check = checkOptions();
  const std::size_t tasks = order.size();
  std::size_t done = 0, proved = 0;
  // Beside the proofs: what numbers say of the cut points. They are waited for where a proof fails,
  // as each cut point that is wrong costs several proofs, and following it to the outputs more.
  const std::size_t numbers = classes_.size();
  if (asksNumbersOfCutPoints() && tasks > 0) {
    order.insert(order.begin(), numbers);
    pool.cancel = [this, &proved, tasks] {
      tellAgain();
      return cancelled() || proved == tasks;
    };
  }
  const auto statistics = runPool(
      order,
      [&](std::size_t c) {
        return c == numbers ? contradictedText()
                            : serialize(checkStage(*classes_[c].representative, check));
      },
      [&](std::size_t c, const TaskResult& result) {
        if (c == numbers) {
          cutPointsContradicted_ = result.outcome == TaskOutcome::kDone && !result.payload.empty();
          gaveUp_ = gaveUp_ || cutPointsContradicted_;
          return;
        }
        ClassState& state = classes_[c];
        state.decided = true;
        if (result.outcome == TaskOutcome::kDone) {
          state.outcome = deserialize(result.payload);
          take(static_cast<std::int32_t>(c));
          for (const auto& [phase, seconds] : state.outcome.seconds)
            report_.statistics.secondsByPhase["workers/" + phase] += seconds;
        } else {
          state.outcome = {};
          state.outcome.reason = result.reason;
          if (const std::string reason = exhaustedReason();
              result.outcome == TaskOutcome::kCancelled && !reason.empty())
            state.outcome.reason = reason;
        }
        if (state.outcome.verdict() == StageVerdict::kUndecided && !state.outcome.needsRefinement &&
            result.outcome != TaskOutcome::kCancelled) {
          const bool late = secondsOf(state.outcome) >= kShareOfLate * proofSeconds_;
          if (memory())
            memory()->rememberUndecided(chain_->form(static_cast<std::int32_t>(c)),
                                        pool.timeoutSeconds, pool.memoryMegabytes,
                                        state.outcome.reason);
          if (result.outcome != TaskOutcome::kDone || late) noteOutOfTime();
          else if (hurry_ == Hurry::kLastResort) giveUpIfHurried();
          if (hurry_ == Hurry::kBesideDoubtful) state.decided = false;
        }
        ++done;
        proved += state.outcome.proof ? 1 : 0;
        tell(done, tasks, "proving");
      },
      pool);
  for (const std::size_t c : order)
    if (c != numbers && classes_[c].decided) release(classes_[c]);
  if (proofs()) proofs()->flush();
  report_.statistics.workersLost += statistics.workersLost;
  peakWorkerBytes_ = std::max(peakWorkerBytes_, statistics.peakWorkerBytes);
  report_.statistics.secondsByPhase["prove"] += secondsSince(start);
}

bool Verification::asksNumbersOfCutPoints() const {
  return attempt_.contradicted && !options_.inProcess && !merging_ && hurry_ == Hurry::kNone;
}

std::string Verification::contradictedText() const {
  return attempt_.contradicted(problem_).empty() ? "" : "contradicted";
}

void Verification::writeObligationFiles() {
  const auto start = Clock::now();
  std::vector<ObligationClass> classes;
  for (const ClassState& c : classes_) {
    const std::set<EntryId> entries(
        c.entries.begin(), c.entries.end());  // one that is cut again may come out the same
    classes.push_back(
        {c.representative.get(), &c.outcome, {entries.begin(), entries.end()}, false});
  }
  std::vector<std::pair<std::int32_t, std::string>> without;
  for (const EntryId e : topological()) {
    const std::string& failure = entries_[e].cutFailure;
    if (classOf(e)) classes[index(chain_->classOf(e))].final = true;
    else without.emplace_back(e, failure.empty() ? "not cut before the run ended" : failure);
  }
  const PoolOptions pool = poolOptions(options_.jobs, options_.stageSeconds);
  writeObligations(options_.smt2Directory, *planIndex_, classes, without, pool, options_.progress);
  report_.statistics.secondsByPhase["obligations"] += secondsSince(start);
}

}  // namespace shardproof
