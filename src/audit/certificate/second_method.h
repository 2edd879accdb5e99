// SPDX-License-Identifier: Apache-2.0
// Decides a stage by one named method, whatever else would be quicker: so that what one method has
// proved can be proved again by another (src/audit/certificate/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "shardproof/report.h"
#include "shardproof/verify.h"
#include "stages/stage.h"

namespace shardproof {

enum class SecondMethod : std::uint8_t {
  kNormalForm,    // flattened terms, normal by construction
  kExpandedForm,  // terms as executed, that nothing has rewritten on the way, multiplied out to
                  // polynomials at the end
  kZ3,            // the same terms, put to Z3
  kCvc5,          // ... and to cvc5
};

const char* toString(SecondMethod);

// The other methods than the one that proved the class, in the order in which they are worth
// trying. A solver knows none of our rewriting rules, so Z3 comes before the expanded form; what Z3
// has no time for cvc5 seldom has, so it comes last. (Where the expanded form proved a class the
// normal form had failed, and where Z3 did both had; with `--checker z3` nothing else was tried.)
std::vector<SecondMethod> methodsBesides(Method method, Checker checker);

struct SecondOutcome {
  bool proved = false;
  std::string reason;                     // why not
  bool needsRefinement = false;           // with all coordinates of interchangeable axes it may be
  std::map<std::string, double> seconds;  // by phase
};

struct SecondLimits {
  double seconds = 60;
  std::size_t megabytes = 4096;
};

// Proved or undecided, never refuted: a difference that a solver finds may be one of other
// functions than the real ones. That the plan is
// defined wherever the model is belongs to each method's proof. Throws what the pool is to tell
// (std::bad_alloc), and nothing else.
SecondOutcome checkStageBy(const Stage& stage, SecondMethod method, const SecondLimits& limits);

}  // namespace shardproof
