// SPDX-License-Identifier: Apache-2.0
// Decides one stage: reduces its shapes, executes both sides, and compares (docs/design.md,
// "Check").
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardproof/report.h"
#include "shardproof/verify.h"
#include "stages/stage.h"

namespace shardproof {

// Part of what proofs are stored under (src/cache/), so that none is believed after a change that
// might have made it differently. To be raised with every change that can turn "proved" into
// anything else for some stage, or that reads or writes canonical forms in another way: in stages/
// (canonical.cpp, and the values of enumerations that a form holds: Origin, ElementKind,
// Communication, Reduction), in shape_reduction/, src/terms/, src/smt/ and src/checker/. Changes of
// the cutter and of the chain need not raise it: they work anew in every run. For what an operator
// means there is ops::kOperatorVersion.
constexpr int kCheckerVersion = 12;

struct StageOutcome {
  StageVerdict verdict = StageVerdict::kUndecided;
  Method method = Method::kNone;
  std::string reason;
  bool shortenedMask =
      false;  // the numbers of the counterexample were computed with a reduced mask
  // ... and again with a finer one, while the whole mask cannot be afforded.
  bool underCoarseMasks = false;
  // kRefuted: the first claim that differs, and where.
  std::int32_t claim = -1;
  std::vector<EntryId> differingEntries;  // end to end: the lineage entries of all claims that
                                          // some attempt made differ, sorted
  // Undecided because collapsing an axis is no symmetry of the stage: to be cut again with all
  // coordinates (stages/axis_symmetry.h).
  bool needsRefinement = false;
  std::optional<Counterexample> counterexample;
  std::vector<ReducedShape> reducedShapes;
  std::map<std::string, double>
      seconds;  // by phase: "reduce", "execute", "check", "refute", "expand", "solve"
};

struct CheckOptions {
  Checker checker = Checker::kAuto;
  double timeoutSeconds = 60;  // for the solver; the pool bounds the whole
  std::size_t memoryMegabytes = 4096;
  // The stage is the whole plan, or what leads to one output: evaluate it in numbers only. It only
  // decides whether a difference that a stage has shown reaches an output. Causal masks are reduced
  // where they can be (hence are not quite causal), and then the outcome says so
  // (StageOutcome::shortenedMask). With `wholeMasks` what an output shows so is looked for again
  // with whole masks, which is far more work; where that cannot be afforded it still says so, and
  // whether a finer mask shows it too (underCoarseMasks).
  bool endToEnd = false;
  bool wholeMasks = false;
};

// The reason of an end-to-end outcome that evaluated both sides and found them equal.
inline constexpr const char* kNoDifferenceFound = "no input was found on which the sides differ";

// Never throws Unsupported nor NeedsRefinement: both are kUndecided with the reason.
StageOutcome checkStage(const Stage& stage, const CheckOptions& options);

// The tensors whose shapes an outcome lists, in that order: stage tensor and the name it is shown
// by.
std::vector<std::pair<std::int32_t, std::string>> shownTensors(const Stage& stage);

// A message of a worker to the main process.
std::string serialize(const StageOutcome& outcome);
StageOutcome deserialize(const std::string& text);

}  // namespace shardproof
