#include "shardproof/verify.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>

#include <sys/resource.h>

#include "cache/proof_store.h"
#include "certificate/proof_record.h"
#include "checker/checker.h"
#include "checker/model_facts.h"
#include "plan/checks.h"
#include "plan/plan_index.h"
#include "shape_reduction/reduction.h"
#include "shardproof/error.h"
#include "stages/cutter.h"
#include "stages/stage.h"
#include "verify/describe.h"
#include "verify/obligation_files.h"
#include "worker/pool.h"

namespace shardproof {

namespace {

constexpr std::size_t kMostDefectsShown = 20;
// Rounds of refining the cut: each merges the stages that failed into those that relied on them.
constexpr int kMostRounds = 12;
// The end-to-end evaluation in numbers is made from the plan's inputs while it has at most this
// many operator instances, and from the lemmas before the first failure otherwise.
constexpr std::size_t kMostEndToEndNodes = 150'000;
// A stage that was merged with failed ones may have this many local tensors, and all those of a
// round together so many times as many tensors and operators as the first round's stages had (and
// some): beyond that a proof is out of reach, and cutting alone takes minutes.
constexpr std::size_t kMostMergedTensors = 200'000;
constexpr std::size_t kMostGrowth = 4;
constexpr std::size_t kGrowthAllowance = 1'000'000;
constexpr double kManyInstances = 20'000;  // of the plan: one output is evaluated before all are

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Verification {
 public:
  Verification(const Problem& problem, const VerifyOptions& options)
      : problem_(problem), plan_(problem.plan), options_(options) {
    if (options_.inProcess) options_.jobs = 1;
    if (options_.jobs <= 0)
      options_.jobs = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  }

  Report run() {
    const auto start = Clock::now();
    describeInput();
    planIndex_ = std::make_unique<PlanIndex>(problem_);
    facts_ = modelFacts(problem_);
    report_.statistics.secondsByPhase["join"] = since(start);
    report_.statistics.operatorInstances = planIndex_->operatorInstances();
    if (!planIndex_->defects().empty()) {
      report_.verdict = Verdict::kNotEquivalent;
      report_.defects = planIndex_->defects();
    } else {
      prove();
    }
    if (!options_.smt2Directory.empty()) writeObligationFiles();
    report_.statistics.secondsTotal = since(start);
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    report_.statistics.peakMemoryBytes =
        static_cast<std::size_t>(usage.ru_maxrss) * 1024 + peakWorkerBytes_;
    return std::move(report_);
  }

 private:
  struct EntryState {
    bool needed = false;      // has a stage at all (input lineage has none)
    std::int32_t stage = -1;  // index into report_.stages
    std::int32_t classId = -1;
    std::vector<std::int32_t> used;
    std::string cutFailure;              // why no stage could be cut
    std::vector<std::int32_t> deepened;  // entries that its stage reaches past, sorted
    int depth = 0;                       // how often it was deepened
    std::int32_t forbidden =
        0;  // what it was not to assume when it was cut last (ProofRecord::forbidden)
    bool collapse = true;  // interchangeable axes are collapsed in its stage
  };
  struct ClassState {
    std::unique_ptr<Stage> representative;
    const std::string* form = nullptr;  // the key of classOfForm_, which does not move
    std::int32_t entry = -1;
    std::vector<std::int32_t> entries;  // all that ever were in it
    bool decided = false;
    StageOutcome outcome;
    std::size_t size = 0;
  };

  void describeInput() {
    report_.model = problem_.model.file;
    report_.plan = plan_.file;
    report_.outputs = problem_.model.outputs.size();
    report_.outputTensors = outputNames(problem_);
    Statistics& s = report_.statistics;
    for (const Program& p : plan_.programs) s.programNodes += p.graph.nodes.size();
    s.lineageEntries = plan_.lineage.size();
    knownInputs_ =
        std::any_of(problem_.model.graph.tensors.begin(), problem_.model.graph.tensors.end(),
                    [](const Tensor& t) { return t.known != nullptr; });
    s.ranks = static_cast<std::size_t>(plan_.ranks());
    s.microbatches = static_cast<std::size_t>(plan_.microbatches);
  }

  bool cancelled() const { return options_.cancel && options_.cancel->load(); }

  std::pair<std::int64_t, std::int32_t> order(std::int32_t e) const {
    return {planIndex_->entryKey(e), e};
  }

  void prove() {
    entries_.resize(plan_.lineage.size());
    excluded_.assign(plan_.lineage.size(), 0);
    std::vector<std::int32_t> todo;
    for (std::size_t e = 0; e < plan_.lineage.size(); ++e) {
      if (plan_.lineage[e].role == Role::kInput) continue;
      entries_[e].needed = true;
      entries_[e].stage = static_cast<std::int32_t>(report_.stages.size());
      StageReport stage;
      stage.entry = static_cast<std::int32_t>(e);
      stage.role = plan_.lineage[e].role;
      stage.tensor = tensorName(plan_.lineage[e].tensor);
      report_.stages.push_back(std::move(stage));
      todo.push_back(static_cast<std::int32_t>(e));
    }
    std::sort(todo.begin(), todo.end(),
              [&](std::int32_t a, std::int32_t b) { return order(a) < order(b); });
    topological_ = todo;
    for (int round = 0;; ++round) {
      merging_ = round > 0;
      round_ = round;
      if (round == 1) budget_ = kMostGrowth * cutSize_ + kGrowthAllowance;
      cutSize_ = 0;
      cutAndProve(todo);
      if (cancelled() || !report_.defects.empty()) break;
      if (round == 0) {
        firstFailures_ = failures();
        firstOutcomes_ = snapshot(firstFailures_);
      }
      if (allOutputsProved() || round == kMostRounds) break;
      // Also where no stage is refuted: a stage that is wrong may be too large for its own check,
      // and is one round of numbers away from its verdict.
      if (round == 0 && !firstFailures_.empty() && endToEndDiffers()) {
        differs_ = true;
        break;
      }
      // Failed checkpoints are no longer assumed; what relied on them is cut again, further up.
      bool grew = false;
      for (const std::int32_t e : failures()) {
        if (!excluded_[index(e)]) {
          excluded_[index(e)] = 1;
          grew = true;
        }
      }
      todo.clear();
      for (const std::int32_t e : topological_) {
        EntryState& state = entries_[index(e)];
        const bool recut = std::any_of(state.used.begin(), state.used.end(),
                                       [&](std::int32_t f) { return excluded_[index(f)] != 0; });
        if (recut || (!holds(e) && deepen(e))) todo.push_back(e);
      }
      grew = grew || !todo.empty();
      if (!grew || todo.empty()) break;
    }
    conclude();
  }

  // A stage that fails although all that it assumes may hold may need to know how its assumptions
  // hang together: it is cut again past them. Checkpoints get one such try, outputs as many as
  // there are rounds.
  bool deepen(std::int32_t e) {
    EntryState& state = entries_[index(e)];
    if (state.used.empty() ||
        (plan_.lineage[index(e)].role == Role::kCheckpoint && state.depth > 0))
      return false;
    state.deepened.insert(state.deepened.end(), state.used.begin(), state.used.end());
    std::sort(state.deepened.begin(), state.deepened.end());
    ++state.depth;
    return true;
  }

  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  const std::string& tensorName(std::int32_t logical) const {
    return problem_.names.text(problem_.model.graph.tensors[index(logical)].name);
  }

  // A stage as it was cut, or why it could not be.
  struct CutResult {
    std::unique_ptr<Stage> stage;
    std::string form, failure;
    double secondsForForm = 0;
    std::optional<CyclicWait> cycle;
    std::exception_ptr error;
  };

  CutResult cutOne(std::int32_t e) const {
    const EntryState& state = entries_[index(e)];
    CutResult result;
    CutOptions cut;
    cut.facts = &facts_;
    cut.excluded = &excluded_;
    cut.deepened = state.deepened;
    cut.collapse = state.collapse;
    if (merging_) cut.maxNodes = kMostMergedTensors;
    try {
      result.stage = std::make_unique<Stage>(cutStage(*planIndex_, e, cut));
      const auto start = Clock::now();
      result.form = canonicalForm(*result.stage);
      result.secondsForForm = since(start);
    } catch (const Unsupported& error) {
      result.failure = error.what();
    } catch (const CyclicWait& cycle) {
      result.failure = cycle.what();
      result.cycle = cycle;
    } catch (...) {  // must not leave a parallel region
      result.error = std::current_exception();
    }
    return result;
  }

  // "proving, round 2": rounds beyond the first cut what failed further upstream.
  void tell(std::size_t done, std::size_t all, const char* phase) const {
    if (!options_.progress) return;
    const std::string text =
        round_ == 0 ? phase : phase + (", round " + std::to_string(round_ + 1));
    options_.progress(done, all, text.c_str());
  }

  // Stages are cut in parallel, a batch at a time, and enter their classes in order: numbers do not
  // depend on the number of jobs.
  void cutAll(const std::vector<std::int32_t>& todo) {
    constexpr std::size_t kBatch = 128;
    const auto start = Clock::now();
    for (std::size_t from = 0; from < todo.size() && !cancelled(); from += kBatch) {
      tell(from, todo.size(), "cutting stages");
      const std::size_t count = std::min(kBatch, todo.size() - from);
      std::vector<CutResult> results(count);
      if (merging_ && cutSize_ > budget_) {
        for (CutResult& result : results)
          result.failure = "too many stages would have to be merged with failed ones";
        for (std::size_t i = 0; i < count; ++i) enterClass(todo[from + i], std::move(results[i]));
        continue;
      }
#pragma omp parallel for schedule(dynamic, 4) num_threads(options_.jobs) if (count > 8)
      for (std::size_t i = 0; i < count; ++i) {
        if (!cancelled()) results[i] = cutOne(todo[from + i]);
      }
      for (std::size_t i = 0; i < count; ++i) enterClass(todo[from + i], std::move(results[i]));
    }
    report_.statistics.secondsByPhase["cut"] += since(start);
  }

  void enterClass(std::int32_t e, CutResult result) {
    if (result.error) std::rethrow_exception(result.error);
    EntryState& state = entries_[index(e)];
    StageReport& report = report_.stages[index(state.stage)];
    state.classId = -1;
    state.used.clear();
    state.cutFailure = result.failure;
    if (result.cycle) reportCycle(*result.cycle);
    if (result.stage && !result.form.empty()) {
      Stage& stage = *result.stage;
      report_.statistics.secondsByPhase["threads/classify"] += result.secondsForForm;
      cutSize_ += stage.nodes.size() + stage.tensors.size();
      state.used = stage.usedEntries;
      if (options_.record) state.forbidden = forbiddenNow(state);
      report.assumptions = stage.usedEntries;
      report.logicalNodes = stage.logicalNodes();
      report.parallelNodes = stage.parallelNodes();
      std::string form = std::move(result.form);
      if (!options_.shareClasses)
        form += "#" + std::to_string(e) + "#" + std::to_string(classes_.size());
      const auto [it, inserted] =
          classOfForm_.emplace(std::move(form), static_cast<std::int32_t>(classes_.size()));
      if (inserted) {
        ClassState made;
        made.size = stage.nodes.size() + stage.tensors.size();
        made.representative = std::move(result.stage);
        made.entry = e;
        made.form = &it->first;
        classes_.push_back(std::move(made));
      }
      state.classId = it->second;
      classes_[index(it->second)].entries.push_back(e);
    }
    report.classId = state.classId;
  }

  // The number of the set of entries that a stage may not assume which is cut now.
  std::int32_t forbiddenNow(const EntryState& state) {
    std::vector<std::int32_t> set = state.deepened;
    for (std::size_t f = 0; f < excluded_.size(); ++f) {
      if (excluded_[f]) set.push_back(static_cast<std::int32_t>(f));
    }
    std::sort(set.begin(), set.end());
    set.erase(std::unique(set.begin(), set.end()), set.end());
    const auto [it, inserted] =
        forbidden_.emplace(std::move(set), static_cast<std::int32_t>(forbidden_.size()));
    return it->second;
  }

  void reportCycle(const CyclicWait& cycle) {
    if (report_.defects.empty())
      report_.defects.push_back(
          dataCycle(*planIndex_, cycle.program, cycle.node, cycle.rank, cycle.microbatch));
  }

  CheckOptions checkOptions() const {
    CheckOptions check;
    check.checker = options_.checker;
    check.timeoutSeconds = options_.timeoutSeconds;
    check.memoryMegabytes = options_.memoryMegabytes;
    return check;
  }

  StageOutcome decide(const Stage& stage, const CheckOptions& check) const {
    try {
      return checkStage(stage, check);
    } catch (const NotSymmetric& why) {
      StageOutcome outcome;
      outcome.notSymmetric = true;
      outcome.reason = why.what();
      return outcome;
    }
  }

  // Cuts and decides. Stages whose axes turn out not to be interchangeable are cut again, each for
  // itself, with all coordinates: what such a stage is made of and what it assumes may differ from
  // what the cut with collapsed axes showed.
  void cutAndProve(const std::vector<std::int32_t>& todo) {
    cutAll(todo);
    runClasses();
    std::vector<std::int32_t> again;
    for (const std::int32_t e : todo) {
      const StageOutcome* outcome = outcomeOf(e);
      if (outcome && outcome->notSymmetric && entries_[index(e)].collapse) {
        entries_[index(e)].collapse = false;
        again.push_back(e);
      }
    }
    if (again.empty() || cancelled()) return;
    cutAll(again);
    runClasses();
  }

  PoolOptions poolOptions(int jobs, double timeoutSeconds) const {
    PoolOptions pool;
    pool.jobs = jobs;
    pool.inProcess = options_.inProcess;
    pool.timeoutSeconds = timeoutSeconds;
    pool.memoryMegabytes = options_.memoryMegabytes;
    pool.cancel = options_.cancel;
    return pool;
  }

  ProofStore* proofs() const { return options_.shareClasses ? options_.proofs : nullptr; }
  bool recall(ClassState& state) {
    auto known = proofs() ? proofs()->recall(*state.form, options_.checker, *state.representative)
                          : std::nullopt;
    if (!known) return false;
    state.decided = true;
    state.outcome = std::move(*known);
    release(state);
    ++report_.statistics.classesFromCache;
    return true;
  }

  // A decided class is needed again only where its obligation is written; there may be thousands.
  void release(ClassState& state) const {
    if (options_.smt2Directory.empty()) state.representative.reset();
  }

  void runClasses() {
    const auto start = Clock::now();
    std::vector<std::size_t> order;
    for (std::size_t c = 0; c < classes_.size(); ++c) {
      if (!classes_[c].decided && !recall(classes_[c])) order.push_back(c);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return classes_[a].size > classes_[b].size;
    });
    const PoolOptions pool = poolOptions(options_.jobs, options_.timeoutSeconds);
    const CheckOptions check = checkOptions();
    std::size_t done = 0;
    const auto statistics = runPool(
        order, [&](std::size_t c) { return serialize(decide(*classes_[c].representative, check)); },
        [&](std::size_t c, const TaskResult& result) {
          ClassState& state = classes_[c];
          state.decided = true;
          if (result.outcome == TaskOutcome::kDone) {
            state.outcome = deserialize(result.payload);
            if (proofs())
              proofs()->remember(*state.form, options_.checker, *state.representative,
                                 state.outcome);
            for (const auto& [phase, seconds] : state.outcome.seconds)
              report_.statistics.secondsByPhase["workers/" + phase] += seconds;
          } else {
            state.outcome = {};
            state.outcome.reason = result.reason;
          }
          ++done;
          tell(done, order.size(), "proving");
        },
        pool);
    for (const std::size_t c : order) release(classes_[c]);
    if (proofs()) proofs()->flush();
    report_.statistics.workersLost += statistics.workersLost;
    peakWorkerBytes_ = std::max(peakWorkerBytes_, statistics.peakWorkerBytes);
    report_.statistics.secondsByPhase["prove"] += since(start);
  }

  void writeObligationFiles() {
    const auto start = Clock::now();
    std::vector<ObligationClass> classes;
    for (const ClassState& c : classes_) {
      const std::set<std::int32_t> entries(
          c.entries.begin(), c.entries.end());  // one that is cut again may come out the same
      classes.push_back(
          {c.representative.get(), &c.outcome, {entries.begin(), entries.end()}, false});
    }
    std::vector<std::pair<std::int32_t, std::string>> without;
    for (const std::int32_t e : topological_) {
      const EntryState& state = entries_[index(e)];
      if (state.classId >= 0) classes[index(state.classId)].final = true;
      else
        without.emplace_back(
            e, state.cutFailure.empty() ? "not cut before the run ended" : state.cutFailure);
    }
    const PoolOptions pool = poolOptions(options_.jobs, options_.timeoutSeconds);
    writeObligations(options_.smt2Directory, *planIndex_, classes, without, pool,
                     options_.progress);
    report_.statistics.secondsByPhase["obligations"] += since(start);
  }

  const StageOutcome* outcomeOf(std::int32_t e) const {
    const EntryState& state = entries_[index(e)];
    return state.classId < 0 ? nullptr : &classes_[index(state.classId)].outcome;
  }
  bool holds(std::int32_t e) const {
    const StageOutcome* outcome = outcomeOf(e);
    return outcome && outcome->verdict == StageVerdict::kProved;
  }
  // Entries whose own stage is not proved.
  std::vector<std::int32_t> failures() const {
    std::vector<std::int32_t> failed;
    for (const std::int32_t e : topological_) {
      if (!holds(e)) failed.push_back(e);
    }
    return failed;
  }

  // The chain: an entry is proved when its stage is and all entries that the stage assumed are,
  // down to the inputs. Assumed entries come strictly earlier in `topological_`, so one pass
  // suffices.
  std::vector<char> chain() const {
    std::vector<char> proved(plan_.lineage.size(), 0);
    for (const std::int32_t e : topological_) {
      const auto& used = entries_[index(e)].used;
      proved[index(e)] = holds(e) && std::all_of(used.begin(), used.end(), [&](std::int32_t f) {
                           return proved[index(f)] != 0;
                         });
    }
    return proved;
  }

  // Outputs of the model all of whose `output` entries are proved, and that have one.
  std::size_t outputsProved(const std::vector<char>& proved) const {
    std::vector<char> claimed(problem_.model.graph.tensors.size(), 0), failed(claimed.size(), 0);
    for (std::size_t e = 0; e < plan_.lineage.size(); ++e) {
      const LineageEntry& entry = plan_.lineage[e];
      if (entry.role == Role::kOutput) (proved[e] ? claimed : failed)[index(entry.tensor)] = 1;
    }
    return static_cast<std::size_t>(std::count_if(
        problem_.model.outputs.begin(), problem_.model.outputs.end(),
        [&](std::int32_t output) { return claimed[index(output)] && !failed[index(output)]; }));
  }
  bool allOutputsProved() const {
    const auto proved = chain();
    bool all = outputsProved(proved) == problem_.model.outputs.size();
    // An `output` entry of a tensor that is not among the model's outputs is a goal all the same.
    for (std::size_t e = 0; e < plan_.lineage.size(); ++e)
      all = all && (plan_.lineage[e].role != Role::kOutput || proved[e]);
    // What places a dropout's mask must be true of the tensor that it places.
    for (const std::int32_t e : plan_.positioning)
      all = all && (plan_.lineage[index(e)].role == Role::kInput || proved[index(e)]);
    return all;
  }

  // Evaluates both sides in numbers, the model from its inputs, the plan from what is proved, to
  // the outputs: does a failed lemma show in one?
  bool endToEndDiffers() {
    const auto start = Clock::now();
    // What is proved need not be computed on all ranks again, nor asked again, unless the place of
    // a dropout's mask is in doubt, and with it what a proof means.
    std::vector<char> known = chain();
    if (std::any_of(plan_.positioning.begin(), plan_.positioning.end(), [&](std::int32_t e) {
          return plan_.lineage[index(e)].role != Role::kInput && !known[index(e)];
        })) {
      std::fill(known.begin(), known.end(), 0);
    }
    std::vector<std::int32_t> outputs;
    std::int32_t first = -1;  // refuted
    for (const std::int32_t e : topological_) {
      if (plan_.lineage[index(e)].role == Role::kOutput && !known[index(e)]) outputs.push_back(e);
      const StageOutcome* outcome = outcomeOf(e);
      if (first < 0 && outcome && outcome->verdict == StageVerdict::kRefuted) first = e;
    }
    // The failed lemmas are looked at too: which of them are really wrong, and not just unprovable
    // from what their stage knows?
    std::vector<std::int32_t> all = outputs;
    for (const std::int32_t e : firstFailures_) {
      if (plan_.lineage[index(e)].role != Role::kOutput) all.push_back(e);
    }
    CutOptions cut;
    cut.maxNodes = 2 * kMostEndToEndNodes;
    cut.proved = &known;
    // In a large plan first the output that the first failed lemma reaches soonest; that is often
    // enough and always less.
    if (first < 0 && !firstFailures_.empty()) first = firstFailures_.front();
    const std::int32_t nearest =
        first >= 0 && planIndex_->operatorInstances() > kManyInstances ? nearestOutput(first) : -1;
    std::optional<StageOutcome> outcome;
    if (nearest >= 0)
      outcome = evaluateAndConfirm(
          nearest == first ? std::vector{first} : std::vector{nearest, first}, cut);
    bool decisive = outcome && violates(*outcome, {nearest}) && !outcome->shortenedMask;
    if (!decisive) {
      auto whole = evaluateAndConfirm(all, cut);
      decisive = whole.has_value();
      if (whole) outcome = std::move(whole);
    }
    report_.statistics.secondsByPhase["end-to-end"] += since(start);
    if (!outcome) return false;
    if (outcome->shortenedMask) {  // a difference that was seen only with another mask than the
                                   // causal one is none
      for (const std::int32_t e : outputs) {
        if (suspected_ < 0 && violates(*outcome, {e})) suspected_ = e;
      }
      return false;
    }
    violated_.insert(outcome->differingEntries.begin(), outcome->differingEntries.end());
    evaluated_ = decisive && ended(*outcome);
    for (const std::int32_t e : outputs) {
      if (endToEndEntry_ < 0 && violated_.contains(e)) endToEndEntry_ = e;
    }
    return endToEndEntry_ >= 0;
  }

  static bool violates(const StageOutcome& outcome, const std::vector<std::int32_t>& entries) {
    return std::any_of(entries.begin(), entries.end(), [&](std::int32_t e) {
      return std::find(outcome.differingEntries.begin(), outcome.differingEntries.end(), e) !=
             outcome.differingEntries.end();
    });
  }

  // The first output whose chain of assumptions contains `lemma`, or -1.
  std::int32_t nearestOutput(std::int32_t lemma) const {
    std::vector<char> reached(plan_.lineage.size(), 0);
    for (const std::int32_t e : topological_) {
      const auto& used = entries_[index(e)].used;
      reached[index(e)] = e == lemma || std::any_of(used.begin(), used.end(), [&](std::int32_t f) {
                            return reached[index(f)] != 0;
                          });
      if (reached[index(e)] && plan_.lineage[index(e)].role == Role::kOutput) return e;
    }
    return -1;
  }

  // As evaluate(), with reduced causal masks first; what outputs show so is confirmed with whole
  // ones: on the one of these outputs that takes the least to compute, and only where that one does
  // not show it, on all. Where this cannot be afforded the outcome says that the mask is shortened.
  std::optional<StageOutcome> evaluateAndConfirm(const std::vector<std::int32_t>& claimed,
                                                 const CutOptions& cut) {
    auto outcome = evaluate(claimed, cut);
    const std::int32_t least =
        outcome && outcome->shortenedMask ? leastOutput(outcome->differingEntries, cut) : -1;
    if (least < 0) return outcome;
    const auto alone = evaluate({least}, cut, true);
    if (!alone || !ended(*alone) || alone->shortenedMask) return outcome;
    if (violates(*alone, {least})) {
      outcome->shortenedMask = false;
      endToEndEntry_ = least;
      return outcome;
    }
    if (claimed.size() == 1) return alone;
    auto exact = evaluate(claimed, cut, true);
    return exact && ended(*exact) ? exact : outcome;
  }

  // Whether both sides were evaluated to the end, with a difference or without.
  static bool ended(const StageOutcome& outcome) {
    return outcome.verdict == StageVerdict::kRefuted || outcome.reason == kNoDifferenceFound;
  }

  // The output among the entries that fewest operators lead to, or -1.
  std::int32_t leastOutput(const std::vector<std::int32_t>& entries, CutOptions cut) const {
    std::int32_t least = -1;
    for (const std::int32_t e : entries) {
      if (plan_.lineage[index(e)].role != Role::kOutput) continue;
      try {
        const std::size_t nodes = cutStages(*planIndex_, {e}, cut).nodes.size();
        if (least >= 0 && nodes >= cut.maxNodes) continue;
        least = e;
        cut.maxNodes = nodes;  // one that needs more need not be cut to its end
      } catch (const Unsupported&) {
      } catch (const CyclicWait&) {
      }
    }
    return least;
  }

  // In numbers, as one stage; nothing when it is too large.
  std::optional<StageOutcome> evaluate(const std::vector<std::int32_t>& claimed, CutOptions cut,
                                       bool wholeMasks = false) {
    for (;;) {
      std::unique_ptr<Stage> stage;
      try {
        stage = std::make_unique<Stage>(cutStages(*planIndex_, claimed, cut));
      } catch (const Unsupported&) {
        return std::nullopt;
      } catch (const CyclicWait& cycle) {
        reportCycle(cycle);
        return std::nullopt;
      }
      if (stage->nodes.size() > kMostEndToEndNodes) return std::nullopt;
      StageOutcome outcome = runEndToEnd(*stage, wholeMasks);
      if (!outcome.notSymmetric || !cut.collapse) return outcome;
      cut.collapse = false;
    }
  }

  StageOutcome runEndToEnd(const Stage& stage, bool wholeMasks) {
    StageOutcome outcome;
    CheckOptions check = checkOptions();
    check.endToEnd = true;
    check.wholeMasks = wholeMasks;
    const PoolOptions pool = poolOptions(1, options_.timeoutSeconds * 2);
    const auto statistics = runPool(
        {0}, [&](std::size_t) { return serialize(decide(stage, check)); },
        [&](std::size_t, const TaskResult& result) {
          if (result.outcome == TaskOutcome::kDone) outcome = deserialize(result.payload);
          else outcome.reason = result.reason;
        },
        pool);
    peakWorkerBytes_ = std::max(peakWorkerBytes_, statistics.peakWorkerBytes);
    return outcome;
  }

  struct Failure {
    std::int32_t entry;
    StageOutcome outcome;
    std::unique_ptr<Stage> stage;  // nullptr when it could not be cut
  };
  std::vector<Failure> snapshot(const std::vector<std::int32_t>& failed) const {
    std::vector<Failure> failures;
    for (const std::int32_t e : failed) {
      Failure f{e, {}, nullptr};
      if (const StageOutcome* outcome = outcomeOf(e)) f.outcome = *outcome;
      if (failures.size() < kMostDefectsShown) {
        try {
          CutOptions cut;
          cut.excluded = &excluded_;
          cut.collapse = entries_[index(e)].collapse;
          cut.deepened = entries_[index(e)].deepened;
          f.stage = std::make_unique<Stage>(cutStage(*planIndex_, e, cut));
          takeOwnNames(f, cut);
        } catch (const Unsupported&) {
        } catch (const CyclicWait&) {
        }
      }
      failures.push_back(std::move(f));
    }
    return failures;
  }

  // Stages of a class differ in names: the counterexample has those of the one that was decided.
  void takeOwnNames(Failure& f, CutOptions cut) const {
    const std::int32_t id = entries_[index(f.entry)].classId;
    if (id < 0 || !f.outcome.counterexample) return;
    const std::int32_t decided = classes_[index(id)].entry;
    if (decided == f.entry) return;
    cut.collapse = entries_[index(decided)].collapse;
    cut.deepened = entries_[index(decided)].deepened;
    const Stage other = cutStage(*planIndex_, decided, cut);
    if (canonicalForm(other) == canonicalForm(*f.stage))
      f.outcome.counterexample = renamed(*f.outcome.counterexample, other, *f.stage);
    else f.outcome.counterexample.reset();  // of a stage that is cut otherwise by now
  }

  void conclude() {
    const auto proved = chain();
    report_.outputsProved = outputsProved(proved);
    const bool all = allOutputsProved();
    for (const std::int32_t e : topological_) {
      EntryState& state = entries_[index(e)];
      StageReport& report = report_.stages[index(state.stage)];
      const StageOutcome* outcome = outcomeOf(e);
      if (!outcome) {
        report.reason =
            state.cutFailure.empty() ? "not decided before the run ended" : state.cutFailure;
        continue;
      }
      const ClassState& cls = classes_[index(state.classId)];
      report.verdict = outcome->verdict;
      report.method = outcome->method;
      report.reason = outcome->reason;
      report.reducedShapes = outcome->reducedShapes;
      if (cls.entry == e) {
        for (const auto& [phase, seconds] : outcome->seconds) report.seconds += seconds;
      }
      if (outcome->verdict == StageVerdict::kProved && !proved[index(e)]) {
        report.verdict = StageVerdict::kUndecided;
        report.reason = "its proof relies on lineage that is not proved";
      }
    }
    // A lemma that failed where it stands is wrong even when nothing relies on it any more.
    for (const Failure& f : firstOutcomes_) {
      StageReport& report = report_.stages[index(entries_[index(f.entry)].stage)];
      const bool wrong =
          evaluated_ ? violated_.contains(f.entry) : f.outcome.verdict == StageVerdict::kRefuted;
      if (wrong && plan_.lineage[index(f.entry)].role == Role::kCheckpoint && all) {
        report.verdict = StageVerdict::kWrongLineage;
        report.method = f.outcome.method;
        report.reason = f.outcome.counterexample
                            ? "the model has " + numberText(f.outcome.counterexample->logical) +
                                  " at " + f.outcome.counterexample->element + ", the plan " +
                                  numberText(f.outcome.counterexample->parallel)
                            : f.outcome.reason;
      }
    }
    report_.statistics.stages = report_.stages.size();
    report_.statistics.classes = classes_.size();
    report_.interrupted = cancelled();
    if (!report_.defects.empty()) {  // a cycle: the plan cannot run
      report_.verdict = Verdict::kNotEquivalent;
      return;
    }
    // A report that proved no output says nothing about the plan.
    if (all && report_.outputsProved == report_.outputs && report_.outputs > 0) {
      report_.verdict = Verdict::kEquivalent;
      report_.interrupted = false;  // it came too late to change anything
      if (options_.record && options_.shareClasses) record(proved, *options_.record);
      return;
    }
    if (differs_ || refutedOutput()) {
      report_.verdict = Verdict::kNotEquivalent;
      listDefects();
      return;
    }
    report_.verdict = Verdict::kUndecided;
    report_.reason = report_.interrupted ? "the run was interrupted"
                     : report_.outputs == 0
                         ? "the model names no outputs, so there is nothing to prove"
                     : report_.outputsProved == report_.outputs
                         ? "lineage that places a dropout's mask, or an output's, is not proved"
                         : std::to_string(report_.outputs - report_.outputsProved) + " of " +
                               std::to_string(report_.outputs) + " outputs could not be decided";
    if (suspected_ >= 0) {
      report_.reason += "; output '" + tensorName(plan_.lineage[index(suspected_)].tensor) +
                        "' differs when causal masks (or tables of known numbers) are shortened, "
                        "which is too large to be confirmed at full length";
    }
    listSuspects();
  }

  // What the verdict rests on, for a proof log.
  void record(const std::vector<char>& proved, ProofRecord& record) const {
    record = {};
    record.entries.resize(entries_.size());
    std::vector<std::int32_t> number(classes_.size(), -1), numberOfSet(forbidden_.size(), -1);
    numberOfSet[0] = 0;
    std::vector<const std::vector<std::int32_t>*> sets(forbidden_.size());
    for (const auto& [set, n] : forbidden_) sets[index(n)] = &set;
    for (const std::int32_t e : topological_) {
      if (!proved[index(e)]) continue;
      const EntryState& state = entries_[index(e)];
      std::int32_t& id = number[index(state.classId)];
      if (id < 0) {
        id = static_cast<std::int32_t>(record.classes.size());
        record.classes.push_back(
            {*classes_[index(state.classId)].form, classes_[index(state.classId)].outcome.method});
      }
      std::int32_t& set = numberOfSet[index(state.forbidden)];
      if (set < 0) {
        set = static_cast<std::int32_t>(record.forbidden.size());
        record.forbidden.push_back(*sets[index(state.forbidden)]);
      }
      record.entries[index(e)] = {true,          id, state.used, set, planIndex_->entryKey(e),
                                  state.collapse};
    }
  }

  // An output whose stage reaches the plan's inputs, and differs. One that assumes lemmas begins at
  // values that the plan may never have. Only where the numbers could not be run from end to end;
  // otherwise those decide.
  bool refutedOutput() const {
    if (evaluated_) return false;
    return std::any_of(topological_.begin(), topological_.end(), [&](std::int32_t e) {
      const StageOutcome* outcome = outcomeOf(e);
      // Stages of one class may start from inputs that stand for different numbers.
      const bool itself = !knownInputs_ || classes_[index(entries_[index(e)].classId)].entry == e;
      return plan_.lineage[index(e)].role == Role::kOutput && outcome && itself &&
             outcome->verdict == StageVerdict::kRefuted && entries_[index(e)].used.empty();
    });
  }

  static bool isRefuted(const Failure& f) { return f.outcome.verdict == StageVerdict::kRefuted; }

  // Where nothing was refuted at first: what is refuted now, the earliest `most`.
  void takeWhatIsRefutedNow(std::size_t most) {
    std::vector<std::int32_t> now;
    for (const std::int32_t e : topological_) {
      const StageOutcome* outcome = outcomeOf(e);
      if (outcome && outcome->verdict == StageVerdict::kRefuted && now.size() < most)
        now.push_back(e);
    }
    firstOutcomes_ = snapshot(now);
  }

  // The earliest of what was refuted in the first round, where each stage is as its checkpoints cut
  // it, or, if nothing was, now.
  void listSuspects() {
    if (std::none_of(firstOutcomes_.begin(), firstOutcomes_.end(), isRefuted))
      takeWhatIsRefutedNow(kMostDefectsShown);
    std::size_t taken = 0;
    for (const Failure& f : firstOutcomes_) {
      if (!isRefuted(f) || taken++ >= kMostDefectsShown) continue;
      std::vector<Failure> now;  // the first round's stages are kept for its first failures only
      if (!f.stage) now = snapshot({f.entry});
      const Failure& shown = f.stage ? f : now.front();
      if (shown.stage && isRefuted(shown))
        report_.suspects.push_back(describeFailure(*planIndex_, *shown.stage, shown.outcome));
    }
  }

  void listDefects() {
    const auto list = [&](auto&& wanted) {
      for (const Failure& f : firstOutcomes_) {
        if (f.stage && wanted(f) && report_.defects.size() < kMostDefectsShown)
          report_.defects.push_back(describeFailure(*planIndex_, *f.stage, f.outcome));
      }
    };
    list([&](const Failure& f) {
      return isRefuted(f) && (!evaluated_ || violated_.contains(f.entry));
    });
    if (report_.defects.empty()) list(isRefuted);
    if (report_.defects.empty())
      list([&](const Failure& f) { return violated_.contains(f.entry); });
    if (report_.defects.empty()) {
      takeWhatIsRefutedNow(3);
      list(isRefuted);
    }
    if (report_.defects.empty() && endToEndEntry_ >= 0) {
      const std::string tensor = tensorName(plan_.lineage[index(endToEndEntry_)].tensor);
      Defect found;
      found.tensor = tensor;
      found.message = "output '" + tensor +
                      "' of the plan is not what the model computes, evaluated from the inputs";
      report_.defects.push_back(std::move(found));
      return;
    }
    if (differs_ && !report_.defects.empty() && endToEndEntry_ >= 0) {
      Defect& first = report_.defects.front();
      first.message +=
          "; it shows in output '" + tensorName(plan_.lineage[index(endToEndEntry_)].tensor) + "'";
    }
  }

  const Problem& problem_;
  const Plan& plan_;
  VerifyOptions options_;
  Report report_;
  std::unique_ptr<PlanIndex> planIndex_;
  ModelFacts facts_;
  std::vector<EntryState> entries_;
  std::vector<char> excluded_;
  std::map<std::vector<std::int32_t>, std::int32_t> forbidden_{
      {{}, 0}};  // each set that was met, by number; for options_.record
  std::vector<std::int32_t> topological_;
  std::vector<ClassState> classes_;
  std::unordered_map<std::string, std::int32_t> classOfForm_;
  std::vector<std::int32_t> firstFailures_;
  std::vector<Failure> firstOutcomes_;
  bool differs_ = false;
  std::set<std::int32_t> violated_;  // entries that the end-to-end evaluation found wrong
  bool evaluated_ = false;           // ... to an end
  std::int32_t endToEndEntry_ = -1;
  std::int32_t suspected_ =
      -1;  // an output that differs with a shortened causal mask, which nothing has confirmed
  std::size_t peakWorkerBytes_ = 0;
  bool knownInputs_ = false;  // something is known of the values of some input (KnownInput)
  bool merging_ = false;      // past the first round
  int round_ = 0;
  std::size_t
      cutSize_ = 0,
      budget_ = 0;  // tensors and operators of the stages cut in this round; how many there may be
};

}  // namespace

Report verify(const Problem& problem, const VerifyOptions& options) {
  return Verification(problem, options).run();
}

}  // namespace shardproof
