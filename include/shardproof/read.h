// SPDX-License-Identifier: Apache-2.0
// Model and plan from files or texts, as docs/format.md defines them, plain or gzip. What is
// returned has passed every check of that page's "What is an error in the input"; whether the plan
// can run, and is right, is for verify (shardproof/verify.h) to say.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "shardproof/graph.h"

namespace shardproof {

// `modelFile` absent: the model that the plan names, beside the plan. Two HLO texts (docs/jax.md)
// are taken as well, told by the plan's content. Throws InputError.
std::unique_ptr<Problem> readProblem(const std::optional<std::string>& modelFile,
                                     const std::string& planFile);

// The same from texts in memory, JSON only. The name of a model in the plan has no effect; messages
// speak of "the model" and "the plan" in place of files.
std::unique_ptr<Problem> readProblemText(std::string_view model, std::string_view plan);

}  // namespace shardproof
