// SPDX-License-Identifier: Apache-2.0
// Factors and lines. A view, reshape or flatten regroups dimensions row-major; two dimensions that
// one of them relates are products of common factors where there is a chain of bounds, each a
// multiple of the one before, that both have. Bounds are added to both sides until nothing changes;
// a dimension for which there is no such chain is flat: every position is kept. What runs together
// then is one line.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include "ops/collectives.h"
#include "ops/registry.h"
#include "shape_reduction/dimension_graph.h"
#include "shape_reduction/reduction.h"
#include "shardproof/error.h"

#include "shape_reduction/dimension_builder.h"

namespace shardproof {

void DimensionGraphBuilder::group() {
  groupOf_.resize(dims_.size());
  std::map<std::int32_t, std::int32_t> ids;
  for (std::size_t d = 0; d < dims_.size(); ++d) {
    const std::int32_t root = dims_.find(static_cast<std::int32_t>(d));
    const auto [it, inserted] = ids.emplace(root, static_cast<std::int32_t>(ids.size()));
    groupOf_[d] = it->second;
    if (inserted) {
      graph_.groupSize.push_back(sizes_[d]);
      groupFlags_.emplace_back();
    } else if (graph_.groupSize[it->second] != sizes_[d]) {
      throw std::logic_error("dimensions of different sizes were said to be equal");
    }
    groupFlags_[it->second].merge(flags_[d]);
  }
  const auto unique = [](auto& list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  };
  for (RangeRelation& r : ranges_) {
    r.whole = groupOf_[r.whole];
    r.part = groupOf_[r.part];
  }
  for (StretchRelation& r : stretches_) {
    r.a = groupOf_[r.a];
    r.b = groupOf_[r.b];
  }
  for (RegroupRelation& r : regroups_) {
    for (std::int32_t& d : r.a) d = groupOf_[d];
    for (std::int32_t& d : r.b) d = groupOf_[d];
  }
  // A sum of indices is no index that runs with its operands: the rows that it may name are told
  // apart.
  for (const std::int32_t v : summedValues_) {
    for (const RangeRelation& r : ranges_) {
      if (r.whole == groupOf_[v]) groupFlags_[r.part].keep = true;
    }
  }
  unique(ranges_);
  unique(stretches_);
  unique(regroups_);
  for (std::size_t t = 0; t < dimVars_.size(); ++t) {
    std::vector<std::int32_t> groups;
    for (const std::int32_t d : dimVars_[t]) groups.push_back(groupOf_[d]);
    graph_.dimOfTensor.push_back(std::move(groups));
    graph_.valuesOfTensor.push_back(valueVars_[t] < 0 ? -1 : groupOf_[valueVars_[t]]);
  }
}

void DimensionGraphBuilder::makeFlat(std::int32_t g) {
  if (flat_[g]) return;
  flat_[g] = true;
  changed_ = true;
  bounds_[g].clear();
}

void DimensionGraphBuilder::addBound(std::int32_t g, std::int64_t s) {
  const std::int64_t n = graph_.groupSize[g];
  if (flat_[g] || s <= 1 || s >= n) return;
  auto& chain = bounds_[g];
  if (std::find(chain.begin(), chain.end(), s) != chain.end()) return;
  const bool fits = n != kUnboundedValues && n % s == 0 &&
                    std::all_of(chain.begin(), chain.end(),
                                [&](std::int64_t b) { return b % s == 0 || s % b == 0; });
  if (!fits) {
    makeFlat(g);
    return;
  }
  chain.insert(std::upper_bound(chain.begin(), chain.end(), s), s);
  changed_ = true;
}

void DimensionGraphBuilder::closeRegroup(const RegroupRelation& r) {
  const auto anyFlat = [&](const std::vector<std::int32_t>& side) {
    return std::any_of(side.begin(), side.end(), [&](std::int32_t g) { return flat_[g]; });
  };
  const auto allFlat = [&] {
    for (const std::int32_t g : r.a) makeFlat(g);
    for (const std::int32_t g : r.b) makeFlat(g);
  };
  if (anyFlat(r.a) || anyFlat(r.b)) {
    allFlat();
    return;
  }
  std::set<std::int64_t> strides;
  for (const auto* side : {&r.a, &r.b}) {
    std::int64_t stride = 1;
    for (auto it = side->rbegin(); it != side->rend(); ++it) {
      if (stride > 1) strides.insert(stride);
      for (const std::int64_t s : bounds_[*it]) strides.insert(stride * s);
      stride *= graph_.groupSize[*it];
    }
  }
  for (const auto* side : {&r.a, &r.b}) {
    std::int64_t stride = 1;
    for (auto it = side->rbegin(); it != side->rend(); ++it) {
      const std::int64_t end = stride * graph_.groupSize[*it];
      for (const std::int64_t s : strides) {
        if (s <= stride || s >= end) continue;
        if (s % stride != 0 || end % s != 0) {
          allFlat();
          return;
        }
        addBound(*it, s / stride);
      }
      stride = end;
    }
  }
}

void DimensionGraphBuilder::closeStretch(std::int32_t a, std::int64_t loA, std::int32_t b,
                                         std::int64_t loB, std::int64_t length) {
  // Flat dimensions keep every position; a relative must be a single factor for the cuts to carry
  // over, hence flat too when it has more.
  if (flat_[a] && !bounds_[b].empty()) makeFlat(b);
  if (flat_[b] && !bounds_[a].empty()) makeFlat(a);
  for (int side = 0; side < 2; ++side) {
    const auto chain = bounds_[side == 0 ? a : b];
    for (const std::int64_t s : chain) {
      if (s < length) {
        if (loA % s == 0 && loB % s == 0 && length % s == 0) {
          addBound(a, s);
          addBound(b, s);
          if (flat_[a] || flat_[b]) break;
        } else {
          makeFlat(a);
          makeFlat(b);
        }
      } else {
        const std::int64_t lo = side == 0 ? loA : loB;
        if (lo / s != (lo + length - 1) / s) {  // straddles two blocks of the outer factor
          makeFlat(a);
          makeFlat(b);
        }
      }
    }
  }
  if (flat_[a] && !bounds_[b].empty()) makeFlat(b);
  if (flat_[b] && !bounds_[a].empty()) makeFlat(a);
}

void DimensionGraphBuilder::factorize() {
  bounds_.resize(graph_.groupSize.size());
  flat_.assign(graph_.groupSize.size(), false);
  do {
    changed_ = false;
    for (const RegroupRelation& r : regroups_) closeRegroup(r);
    for (const RangeRelation& r : ranges_)
      closeStretch(r.whole, r.lo, r.part, 0, graph_.groupSize[r.part]);
    for (const StretchRelation& r : stretches_) closeStretch(r.a, r.loA, r.b, r.loB, r.length);
  } while (changed_);
}

void DimensionGraphBuilder::layLines() {
  std::vector<Line> raw;
  for (std::size_t g = 0; g < graph_.groupSize.size(); ++g) {
    firstLine_.push_back(static_cast<std::int32_t>(raw.size()));
    for (std::size_t j = 0; j < levels(static_cast<std::int32_t>(g)); ++j) {
      lineUnion_.add();
      raw.push_back({factorSize(static_cast<std::int32_t>(g), j), groupFlags_[g].summed,
                     groupFlags_[g].keep || flat_[g], groupFlags_[g].absolute});
    }
  }
  for (const RegroupRelation& r : regroups_) matchRegroup(r);
  for (const RangeRelation& r : ranges_)
    matchStretch(r.whole, r.lo, r.part, 0, graph_.groupSize[r.part], r.fromLineage);
  for (const StretchRelation& r : stretches_) matchStretch(r.a, r.loA, r.b, r.loB, r.length, false);

  std::vector<std::int32_t> lineId(raw.size(), -1);
  const auto lineOf = [&](std::int32_t l) {
    const std::int32_t root = lineUnion_.find(l);
    if (lineId[root] < 0) {
      lineId[root] = static_cast<std::int32_t>(graph_.lines.size());
      graph_.lines.push_back(raw[root]);
    }
    return lineId[root];
  };
  for (std::size_t l = 0; l < raw.size(); ++l) {
    Line& line = graph_.lines[lineOf(static_cast<std::int32_t>(l))];
    if (line.size != raw[l].size) throw std::logic_error("factors of different sizes were matched");
    line.summed = line.summed || raw[l].summed;
    line.keep = line.keep || raw[l].keep;
    line.absolute = line.absolute || raw[l].absolute;
  }
  for (std::size_t g = 0; g < graph_.groupSize.size(); ++g) {
    std::vector<std::int32_t> lines;
    for (std::size_t j = levels(static_cast<std::int32_t>(g)); j-- > 0;)
      lines.push_back(lineOf(rawLine(static_cast<std::int32_t>(g), j)));
    graph_.linesOfGroup.push_back(std::move(lines));
  }
  for (Segment& s : segments_) {
    s.lineA = lineOf(s.lineA);
    s.lineB = lineOf(s.lineB);
    if (s.lineA == s.lineB && s.loA == s.loB) {
      // The same stretch of the same line: only its ends matter.
      graph_.cuts.push_back({s.lineA, s.loA, s.fromLineage});
      graph_.cuts.push_back({s.lineA, s.loA + s.length, s.fromLineage});
      if (!s.fromLineage) graph_.segments.push_back(s);
      continue;
    }
    graph_.segments.push_back(s);
  }
  std::sort(graph_.segments.begin(), graph_.segments.end());
  graph_.segments.erase(std::unique(graph_.segments.begin(), graph_.segments.end()),
                        graph_.segments.end());
  for (const auto& [d, v] : valueCuts_) {
    const std::int32_t line = graph_.linesOfGroup[groupOf_[d]].front();
    graph_.cuts.push_back({line, v, false});
    graph_.cuts.push_back({line, v + 1, false});
  }
  for (const DimensionGraph::Cut& c : cuts_)
    graph_.cuts.push_back({lineOf(c.line), c.position, c.fromLineage});
  for (const Equation* e : equations_) boxesOf(*e, lineOf);
  std::set<std::pair<bool, std::vector<DimensionGraph::Variable>>> seen;
  for (const auto& [logical, variables] : iterations_) {
    DimensionGraph::Iteration iteration{logical, {}};
    for (const auto& variable : variables) {
      std::set<std::vector<std::int32_t>> dims;
      for (const std::int32_t d : variable) dims.insert(graph_.linesOfGroup[groupOf_[d]]);
      iteration.variables.emplace_back(dims.begin(), dims.end());
    }
    if (seen.emplace(logical, iteration.variables).second)
      graph_.iterations.push_back(std::move(iteration));
  }
}

void DimensionGraphBuilder::matchRegroup(const RegroupRelation& r) {
  const auto flatten = [&](const std::vector<std::int32_t>& side) {
    std::vector<std::pair<std::int32_t, std::int64_t>>
        factors;  // outermost first, without those of size 1
    for (const std::int32_t g : side) {
      for (std::size_t j = levels(g); j-- > 0;) {
        if (factorSize(g, j) > 1) factors.emplace_back(rawLine(g, j), factorSize(g, j));
      }
    }
    return factors;
  };
  if (std::any_of(r.a.begin(), r.a.end(), [&](std::int32_t g) { return flat_[g]; }))
    return;  // every position is kept on both sides
  const auto a = flatten(r.a), b = flatten(r.b);
  if (a.size() != b.size())
    throw Unsupported("a view regroups dimensions in a way that has no common factors");
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].second != b[i].second)
      throw Unsupported("a view regroups dimensions in a way that has no common factors");
    lineUnion_.unite(a[i].first, b[i].first);
  }
}

void DimensionGraphBuilder::matchStretch(std::int32_t a, std::int64_t loA, std::int32_t b,
                                         std::int64_t loB, std::int64_t length, bool fromLineage) {
  // Levels whose stride is below the length run together; the topmost of them as a stretch, the
  // ones below as a whole.
  std::size_t top = 0;
  while (top + 1 < levels(a) && stride(a, top + 1) < length) ++top;
  std::size_t topB = 0;
  while (topB + 1 < levels(b) && stride(b, topB + 1) < length) ++topB;
  if (top != topB)
    throw Unsupported(
        "a stretch of a dimension does not follow the factors that a view takes it apart into");
  for (std::size_t j = 0; j < top; ++j) {
    if (stride(a, j) != stride(b, j) || factorSize(a, j) != factorSize(b, j))
      throw std::logic_error("unequal factors");
    lineUnion_.unite(rawLine(a, j), rawLine(b, j));
  }
  const std::int64_t s = stride(a, top);
  const std::int64_t offsetA = loA / s % factorSize(a, top), offsetB = loB / s % factorSize(b, top);
  segments_.push_back(
      {rawLine(a, top), offsetA, rawLine(b, top), offsetB, length / s, fromLineage});
  for (const auto& [g, lo] : {std::pair{a, loA}, std::pair{b, loB}}) {
    for (std::size_t j = top + 1; j < levels(g); ++j) {
      const std::int64_t q = lo / stride(g, j) % factorSize(g, j);
      cuts_.push_back({rawLine(g, j), q, fromLineage});
      cuts_.push_back({rawLine(g, j), q + 1, fromLineage});
    }
  }
}

}  // namespace shardproof
