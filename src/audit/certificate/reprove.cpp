// SPDX-License-Identifier: Apache-2.0
#include "certificate/reprove.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "shape_reduction/reduction.h"
#include "stages/canonical_reader.h"

namespace shardproof {

namespace {

constexpr std::size_t kBatch = 256;  // rows in memory at once

}  // namespace

// The first `count` of a random order. Not std::sample or std::shuffle: what these draw from a seed
// differs between libraries.
std::vector<std::int64_t> drawSample(std::vector<std::int64_t> ids, std::size_t count,
                                     std::uint64_t seed) {
  std::mt19937_64 random(seed);
  count = std::min(count, ids.size());
  for (std::size_t i = 0; i < count; ++i) std::swap(ids[i], ids[i + random() % (ids.size() - i)]);
  ids.resize(count);
  std::sort(ids.begin(), ids.end());
  return ids;
}

NotProvedAgain whyNotProvedAgain(const std::string& form, const std::optional<StoredProof>& proof,
                                 const CheckOptions& check) {
  try {
    const Stage stage = readCanonicalForm(form);
    if (canonicalForm(stage) != form) return {"its stage is not the one that its form describes"};
    const StageOutcome outcome = checkStage(stage, check);
    if (outcome.verdict() == StageVerdict::kRefuted) {
      return {"its stage is refuted" + (outcome.counterexample
                                            ? ": " + outcome.counterexample->element + " differs"
                                            : std::string())};
    }
    if (outcome.needsRefinement) return {"its stage is not proved: " + outcome.reason};
    if (outcome.verdict() != StageVerdict::kProved)
      return {"its stage is not proved" + (outcome.reason.empty() ? "" : ": " + outcome.reason),
              true};
    if (!proof) return {};
    // Other names may have been listed, but what is listed for both must be the same.
    const StoredProof again = storedProof(stage, outcome.method(), outcome.reducedShapes);
    if (again.method != proof->method)
      return {std::string("it is proved by ") + toString(again.method) + ", not by " +
              toString(proof->method)};
    for (const auto& stored : proof->shapes) {
      const auto same = std::find_if(again.shapes.begin(), again.shapes.end(),
                                     [&](const auto& s) { return s.tensor == stored.tensor; });
      if (same != again.shapes.end() && same->shape != stored.shape)
        return {"it is proved with other reduced shapes"};
    }
    return {};
  } catch (const DamagedForm& error) {
    return {std::string("its form cannot be read: ") + error.what()};
  } catch (const std::bad_alloc&) {
    throw;  // the pool's to tell
  } catch (const std::exception& error) {
    return {std::string("its stage cannot be executed: ") + error.what()};
  }
}

bool ReproveResult::anyWrong() const {
  return std::any_of(failures.begin(), failures.end(), [](const Failure& f) { return !f.limits; });
}

ReproveResult reprove(CacheFile& file, const ReproveOptions& options) {
  const std::vector<std::int64_t> all = file.ids(proofVersion());
  ReproveResult result = reprove(file, drawSample(all, options.sample, options.seed), options.pool);
  result.rows = all.size();
  return result;
}

ReproveResult reprove(CacheFile& file, const std::vector<std::int64_t>& drawn,
                      const PoolOptions& pool) {
  ReproveResult result;
  for (std::size_t start = 0; start < drawn.size() && !pool.cancelled(); start += kBatch) {
    std::vector<CacheRow> rows;
    for (std::size_t i = start; i < std::min(start + kBatch, drawn.size()); ++i) {
      // Others may prune the cache meanwhile, and give the numbers of removed rows to new ones.
      auto row = file.row(drawn[i]);
      if (row && (!row->sound || row->version == proofVersion())) {
        rows.push_back(std::move(*row));
      } else {
        ++result.removed;
      }
    }
    std::vector<std::size_t> order(rows.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return rows[a].form.size() > rows[b].form.size();
    });
    std::vector<std::string> wrong(rows.size());
    std::vector<char> limits(rows.size(), 0);
    runPool(
        order,
        [&](std::size_t i) {
          if (!rows[i].sound) return std::string("its content is not what was written");
          CheckOptions check;
          check.checker = rows[i].checker;
          check.timeoutSeconds = pool.timeoutSeconds;
          check.memoryMegabytes = pool.memoryMegabytes;
          return whyNotProvedAgain(rows[i].form, rows[i].proof, check).why;
        },
        [&](std::size_t i, const TaskResult& task) {
          ++result.drawn;
          limits[i] = task.outcome != TaskOutcome::kDone && task.outcome != TaskOutcome::kCrashed;
          wrong[i] = task.outcome == TaskOutcome::kDone ? task.payload : task.reason;
          if (task.outcome != TaskOutcome::kDone && wrong[i].empty()) wrong[i] = "not decided";
          result.held += wrong[i].empty();
        },
        pool);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!wrong[i].empty()) result.failures.push_back({rows[i].id, limits[i] != 0, wrong[i]});
    }
  }
  return result;
}

}  // namespace shardproof
