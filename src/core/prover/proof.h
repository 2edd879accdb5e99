// SPDX-License-Identifier: Apache-2.0
// A proof that the claims of one stage hold, for all values of what the stage starts from.
//
// Only StageProver makes one, and ProofStore, which has kept one; deserialize() reads one that a
// worker process has sent. No other code can: search, refutation and reports hand proofs on, and
// ProofChain (chain/proof_chain.h) counts nothing else.
// A proof names the stage by a fingerprint of its canonical form, so that one that is handed on for
// another stage is not believed. The fingerprint guards against mistakes of this program, not
// against a forger.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shardproof/report.h"

namespace shardproof {

struct StageOutcome;

// Whether a method makes proofs.
constexpr bool proves(Method method) {
  return method == Method::kNormalForm || method == Method::kPolynomial ||
         method == Method::kSolver;
}

class Proof {
 public:
  Method method() const { return method_; }
  bool isOf(std::string_view form) const { return form_ == fingerprint(form); }

  // A worker process sends its proof so.
  std::string bytes() const;

 private:
  // Throws std::invalid_argument where the bytes are not ones that bytes() has written.
  static Proof fromBytes(std::string_view bytes);
  friend StageOutcome deserialize(const std::string& text);  // refute/stage_outcome.h
  friend class StageProver;
  friend class ProofStore;
  Proof(Method method, std::string_view form) : method_(method), form_(fingerprint(form)) {}
  Proof(Method method, std::uint64_t form) : method_(method), form_(form) {}
  static std::uint64_t fingerprint(std::string_view form);

  Method method_;
  std::uint64_t form_;
};

}  // namespace shardproof
