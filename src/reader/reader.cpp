#include "reader/reader.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "ir/complete.h"
#include "reader/hlo/files.h"
#include "reader/model_reader.h"
#include "reader/plan_reader.h"
#include "shardproof/error.h"

namespace shardproof {

namespace {

bool isInside(const std::filesystem::path& file, const std::filesystem::path& directory) {
  return !directory.empty() &&
         std::mismatch(directory.begin(), directory.end(), file.begin(), file.end()).first ==
             directory.end();
}

}  // namespace

// A plan may come from anywhere, so it may only name what lies beside it, or beside the file that
// it is a symbolic link to.
std::string modelBeside(const std::string& planFile, const std::string& model) {
  namespace fs = std::filesystem;
  const auto fail = [&](const std::string& message) -> void {
    throw InputError(planFile, "/model", message);
  };
  if (model.empty())
    fail("the plan names no model, expected the file name of one (or the option --model)");
  const fs::path named(model);
  bool inside = named.is_relative() && model.find('\0') == std::string::npos;
  for (const fs::path& component : named) inside = inside && component != "..";
  if (!inside)
    fail("found \"" + model +
         "\", expected a path inside the plan's directory (or the option --model)");
  const fs::path file = fs::path(planFile).parent_path() / named;
  std::error_code error;
  if (!fs::is_regular_file(file, error)) {
    fail("there is no file \"" + file.string() +
         "\": put the model beside the plan, or name it with --model");
  }
  // Symbolic links may stay in the plan's directory, or lead to where the plan's own leads.
  const fs::path parent = fs::path(planFile).parent_path();
  const fs::path real = fs::canonical(file, error),
                 directory = fs::canonical(parent.empty() ? "." : parent, error),
                 realPlan = fs::canonical(planFile, error);
  if (error || !(isInside(real, directory) || isInside(real, realPlan.parent_path()))) {
    fail("\"" + file.string() +
         "\" is a symbolic link that leads out of the plan's directory, expected a file inside it "
         "(or the option --model)");
  }
  return file.string();
}

std::unique_ptr<Problem> readProblem(const std::optional<std::string>& modelFile,
                                     const std::string& planFile, const hlo::Options& options,
                                     std::vector<std::string>* assumptions) {
  if (hlo::isHloFile(planFile)) {
    if (!modelFile)
      throw InputError(planFile, "",
                       "found an HLO program, which names no model, expected --model");
    return hlo::readHloProblem(*modelFile, planFile, options, assumptions);
  }
  ir::ProblemDraft draft;
  reader::readPlan(planFile, draft);  // first, as it may name the model
  reader::readModel(modelFile ? *modelFile : modelBeside(planFile, draft.plan.modelFile), draft);
  return ir::completeProblem(std::move(draft));
}

std::unique_ptr<Problem> readProblem(const std::optional<std::string>& modelFile,
                                     const std::string& planFile) {
  return readProblem(modelFile, planFile, {}, nullptr);
}

std::unique_ptr<Problem> readProblemText(std::string_view model, std::string_view plan) {
  ir::ProblemDraft draft;
  reader::readPlan({"the plan", plan}, draft);
  reader::readModel({"the model", model}, draft);
  return ir::completeProblem(std::move(draft));
}

}  // namespace shardproof
