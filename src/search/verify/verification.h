// SPDX-License-Identifier: Apache-2.0
// One verification: the state of its rounds. verify.cpp has its course, verification_rounds.cpp how
// stages are cut, classified and cut again, verification_proofs.cpp how their classes are proved,
// end_to_end.h what numbers say of what failed, verification_conclusion.cpp the chain of proofs and
// the verdict. Internal to src/search/verify/.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/proof_store.h"
#include "certificate/proof_record.h"
#include "chain/proof_chain.h"
#include "check/checker.h"
#include "plan/plan_index.h"
#include "refute/end_to_end.h"
#include "shardproof/verify.h"
#include "stages/cutter.h"
#include "stages/stage.h"
#include "util/stopwatch.h"
#include "verify/attempt.h"
#include "verify/attempt_memory.h"
#include "worker/pool.h"
#include "worker/total_memory.h"

namespace shardproof {

using Clock = std::chrono::steady_clock;

class Verification {
 public:
  Verification(const Problem& problem, const VerifyOptions& options, const Attempt& attempt,
               const Budget& budget, const std::vector<EntryId>& doubtful,
               const std::vector<EntryId>& leftOut, AttemptMemory* memory);

  Report run();

 private:
  struct EntryState {
    bool needed = false;            // has a stage at all (input lineage has none)
    std::int32_t stage = -1;        // index into report_.stages
    std::string cutFailure;         // why no stage could be cut
    std::vector<EntryId> deepened;  // entries that its stage reaches past, sorted
    int depth = 0;                  // how often it was deepened
    std::int32_t forbidden =
        0;  // what it was not to assume when it was cut last (ProofRecord::forbidden)
    bool collapse = true;  // interchangeable axes are collapsed in its stage
    bool retried = false;  // failed on top of what failed, and is cut again without that
  };
  struct ClassState {
    std::unique_ptr<Stage> representative;
    EntryId entry;
    std::vector<EntryId> entries;  // all that ever were in it
    bool decided = false;
    StageOutcome outcome;
    std::size_t size = 0;
  };

  void describeInput();

  static constexpr char kTimeIsOver[] = "the time for the run is over (--timeout)";
  bool interrupted() const { return budget_.cancelled(); }
  // There is no time or no memory for more.
  bool exhausted() const { return budget_.over() || ownMemory_.exceeded(); }
  bool cancelled() const { return gaveUp() || exhausted(); }
  // Why that is; empty: it is not, or the user wants it to end.
  std::string exhaustedReason() const;
  // What is left is for other attempts, or for the last resort.
  bool gaveUp() const { return gaveUp_ || (outOfTime_ && share_.timedOut()); }
  void noteOutOfTime() {
    outOfTime_ = outOfTime_ || hurry_ != Hurry::kBesideDoubtful;
    giveUpIfHurried();
  }
  // Attempt::stopAtFirstFailure.
  void giveUpIfHurried() {
    gaveUp_ = gaveUp_ || attempt_.stopAtFirstFailure || hurry_ == Hurry::kLastResort;
  }

  void prove();
  // Some cut point of the plan was refuted in the first round.
  bool lineageIsRefuted() const;
  // Numbers contradict some of the plan's cut points, and with the others a stage was refuted: few
  // that are left hide how tensors hang together, and others may be wrong as well.
  bool hidesRelations() const;
  // Once all outputs are proved without them: which cut points hold that the attempt leaves out.
  void judgeLeftOut();
  // Everything but the doubtful outputs is proved as far as it can be, then these are evaluated.
  // `todo`: what is left to be proved, all of it where nothing is doubtful.
  bool refutesDoubtful(std::vector<EntryId>& todo);

  // A stage that fails although all that it assumes may hold may need to know how its assumptions
  // hang together: it is cut again past them. Cut points get one such try, outputs as many as
  // there are rounds.
  bool deepen(EntryId e);
  // An inferred cut point holds in numbers. Where its stage is refuted on lemmas that hold, these
  // hide something: the parts of a masked tensor add up to it, and each is zero where another is
  // not. Until it was cut further up a few times it is not given up.
  bool mayHoldFurtherUp(EntryId e) const;

  // Whether all that failed in the first round was guessed, or rests on such a guess. Where the
  // executed image has all outputs, the guesses are what is wrong, not the plan.
  bool onlyGuessesFailed() const;
  // Whether its stage relied on one that is not proved.
  bool restsOnFailure(EntryId e) const;
  // Of an entry that failed: whether what it relied on failed too, the first time that this is so.
  // Then it is not given up (others rely on it), but cut again without that. Once, so that a chain
  // of failures does not take a round for each.
  bool mayHoldWithout(EntryId e);

  // A lemma that was found may be true and hide how two things hang together. Where nothing else
  // helps, what is not proved is cut again as if none had been found: what of it, in order.
  std::vector<EntryId> withoutInferredLemmas();
  // True cut points may do the same: in a small plan what is not proved is cut again without any,
  // once, also where the attempt gave up. It ends with the first proof that is not found soon.
  std::vector<EntryId> withoutCutPoints();
  // Where that proved too little: what is told is told of the stages before it.
  void endLastResort();
  // What is not proved, to be cut as if these had never been there and nothing had failed; in
  // order.
  std::vector<EntryId> cutAnewWithout(const std::function<bool(EntryId)>& leftOut);

  static std::size_t index(std::int32_t i) { return static_cast<std::size_t>(i); }
  const std::string& tensorName(std::int32_t logical) const {
    return problem_.names.text(problem_.model.graph.tensors[logical].name);
  }

  // A stage as it was cut, or why it could not be.
  struct CutResult {
    std::optional<CutStage> stage;
    std::string failure;
    std::optional<CyclicWait> cycle;
    std::exception_ptr error;
  };

  CutResult cutOne(EntryId e) const;

  // Stages are cut in parallel, a batch at a time, and enter their classes in order: numbers do not
  // depend on the number of jobs.
  // "proving, round 2": rounds beyond the first cut what failed further upstream.
  void tell(std::size_t done, std::size_t all, const char* phase);
  // The same once more: while a proof takes long nothing else happens.
  void tellAgain() const;
  void cutAll(const std::vector<EntryId>& todo);

  void enterClass(EntryId e, CutResult result);

  // The number of the set of entries that a stage may not assume which is cut now.
  std::int32_t forbiddenNow(const EntryState& state);

  void reportCycle(const CyclicWait& cycle);

  CheckOptions checkOptions() const;

  // Cuts and decides. Stages whose axes turn out not to be interchangeable are cut again, each for
  // itself, with all coordinates: what such a stage is made of and what it assumes may differ from
  // what the cut with collapsed axes showed.
  void cutAndProve(const std::vector<EntryId>& todo);

  PoolOptions poolOptions(int jobs, double timeoutSeconds) const;

  ProofStore* proofs() const { return options_.shareClasses ? options_.proofs : nullptr; }
  AttemptMemory* memory() const { return options_.shareClasses ? memory_ : nullptr; }
  // Whether the class is decided by what is known: a proof, or that as much as this is not enough.
  bool recall(std::int32_t id, const PoolOptions& pool);
  void take(std::int32_t id);

  // A decided class is needed again only where its obligation is written; there may be thousands.
  void release(ClassState& state) const;

  void runClasses();

  // Attempt::contradicted, in the first round.
  bool asksNumbersOfCutPoints() const;
  // What a worker sends of it; empty: none are.
  std::string contradictedText() const;

  void writeObligationFiles();

  // Nothing for an entry whose stage could not be cut, or not before the run ended: every use of a
  // class goes through here.
  const ClassState* classOf(EntryId e) const {
    const std::int32_t id = chain_->classOf(e);
    return id < 0 ? nullptr : &classes_[index(id)];
  }
  const StageOutcome* outcomeOf(EntryId e) const {
    const ClassState* cls = classOf(e);
    return cls ? &cls->outcome : nullptr;
  }
  bool holds(EntryId e) const { return chain_->holds(e); }
  // None where the index has defects.
  const std::vector<EntryId>& topological() const {
    static const std::vector<EntryId> none;
    return chain_ ? chain_->order() : none;
  }
  // Entries whose own stage is not proved; of those that were tried.
  std::vector<EntryId> failures() const {
    std::vector<EntryId> failed;
    for (const EntryId e : topological()) {
      if (!holds(e) && !leftOut_[e]) failed.push_back(e);
    }
    return failed;
  }

  bool allOutputsProved() const { return chain_->allProved(chain_->proved()); }
  bool argumentsProved() const { return chain_->argumentsProved(chain_->proved()); }

  // Does a failed lemma show in an output?
  bool endToEndDiffers();

  struct Failure {
    EntryId entry;
    StageOutcome outcome;
    std::unique_ptr<Stage> stage;  // nullptr when it could not be cut
  };
  std::vector<Failure> snapshot(const std::vector<EntryId>& failed) const;

  // Stages of a class differ in names: the counterexample has those of the one that was decided.
  void takeOwnNames(Failure& f, CutOptions cut) const;
  Defect describe(const Failure& f) const;

  void conclude();

  // What the verdict rests on, for a proof log.
  void record(const std::vector<char>& proved, ProofRecord& record) const;

  // An output whose stage reaches the plan's inputs, and differs. One that assumes lemmas begins at
  // values that the plan may never have. Only where the numbers could not be run from end to end;
  // otherwise those decide.
  bool refutedOutput() const;

  static bool isRefuted(const Failure& f) { return f.outcome.verdict() == StageVerdict::kRefuted; }

  // Where nothing was refuted at first: what is refuted now, the earliest `most`.
  void takeWhatIsRefutedNow(std::size_t most);

  // The earliest of what was refuted in the first round, where each stage is as its cut points cut
  // it, or, if nothing was, now.
  void listSuspects();

  void listDefects();

  const Problem& problem_;
  const Plan& plan_;
  VerifyOptions options_;
  const Attempt attempt_;
  const Budget budget_;
  const Budget share_;  // Attempt::seconds
  const std::vector<EntryId> doubtful_;
  AttemptMemory* const memory_;
  Report report_;
  std::unique_ptr<PlanIndex> planIndex_;
  std::unique_ptr<ProofChain> chain_;  // unless the index has defects
  std::vector<EntryState> entries_;
  std::vector<char> excluded_;
  std::vector<char> leftOut_;  // cut points that the attempt does without
  std::map<std::vector<EntryId>, std::int32_t> forbidden_{
      {{}, 0}};                      // each set that was met, by number; for options_.record
  std::vector<ClassState> classes_;  // as the chain numbers them
  std::vector<EntryId> firstFailures_;
  std::vector<Failure> firstOutcomes_;
  bool differs_ = false;
  bool gaveUp_ = false;
  bool cutPointsContradicted_ = false;  // in numbers, which agree with the outputs
  bool outOfTime_ = false;  // some proof was not done in its time, or had no memory left
  // Proofs may take `proofSeconds_`. Beside doubtful outputs what takes longer stays undecided for
  // now; as a last resort it ends the run.
  enum class Hurry : std::uint8_t { kNone, kBesideDoubtful, kLastResort };
  Hurry hurry_ = Hurry::kNone;
  double proofSeconds_ = 0;
  struct {
    std::vector<EntryState> entries;
    ProofChain::Snapshot claims;
    std::vector<char> excluded;
  } beforeLastResort_;
  EndToEndResult endToEnd_;
  struct {
    std::size_t done = 0, all = 0;
    std::string text;
  } told_;
  std::size_t peakWorkerBytes_ = 0;
  OwnMemory ownMemory_;
  bool knownInputs_ = false;  // something is known of the values of some input (KnownInput)
  bool merging_ = false;      // past the first round
  int round_ = 0;
  std::size_t
      cutSize_ = 0,
      mostCut_ = 0;  // tensors and operators of the stages cut in this round; how many there may be
};

}  // namespace shardproof
