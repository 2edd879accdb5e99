// SPDX-License-Identifier: Apache-2.0
// One plan of a family: made, edited, judged; and how a finding of it is shown again and made
// small.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "adversary/judge.h"

namespace shardproof::adversary {

struct FamilyInfo {
  const char* name;
  const char* what;
  int share;  // of the plans, in per mille
};
const std::vector<FamilyInfo>& families();

struct Judged {
  Case made;
  Judgement judgement;
};

// What stays between the plans of one process: the stores that the family `cache` shares, a
// directory for `resume`.
class Session {
 public:
  Session();
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The plans that belong to this index, one for most families. The same ones for the same
  // arguments, but for what a store of many plans remembers. `forked`: with worker processes that
  // are killed in time, for plans that take too long without. `bare`: JudgeOptions::bare.
  std::vector<Judged> run(const std::string& family, std::uint64_t seed, std::uint64_t index,
                          bool forked = false, bool bare = false);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The case alone, edited as `run` edits it: of the families that make one plan for an index.
Case makeCase(const std::string& family, std::uint64_t seed, std::uint64_t index);

// A smaller case with the same finding.
Case shrinkFinding(const Case& made, const Judgement& judgement, std::uint64_t seed,
                   double seconds);

}  // namespace shardproof::adversary
