// Generated problems are well formed and right: each supported combination is written, read back as any input is, and proved.
#include "generate/generate.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "generate/schedule.h"
#include "reader/reader.h"
#include "shardproof/verify.h"

namespace shardproof::generate {
namespace {

namespace fs = std::filesystem;

Options mlp() {
  Options o;
  o.architecture = "mlp";
  return o;
}

Options llama() {
  Options o;
  o.architecture = "llama3";
  o.layers = 2;
  o.dim = 16;
  o.hidden = 24;
  o.heads = 4;
  o.kvHeads = 2;
  o.sequence = 8;
  o.vocabulary = 32;
  return o;
}

std::string refusal(const Options& options) {
  try {
    complete(options);
  } catch (const OptionError& e) {
    return e.what();
  }
  return "accepted";
}

class GenerateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "shardproof-generate-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::unique_ptr<Problem> read(const Options& options) const {
    const Files files = generate(options, "g.model.json");
    std::ofstream(dir_ / "g.model.json") << files.model;
    std::ofstream(dir_ / "g.plan.json") << files.plan;
    return readProblem(std::nullopt, (dir_ / "g.plan.json").string());
  }
  void expectEquivalent(const Options& options) const {
    const auto problem = read(options);
    VerifyOptions how;
    how.jobs = 1;
    const Report report = verify(*problem, how);
    EXPECT_EQ(report.verdict, Verdict::kEquivalent) << report.reason;
    // Lemmas are no decoration: each must hold too.
    for (const StageReport& stage : report.stages) EXPECT_EQ(stage.verdict, StageVerdict::kProved) << stage.tensor << ": " << stage.reason;
  }

  fs::path dir_;
};

struct Combination {
  const char* name;
  std::function<void(Options&)> set;
};

const std::vector<Combination>& combinations() {
  static const std::vector<Combination> list{
      {"single", [](Options&) {}},
      {"dp", [](Options& o) { o.dp = 2; }},
      {"dp many", [](Options& o) { o.dp = 64; }},
      {"tp", [](Options& o) { o.tp = 2; }},
      {"pp", [](Options& o) { o.pp = 2; }},
      {"microbatches", [](Options& o) { o.microbatches = 3; }},
      {"all", [](Options& o) { o.dp = o.tp = o.pp = o.microbatches = 2; }},
      {"larger batch", [](Options& o) { o.dp = o.tp = o.microbatches = 2, o.batch = 12; }},
      {"uneven layers", [](Options& o) { o.layers = 3, o.pp = 2, o.microbatches = 2; }},
      {"recompute", [](Options& o) { o.dp = o.tp = o.pp = o.microbatches = 2, o.recompute = true; }},
      {"1f1b", [](Options& o) { o.layers = 4, o.pp = 4, o.microbatches = 5, o.schedule = "1f1b"; }},
      {"1f1b, fewer microbatches than stages", [](Options& o) { o.layers = 3, o.pp = 3, o.dp = 2, o.schedule = "1f1b"; }},
      {"interleaved", [](Options& o) { o.layers = 4, o.pp = o.tp = o.virtualStages = 2, o.microbatches = 4, o.schedule = "interleaved"; }},
      {"interleaved, recompute",
       [](Options& o) { o.layers = 4, o.pp = o.dp = o.virtualStages = o.microbatches = 2, o.schedule = "interleaved", o.recompute = true; }},
      {"zero 1", [](Options& o) { o.dp = o.tp = o.microbatches = 2, o.zero = 1; }},
      {"zero 2", [](Options& o) { o.dp = 4, o.pp = o.microbatches = 2, o.zero = 2; }},
      {"zero 3", [](Options& o) { o.dp = o.tp = o.pp = o.microbatches = 2, o.zero = 3; }},
      {"zero 3, recompute", [](Options& o) { o.dp = 2, o.zero = 3, o.recompute = true; }},
      {"zero 3, 1f1b", [](Options& o) { o.dp = o.pp = o.microbatches = 2, o.zero = 3, o.schedule = "1f1b"; }},
      {"sgd", [](Options& o) { o.optimizer = "sgd", o.clip = "0", o.dp = 2; }},
      {"adamw, clipped", [](Options& o) { o.optimizer = "adamw", o.clip = "0.5", o.tp = o.pp = 2; }},
      {"checkpoints of layers", [](Options& o) { o.dp = o.tp = o.pp = o.microbatches = 2, o.checkpoints = "layers"; }},
  };
  return list;
}

TEST_F(GenerateTest, EveryCombinationOfMlpIsEquivalent) {
  for (const Combination& c : combinations()) {
    SCOPED_TRACE(c.name);
    Options o = mlp();
    c.set(o);
    expectEquivalent(o);
  }
}

TEST_F(GenerateTest, EveryCombinationOfLlamaIsEquivalent) {
  for (const Combination& c : combinations()) {
    SCOPED_TRACE(c.name);
    Options o = llama();
    c.set(o);
    expectEquivalent(o);
  }
}

TEST_F(GenerateTest, VocabularyAndSequenceParallelAreEquivalent) {
  for (const bool sequence : {false, true}) {
    for (const Combination& c : combinations()) {
      SCOPED_TRACE(std::string(c.name) + (sequence ? ", sequence parallel" : ", vocabulary parallel"));
      Options o = llama();
      c.set(o);
      o.tp = 2;
      o.vocabularyParallel = true;
      o.sequenceParallel = sequence;
      expectEquivalent(o);
    }
  }
}

TEST_F(GenerateTest, WithoutCheckpoints) {
  Options o = mlp();
  o.dp = o.tp = o.pp = o.microbatches = 2;
  o.checkpoints = "none";
  expectEquivalent(o);
}

// Half of the gradient missing on each rank must not go unnoticed: the proofs above would be worth nothing otherwise.
TEST_F(GenerateTest, ADroppedReductionIsRefuted) {
  Options o = llama();
  o.dp = o.tp = 2;
  Files files = generate(o, "g.model.json");
  const std::string reduction = "\"all_reduce\", \"in\": [\"layers.1.ffn_norm.grad.3.part\"]";
  const std::size_t at = files.plan.find(reduction);
  ASSERT_NE(at, std::string::npos);
  const std::size_t end = files.plan.find("}", files.plan.find("\"comm\"", at));
  std::string node = files.plan.substr(at, end - at);
  node.replace(0, 12, "\"identity\"");
  const std::size_t comm = node.find(", \"comm\""), mb = node.find(", \"mb\"");
  node.erase(comm, mb - comm);
  files.plan.replace(at, end - at, node);
  std::ofstream(dir_ / "g.model.json") << files.model;
  std::ofstream(dir_ / "g.plan.json") << files.plan;
  const auto problem = readProblem(std::nullopt, (dir_ / "g.plan.json").string());
  VerifyOptions how;
  how.jobs = 1;
  EXPECT_EQ(verify(*problem, how).verdict, Verdict::kNotEquivalent);
}

// Thousands of ranks are few programs.
TEST_F(GenerateTest, LargePresetsAreSmallFiles) {
  Options o;
  o.architecture = "llama3";
  o.size = "405B";
  o.dp = 64;
  o.tp = 8;
  o.pp = o.microbatches = 16;
  o.checkpoints = "layers";
  const auto problem = read(o);
  EXPECT_EQ(problem->plan.ranks(), 8192);
  EXPECT_EQ(problem->plan.programs.size(), 16u);
  EXPECT_LT(fs::file_size(dir_ / "g.plan.json"), 20'000'000u);
}

TEST(GenerateOptions, ContradictionsAreRefused) {
  const auto refused = [](Options o, const std::function<void(Options&)>& set) {
    set(o);
    return refusal(o);
  };
  EXPECT_EQ(refusal(mlp()), "accepted");
  EXPECT_EQ(refusal(llama()), "accepted");
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.size = "9B"; }), "8B, 70B, 405B"));
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.tp = 3; }), "--hidden 24") || has(refused(llama(), [](Options& o) { o.tp = 3; }), "--heads 4"));
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.tp = 4; }), "not supported yet"));
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.heads = 3; }), "--heads 3"));
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.kvHeads = 3; }), "--kv-heads 3"));
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.pp = 3; }), "pipeline stages"));
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.batch = 3, o.dp = 2; }), "--batch 3"));
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.zero = 1; }), "--dp of at least 2"));
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.schedule = "1f1b"; }), "--pp of at least 2"));
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.virtualStages = 2; }), "--schedule interleaved"));
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.layers = 4, o.pp = 2, o.schedule = "interleaved", o.virtualStages = 2; }), "multiple of --pp 2"));
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.learningRate = "fast"; }), "--lr fast"));
  EXPECT_TRUE(has(refused(mlp(), [](Options& o) { o.heads = 2; }), "no --heads"));
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.vocabularyParallel = true; }), "--tp of at least 2"));
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.tp = 2, o.sequenceParallel = true; }), "without --vocab-parallel is not supported yet"));
  EXPECT_TRUE(has(refused(llama(), [](Options& o) { o.tp = 2, o.vocabularyParallel = true, o.vocabulary = 33; }), "--vocab 33"));
  EXPECT_TRUE(has(refused(mlp(), [](Options& o) { o.tp = 2, o.vocabularyParallel = true; }), "no vocabulary"));
  // Sizes that do not divide where only the layout shows it.
  Options o = llama();
  o.dp = 3;
  o.zero = 1;
  EXPECT_THROW(generate(o, "m"), OptionError);
}

TEST(Schedule, EveryRankRunsEveryBlockOnceAndBackwardLast) {
  Options o = mlp();
  o.layers = 8;
  o.pp = 4;
  o.virtualStages = 2;
  o.microbatches = 8;
  o.schedule = "interleaved";
  const auto events = timeline(complete(o));
  ASSERT_EQ(events.size(), 4u);
  for (const auto& rank : events) {
    std::map<std::pair<int, int>, int> seen;
    for (const Event& e : rank) {
      if (e.action != Action::kCompute) continue;
      int& state = seen[{e.block.chunk, e.block.microbatch}];
      EXPECT_EQ(state, e.block.forward ? 0 : 1);
      ++state;
    }
    EXPECT_EQ(seen.size(), 16u);
    for (const auto& [block, state] : seen) EXPECT_EQ(state, 2);
  }
}

}  // namespace
}  // namespace shardproof::generate
