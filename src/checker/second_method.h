// SPDX-License-Identifier: Apache-2.0
// Decides a stage by one named method, whatever else would be quicker: so that what one method has
// proved can be proved again by another (src/certificate/).
#pragma once

#include <cstdint>
#include <vector>

#include "checker/checker.h"

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

// Proved (outcome.method says in general by what) or undecided with the reason; never refuted: a
// difference that a solver finds may be one of other functions than the real ones. That the plan is
// defined wherever the model is belongs to each method's proof. Of `options` only the limits count.
// Throws what the pool is to tell (std::bad_alloc), and nothing else.
StageOutcome checkStageBy(const Stage& stage, SecondMethod method, const CheckOptions& options);

}  // namespace shardproof
