// SPDX-License-Identifier: Apache-2.0
#include "shardproof/infer.h"

#include <chrono>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "executor/interpret.h"
#include "executor/programs.h"
#include "executor/run.h"
#include "infer/choose.h"
#include "infer/lift.h"
#include "infer/relations.h"
#include "ir/attribute_steps.h"
#include "ir/clone.h"
#include "ir/coordinates.h"
#include "ir/part_nodes.h"
#include "ops/attributes.h"
#include "shardproof/error.h"
#include "util/stopwatch.h"

namespace shardproof {

namespace {

using Clock = std::chrono::steady_clock;

// A plan that costs more is executed at smaller sizes.
constexpr executor::Cost kOfFull{.bytes = 1e6, .flops = 1e6};
constexpr double kMostElements = 4e8;
// Rows of a table in the image: of fewer there are more tokens alike, and sequences that look like
// one another.
constexpr std::int64_t kLookedUp = 32;
// Of the plain executor in long doubles on one processor, about. Within an operator it looks at no
// clock, so that what takes too long must not begin.
constexpr double kOperationsPerSecond = 4e8;
// Whether cut points hold is asked of one draw.
constexpr std::uint64_t kSeedForCutPoints = 0xc07;

// The image that is executed; without a problem the plan itself.
Shrunk imageOf(const Problem& problem, double seconds) {
  if (executor::costsAtMost(problem, kOfFull)) return {};
  ShrinkOptions options;
  options.seconds = seconds;
  options.maxElements = kMostElements;
  options.distinctPositions = 2;
  options.lookedUpPositions = kLookedUp;
  options.distinct = false;  // places are found by values
  options.windowsAlike = true;
  return shrinkProblem(problem, options);
}

// By lineage of cut points, or of inputs and outputs.
std::set<NameId> mentioned(const Problem& problem, bool byCutPoints) {
  std::set<NameId> names;
  const auto counts = [&](const LineageEntry& entry) {
    const bool between = entry.role == Role::kCutPoint || entry.role == Role::kAssumed;
    return between == byCutPoints;
  };
  for (const LineageEntry& entry : problem.plan.lineage) {
    if (!counts(entry)) continue;
    for (const Shard& shard : entry.shards)
      for (const Part& part : shard.parts) names.insert(part.local);
  }
  for (const PlacedPart& placed : problem.plan.placed)
    if (counts(problem.plan.lineage[placed.entry])) names.insert(placed.local);
  return names;
}

// Whether an entry speaks of the local tensor, as the file calls it, on a rank of the part.
bool speaksOf(const Problem& problem, EntryId entry, const Part& other) {
  const LineageEntry& own = problem.plan.lineage[entry];
  for (std::uint32_t s = 0; s < own.shards.size(); ++s) {
    for (std::uint32_t p = 0; p < own.shards[s].parts.size(); ++p) {
      const Part& part = own.shards[s].parts[p];
      NameId local = part.local;
      for (const PlacedPart& placed : problem.plan.placed)
        if (placed.entry == entry && placed.shard == s && placed.part == p) local = placed.local;
      if (local == other.local && ir::mayMeet(part, other)) return true;
    }
  }
  return false;
}

// Before the chosen entries are added to `problem`.
std::vector<Inferred::Replaced> replacedBy(const Problem& problem, const std::set<EntryId>& wrong,
                                           const infer::Chosen& chosen) {
  const std::size_t first = problem.plan.lineage.size() - problem.lineageAdded;
  std::vector<Inferred::Replaced> all;
  for (const EntryId entry : wrong) {
    Inferred::Replaced one{entry, {}};
    for (std::size_t i = 0; i < chosen.entries.size(); ++i)
      if (speaksOf(problem, entry, chosen.entries[i].shards[0].parts[0]))
        one.by.emplace_back(first + i);
    all.push_back(std::move(one));
  }
  return all;
}

executor::Limits limitsOf(double seconds, std::size_t memoryMegabytes,
                          const std::atomic<bool>* cancel) {
  executor::Limits limits;
  limits.maxBytes = static_cast<std::int64_t>(memoryMegabytes) << 20;
  const auto most =
      std::chrono::duration_cast<ProcessorClock::duration>(std::chrono::duration<double>(seconds));
  limits.end = latest(most);
  limits.processorEnd = ProcessorClock::now() + most;
  limits.cancel = cancel;
  return limits;
}

}  // namespace

std::vector<EntryId> contradictedCutPoints(const Problem& given, double seconds,
                                           std::size_t memoryMegabytes) {
  std::vector<EntryId> wrong;
  try {
    const ir::FixedAttributes fixed(given);
    const Shrunk image = imageOf(fixed.problem(), seconds / 2);
    const Problem& executed = image.problem ? *image.problem : fixed.problem();
    if (executor::cost(executed).flops > seconds * kOperationsPerSecond) return {};
    executor::Draw draw;
    draw.seed = kSeedForCutPoints;
    const auto result =
        executor::run<long double>(executor::Setup(executed, executor::Options()), draw,
                                   infer::kDiffering, limitsOf(seconds, memoryMegabytes, nullptr));
    for (const auto& [index, comparison] : result.entries) {
      if (!comparison.first) continue;
      const EntryId entry(index);
      if (executed.plan.lineage[entry].role == Role::kOutput) return {};
      wrong.push_back(image.problem ? image.entryOf[entry] : entry);
    }
  } catch (const std::runtime_error&) {  // too large, too long, or it cannot be executed
    return {};
  }
  return wrong;
}

double lineageDensity(const Problem& problem) {
  const std::set<NameId> cutPoints = mentioned(problem, true), ends = mentioned(problem, false);
  std::size_t all = 0, known = 0;
  for (const Program& program : problem.plan.programs) {
    for (const Tensor& tensor : program.graph.tensors) {
      if (tensor.kind != TensorKind::kProduced || tensor.element == ElementKind::kComplex ||
          tensor.added || tensor.kindInFile != TensorKind::kProduced || ends.contains(tensor.name))
        continue;
      ++all;
      known += cutPoints.contains(tensor.name);
    }
  }
  return all == 0 ? 1 : static_cast<double>(known) / static_cast<double>(all);
}

Inferred inferLineage(const Problem& given, const InferOptions& options) {
  const auto start = Clock::now();
  Inferred result;
  try {
    const ir::FixedAttributes fixed(given);
    const Problem& problem = fixed.problem();
    const Shrunk image = imageOf(problem, options.seconds / 2);
    const executor::Limits limits =
        limitsOf(options.seconds, options.memoryMegabytes, options.cancel);
    const Problem& executed = image.problem ? *image.problem : problem;
    const double operations = executor::cost(executed).flops;
    if (operations > options.seconds * kOperationsPerSecond) {
      std::ostringstream text;
      text << "executing even a small image of the plan takes " << operations
           << " operations, more than in " << options.seconds << " s";
      throw Unsupported(text.str());
    }
    const infer::Relations found = infer::findRelations(
        executed, limits, options.parts, image.problem && options.parts == InferParts::kNone);
    const infer::Lift lift(problem, image, found);
    result.looked = found.looked;
    for (const EntryId e : found.differing)
      result.doubtful.push_back(image.problem ? image.entryOf[e] : e);
    std::set<EntryId> wrong;
    for (const EntryId e : found.wrong) {
      const EntryId here = image.problem ? image.entryOf[e] : e;
      if (!problem.plan.lineage[here].inferred) wrong.insert(here);
    }
    const std::set<EntryId> doubtful(result.doubtful.begin(), result.doubtful.end());
    std::set<EntryId> ignored = wrong;
    if (!options.trustsCutPoints)
      for (const EntryId e : firstIds<EntryId>(problem.plan.lineage.size()))
        if (problem.plan.lineage[e].role == Role::kCutPoint && !problem.plan.lineage[e].inferred)
          ignored.insert(e);
    infer::Chosen chosen = infer::chosenLineage(problem, lift, found, ignored, doubtful);
    if (!chosen.entries.empty()) {
      const std::size_t count = chosen.entries.size();
      std::unique_ptr<Problem> more = cloneProblem(given);
      result.replaced = replacedBy(*more, wrong, chosen);
      addInferred(*more, std::move(chosen.entries), std::move(chosen.placed));
      result.problem = std::move(more);
      result.count = count;
    } else {
      for (const EntryId entry : wrong) result.replaced.push_back({entry, {}});
      result.reason = "no local tensor is a part of one of the model";
    }
    if (found.stopped) {
      std::ostringstream text;
      text << "out of time after " << options.seconds << " s";
      result.reason = text.str();
    }
  } catch (const Unsupported& error) {
    result.reason = error.what();
  } catch (const InputError& error) {
    result.reason = error.what();
  } catch (const executor::CannotRun& error) {
    result.reason = error.what();
  } catch (const executor::Stopped& error) {
    result.reason = error.what();
  } catch (const executor::TooLarge& error) {
    result.reason = error.what();
  }
  result.seconds = secondsSince(start);
  return result;
}

}  // namespace shardproof
