// SPDX-License-Identifier: Apache-2.0
// Puts a bug that a framework really had into a plan. A plan document goes in and comes out
// changed; what the bug is put into is a *site*, a node that the bug's list of sites names. Sites
// where the bug would change nothing are not listed.
//
//   document      the plan as JSON              plan_graph   what can be known of it
//   editor        changes                       *_bugs       the bugs, by what they are about
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "mutate/document.h"
#include "mutate/editor.h"
#include "mutate/plan_graph.h"

namespace shardproof::mutate {

// The bug does not apply: to the plan, or at the place.
class MutationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// There is no such bug.
class UnknownBug : public MutationError {
 public:
  using MutationError::MutationError;
};

struct Bug {
  std::string_view name;
  std::string_view does;    // one line
  std::string_view source;  // whose it was
  // Every node where it applies, one for each line of the script that the plan comes from.
  std::vector<NodeRef> (*sites)(const PlanGraph&);
  // `graph` is that of the plan before the edit.
  void (*apply)(const PlanGraph& graph, NodeRef site, Json& plan, Editor& editor);
};

const std::vector<Bug>& bugs();
const Bug& findBug(const std::string& name);  // throws MutationError

// Every node of `graph` where the bug applies. Throws InputError when the plan turns out to be
// none.
std::vector<NodeRef> sitesOf(const Bug& bug, const PlanGraph& graph, const std::string& file);

struct Mutation {
  NodeRef site = {};                  // in the plan as it was
  std::size_t sites = 0;              // how many there were to choose from
  std::vector<NodeRef> touched = {};  // in the plan as it is now
};

struct Choice {
  std::string at = {};                     // a JSON pointer
  std::optional<std::uint64_t> seed = {};  // neither: the first site
};

// Throws MutationError, and InputError when the document is no plan.
Mutation mutate(Json& plan, const std::string& file, const Bug& bug, const Choice& choice);

}  // namespace shardproof::mutate
