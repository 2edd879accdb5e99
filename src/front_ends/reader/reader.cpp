// SPDX-License-Identifier: Apache-2.0
#include "reader/reader.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <utility>

#include "ir/complete.h"
#include "ir/error_list.h"
#include "reader/hlo/files.h"
#include "reader/model_reader.h"
#include "reader/plan_reader.h"
#include "shardproof/error.h"

namespace shardproof {

namespace {

const std::string kStandardInput = "standard input";

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
    throw InputError(planFile.empty() ? kStandardInput : planFile, "/model", message);
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
                 realPlan = planFile.empty() ? directory / "-" : fs::canonical(planFile, error);
  if (error || !(isInside(real, directory) || isInside(real, realPlan.parent_path()))) {
    fail("\"" + file.string() +
         "\" is a symbolic link that leads out of the plan's directory, expected a file inside it "
         "(or the option --model)");
  }
  return file.string();
}

namespace {

// Beside such a plan is what lies in the working directory.
std::unique_ptr<Problem> readFromStandardInput(const std::optional<std::string>& modelFile) {
  std::string text;
  std::array<char, 1 << 16> buffer{};
  while (std::cin.read(buffer.data(), buffer.size()) || std::cin.gcount() > 0)
    text.append(buffer.data(), static_cast<std::size_t>(std::cin.gcount()));
  ir::ProblemDraft draft;
  ir::ErrorList errors;
  const bool plan = errors.attempt([&] { reader::readPlan({kStandardInput, text}, draft); });
  if (plan || modelFile || !draft.plan.modelFile.empty())
    errors.attempt([&] {
      reader::readModel(modelFile ? *modelFile : modelBeside("", draft.plan.modelFile), draft);
    });
  errors.throwIfAny();
  return ir::completeProblem(std::move(draft), ir::Programs::kJoined);
}

}  // namespace

std::unique_ptr<Problem> readProblem(const std::optional<std::string>& modelFile,
                                     const std::string& planFile, const hlo::Options& options,
                                     ir::Programs programs) {
  if (planFile == "-") return readFromStandardInput(modelFile);
  if (hlo::isHloFile(planFile)) {
    if (!modelFile)
      throw InputError(planFile, "",
                       "found an HLO program, which names no model, expected --model");
    return hlo::readHloProblem(*modelFile, planFile, options);
  }
  if (options.beforePass)
    throw InputError(planFile, "", "found no HLO program, expected the one after a pass");
  ir::ProblemDraft draft;
  ir::ErrorList errors;
  // First, as it may name the model; one that cannot be read need not have come to that.
  const bool plan = errors.attempt([&] { reader::readPlan(planFile, draft); });
  if (plan || modelFile || !draft.plan.modelFile.empty())
    errors.attempt([&] {
      reader::readModel(modelFile ? *modelFile : modelBeside(planFile, draft.plan.modelFile),
                        draft);
    });
  errors.throwIfAny();
  return ir::completeProblem(std::move(draft), programs);
}

std::unique_ptr<Problem> readProblem(const std::optional<std::string>& modelFile,
                                     const std::string& planFile) {
  return readProblem(modelFile, planFile, hlo::Options{});
}

std::unique_ptr<Problem> readProblemText(std::string_view model, std::string_view plan) {
  return readProblemText(model, plan, ir::Programs::kAsStated);
}

std::unique_ptr<Problem> readProblemText(std::string_view model, std::string_view plan,
                                         ir::Programs programs) {
  ir::ProblemDraft draft;
  ir::ErrorList errors;
  errors.attempt([&] { reader::readPlan({"the plan", plan}, draft); });
  errors.attempt([&] { reader::readModel({"the model", model}, draft); });
  errors.throwIfAny();
  return ir::completeProblem(std::move(draft), programs);
}

}  // namespace shardproof
