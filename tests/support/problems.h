// SPDX-License-Identifier: Apache-2.0
// Problems for the tests of what comes after the reader: small ones from inline JSON, and the real
// plans beside the repository.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "plan/plan_index.h"
#include "shardproof/error.h"
#include "shardproof/graph.h"
#include "stages/cutter.h"
#include "stages/stage.h"

namespace shardproof::test {

using Json = nlohmann::ordered_json;

// How many random cases are run of `all`: the first tenth with sanitizers, which look at what is
// read and written, not at results.
constexpr int randomCases(int all) {
#ifdef SHARDPROOF_SANITIZED
  return all / 10;
#else
  return all;
#endif
}

// A directory that goes away with the object.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "shardproof-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary directory");
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::string write(const std::string& name, const std::string& text) const {
    const std::string file = (path_ / name).string();
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }

 private:
  std::filesystem::path path_;
};

// A problem as JSON, without the headers, so that a test can edit it before it is read.
struct Draft {
  Json model, plan;
  Json& program(std::size_t i) { return plan["programs"][i]; }
  Json& node(std::size_t program_, std::size_t n) { return plan["programs"][program_]["nodes"][n]; }
  Json& tensor(std::size_t program_, const std::string& name) {
    return plan["programs"][program_]["tensors"][name];
  }
  Json& entry(std::size_t i) { return plan["lineage"][i]; }
};

Draft draft(const std::string& model, const std::string& plan);

// With the programs that it states.
std::unique_ptr<Problem> read(const Draft& d);
std::unique_ptr<Problem> read(const std::string& model, const std::string& plan);

// ---- the real plans; tests that need them are skipped where they are absent ----

// The sum of squares over `rows` rows of each of 8 microbatches, which a schedule names one by one,
// and whose results it adds up one after the other, in `sum.1` to `sum.6` and `y`.
Draft microbatchByMicrobatch(int rows);

std::filesystem::path sharedPlans();
inline constexpr const char* kFirstPlan = "llama3_dp2_pp2_tp2_nm2_ly2.plan.json";
inline constexpr const char* kLargestPlan = "llama3_dp64_pp4_tp8_nm8_ly2.plan.json.gz";
inline constexpr const char* kExpertsPlan = "moe_dp16_pp2_tp4_nm16_ly2_e64.plan.json.gz";
std::vector<std::string> planNames();
// nullptr where the plan is absent.
std::unique_ptr<Problem> readShared(const std::string& name);

// ---- looking things up ----

std::int32_t modelTensor(const Problem& problem, const std::string& name);
TensorId localTensor(const Problem& problem, std::int32_t program, const std::string& name);
const CommunicationSpec& communicationOf(const Problem& problem, std::int32_t program,
                                         std::int32_t node);
// The stage tensor of a model's tensor, or of a local one on `rank` (microbatch -1: any); -1 when
// the stage has none.
std::int32_t findIn(const Stage& stage, const Problem& problem, const std::string& name,
                    std::int32_t rank = -1, std::int32_t microbatch = -1);

// The name of a stage node's operator or communication, for lists of what a stage holds.
std::string opOf(const StageNode& node);
std::vector<std::string> opsOf(const Stage& stage, bool logical);

// Ids by their numbers.
template <class AnyId>
std::vector<AnyId> ids(std::initializer_list<int> numbers) {
  std::vector<AnyId> made;
  for (const int n : numbers) made.emplace_back(n);
  return made;
}

// A problem, its index and one stage, kept alive together.
struct Cut {
  std::unique_ptr<Problem> problem;
  std::unique_ptr<PlanIndex> planIndex;
  Stage stage;
};
Cut cut(std::unique_ptr<Problem> problem, std::int32_t entry, const CutOptions& options = {});
Cut cut(const Draft& d, std::int32_t entry, const CutOptions& options = {});
std::int32_t lastEntry(const Draft& d);

// ---- problems that several tests use ----

// Two pipeline stages of two tensor-parallel ranks each, two microbatches: rank = 2 pp + tp.
// Lineage: 0 x, 1 w (inputs), 2 y on pp 0, 3 y on pp 1, 4 t (sums over each microbatch's columns),
// 5 the output s.
Draft pipeline();

// The pipeline, whose ranks take means where the model sums. Entry 4, about what they sum up to, is
// an approved difference.
Draft approvedPipeline();

// The pipeline, with the sum of t stated once more in other words: the second equation finds no
// part that is not determined. Output: 6.
Draft overDetermined();

// Two ranks, each with its own program, that hold the halves of x [8] and compute nothing yet.
// Lineage: 0 x.
Draft twoRanks();

// One rank; the model and the plan each compute "o" from inputs that are equal. `modelNodes` and
// `planNodes` are lists of nodes, `tensors` what both declare besides (each side may leave out what
// it does not produce). Last entry: the output.
Draft oneRank(const std::string& inputs, const std::string& modelTensors,
              const std::string& modelNodes, const std::string& planTensors,
              const std::string& planNodes);

}  // namespace shardproof::test
