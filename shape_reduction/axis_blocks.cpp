// SPDX-License-Identifier: Apache-2.0
#include "shape_reduction/axis_blocks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace shardproof {

AxisBlocks::AxisBlocks(const Stage& stage, const DimensionGraph& graph)
    : stage_(stage), graph_(graph) {
  place();
  checkAddresses();
  checkSummands();
}

namespace {

// More would be no plan's ranks, but positions one by one.
constexpr std::int64_t kMostPeriods = 4096;

const BoxOnLine::Move* moveAlong(const BoxOnLine& box, const AxisBlocks::Blocks& blocks) {
  const auto move = std::find_if(box.moves.begin(), box.moves.end(),
                                 [&](const auto& m) { return m.collapsed == blocks.collapsed; });
  return move == box.moves.end() ? nullptr : &*move;
}

}  // namespace

// Which blocks there are, and that each box of lineage respects them.
void AxisBlocks::place() {
  blocks_.resize(graph_.lines.size());
  std::vector<std::vector<Placed>> boxes(graph_.lines.size());
  for (const BoxOnLine& box : graph_.boxes) boxes[box.line].push_back({&box, box.lo});
  for (std::size_t l = 0; l < graph_.lines.size(); ++l) {
    blocks_[l] = unitsOn(stage_, boxes[l]);
    if (blocks_[l].empty()) continue;
    if (graph_.lines[l].keep)
      throw NeedsRefinement(
          "a dimension that is cut along an interchangeable axis must be kept whole");
    if (graph_.lines[l].absolute)
      throw NeedsRefinement(
          "absolute positions matter on a dimension that is cut along an interchangeable axis");
    std::int64_t room = graph_.lines[l].size;
    for (auto b = blocks_[l].begin(); b != blocks_[l].end(); ++b) {
      repeat(*b, boxes[l], room);
      boxes[l] = within(axis(*b), b, blocks_[l].end(), boxes[l]);
      room = b->unit;
    }
  }
}

// The blocks on a line, outermost first, without their periods.
std::vector<AxisBlocks::Blocks> AxisBlocks::unitsOn(const Stage& stage,
                                                    const std::vector<Placed>& boxes) {
  std::map<std::int32_t, std::int64_t> units;
  for (const Placed& placed : boxes) {
    for (const auto& move : placed.box->moves) {
      const auto [it, inserted] = units.emplace(move.collapsed, move.unit);
      if (!inserted && it->second != move.unit)
        throw NeedsRefinement("lineage cuts one dimension by different steps along an axis");
    }
  }
  std::vector<Blocks> blocks;
  for (const auto& [collapsed, unit] : units)
    blocks.push_back({collapsed, unit, stage.collapsedAxes[collapsed].size, 0, 1});
  std::sort(blocks.begin(), blocks.end(),
            [](const Blocks& a, const Blocks& b) { return a.unit > b.unit; });
  return blocks;
}

// The period: how far from the first blocks the next ones are that boxes lie in. Any will do with
// which `within` has nothing to object to.
void AxisBlocks::repeat(Blocks& blocks, const std::vector<Placed>& boxes, std::int64_t room) {
  std::optional<std::int64_t> first, next;  // where boxes lie at coordinate 0
  for (const auto& [box, lo] : boxes) {
    const BoxOnLine::Move* move = moveAlong(*box, blocks);
    if (move == nullptr) continue;
    const std::int64_t at = lo - move->coordinate * blocks.unit;
    std::optional<std::int64_t>& least = at < blocks.unit ? first : next;
    least = std::min(at, least.value_or(at));
  }
  blocks.period = next ? *next - first.value_or(0) : room;
  if (blocks.unit * blocks.count > blocks.period || room % blocks.period != 0)
    throw NeedsRefinement(next ? "a lineage box does not lie within its coordinate's block"
                               : "the blocks of interchangeable axes overlap");
  blocks.periods = room / blocks.period;
  if (blocks.periods > kMostPeriods)
    throw NeedsRefinement("the blocks of an interchangeable axis repeat too often");
}

// The boxes that lie inside single blocks of the outermost of these, as the blocks further in see
// them.
std::vector<AxisBlocks::Placed> AxisBlocks::within(const CollapsedAxis& axis,
                                                   std::vector<Blocks>::const_iterator outermost,
                                                   std::vector<Blocks>::const_iterator end,
                                                   const std::vector<Placed>& boxes) {
  const Blocks& blocks = *outermost;
  std::vector<Placed> inside;
  const std::int64_t owned = blocks.unit * blocks.count;
  for (const auto& [box, lo] : boxes) {
    if (const BoxOnLine::Move* move = moveAlong(*box, blocks)) {
      const std::int64_t at = blocks.inPeriod(lo);
      const std::int64_t offset = at - move->coordinate * blocks.unit;
      if (lo < 0 || at < 0 || offset < 0 || offset + box->length > blocks.unit)
        throw NeedsRefinement("a lineage box does not lie within its coordinate's block");
      inside.push_back({box, offset});
      continue;
    }
    // What covers (or misses) all blocks does so to all that lie inside them.
    const bool covers = lo <= 0 && lo + box->length >= blocks.period * (blocks.periods - 1) + owned;
    const std::int64_t at = blocks.inPeriod(lo);
    const bool apart =
        at < 0 || (at >= owned && (at + box->length <= blocks.period ||
                                   lo + blocks.period >= blocks.period * blocks.periods));
    // Nothing moves the block of a coordinate that is a class by itself: lineage that names the
    // coordinate, and has no step along the axis, may lie in it.
    if (!covers && !apart && axis.isAlone(at / blocks.unit) &&
        at % blocks.unit + box->length <= blocks.unit) {
      inside.push_back({box, at % blocks.unit});
      continue;
    }
    if (!covers && !apart)
      throw NeedsRefinement(
          "a lineage box covers some blocks of an interchangeable axis but not others");
    if (std::any_of(outermost + 1, end,
                    [moving = box](const Blocks& inner) { return moveAlong(*moving, inner); }))
      throw NeedsRefinement("lineage moves beside the blocks of an interchangeable axis");
  }
  return inside;
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
    const bool last = lo >= b.period * (b.periods - 1);
    lo = b.inPeriod(lo);
    if (lo < 0) return false;
    if (!b.owns(lo)) return !last && lo + length > b.period;
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
        position = b.inPeriod(position);
        if (!b.owns(position)) break;
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
    position = b.inPeriod(position);
    if (!b.owns(position)) return true;  // beyond the blocks: an ordinary position
    const std::int64_t c = position / b.unit;
    const std::int64_t blocks = stage_.collapsedAxes[b.collapsed].weight(c);
    if (blocks == 0) return false;
    weight *= blocks;
    position -= c * b.unit;
  }
  return true;
}

}  // namespace shardproof
