// SPDX-License-Identifier: Apache-2.0
// How the lines of a stage are found, in three steps, each on values of the one before:
//   * constraints: which dimensions run together, as operators (node_relations.cpp), communication
//   and
//     lineage state it (dimension_graph.cpp);
//   * factors: dimensions that views regroup are taken apart into row-major factors, until all
//   bounds
//     of one are bounds of the others (dimension_lines.cpp);
//   * lines: factors that run together are one line (dimension_lines.cpp).
// Internal to shape_reduction/.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "shape_reduction/dimension_graph.h"
#include "util/union_find.h"

namespace shardproof {

// Dimension variables before grouping: one per dimension of every tensor, plus the values of
// integer tensors.
struct RangeRelation {
  std::int32_t whole;
  std::int64_t lo;
  std::int32_t part;
  bool fromLineage;
  friend auto operator<=>(const RangeRelation&, const RangeRelation&) = default;
};
struct StretchRelation {  // stretches of two dimensions (all_to_all)
  std::int32_t a;
  std::int64_t loA;
  std::int32_t b;
  std::int64_t loB, length;
  friend auto operator<=>(const StretchRelation&, const StretchRelation&) = default;
};
struct RegroupRelation {
  std::vector<std::int32_t> a, b;
  friend auto operator<=>(const RegroupRelation&, const RegroupRelation&) = default;
};

class DimensionGraphBuilder {
 public:
  DimensionGraphBuilder(const Stage& stage, bool knownInputs)
      : stage_(stage), knownInputs_(knownInputs) {}

  DimensionGraph run();

 private:
  friend class NodeRelations;

  std::int32_t newDim(std::int64_t size) {
    sizes_.push_back(size);
    flags_.emplace_back();
    return dims_.add();
  }

  // A constant given element by element has no two positions known to be alike.
  void keepUnlessFill(const StageTensor& tensor, const std::vector<std::int32_t>& dims);

  void relateKnownInputs();

  // A constant index names one row of its table, which must not disappear behind a representative:
  // the range of values is cut around it.
  void singleOutValues(const StageTensor& tensor, std::int32_t values);

  void relateNode(const StageNode& node);
  void relateCommunication(const StageNode& node);

  void relateEquation(const Equation& e);

  void relateRange(std::int32_t whole, std::int64_t lo, std::int32_t part, bool fromLineage) {
    if (lo < 0 || sizes_[whole] - lo < sizes_[part])
      throw Unsupported("a stretch lies outside its dimension");
    if (lo == 0 && sizes_[whole] == sizes_[part]) dims_.unite(whole, part);
    else ranges_.push_back({whole, lo, part, fromLineage});
  }

  void group();

  // bounds_[g] is a chain of strides 1 < s1 | s2 | ... < n at which the dimension is taken apart.
  // Where no such chain exists for all that is related, the dimension becomes flat: one factor,
  // every position kept.

  void makeFlat(std::int32_t g);

  void addBound(std::int32_t g, std::int64_t s);

  void closeRegroup(const RegroupRelation& r);

  void closeStretch(std::int32_t a, std::int64_t loA, std::int32_t b, std::int64_t loB,
                    std::int64_t length);

  void factorize();

  // Factor j (innermost is 0) of group g: its line, size and stride.
  std::size_t levels(std::int32_t g) const { return bounds_[g].size() + 1; }
  std::int64_t stride(std::int32_t g, std::size_t level) const {
    return level == 0 ? 1 : bounds_[g][level - 1];
  }
  std::int64_t factorSize(std::int32_t g, std::size_t level) const {
    const std::int64_t end = level + 1 == levels(g) ? graph_.groupSize[g] : bounds_[g][level];
    return end / stride(g, level);
  }
  std::int32_t rawLine(std::int32_t g, std::size_t level) const {
    return firstLine_[g] + static_cast<std::int32_t>(level);
  }

  void layLines();

  void matchRegroup(const RegroupRelation& r);

  void matchStretch(std::int32_t a, std::int64_t loA, std::int32_t b, std::int64_t loB,
                    std::int64_t length, bool fromLineage);

  template <class LineOf>
  void boxesOf(const Equation& e, LineOf&& lineOf) {
    if (stage_.collapsedAxes.empty()) return;
    for (std::size_t d = 0; d < e.box.size(); ++d) {
      const std::int32_t g = graph_.dimOfTensor[e.logical][d];
      const std::int64_t lo = e.box[d].first, length = e.box[d].second - lo;
      for (std::size_t j = 0; j < levels(g); ++j) {
        const std::int64_t s = stride(g, j), size = factorSize(g, j);
        BoxOnLine box{lineOf(rawLine(g, j)),
                      lo / s % size,
                      std::min(size, std::max<std::int64_t>(1, length / s)),
                      {}};
        for (const Equation::Step& step : e.step) {
          const std::int64_t offset = step.offset[d];
          if (offset == 0) continue;
          const bool here = offset % s == 0 && (j + 1 == levels(g) || offset < stride(g, j + 1));
          if (offset < 0)
            throw NeedsRefinement("lineage steps backward along an interchangeable axis");
          if (here) box.moves.push_back({step.collapsed, step.coordinate, offset / s});
          else if (offset % s != 0)
            throw NeedsRefinement(
                "lineage steps along an interchangeable axis by a stretch that a view takes apart");
        }
        graph_.boxes.push_back(std::move(box));
      }
    }
  }

  struct Flags {
    bool summed = false, keep = false, absolute = false;
    void merge(const Flags& o) {
      summed = summed || o.summed;
      keep = keep || o.keep;
      absolute = absolute || o.absolute;
    }
  };

  const Stage& stage_;
  bool knownInputs_ = false;
  DimensionGraph graph_;
  UnionFind<std::int32_t> dims_;
  std::vector<std::int64_t> sizes_;
  std::vector<Flags> flags_, groupFlags_;
  std::vector<std::vector<std::int32_t>> dimVars_;
  std::vector<std::int32_t> valueVars_;
  std::vector<std::pair<std::int32_t, std::int64_t>> valueCuts_;
  std::vector<std::int32_t> summedValues_;
  std::vector<RangeRelation> ranges_;
  std::vector<StretchRelation> stretches_;
  std::vector<RegroupRelation> regroups_;
  std::vector<const Equation*> equations_;
  std::vector<std::pair<bool, std::vector<std::vector<std::int32_t>>>> iterations_;
  std::vector<std::int32_t> groupOf_;
  std::vector<std::vector<std::int64_t>> bounds_;
  std::vector<bool> flat_;
  bool changed_ = false;
  std::vector<std::int32_t> firstLine_;
  UnionFind<std::int32_t> lineUnion_;
  std::vector<Segment> segments_;
  std::vector<DimensionGraph::Cut> cuts_;
};

}  // namespace shardproof
