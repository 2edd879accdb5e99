// SPDX-License-Identifier: Apache-2.0
// Plans of one family, which differ in one size, proved for all sizes at once: what is tried. What
// counts as proved is for FamilyChain (src/core/family/) to say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "family/family_chain.h"
#include "shardproof/budget.h"
#include "shardproof/report.h"
#include "shardproof/verify.h"

namespace shardproof {

struct FamilyReport {
  // kUndecided, with the reason, where there is no proof: the plans may be right or wrong.
  Verdict verdict = Verdict::kUndecided;
  std::string reason;
  // It holds for every multiple of `unit` from `least` to `most`.
  std::int64_t unit = 1, least = 0, most = 0;
  std::size_t outputs = 0, outputsProved = 0, stages = 0;
  std::size_t kinds = 0, withSize = 0;  // different stages, and those that depend on the size
  struct Open {
    std::string tensor, reason;
  };
  std::vector<Open> open;  // stages that are not proved for all sizes, the earliest
  std::size_t openStages = 0;
  bool notWhole = false;                   // NotWhole: a larger unit may do
  std::vector<UnmetCondition> conditions;  // for kConditional
  std::vector<std::string> approved;  // tensors of approved differences, which are taken as given
};

FamilyReport proveFamily(FamilyChain& chain, const VerifyOptions& options, const Budget& budget);

}  // namespace shardproof
