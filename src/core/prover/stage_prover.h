// SPDX-License-Identifier: Apache-2.0
// Proofs of one stage. Each method reduces the stage's shapes, executes both sides over terms and
// compares the terms of what is claimed to be equal (docs/soundness.md, "Representatives with
// weights"):
//
//   byNormalForm   the terms are identical
//   byExpansion    ... after multiplying out
//   byFractions    ... after adding up fractions
//   bySolver       Z3 finds no values for which they differ
//
// Each also shows that the plan has a value wherever the model has one. The order in which the
// methods are tried is the caller's (src/search/check/): no order makes a proof of what is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "prover/obligation.h"
#include "prover/proof.h"
#include "prover/stage_interpreter.h"
#include "shape_reduction/reduction.h"
#include "shardproof/error.h"
#include "terms/term_algebra.h"

namespace shardproof {

// An element of a logical tensor that a claim is about.
struct ClaimedElement {
  std::size_t claim = 0;
  std::int64_t index = 0;  // row-major over the reduced positions and planes
  friend auto operator<=>(const ClaimedElement&, const ClaimedElement&) = default;
};

// Conditions that cannot all be met would make any claim true. Whoever can evaluate a stage in
// numbers shows that they can be: each claimed element of the model must have a value at some
// point.
class ValueWitness {
 public:
  virtual ~ValueWitness() = default;
  // One of `elements` for which no point was found, or nothing.
  virtual std::optional<ClaimedElement> withoutValue(const ReducedStage& reduced,
                                                     std::set<ClaimedElement> elements) = 0;
};

class StageProver {
 public:
  struct Limits {
    double seconds = 60;  // of each method a share (stage_prover.cpp)
    std::size_t megabytes = 4096;
  };
  // `witness` is asked where conditions might exclude all inputs.
  StageProver(const Stage& stage, const Limits& limits, ValueWitness& witness)
      : stage_(stage), limits_(limits), witness_(witness) {}

  // Numbers of the stage are read by `size`, which must outlive this: what is proved then holds for
  // all sizes of which the stage is the same up to these numbers (family/). Before reduce();
  // byFractions and bySolver then throw std::logic_error.
  void readNumbersBy(SizeSymbol& size) { size_ = &size; }

  // As the normal form needs it; before all methods. Throws Unsupported, NeedsRefinement.
  void reduce();
  bool isReduced() const { return isReduced_; }
  const ReducedStage& reduced() const { return reduced_; }
  const ReductionOptions& reduction() const { return reduction_; }

  // All methods throw NeedsRefinement, byNormalForm and bySolver also Unsupported, and
  // std::logic_error where what they go on with has not been made.
  std::optional<Proof> byNormalForm();
  // Why the plan may have no value where the model has one; empty: it has. Known after
  // byNormalForm().
  const std::string& undefined() const { return undefined_; }
  // After byNormalForm(), where undefined() is empty.
  std::optional<Proof> byExpansion();
  std::optional<Proof> byFractions();

  struct Solved {
    std::optional<Proof> proof;
    SmtResult result;
    Laws laws = Laws::kAll;
    bool unequal = false;  // some terms were not identical before Z3 was asked
  };
  // After byNormalForm(), where undefined() is empty. `all`: also terms that are identical are
  // asked.
  Solved bySolver(bool all);
  // The same with all positions kept apart, where Z3 may use what it knows of functions. Nothing
  // where they are too many.
  std::optional<Solved> bySolverWithAllPositions(bool all);

  // Why the last method that failed did; once.
  std::string takeRefusal() { return std::exchange(refusal_, {}); }
  // Some assumed lineage is over-determined and was left out.
  bool droppedAssumption() const { return dropped_; }
  // Seconds by phase: "reduce", "execute", "check", "expand", "fractions", "solve".
  const std::map<std::string, double>& seconds() const { return seconds_; }

 private:
  using Terms = StageInterpreter<TermAlgebra>;
  using Pairs = std::vector<std::pair<Term, Term>>;

  Proof proved(Method method) const;
  // Throws std::logic_error before reduce().
  void expectReduced() const;
  void expectNoSize() const;
  std::vector<std::string> freeNames() const;
  void forgetNormalForm();
  void reduceTo(const ReductionOptions& options);
  void execute(Terms& terms, TermAlgebra& algebra);
  static Pairs differing(const Terms& terms);
  bool isInteger(StageTensorId tensor) const {
    return stage_.tensors[tensor].info.element == ElementKind::kInteger;
  }

  // Terms are compared as expressions. That the plan has a value wherever the model has one is
  // shown besides, element by element. Empty, or what is missing.
  std::string undefinedInPlan(const Terms& terms, TermAlgebra& algebra);
  // Whether conditions that agree only after multiplying out need more positions than are kept.
  bool morePositionsNeeded(const Pairs& expanded, TermAlgebra& algebra) const;
  std::string describe(const Condition& c, const Terms& terms, const TermAlgebra& algebra) const;
  void expectSomeValue(const Terms& terms);
  std::string elementName(StageTensorId t, std::int64_t index) const {
    return shardproof::elementName(stage_, reduced_, t, index);
  }

  // Expanding multiplies summands together: a monomial of k factors may involve k times as many
  // positions of a piece as one summand. So many must be kept apart before the identity says
  // something about the full size.
  bool expandsEqual(TermAlgebra::Reciprocals reciprocals);
  bool expandedEqual(TermAlgebra& algebra, const Pairs& unequal,
                     TermAlgebra::Reciprocals reciprocals);
  // Executed once more with fractions that are added up (Mode::kFractions), with as many positions
  // kept apart as that needs; the conditions are those of these terms.
  bool fractionsEqual();
  bool equalFractions(TermAlgebra& algebra);
  Solved solve(const ReductionOptions& atLeast, bool all);

  const Stage& stage_;
  Limits limits_;
  ValueWitness& witness_;
  ReducedStage reduced_;
  ReductionOptions reduction_;
  SizeSymbol* size_ = nullptr;
  bool isReduced_ = false;
  // Of byNormalForm: what byExpansion goes on with, on the same reduction.
  std::unique_ptr<TermAlgebra> algebra_;
  Pairs unequal_;
  bool definedEverywhere_ = false;  // the plan has a value wherever the model has one
  std::vector<FreeElement> free_;
  bool dropped_ = false;
  std::string undefined_, refusal_;
  std::map<std::string, double> seconds_;
};

// The tensors whose shapes a report lists, in that order: stage tensor and the name it is shown by.
std::vector<std::pair<std::int32_t, std::string>> shownTensors(const Stage& stage);
// The shapes of shownTensors(), full and reduced.
std::vector<ReducedShape> shownShapes(const Stage& stage, const ReducedStage& reduced);

}  // namespace shardproof
