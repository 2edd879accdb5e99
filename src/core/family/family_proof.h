// SPDX-License-Identifier: Apache-2.0
// Proofs of a stage for all sizes at once (docs/soundness.md, "Any size").
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "family/stage_family.h"
#include "prover/stage_prover.h"

namespace shardproof {

// Only proveForAllSizes() makes one; fromBytes() reads one that a worker process has sent.
class FamilyProof {
 public:
  Method method() const { return method_; }
  // The stage is proved for this size and all above, up to kLargestSize.
  std::int64_t least() const { return least_; }
  bool isOf(const StageFamily& family) const { return family_ == family.fingerprint(); }

  std::string bytes() const;
  // Throws std::invalid_argument where the bytes are not ones that bytes() has written.
  static FamilyProof fromBytes(const std::string& bytes);

 private:
  FamilyProof() = default;
  friend FamilyProof proveForAllSizes(
      const StageFamily&, const StageProver::Limits&,
      const std::function<std::unique_ptr<ValueWitness>(const Stage&)>&);
  Method method_ = Method::kNone;
  std::int64_t least_ = 1;
  std::uint64_t family_ = 0;
};

// The largest size that a family is proved for.
constexpr std::int64_t kLargestSize = SizeSymbol::kPrimes[1];

using WitnessMaker = std::function<std::unique_ptr<ValueWitness>(const Stage&)>;

// Throws Unsupported where there is no such proof, with the reason; NeedsRefinement as the proof of
// a stage does.
FamilyProof proveForAllSizes(const StageFamily& family, const StageProver::Limits& limits,
                             const WitnessMaker& witness);

}  // namespace shardproof
