// SPDX-License-Identifier: Apache-2.0
#include "mutate/mutate.h"

#include <algorithm>
#include <random>

#include "mutate/bug_lists.h"
#include "util/similar.h"

namespace shardproof::mutate {

const std::vector<Bug>& bugs() {
  static const std::vector<Bug> all = [] {
    std::vector<Bug> list;
    for (const auto& part : {communicationBugs(), pipelineBugs(), operatorBugs(), gradientBugs(),
                             expertBugs(), optimizerBugs()})
      list.insert(list.end(), part.begin(), part.end());
    return list;
  }();
  return all;
}

const Bug& findBug(const std::string& name) {
  for (const Bug& bug : bugs())
    if (bug.name == name) return bug;
  std::vector<std::string> known;
  for (const Bug& bug : bugs()) known.emplace_back(bug.name);
  const std::string meant = didYouMean(name, known);
  throw UnknownBug("there is no bug '" + name + "'" +
                   (meant.empty() ? "; --list names them" : meant));
}

std::vector<NodeRef> sitesOf(const Bug& bug, const PlanGraph& graph, const std::string& file) {
  return asPlan(file, [&] { return bug.sites(graph); });
}

Mutation mutate(Json& plan, const std::string& file, const Bug& bug, const Choice& choice) {
  const Json before = plan;
  const PlanGraph graph(before, file);
  const std::vector<NodeRef> sites = sitesOf(bug, graph, file);
  if (sites.empty())
    throw MutationError("bug '" + std::string(bug.name) +
                        "' does not apply anywhere in this plan: " + std::string(bug.does));
  Mutation made{.site = sites.front(), .sites = sites.size()};
  if (!choice.at.empty()) {
    const auto isThere = [&](NodeRef site) {
      const std::vector<NodeRef> copies = graph.copies(site);
      return std::any_of(copies.begin(), copies.end(),
                         [&](NodeRef r) { return pointerTo(r) == choice.at; });
    };
    const auto it = std::find_if(sites.begin(), sites.end(), isThere);
    if (it == sites.end())
      throw MutationError("bug '" + std::string(bug.name) + "' does not apply at " + choice.at +
                          "; the first of " + std::to_string(sites.size()) +
                          (sites.size() == 1 ? " place is " : " places is ") +
                          pointerTo(sites.front()));
    made.site = *it;
  } else if (choice.seed) {
    made.site = sites[std::mt19937_64(*choice.seed)() % sites.size()];
  }
  Editor editor(plan);
  asPlan(file, [&] { bug.apply(graph, made.site, plan, editor); });
  made.touched = editor.touched();
  return made;
}

}  // namespace shardproof::mutate
