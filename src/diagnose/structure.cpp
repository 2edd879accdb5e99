#include "diagnose/structure.h"

#include <algorithm>
#include <map>

namespace shardproof::diagnose {

// Defects of one kind at one node are one cause: they differ in ranks and microbatches.
Causes structuralCauses(const Problem&, const Report& report, const std::string&) {
  Causes result;
  std::map<std::pair<DefectKind, std::string>, std::size_t> known;
  for (std::size_t d = 0; d < report.defects.size(); ++d) {
    const Defect& defect = report.defects[d];
    const std::string place = defect.nodes.empty() ? "" : defect.nodes.front().pointer;
    const auto [it, added] = known.emplace(std::pair(defect.kind, place), result.causes.size());
    if (added) {
      Cause cause;
      cause.kind = toString(defect.kind);
      cause.sentence = defect.message;
      cause.nodes = defect.nodes;
      result.causes.push_back(std::move(cause));
    }
    Cause& cause = result.causes[it->second];
    cause.defects.push_back(d);
    cause.ranks.insert(cause.ranks.end(), defect.ranks.begin(), defect.ranks.end());
    if (defect.microbatch) cause.microbatches.push_back(*defect.microbatch);
  }
  return result;
}

}  // namespace shardproof::diagnose
