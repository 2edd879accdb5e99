// SPDX-License-Identifier: Apache-2.0
// From a problem that can be read to verdicts, in this one process: index, cut, canonical form,
// reduction, checker, chain. Two properties are asked of what comes out:
//   a stage and the one that is read from its canonical form have the same form, and the same
//   verdict; what is proved down to the inputs does not differ in numbers when both whole sides are
//   evaluated (not a proof, but bugs in the proofs show so).
#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>

#include "check/checker.h"
#include "fuzz_support.h"
#include "plan/plan_index.h"
#include "reader/reader.h"
#include "refute/stage_refuter.h"
#include "shape_reduction/reduction.h"
#include "shardproof/error.h"
#include "stages/canonical_reader.h"
#include "stages/cutter.h"

using namespace shardproof;

namespace {

// What the worker's limits of time and memory are for is kept away from here: the fuzzer is to find
// what is wrong, not what is large.
constexpr std::int64_t kMostElements = 3000;
constexpr double kMostIteration = 200'000;
constexpr std::size_t kMostNodes = 400;

bool isSmall(const Problem& problem) {
  if (problem.plan.ranks() > 64 || problem.plan.microbatches > 16 ||
      problem.plan.lineage.size() > 60 || problem.model.graph.nodes.size() > 100)
    return false;
  const auto small = [](const Graph& g) {
    return std::all_of(g.tensors.begin(), g.tensors.end(), [](const Tensor& t) {
      std::int64_t elements = 1;
      for (const std::int64_t d : t.shape)
        elements = d > kMostElements / elements ? kMostElements + 1 : elements * d;
      return elements <= kMostElements;
    });
  };
  return small(problem.model.graph) &&
         std::all_of(
             problem.plan.programs.begin(), problem.plan.programs.end(),
             [&](const Program& p) { return small(p.graph) && p.graph.nodes.size() <= 200; });
}

bool isSmall(const Stage& stage, bool numbers) {
  if (stage.nodes.size() > kMostNodes) return false;
  ReductionOptions options;
  options.numbersOnly = numbers;
  return reduceStage(stage, options).largestIteration <= kMostIteration;
}

// Nothing where the stage is too large, or its collapsed axes are no symmetry.
std::optional<StageOutcome> check(const Stage& stage, bool endToEnd) {
  CheckOptions options;
  options.timeoutSeconds = 0.2;
  try {
    if (!isSmall(stage, endToEnd)) return std::nullopt;
    const StageOutcome outcome =
        endToEnd ? evaluateEndToEnd(stage, Masks::kReduced) : checkStage(stage, options);
    if (!outcome.needsRefinement) return outcome;
    return std::nullopt;
  } catch (const NeedsRefinement&) {
    return std::nullopt;
  } catch (const Unsupported&) {
    return std::nullopt;
  }
}

void checkForm(const Stage& stage, const std::optional<StageOutcome>& outcome) {
  const std::string form = canonicalForm(stage);
  const Stage read = readCanonicalForm(form);
  fuzz::require(canonicalForm(read) == form, "a form's stage has the same form");
  // Solvers have a limit of time, which may be met in one run only.
  if (!outcome || outcome->method() == Method::kSolver ||
      outcome->verdict() == StageVerdict::kUndecided)
    return;
  const auto again = check(read, false);
  fuzz::require(
      again && again->verdict() == outcome->verdict() && again->method() == outcome->method(),
      "a form's stage has the same verdict",
      again ? std::string(toString(again->verdict())) + " " + again->reason : "none");
}

void verifyInProcess(const Problem& problem) {
  const PlanIndex planIndex(problem);
  if (!planIndex.defects().empty()) return;
  const auto& lineage = problem.plan.lineage;
  std::vector<EntryId> order;
  for (const EntryId e : firstIds<EntryId>(lineage.size())) {
    if (lineage[e].role != Role::kInput) order.push_back(e);
  }
  std::sort(order.begin(), order.end(), [&](EntryId a, EntryId b) {
    return std::pair(planIndex.entryKey(a), a) < std::pair(planIndex.entryKey(b), b);
  });
  std::vector<char> proved(lineage.size(), 0);
  std::vector<EntryId> outputs;
  for (const EntryId e : order) {
    for (const bool collapsed : {true, false}) {
      CutOptions cut;
      cut.collapse = collapsed;
      cut.maxNodes = kMostNodes;
      std::optional<Stage> stage;
      try {
        stage = cutStage(planIndex, e, cut);
      } catch (const Unsupported&) {
        break;
      }
      const auto outcome = check(*stage, false);
      checkForm(*stage, outcome);
      if (!outcome) continue;
      proved[e] = outcome->verdict() == StageVerdict::kProved &&
                  std::all_of(stage->usedEntries.begin(), stage->usedEntries.end(),
                              [&](EntryId f) { return proved[f] != 0; });
      break;
    }
    if (lineage[e].role == Role::kOutput && proved[e]) outputs.push_back(e);
  }
  // A dropout's mask is placed by lineage that must be proved itself before anything is called
  // equivalent.
  for (const EntryId e : problem.plan.positioning) {
    if (lineage[e].role != Role::kInput && !proved[e]) return;
  }
  if (outputs.empty()) return;
  CutOptions whole;
  const std::vector<char> none(lineage.size(), 0);
  whole.proved = &none;  // from the inputs
  whole.collapse = false;
  whole.maxNodes = kMostNodes;
  try {
    const auto outcome = check(cutStages(planIndex, outputs, whole), true);
    fuzz::require(!outcome || outcome->verdict() != StageVerdict::kRefuted,
                  "what is proved does not differ in numbers",
                  outcome && outcome->counterexample ? outcome->counterexample->element : "");
  } catch (const Unsupported&) {
  }
}

// nullptr where it is none, or too large.
std::unique_ptr<Problem> read(const fuzz::ModelAndPlan& files) {
  try {
    auto problem = readProblem(fuzz::writeInput("model.json", files.model),
                               fuzz::writeInput("plan.json", files.plan));
    return isSmall(*problem) ? std::move(problem) : nullptr;
  } catch (const InputError&) {
    return nullptr;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    if (const auto problem = read(fuzz::splitInput({reinterpret_cast<const char*>(data), size})))
      verifyInProcess(*problem);
  } catch (const InputError&) {
  } catch (const CyclicWait&) {  // a defect of the plan
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  return fuzz::mutateModelAndPlan(data, size, most, seed, [](const fuzz::ModelAndPlan& files) {
    return read(files) != nullptr;
  });
}
