// SPDX-License-Identifier: Apache-2.0
// The verdict on a plan that says little of what its ranks compute.
#pragma once

#include <memory>

#include "shardproof/infer.h"
#include "shardproof/verify.h"

namespace shardproof {

// As verify(), with the lemmas that were found where `infer` asks for them: `problem` has them
// then. The report says what was found. What is found changes no verdict but "undecided": lemmas
// are proved before they are used, and a difference is one of the plan's outputs.
Report verifyInferring(std::unique_ptr<Problem>& problem, const VerifyOptions& given, Infer infer);

}  // namespace shardproof
