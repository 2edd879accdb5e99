// The front door: two files in, one checked verification problem out. What enters: a model and a
// plan as docs/format.md defines them, plain or gzip. What leaves: a Problem in which every id is
// valid and every rule of that page's "What is an error in the input" holds; whether the plan can
// run, and is right, is for later stages to say.
//
//   text_source                 bytes, gunzipped
//   place, value, json_stream   one pass over the JSON, with its pointer
//   graph_reader                tensors and nodes
//   communication_reader        the communication fields of a plan's node
//   model_reader                the model, checked
//   plan_reader                 the plan, as written
//   plan_resolver               names to ids in programs
//   program_grid                which program runs on which rank
//   lineage_resolver            the lineage, checked
//   output_coverage             nothing of an output is left without a goal
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reader/hlo/documents.h"
#include "shardproof/graph.h"

namespace shardproof {

// `modelFile` absent: the model that the plan names, beside the plan. Two HLO files
// (src/reader/hlo) are told by their content. Throws InputError.
// Two HLO programs are taken as well, told by the plan's content, with `options`; what was taken
// for granted of them is left in `assumptions`, which may be null.
std::unique_ptr<Problem> readProblem(const std::optional<std::string>& modelFile,
                                     const std::string& planFile, const hlo::Options& options = {},
                                     std::vector<std::string>* assumptions = nullptr);

// The same from texts in memory. The name of a model in the plan has no effect; messages speak of
// "the model" and "the plan" in place of files.
std::unique_ptr<Problem> readProblemText(std::string_view model, std::string_view plan);

// The file of the model that a plan names; throws InputError where the name leads elsewhere than
// beside the plan, or to nothing.
std::string modelBeside(const std::string& planFile, const std::string& model);

}  // namespace shardproof
