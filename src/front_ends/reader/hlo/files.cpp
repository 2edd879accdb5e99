// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/files.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "reader/hlo/parser.h"
#include "reader/reader.h"
#include "reader/text_source.h"
#include "shardproof/error.h"

namespace shardproof::hlo {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 31;

// At most `most` bytes of a file.
std::string textOf(const std::string& file, std::size_t most) {
  reader::TextSource source{reader::Input(file)};
  std::string text;
  while (text.size() < most && !source.atEnd()) {
    text += source.peek();
    source.advance();
  }
  return text;
}

std::string wholeText(const std::string& file) {
  std::string text = textOf(file, kMostBytes + 1);
  if (text.size() > kMostBytes) throw InputError(file, "", "found more than 2^31 bytes of text");
  return text;
}

}  // namespace

bool isHloFile(const std::string& file) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(file, ignored) && looksLikeHlo(textOf(file, 1 << 16));
}

Documents convertFiles(const std::string& modelFile, const std::string& planFile,
                       const std::string& modelName, const Options& options) {
  const std::string model = wholeText(modelFile), plan = wholeText(planFile);
  if (!looksLikeHlo(model))
    throw InputError(modelFile, "line 1, column 1",
                     "found a text that does not begin with HloModule, expected HLO, as the plan");
  return documentsOf(model, modelFile, plan, planFile, modelName, options);
}

std::unique_ptr<Problem> readHloProblem(const std::string& modelFile, const std::string& planFile,
                                        const Options& options) {
  Documents documents = convertFiles(modelFile, planFile, modelFile, options);
  std::unique_ptr<Problem> problem;
  try {
    problem = readProblemText(documents.model, documents.plan, ir::Programs::kJoined);
  } catch (const InputError& error) {
    // What the two programs say together, such as shardings, makes no problem.
    std::string message = error.what();
    const std::string prefix = error.file() + ": " + error.pointer() + ": ";
    if (message.starts_with(prefix)) message.erase(0, prefix.size());
    throw InputError(error.file() == "the model" ? modelFile : planFile,
                     "converted, " + error.pointer(), message);
  }
  problem->model.file = modelFile;
  problem->plan.file = planFile;
  return problem;
}

}  // namespace shardproof::hlo
