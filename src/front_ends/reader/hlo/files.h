// SPDX-License-Identifier: Apache-2.0
// HLO files as verification problems.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reader/hlo/documents.h"
#include "shardproof/graph.h"

namespace shardproof::hlo {

// Whether a file's text, gunzipped where its name ends in .gz, is HLO. A pipe gives its text only
// once, to whoever reads all of it: it is taken for JSON. Throws InputError when the file cannot be
// read.
bool isHloFile(const std::string& file);

// Reads two HLO files. Throws InputError.
Documents convertFiles(const std::string& modelFile, const std::string& planFile,
                       const std::string& modelName, const Options& options);

// The same as a problem, which has the names of these files.
std::unique_ptr<Problem> readHloProblem(const std::string& modelFile, const std::string& planFile,
                                        const Options& options);

}  // namespace shardproof::hlo
