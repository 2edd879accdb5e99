// SPDX-License-Identifier: Apache-2.0
// The front door (shardproof/read.h): two files in, one checked verification problem out.
//
//   text_source                 bytes, gunzipped
//   place, value, json_stream   one pass over the JSON, with its pointer
//   graph_reader                tensors and nodes
//   communication_reader        the communication fields of a plan's node
//   model_reader, plan_reader   a draft, by name (ir/draft.h)
//   src/core/ir                      names to ids, and every check
//   hlo/                        two HLO texts become a model and a plan first
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/complete.h"
#include "reader/hlo/documents.h"
#include "shardproof/read.h"

namespace shardproof {

// As shardproof/read.h has it; a plan that is called "-" is standard input (JSON only); HLO texts
// are read with `options`. Programs that run the same become one, or stay what the file (no HLO)
// has. Throws InputError.
std::unique_ptr<Problem> readProblem(const std::optional<std::string>& modelFile,
                                     const std::string& planFile, const hlo::Options& options,
                                     ir::Programs programs = ir::Programs::kJoined);

// As shardproof/read.h has it; programs that run the same become one, or stay what the text has.
std::unique_ptr<Problem> readProblemText(std::string_view model, std::string_view plan,
                                         ir::Programs programs);

// The file of the model that a plan names; throws InputError where the name leads elsewhere than
// beside the plan, or to nothing.
std::string modelBeside(const std::string& planFile, const std::string& model);

}  // namespace shardproof
