// SPDX-License-Identifier: Apache-2.0
#include "ir/complete.h"

#include <utility>

#include "ir/dropout_masks.h"
#include "ir/elements.h"
#include "ir/join_programs.h"
#include "ir/local_parts.h"
#include "ir/resolve.h"
#include "ir/validate.h"

namespace shardproof::ir {

namespace {

void setOnlyMicrobatch(Plan& plan) {
  if (plan.microbatches != 1) return;
  for (Program& program : plan.programs) {
    for (Node& node : program.graph.nodes) node.microbatch = node.microbatch.at(Microbatch::of(0));
  }
}

}  // namespace

std::unique_ptr<Problem> completeModel(ProblemDraft&& draft) {
  std::unique_ptr<Problem> problem = resolveNames(std::move(draft));
  validateNodes(*problem);
  inferModelElements(*problem);
  validateModel(*problem);
  return problem;
}

std::unique_ptr<Problem> completeProblem(ProblemDraft&& draft, Programs programs) {
  validateMesh(draft.plan.file, draft.plan.mesh, draft.plan.microbatches);
  std::unique_ptr<Problem> problem = completeModel(std::move(draft));
  takeOutParts(*problem);
  validatePrograms(*problem);
  setOnlyMicrobatch(problem->plan);
  inferLocalElements(*problem);
  validateLineage(*problem);
  validateCapture(*problem);
  giveDropoutMasks(*problem);
  if (programs == Programs::kJoined) joinEqualPrograms(problem->plan);
  return problem;
}

}  // namespace shardproof::ir
