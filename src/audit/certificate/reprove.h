// SPDX-License-Identifier: Apache-2.0
// Proves stored stages again, from what the cache holds of them: the canonical form, which is all
// that a proof may depend on (stages/canonical_reader.h). No plan is needed, so a cache can be
// checked where it is kept.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/cache_file.h"
#include "check/checker.h"
#include "worker/pool.h"

namespace shardproof {

struct ReproveOptions {
  std::size_t sample = 100;  // rows, drawn without replacement
  std::uint64_t seed = 0;
  PoolOptions pool;
};

struct ReproveResult {
  std::size_t rows = 0;  // of this version: those that may be used
  std::size_t drawn = 0, held = 0;
  std::size_t removed =
      0;  // that were to be proved again, but another process has removed them meanwhile
  struct Failure {
    std::int64_t row;
    bool limits;  // not proved again for want of time or memory, which says nothing about the proof
    std::string reason;
  };
  std::vector<Failure> failures;
  bool anyWrong() const;  // a stored proof that does not hold
};

// Why the stage of a canonical form is not proved again; empty where it is. With `proof` it must be
// by that method, and with the reduced shapes that it lists.
struct NotProvedAgain {
  std::string why;
  bool undecided =
      false;  // neither proved nor refuted: another checker, or more time, may prove it
};
NotProvedAgain whyNotProvedAgain(const std::string& form, const std::optional<StoredProof>& proof,
                                 const CheckOptions& check);

// `count` of the ids, ascending: another seed draws others, the same one the same.
std::vector<std::int64_t> drawSample(std::vector<std::int64_t> ids, std::size_t count,
                                     std::uint64_t seed);

// Throws CacheError.
ReproveResult reprove(CacheFile& file, const ReproveOptions& options);
// The rows with these numbers; the result's `rows` is not set.
ReproveResult reprove(CacheFile& file, const std::vector<std::int64_t>& drawn,
                      const PoolOptions& pool);

}  // namespace shardproof
