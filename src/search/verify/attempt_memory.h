// SPDX-License-Identifier: Apache-2.0
// What the attempts of one run know of stages, by canonical form and checker: the proofs that were
// found, and how long the others were tried. A later attempt makes no proof again, and does not
// try again what would end as before.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "cache/proof_store.h"
#include "check/checker.h"

namespace shardproof {

class AttemptMemory {
 public:
  MemoryStore& proofs() { return proofs_; }

  // `seconds`, `megabytes`: what the proof of this stage could have had, and ended undecided.
  void rememberUndecided(const std::string& form, double seconds, std::size_t megabytes,
                         std::string reason) {
    Undecided& known = undecided_[form];
    if (seconds < known.seconds || megabytes < known.megabytes) return;
    known = {seconds, megabytes, std::move(reason)};
  }
  // Why the stage would stay undecided with so much.
  const std::string* undecidedWith(const std::string& form, double seconds,
                                   std::size_t megabytes) const {
    const auto it = undecided_.find(form);
    if (it == undecided_.end()) return nullptr;
    const Undecided& known = it->second;
    return seconds <= known.seconds && megabytes <= known.megabytes ? &known.reason : nullptr;
  }

 private:
  struct Undecided {
    double seconds = 0;
    std::size_t megabytes = 0;
    std::string reason;
  };
  MemoryStore proofs_;
  std::unordered_map<std::string, Undecided> undecided_;
};

}  // namespace shardproof
