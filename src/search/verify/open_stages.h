// SPDX-License-Identifier: Apache-2.0
// Proofs on other machines. A stage's canonical form is all that its proof may depend on
// (docs/soundness.md, "The proof cache"), so a list of forms is work for a machine that has neither
// the plan nor the model. What comes back is a proof cache, which a run on the plan is given: it
// cuts the plan itself and computes each key itself, so that a form that is lost, repeated or
// proved twice costs time at most, and a wrong plan stays wrong.
#pragma once

#include <atomic>
#include <cstddef>
#include <istream>
#include <set>
#include <string>
#include <vector>

#include "cache/proof_store.h"
#include "shardproof/verify.h"
#include "worker/pool.h"

namespace shardproof {

// A store without proofs, but for those behind it, that lists what is looked up in vain. The run
// that looks up is cancelled, so it proves nothing: stages that only a later round would cut are
// not listed.
class OpenStages : public ProofStore {
 public:
  OpenStages(ProofStore* behind, std::atomic<bool>& cancel) : behind_(behind), cancel_(&cancel) {}
  std::optional<StoredProof> find(const std::string& form, Checker checker) override;
  void add(const std::string& form, Checker checker, const StoredProof& proof) override;
  void flush() override;
  const std::set<std::string>& forms() const { return forms_; }

 private:
  ProofStore* behind_;
  std::atomic<bool>* cancel_;
  std::set<std::string> forms_;
};

// A line for the format, one for proofVersion(), one for the checker; then of each form a line with
// its length in bytes, the form, and a line's end.
std::string openStagesText(const std::set<std::string>& forms, Checker checker);

struct OpenStagesFile {
  Checker checker = Checker::kAuto;
  std::vector<std::string> forms;
};
// `file`: for messages. Throws InputError where this is no such list, or one of another version.
OpenStagesFile readOpenStages(std::istream& in, const std::string& file);

struct ProveOpenResult {
  std::size_t proved = 0, known = 0, notProved = 0;
};
// Proves each in a process of its own and leaves the proofs in `store`, which may have some
// already.
ProveOpenResult proveOpenStages(const OpenStagesFile& open, ProofStore& store,
                                const PoolOptions& pool);

}  // namespace shardproof
