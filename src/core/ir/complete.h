// SPDX-License-Identifier: Apache-2.0
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
//   validateCapture
//   giveDropoutMasks      masks that dropout draws become inputs
//   joinEqualPrograms     programs that run the same are one
#pragma once

#include <cstdint>
#include <memory>

#include "ir/draft.h"

namespace shardproof::ir {

// Of a draft whose plan says nothing: the model alone, checked. Throws InputError.
std::unique_ptr<Problem> completeModel(ProblemDraft&& draft);

// Whether programs that run the same become one (ir/join_programs.h).
enum class Programs : std::uint8_t { kJoined, kAsStated };

// Throws InputError.
std::unique_ptr<Problem> completeProblem(ProblemDraft&& draft,
                                         Programs programs = Programs::kAsStated);

}  // namespace shardproof::ir
