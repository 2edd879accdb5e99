// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts: routing, shared and routed experts, and the loss that balances them.
//
// Each rank routes all tokens of its microbatch: it applies those of the chosen experts that it
// holds, and the partial results are added up. No token is dropped.
#pragma once

#include <string>

#include "generate/blocks.h"

namespace shardproof::generate {

class ExpertBlocks : protected Blocks {
 public:
  using Blocks::Blocks;

 protected:
  // Shared and routed experts of x [batch, sequence, dim]; the result is partial over tp. Every tp
  // rank routes all tokens, so the router's gradient is whole on each; that of the weights is added
  // up over tp before it.
  ValueId mixture(ValueId x, const std::string& name);

 private:
  // Of all tokens of a rank: each one's experts and their weights; `chosen` is 1 where a slot has
  // an expert.
  struct Routing {
    ValueId scores = -1, indices = -1, chosen = -1, weights = -1;
  };

  ValueId flattened(ValueId x, const std::string& name);
  Routing route(ValueId x, const std::string& name);
  ValueId choice(ValueId tokens, ValueId weight, ValueId scores, const std::string& name);
  // Divided by their sum over the last of two dimensions.
  ValueId shares(ValueId x, const std::string& name);
  ValueId experts(ValueId x, ValueId indices, ValueId weights, const std::string& name);
  ValueId gatedExperts(ValueId x, ValueId indices, ValueId weights, const std::string& name);
  ValueId clampedExperts(ValueId x, ValueId indices, ValueId weights, const std::string& name);
  // Of what the experts that a rank holds make of x: a part of each token's result.
  Layout ofHeldExperts(ValueId x) const;
  void balance(const Routing& routing, const std::string& own);

  // Experts that one coordinate of tp and of ep is further on.
  std::int64_t perEp() const { return o_.experts / o_.epRanks(); }
  std::int64_t perTp() const { return o_.expertTp == 1 ? perEp() / o_.tp : 0; }
  std::int64_t held() const { return o_.expertTp == 1 ? perTp() : perEp(); }
};

}  // namespace shardproof::generate
