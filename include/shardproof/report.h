// SPDX-License-Identifier: Apache-2.0
// What a verification found. Everything the user sees (text, JSON) is made from this.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shardproof/capture.h"
#include "shardproof/error.h"
#include "shardproof/graph.h"

namespace shardproof {

// kConditional: all outputs are proved, but an assumption that could hide a bug is not accepted, or
// something is not compared and that is not allowed (Report::assumptions, notCompared).
enum class Verdict : std::uint8_t { kEquivalent, kNotEquivalent, kUndecided, kConditional };
constexpr bool isProved(Verdict v) {
  return v == Verdict::kEquivalent || v == Verdict::kConditional;
}

// kWrongLineage: a cut point that does not hold although the outputs do.
enum class StageVerdict : std::uint8_t { kProved, kRefuted, kUndecided, kWrongLineage };

// How a stage was decided. kNormalForm: flattened terms are identical; kPolynomial: expanded terms
// are identical; kSolver: Z3; kNumeric: a counterexample in doubles (refuted); kNone: not decided.
enum class Method : std::uint8_t { kNone, kNormalForm, kPolynomial, kSolver, kNumeric };

struct ReducedShape {
  std::string tensor;  // logical tensor's name, or "local NAME"
  Shape full, reduced;
};

// One place in the plan or the model that a message points to.
struct NodePlace {
  bool inPlan = true;
  std::string pointer;  // JSON pointer, e.g. "/programs/0/nodes/17"
  std::string op;
  std::string location;  // `loc`, may be empty
};

struct Assignment {     // one element of an input of the stage
  std::string element;  // e.g. "t494.1[0, 3, 17]" (full-size position in the logical tensor) or
                        // "local t12.1@rank 3[0, 1]"
  double value = 0;
};

struct Counterexample {
  std::vector<Assignment>
      assignment;  // only the elements that the differing element depends on, at most a few dozen
  std::size_t omitted = 0;           // how many more values there are, of which some may matter
  std::string element;               // the first differing element: "t551.1[0, 0, 0]"
  double logical = 0, parallel = 0;  // its value in the model and in the plan
  bool endToEnd = false;  // the assignment is to the plan's own inputs, not to intermediate tensors
};

struct StageReport {
  std::string tensor;  // logical tensor
  Role role = Role::kCutPoint;
  std::int32_t entry = -1;  // index into the plan's lineage
  StageVerdict verdict = StageVerdict::kUndecided;
  Method method = Method::kNone;
  std::string reason;         // for undecided (and what was wrong, for refuted)
  std::int32_t classId = -1;  // stages with equal canonical form share it
  std::size_t logicalNodes = 0;
  std::size_t parallelNodes =
      0;               // operator instances that were executed for the class's representative
  double seconds = 0;  // of the class's proof; 0 for stages that shared it
  std::vector<ReducedShape> reducedShapes;
  std::vector<std::int32_t> assumptions;  // lineage entries that the proof uses
  bool inferred = false;                  // of a lemma that was found
  bool guess = false;                     // of a cut point of which its writer is not sure
};

// kLineage: an output (or a cut point that explains it) does not hold. The others are found before
// any solving.
enum class DefectKind : std::uint8_t {
  kLineage,
  kShape,
  kDoubleAssignment,
  kUnproduced,
  kCollective,
  kSendReceive,
  kDeadlock,
  kAsync  // memory that is read or written while communication still uses it
};

struct Defect {
  DefectKind kind = DefectKind::kLineage;
  std::string message;  // one sentence
  std::string tensor;   // logical tensor (kLineage) or local tensor
  std::string
      lineage;  // the claim, readable: "t551.1[0:128, 0:128, 0:4096] == t551.1 on pp 0, tp 0"
  std::vector<std::int64_t> ranks;
  std::optional<std::int32_t> microbatch;
  std::vector<NodePlace> nodes;  // where to look, most likely first
  std::optional<Counterexample> counterexample;
  std::int32_t entry = -1;  // kLineage: index into the plan's lineage; -1: none
};

// What was found out about why a plan is not equivalent (src/explanation/diagnose/). It never makes
// a verdict.
struct Cause {
  // A block of a tensor's numbers, at one draw of the inputs: where a tensor is large, a corner of
  // it, or the neighbourhood of a difference.
  struct Block {
    Shape full, low, extent;     // of the tensor; where the block begins in it; of the block
    std::vector<double> values;  // row-major; empty: not known
  };
  // The claim that fails: what the model has, and what the ranks have. One block of both.
  struct Compared {
    std::string tensor;  // of the model
    Shape at;            // where the claim's box begins in it
    Block model, plan;
    std::int64_t rank = 0;  // of the image that was executed, whose numbers `found` has
    std::optional<std::int32_t> microbatch;
  };
  // What a tensor of the failing stage was found to be; one line of `shardproof explain`.
  struct Found {
    NodePlace node;      // that makes it; an empty pointer: the stage starts from it
    std::string tensor;  // of the plan, or of the model
    std::string is;      // "y[0:4, 0:8]", "a partial sum over tp of y[0:4, 0:8]", ...
    bool wrong = false;
    std::vector<std::string> from;  // tensors that the node reads
    Block numbers = {};
  };
  struct Fix {
    std::string text;     // "/programs/0/nodes/3 is an all_reduce over tp"
    bool proved = false;  // the whole plan with this and the fixes of the other causes was proved;
                          // else: what this cause makes wrong agrees at random inputs
  };
  std::string kind;              // "partial-sum", "scaled", "other-place", ..., or a DefectKind
  std::string sentence;          // in the user's terms; what it says was confirmed at random inputs
  std::vector<NodePlace> nodes;  // where it is, most likely first
  std::vector<std::int64_t> ranks;
  std::vector<std::int64_t> microbatches;  // empty: of none in particular
  std::vector<std::string> tensors;        // of the model, that it makes wrong
  std::vector<std::size_t> defects;        // of Report::defects (or suspects), that it explains
  std::optional<Fix> fix;
  std::vector<Found> found;
  std::optional<Compared> compared;
};

struct Statistics {
  std::size_t programNodes = 0, lineageEntries = 0, ranks = 0, microbatches = 0;
  double operatorInstances = 0;  // program nodes times their free ranks and microbatches
  std::size_t stages = 0, classes = 0;
  std::size_t classesFromCache = 0;  // of these, those whose proof was stored already
  double secondsTotal = 0;
  std::map<std::string, double>
      secondsByPhase;               // "read", "join", "cut", "reduce", "execute", "check", ...
  std::size_t peakMemoryBytes = 0;  // main process and largest worker together
  std::size_t workersLost = 0;      // crashed, killed or over their limits
};

// What a second opinion said (src/audit/confirm/confirm.h).
struct Confirmation {
  enum class Outcome : std::uint8_t {
    kNotExecuted,  // `text` says why
    kAgrees,       // the plan, or a smaller one, agreed with its model at random inputs
    kDiffers,      // ... did not, and neither does the verdict say that it should
    kDisagrees,    // it was proved, and did not agree: an error of this program
    kNoValue,      // the model has no value at some output for any of the inputs
  };
  Outcome outcome = Outcome::kNotExecuted;
  std::string text;                 // one sentence: what was executed, or why not
  std::string modelText, planText;  // kDisagrees, of a smaller plan: the files to report
};
const char* toString(Confirmation::Outcome);

// Lineage that was found for a plan that says little (shardproof/infer.h).
struct Inference {
  std::size_t lemmas = 0, looked = 0;  // local tensors that were found, and looked at
  std::string reason;                  // why none was found, or not all
  // Of cut points of the file that do not hold although the outputs do: what was found instead, a
  // sentence for each.
  std::vector<std::string> replaced = {};
};

// One attempt at the verdict (src/search/attempts/).
struct AttemptReport {
  std::string name;        // "as given", "with inferred lemmas", ...
  double seconds = 0;      // inference included
  std::size_t lemmas = 0;  // that were inferred for it
  Verdict verdict = Verdict::kUndecided;
  std::size_t outputsProved = 0;
};

// A claim of the plan's lineage that the user takes as given (Role::kAssumed).
struct ApprovedDifference {
  std::string name, tensor;  // of the model
  std::string claim;         // "local `h` holds y[0:4, 0:8]"
  std::int32_t entry = -1;   // index into the plan's lineage
};

// How the gradients of parameters come about (`--explain-parameters`).
struct ParameterTable {
  enum class State : std::uint8_t {
    kSharded,    // backward makes a part of it on each rank
    kRedundant,  // backward makes all of it on every rank
    kReduced,    // the same, by a collective within backward
    kPartial,    // backward makes parts of a sum
    kOnSome,     // at one coordinate of the axis only
    kUnknown,    // could not be executed
  };
  struct Axis {
    std::string axis;
    State state = State::kUnknown;
    std::string reducedBy;          // after backward has made it: "all_reduce at train.py:31"
    std::string reducedInBackward;  // kReduced: the same within backward
    std::vector<std::int64_t> coordinates;  // kOnSome: which
    bool shardedAfter = false;              // at the end of the step ranks have parts of it
    bool summedAfter = false;               // ... or lineage has it as a sum over ranks
    friend bool operator==(const Axis&, const Axis&) = default;
  };
  struct Row {
    std::vector<std::string> parameters;  // that are alike in all axes
    std::vector<Axis> axes;               // of the mesh that have more than one rank
  };
  std::vector<Row> rows;
  bool ofSmallerPlan = false;  // what was executed
  std::string reason;          // why there are no rows
};
const char* toString(ParameterTable::State);

struct Report {
  std::string model, plan;  // files
  Verdict verdict = Verdict::kUndecided;
  std::string reason;        // why undecided, or the names of the conditions
  bool interrupted = false;  // Ctrl-C: a partial report
  std::size_t outputs = 0, outputsProved = 0;
  std::vector<std::string> outputTensors;  // the model's, in its order
  std::string source;                      // what was recorded (Capture::source); may be empty
  std::vector<ComparedOutputs> compared;   // all outputs, by kind
  std::vector<NotCompared> notCompared;
  std::vector<StageReport> stages;
  std::vector<Defect> defects;
  // Undecided: statements that do not hold where they stand, in the order of the computation.
  // Whether one of them makes an output wrong is what was not settled.
  std::vector<Defect> suspects;
  std::vector<Assumption> assumptions;  // what was taken for granted
  std::vector<ApprovedDifference> approved;
  // What is no error, and rarely meant: inputs of which a part is on no rank.
  std::vector<std::string> warnings;
  std::vector<Cause> causes;  // of the defects or suspects, the earliest first
  Statistics statistics;
  std::optional<Confirmation> confirmation;  // where one was asked for
  std::optional<Inference> inference;        // where it was tried
  std::vector<AttemptReport> attempts;       // in order; the last one settled the verdict, or none
  std::optional<ParameterTable> parameters;  // where it was asked for
};

// One of several plans that a run was given: its report, or why there is none.
struct PlanResult {
  std::string plan;  // file
  std::optional<Report> report;
  std::string error;                    // without a report: one sentence
  bool inputError = false;              // ... about model or plan, not about the program
  std::vector<InputError> errors = {};  // ... and all that is wrong with them
  bool moreErrors = false;              // there are more
  bool outOfMemory = false;             // an error about the program: it got no memory

  void takeError(const InputError& thrown);
};

const char* toString(Verdict);
const char* toString(StageVerdict);
const char* toString(Method);
const char* toString(DefectKind);
const char* toString(Role);

}  // namespace shardproof
