// SPDX-License-Identifier: Apache-2.0
// What was found, as a sentence, and a fix, as what would have to be.
#pragma once

#include <string>
#include <vector>

#include "diagnose/search.h"
#include "shardproof/report.h"

namespace shardproof::diagnose {

NodePlace placeOf(const Problem& full, NodeRef node);
// "/programs/0/nodes/3 (linear at mlp.py:12)"
std::string nodeText(const Problem& full, NodeRef node);

// "an all_reduce over tp of `y.part`"; `edit` in the full plan.
std::string fixText(const Problem& full, const Edit& edit);
// What is wrong, if the edit is right: "an all_reduce over tp is missing after ...".
std::string faultText(const Problem& full, const Edit& edit);

struct Described {
  std::string kind, sentence;
};
// `failing` and what its claims were found to be; `edit`, in the full plan, may be absent.
Described describe(const Image& image, const Search::Failing& failing, const Finder& finder,
                   const Match& match, const std::vector<std::int64_t>& ranks, const Edit* edit);

}  // namespace shardproof::diagnose
