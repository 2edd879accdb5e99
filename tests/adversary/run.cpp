// SPDX-License-Identifier: Apache-2.0
#include "adversary/run.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "adversary/edits.h"
#include "adversary/shrink.h"
#include "adversary/stretches.h"
#include "cache/cache_file.h"
#include "sweep/execute.h"
#include "sweep/result.h"

namespace shardproof::adversary {
namespace {

namespace fs = std::filesystem;

constexpr int kStretched = 25;  // per cent of the plans

struct Maker {
  FamilyInfo info;
  Family make;  // nullptr: made of the others
  int edited;   // per cent of the plans that are edited
};

const std::vector<Maker>& makers() {
  static const std::vector<Maker> kMakers{
      {{"graphs", "random operator graphs, all operators and collectives", 360},
       operatorGraphs,
       60},
      {{"microbatches", "one microbatch and many", 220}, microbatches, 60},
      {{"lookups", "masks, tables, experts, dropout", 180}, lookups, 55},
      {{"definedness", "quotients, roots and logarithms of what may be zero", 160},
       definedness,
       15},
      {{"architectures", "generated training steps", 20}, architectures, 75},
      {{"cache", "plans that share stored proofs", 50}, nullptr, 0},
      {{"resume", "sweep --resume after files changed", 10}, nullptr, 0},
  };
  return kMakers;
}

const Maker& makerOf(const std::string& family) {
  for (const Maker& m : makers())
    if (m.info.name == family) return m;
  throw std::invalid_argument("there is no family " + family);
}

Case makeEdited(const Maker& maker, Random& random) {
  Case made = maker.make(random);
  if (random.chance(kStretched)) stretch(made, random);
  while (random.chance(made.edit.empty() ? maker.edited : 10))
    if (edit(made, random).empty()) break;
  return made;
}

// One of the families that make small plans; `random` goes on.
Case smallCase(Random& random) {
  switch (random.below(4)) {
    case 0:
      return operatorGraphs(random);
    case 1:
      return microbatches(random);
    case 2:
      return lookups(random);
    default:
      return definedness(random);
  }
}

void write(const fs::path& file, const std::string& text, std::int64_t seconds) {
  std::ofstream(file, std::ios::binary) << text;
  const timespec times[2] = {{seconds, 0}, {seconds, 0}};
  ::utimensat(AT_FDCWD, file.c_str(), times, 0);
}

}  // namespace

const std::vector<FamilyInfo>& families() {
  static const std::vector<FamilyInfo> kList = [] {
    std::vector<FamilyInfo> list;
    for (const Maker& m : makers()) list.push_back(m.info);
    return list;
  }();
  return kList;
}

Case makeCase(const std::string& family, std::uint64_t seed, std::uint64_t index) {
  const Maker& maker = makerOf(family);
  if (maker.make == nullptr)
    throw std::invalid_argument("plans of the family " + family + " are made of others");
  Random random(family, seed, index);
  return makeEdited(maker, random);
}

struct Session::Impl {
  Impl() {
    std::string pattern = (fs::temp_directory_path() / "adversary-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary directory");
    directory = pattern;
    file = std::make_unique<CacheFileStore>((directory / "proofs.db").string());
    memory = std::make_unique<MemoryStore>(file.get());
  }
  ~Impl() {
    memory.reset();
    file.reset();
    std::error_code ignored;
    fs::remove_all(directory, ignored);
  }

  // A plan, then changes of it, all with the proofs of one file: a row that answers for another
  // stage would be a wrong verdict.
  std::vector<Judged> cached(Random& random, const JudgeOptions& options) {
    JudgeOptions with = options;
    with.proofs = random.chance(50) ? static_cast<ProofStore*>(file.get()) : memory.get();
    const Case base = smallCase(random);
    std::vector<Judged> list{{base, judge(base, with)}};
    for (int i = 0; i < 3; ++i) {
      Case changed = base;
      if (edit(changed, random).empty()) continue;
      list.push_back({changed, judge(changed, with)});
      Judgement& j = list.back().judgement;
      if (j.finding == Finding::kUnsound || j.finding == Finding::kFalseAlarm) {
        const Judgement alone = judge(changed, options);
        j.reason += std::string(" (without stored proofs: ") + toString(alone.verdict) + ")";
      }
    }
    if (random.chance(30)) file->flush();
    return list;
  }

  // The files of a sweep's configuration change between two runs, perhaps without a change of their
  // size or time; what the second run takes over must be true of the new files.
  std::vector<Judged> resumed(Random& random, const JudgeOptions& options) {
    const Case base = smallCase(random);
    Case changed = base;
    if (random.chance(80)) edit(changed, random);
    const fs::path plan = directory / "p.plan.json", model = directory / "m.model.json";
    std::string planText = base.plan.dump(), modelText = base.model.dump(),
                newPlan = changed.plan.dump(), newModel = changed.model.dump();
    if (random.chance(70)) {  // spaces, so that sizes are equal
      const std::size_t p = std::max(planText.size(), newPlan.size()),
                        m = std::max(modelText.size(), newModel.size());
      planText.resize(p, ' '), newPlan.resize(p, ' '), modelText.resize(m, ' '),
          newModel.resize(m, ' ');
    }
    const std::int64_t time = 1'700'000'000;
    const auto sweepOnce = [&](const sweep::Sweep* before) {
      sweep::Sweep now;
      now.program = {{"version", 1}};
      sweep::Configuration configuration;
      configuration.name = "p";
      configuration.plan = plan.string();
      now.results.push_back(sweep::resultOf(configuration));
      if (before != nullptr) sweep::takeOver(now, *before);
      if (now.results[0].state != sweep::State::kNotRun) return now;
      sweep::ExecuteOptions execution;
      execution.verify.inProcess = true;
      execution.verify.stageSeconds = options.solverSeconds;
      execution.cache = (directory / "sweep.db").string();
      now.results[0] = sweep::execute(configuration, execution).result;
      return now;
    };
    write(plan, planText, time);
    write(model, modelText, time);
    const sweep::Sweep before = sweepOnce(nullptr);
    const fs::path saved = directory / "r.json";
    std::ofstream(saved, std::ios::binary) << sweep::sweepText(before, nullptr);
    const sweep::Sweep reread = sweep::readSweep(saved.string());
    const std::int64_t later = random.chance(50) ? time : time + 10;
    write(plan, newPlan, later);
    write(model, newModel, later);
    const sweep::Sweep after = sweepOnce(&reread);
    Judgement j = judge(changed, options);
    const sweep::Result& result = after.results[0];
    if (result.verdict && j.verdict != Verdict3::kNone) {
      j.verdict = *result.verdict == Verdict::kEquivalent      ? Verdict3::kEquivalent
                  : *result.verdict == Verdict::kNotEquivalent ? Verdict3::kNotEquivalent
                                                               : Verdict3::kUndecided;
      const bool wrong =
          j.truth == Truth::kWrong || j.truth == Truth::kThin || j.truth == Truth::kCannotRun;
      if (j.finding == Finding::kNothing && wrong && j.verdict == Verdict3::kEquivalent)
        j.finding = Finding::kUnsound;
      if (j.finding == Finding::kNothing && j.truth == Truth::kRight &&
          j.verdict == Verdict3::kNotEquivalent)
        j.finding = Finding::kFalseAlarm;
      if (result.resumed && (planText != newPlan || modelText != newModel)) {
        j.finding = Finding::kInternal;
        j.reason = "the row was taken over although a file had changed";
      }
    }
    if (result.state == sweep::State::kCrashed) {
      j.finding = Finding::kInternal;
      j.reason = "sweep: " + result.reason;
    }
    return {{changed, j}};
  }

  fs::path directory;
  std::unique_ptr<CacheFileStore> file;
  std::unique_ptr<MemoryStore> memory;
};

Session::Session() : impl_(std::make_unique<Impl>()) {}
Session::~Session() = default;

std::vector<Judged> Session::run(const std::string& family, std::uint64_t seed, std::uint64_t index,
                                 bool forked, bool bare) {
  JudgeOptions options;
  options.forked = forked;
  options.bare = bare;
  options.seed = seed + index * 7919;
  Random random(family, seed, index);
  if (family == "cache") return impl_->cached(random, options);
  if (family == "resume") return impl_->resumed(random, options);
  Judged judged{makeEdited(makerOf(family), random), {}};
  judged.judgement = judge(judged.made, options);
  return {std::move(judged)};
}

Case shrinkFinding(const Case& made, const Judgement& judgement, std::uint64_t seed,
                   double seconds) {
  JudgeOptions options;
  options.seed = seed;
  const auto stays = [&](const Case& smaller) {
    const Judgement j = judge(smaller, options);
    return j.finding == judgement.finding && j.truth == judgement.truth &&
           j.structural == judgement.structural;
  };
  return stays(made) ? shrink(made, stays, seconds) : made;
}

}  // namespace shardproof::adversary
