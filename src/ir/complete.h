// From what an author states to a problem that everything else can work on: the passes, in order.
//
//   validateMesh          axes, microbatches
//   resolveNames          names to ids
//   validateNodes         operators, shapes, constants
//   inferModelElements    kinds of element that the model's author left out
//   validateModel
//   validatePrograms
//   setOnlyMicrobatch     "*" of one microbatch is that one
//   inferLocalElements    kinds of element that the plan's author left out
//   validateLineage
//   giveDropoutMasks      masks that dropout draws become inputs
#pragma once

#include <memory>

#include "ir/draft.h"

namespace shardproof::ir {

// Of a draft whose plan says nothing: the model alone, checked. Throws InputError.
std::unique_ptr<Problem> completeModel(ProblemDraft&& draft);

// Throws InputError.
std::unique_ptr<Problem> completeProblem(ProblemDraft&& draft);

}  // namespace shardproof::ir
