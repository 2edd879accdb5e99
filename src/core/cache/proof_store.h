// SPDX-License-Identifier: Apache-2.0
// Where proofs of stages are kept: between the plans of one run in memory, between runs in a file
// (cache_file.h). A proof is found by the stage's whole canonical form and by the checker that
// was asked for; a store holds proofs only, never a refutation or a time-out. Why a proof that is
// found may be believed: docs/soundness.md, "The proof cache".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "prover/proof.h"
#include "prover/stage_prover.h"
#include "shardproof/report.h"
#include "shardproof/verify.h"
#include "stages/stage.h"

namespace shardproof {

// What is told about a proof. Tensors are named by their places in the stage: their names are
// others in another plan.
struct StoredProof {
  struct Reduced {
    std::int32_t tensor = 0;
    Shape shape;
    friend bool operator==(const Reduced&, const Reduced&) = default;
  };
  Method method = Method::kNone;
  std::vector<Reduced> shapes;
  friend bool operator==(const StoredProof&, const StoredProof&) = default;
};

// Is this a proof that a run with this checker may have made? Z3's are the only ones that
// `--checker z3` makes.
bool isProof(Method method, Checker checker);

// What is kept of a proof of `stage`; `shapes`: shownShapes() of it.
StoredProof storedProof(const Stage& stage, Method method, const std::vector<ReducedShape>& shapes);

class ProofStore {
 public:
  virtual ~ProofStore() = default;
  struct Recalled {
    Proof proof;
    std::vector<ReducedShape> reducedShapes;  // with the names of `stage`
  };
  // The stored proof of `form`, which is the form of `stage`.
  std::optional<Recalled> recall(const std::string& form, Checker checker, const Stage& stage);
  // Keeps the proof. Throws std::logic_error where it is not one of `form`.
  void remember(const std::string& form, Checker checker, const Stage& stage, const Proof& proof,
                const std::vector<ReducedShape>& shapes);

  // None of these throws, whatever happens to the store: it may lose proofs.
  virtual std::optional<StoredProof> find(const std::string& form, Checker checker) = 0;
  virtual void add(const std::string& form, Checker checker, const StoredProof& proof) = 0;
  virtual void flush() {}  // everything that was added is in its place, or given up
};

// For the plans of one run. What it does not have it asks the store behind it, if there is one,
// which gets all proofs as well.
class MemoryStore : public ProofStore {
 public:
  explicit MemoryStore(ProofStore* behind = nullptr) : behind_(behind) {}
  std::optional<StoredProof> find(const std::string& form, Checker checker) override;
  void add(const std::string& form, Checker checker, const StoredProof& proof) override;
  void flush() override;

 private:
  std::map<std::pair<Checker, std::string>, StoredProof> proofs_;
  ProofStore* behind_;
};

}  // namespace shardproof
