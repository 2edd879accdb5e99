#include "plan/dropout_masks.h"
#include "plan/elements.h"
#include "reader/reader.h"

#include <filesystem>

#include "reader/lineage_resolver.h"
#include "reader/model_reader.h"
#include "reader/plan_reader.h"
#include "reader/plan_resolver.h"
#include "shardproof/error.h"

namespace shardproof {

namespace {

// A plan may come from anywhere, so it may only name what lies beside it.
std::string modelBeside(const Plan& plan) {
  namespace fs = std::filesystem;
  const auto fail = [&](const std::string& message) -> void { throw InputError(plan.file, "/model", message); };
  if (plan.modelFile.empty()) fail("the plan names no model, expected the file name of one (or the option --model)");
  const fs::path named(plan.modelFile);
  bool inside = named.is_relative() && plan.modelFile.find('\0') == std::string::npos;
  for (const fs::path& component : named) inside = inside && component != "..";
  if (!inside) fail("found \"" + plan.modelFile + "\", expected a path inside the plan's directory (or the option --model)");
  const fs::path file = fs::path(plan.file).parent_path() / named;
  std::error_code error;
  if (!fs::is_regular_file(file, error)) {
    fail("there is no file \"" + file.string() + "\": put the model beside the plan, or name it with --model");
  }
  return file.string();
}

}  // namespace

std::unique_ptr<Problem> readProblem(const std::optional<std::string>& modelFile, const std::string& planFile) {
  auto problem = std::make_unique<Problem>();
  reader::readPlan(planFile, *problem);  // first, as it may name the model
  reader::readModel(modelFile ? *modelFile : modelBeside(problem->plan), *problem);
  const reader::PlanIndex index = reader::resolvePrograms(*problem);
  inferLocalElements(*problem);
  reader::resolveLineage(*problem, index);
  giveDropoutMasks(*problem);
  return problem;
}

}  // namespace shardproof
