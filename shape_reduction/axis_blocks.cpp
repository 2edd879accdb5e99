#include "shape_reduction/axis_blocks.h"

#include <algorithm>
#include <map>
#include <utility>

namespace shardproof {

AxisBlocks::AxisBlocks(const Stage& stage, const DimensionGraph& graph)
    : stage_(stage), graph_(graph) {
  place();
  checkAddresses();
  checkSummands();
}

// Which blocks there are, and that each box of lineage respects them.
void AxisBlocks::place() {
  blocks_.resize(graph_.lines.size());
  std::vector<std::vector<const BoxOnLine*>> boxes(graph_.lines.size());
  for (const BoxOnLine& box : graph_.boxes) boxes[box.line].push_back(&box);
  for (std::size_t l = 0; l < graph_.lines.size(); ++l) {
    std::map<std::int32_t, std::int64_t> units;
    for (const BoxOnLine* box : boxes[l]) {
      for (const auto& move : box->moves) {
        const auto [it, inserted] = units.emplace(move.collapsed, move.unit);
        if (!inserted && it->second != move.unit)
          throw NeedsRefinement("lineage cuts one dimension by different steps along an axis");
      }
    }
    if (units.empty()) continue;
    if (graph_.lines[l].keep)
      throw NeedsRefinement(
          "a dimension that is cut along an interchangeable axis must be kept whole");
    if (graph_.lines[l].absolute)
      throw NeedsRefinement(
          "absolute positions matter on a dimension that is cut along an interchangeable axis");
    auto& blocks = blocks_[l];
    for (const auto& [collapsed, unit] : units)
      blocks.push_back({collapsed, unit, stage_.collapsedAxes[collapsed].size});
    std::sort(blocks.begin(), blocks.end(),
              [](const Blocks& a, const Blocks& b) { return a.unit > b.unit; });
    std::int64_t room = graph_.lines[l].size;
    for (const Blocks& b : blocks) {
      if (b.unit * b.count > room)
        throw NeedsRefinement("the blocks of interchangeable axes overlap");
      room = b.unit;
    }
    for (const BoxOnLine* box : boxes[l]) {
      std::int64_t lo = box->lo;
      for (const Blocks& b : blocks) {
        const auto move = std::find_if(box->moves.begin(), box->moves.end(),
                                       [&](const auto& m) { return m.collapsed == b.collapsed; });
        if (move != box->moves.end()) {
          lo -= move->coordinate * b.unit;
          if (lo < 0 || lo + box->length > b.unit)
            throw NeedsRefinement("a lineage box does not lie within its coordinate's block");
        } else {
          const bool covers = lo <= 0 && lo + box->length >= b.unit * b.count;
          const bool apart = lo >= b.unit * b.count;
          if (!covers && !apart)
            throw NeedsRefinement(
                "a lineage box covers some blocks of an interchangeable axis but not others");
          break;  // covers (or misses) all blocks inside as well
        }
      }
    }
  }
}

// That no operator addresses positions of a line with blocks.
void AxisBlocks::checkAddresses() const {
  const char* const kAddressed =
      "an operator takes a stretch of a dimension that is cut along an interchangeable axis";
  for (const DimensionGraph::Cut& c : graph_.cuts) {
    if (!c.fromLineage && !blocks_[c.line].empty()) throw NeedsRefinement(kAddressed);
  }
  for (const Segment& s : graph_.segments) {
    if (s.fromLineage) {
      // A rank's tensor that holds several blocks keeps them all: its own line knows nothing of
      // them.
      if (holdsBlocks(s.lineA, s.loA, s.length) || holdsBlocks(s.lineB, s.loB, s.length)) {
        throw NeedsRefinement(
            "a lineage box covers all blocks of an interchangeable axis and is a part of its "
            "dimension");
      }
      continue;
    }
    // Whole on one side and a part of a longer line on the other shifts the blocks (pad, cat).
    if (blocks_[s.lineA].empty() && blocks_[s.lineB].empty()) continue;
    for (const auto& [line, lo] : {std::pair{s.lineA, s.loA}, std::pair{s.lineB, s.loB}}) {
      if (!(lo == 0 && s.length == graph_.lines[line].size)) {
        throw NeedsRefinement(kAddressed);
      }
    }
  }
}

// That a summand touches at most as many coordinates as are kept apart.
void AxisBlocks::checkSummands() const {
  for (const auto& iteration : graph_.iterations) {
    std::map<std::int32_t, int> touching;
    for (const auto& variable : iteration.variables) {
      std::set<std::int32_t> collapsedAxes;
      for (const auto& lines : variable) {
        for (const std::int32_t l : lines) {
          for (const Blocks& b : blocks_[l]) collapsedAxes.insert(b.collapsed);
        }
      }
      for (const std::int32_t collapsed : collapsedAxes) {
        touching[collapsed] += DimensionGraph::Iteration::positions(variable, [&](std::int32_t l) {
          return std::any_of(blocks_[l].begin(), blocks_[l].end(),
                             [&](const Blocks& b) { return b.collapsed == collapsed; });
        });
      }
    }
    // Half of the coordinates kept apart tell an element, the other half a summand (see apart()).
    // A local operator's own rank is one more coordinate of the axis.
    const int most = CollapsedAxis::kApart / 2 - (iteration.logical ? 0 : 1);
    for (const auto& [collapsed, count] : touching) {
      if (count > most)
        throw NeedsRefinement(
            "a summand involves more coordinates of an interchangeable axis than are kept apart");
    }
  }
}

bool AxisBlocks::holdsBlocks(std::int32_t line, std::int64_t lo, std::int64_t length) const {
  for (const Blocks& b : blocks_[line]) {
    if (lo >= b.unit * b.count) return false;
    lo %= b.unit;
    if (lo + length > b.unit) return true;
  }
  return false;
}

void AxisBlocks::checkCuts(const std::vector<std::set<std::int64_t>>& cuts) const {
  for (std::size_t l = 0; l < cuts.size(); ++l) {
    for (std::int64_t position : cuts[l]) {
      for (const Blocks& b : blocks_[l]) {
        const CollapsedAxis& collapsed = stage_.collapsedAxes[b.collapsed];
        if (position >= b.unit * b.count) break;
        const std::int64_t c = position / b.unit;
        position %= b.unit;
        if (collapsed.weight(c) > 0) continue;
        const bool endsKeptOne = position == 0 && collapsed.weight(c - 1) > 0;
        if (!endsKeptOne)
          throw NeedsRefinement("one block of an interchangeable axis is addressed by itself");
        break;
      }
    }
  }
}

bool AxisBlocks::retained(std::size_t line, std::int64_t position, std::int64_t& weight) const {
  weight = 1;
  for (const Blocks& b : blocks_[line]) {
    if (position >= b.unit * b.count) return true;  // beyond the blocks: an ordinary position
    const std::int64_t c = position / b.unit;
    const std::int64_t blocks = stage_.collapsedAxes[b.collapsed].weight(c);
    if (blocks == 0) return false;
    weight *= blocks;
    position -= c * b.unit;
  }
  return true;
}

}  // namespace shardproof
