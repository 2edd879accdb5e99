// SPDX-License-Identifier: Apache-2.0
#include "shrink/shrink_sizes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "shardproof/error.h"
#include "util/index.h"

namespace shardproof {

namespace {

// Where what the axes of a tiling share lies.
PlanLines::OnLine stretchOf(const PlanRelations& relations, const Tiling& t,
                            std::vector<std::int32_t>& inner) {
  return relations.lines.onLine(t.whole, t.lo, relations.lines.fullSize(t.part) * t.fullCount,
                                inner);
}

// Experts to choose among: a multiple of the groups, more than are taken where there were more, at
// least two in a group.
void addGates(const PlanRelations& relations, IntegerProgram& program) {
  for (const Gate& gate : relations.gates) {
    const auto& lines = relations.lines.linesOf(gate.experts);
    if (lines.size() != 1) {
      for (const std::int32_t line : lines) {
        LinearSum whole = relations.lines.total(line);
        whole.constant -= relations.lines.fullSizeOfLine(line);
        program.zero.push_back(std::move(whole));
      }
      continue;
    }
    const std::int64_t full = relations.lines.fullSize(gate.experts), perGroup = full / gate.groups,
                       competing = perGroup * (gate.groups > 1 ? gate.bestGroups : gate.groups);
    const auto inGroup = static_cast<std::int32_t>(program.variables.size());
    program.variables.emplace_back(std::min<std::int64_t>(2, perGroup), perGroup);
    LinearSum multiple = relations.lines.total(lines[0]);
    program.zero.push_back(multiple.add(inGroup, -gate.groups));
    LinearSum choice;
    choice.add(inGroup, competing / perGroup);
    choice.constant = -gate.topk - (competing > gate.topk ? 1 : 0);
    program.notNegative.push_back(std::move(choice));
  }
}

// What is shared can be shared among those that stay. A stretch that covers other lines (heads of
// several positions) is a product: one of its lines is made a multiple of the shares, as far as
// lines of a fixed size do not see to that, and the sizes of the shares follow (shareSizes).
void addTilings(const PlanRelations& relations, IntegerProgram& program) {
  const PlanLines& lines = relations.lines;
  const auto isFixed = [&](const LinearSum& sum) {
    return std::all_of(sum.terms.begin(), sum.terms.end(), [&](const auto& t) {
      return program.variables[t.first].first == program.variables[t.first].second;
    });
  };
  for (const Tiling& t : relations.tilings) {
    std::vector<std::int32_t> inner;
    const auto on = stretchOf(relations, t, inner);
    LinearSum stretch = lines.before(on.line, on.lo + on.length);
    stretch.add(lines.before(on.line, on.lo), -1);
    const LinearSum part = lines.total(lines.linesOf(t.part).front());
    for (const auto& [c, n] : part.terms) {
      auto& [low, high] = program.variables[c];
      if (lines.fullSize(t.part) > 1)
        low = std::min<std::int64_t>(low, 2), high = std::max(high, on.length);
    }
    if (inner.empty()) {
      program.zero.push_back(stretch.add(part, -t.newCount));
      continue;
    }
    std::vector<std::pair<std::int64_t, LinearSum>> factors{{on.length, std::move(stretch)}};
    for (const std::int32_t line : inner)
      factors.emplace_back(lines.fullSizeOfLine(line), lines.total(line));
    std::int64_t fixed = 1;
    for (const auto& [full, sum] : factors) fixed *= isFixed(sum) ? full : 1;
    const std::int64_t multiple = t.newCount / std::gcd(t.newCount, fixed);
    if (multiple == 1) continue;
    std::erase_if(factors, [&](const auto& f) { return isFixed(f.second); });
    if (factors.empty())
      throw Unsupported("ranks share a dimension that cannot be shared by fewer");
    auto& largest =
        *std::max_element(factors.begin(), factors.end(),
                          [](const auto& x, const auto& y) { return x.first < y.first; });
    const auto units = static_cast<std::int32_t>(program.variables.size());
    program.variables.emplace_back(1, largest.first);
    program.zero.push_back(largest.second.add(units, -multiple));
  }
}

// A box steps evenly over the kept coordinates of each axis.
void addSteps(const PlanRelations& relations, const KeptRanks& kept, IntegerProgram& program) {
  const PlanLines& lines = relations.lines;
  std::set<LinearSum> added;
  for (const Moves& m : relations.moves) {
    std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>> places{
        {{}, m.lo}};  // new coordinates, full position
    for (const auto& [axis, step] : m.steps) {
      std::vector<std::pair<std::vector<std::int64_t>, std::int64_t>> more;
      for (const auto& [coordinates, lo] : places) {
        for (std::size_t k = 0; k < kept.of(axis).size(); ++k) {
          more.emplace_back(coordinates, lo + kept.of(axis)[k] * step);
          more.back().first.push_back(static_cast<std::int64_t>(k));
        }
      }
      places = std::move(more);
    }
    // Only where it moves along one line; otherwise the steps are checked once sizes are known.
    const std::vector<std::int64_t> first = lines.digits(m.dim, places.front().second);
    std::set<std::size_t> moving;
    std::vector<std::vector<std::int64_t>> digits;
    for (const auto& place : places) {
      digits.push_back(lines.digits(m.dim, place.second));
      for (std::size_t i = 0; i < first.size(); ++i) {
        if (digits.back()[i] != first[i]) moving.insert(i);
      }
    }
    if (moving.size() != 1) continue;
    const std::size_t on = *moving.begin();
    const std::int32_t line = lines.linesOf(m.dim)[on];
    const auto sumAt = [&](std::size_t i) { return lines.before(line, digits[i][on]); };
    // places[i] with one coordinate 1 and all others 0, per axis
    std::vector<std::size_t> unit(m.steps.size(), 0);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto& c = places[i].first;
      const auto one = std::find(c.begin(), c.end(), 1);
      if (one != c.end() && std::accumulate(c.begin(), c.end(), std::int64_t{0}) == 1)
        unit[one - c.begin()] = i;
    }
    const LinearSum base = sumAt(0);
    for (std::size_t i = 0; i < places.size(); ++i) {
      LinearSum off = sumAt(i);
      off.add(base, -1);
      for (std::size_t a = 0; a < unit.size(); ++a) {
        if (places[i].first[a] == 0) continue;
        off.add(sumAt(unit[a]), -places[i].first[a]);
        off.add(base, places[i].first[a]);
      }
      if (!off.terms.empty() && added.insert(off).second) program.zero.push_back(std::move(off));
    }
  }
}

}  // namespace

void addSizes(const PlanRelations& relations, const KeptRanks& kept, IntegerProgram& program) {
  addGates(relations, program);
  addTilings(relations, program);
  addSteps(relations, kept, program);
}

void addDistinct(const PlanRelations& relations, const std::vector<char>& free,
                 IntegerProgram& program) {
  const PlanLines& lines = relations.lines;
  std::map<LinearSum, std::int32_t> known;
  std::vector<std::pair<std::int64_t, LinearSum>> sums;  // uses
  std::vector<std::int32_t> sumOfLine(lines.lines(), -1);
  for (std::size_t l = 0; l < lines.lines(); ++l) {
    const std::int64_t full = lines.fullSizeOfLine(static_cast<std::int32_t>(l));
    if (full == PlanLines::kUnbounded || full <= kSmallSize) continue;
    LinearSum total = lines.total(static_cast<std::int32_t>(l));
    std::int64_t uses = 0;
    for (const auto& [c, n] : total.terms) uses += lines.classes()[c].uses;
    const auto [it, inserted] = known.emplace(total, static_cast<std::int32_t>(sums.size()));
    if (inserted) sums.emplace_back(uses, std::move(total));
    sumOfLine[l] = it->second;
  }
  std::set<std::vector<std::int32_t>> seen;
  std::set<std::pair<std::int32_t, std::int32_t>> together;
  const auto meet = [&](const GraphDims& graph) {
    for (const auto& dims : graph.ofTensor) {
      std::vector<std::int32_t> own;
      for (const PlanLines::Dim d : dims) own.push_back(lines.group(d));
      if (!seen.insert(own).second) continue;
      std::set<std::int32_t> sumsHere;
      for (const PlanLines::Dim d : dims) {
        for (const std::int32_t line : lines.linesOf(d)) {
          if (sumOfLine[line] >= 0) sumsHere.insert(sumOfLine[line]);
        }
      }
      for (const std::int32_t a : sumsHere) {
        for (const std::int32_t b : sumsHere) together.emplace(a, b);
      }
    }
  };
  meet(relations.model);
  for (const GraphDims& p : relations.programs) meet(p);
  std::vector<std::int32_t> order(sums.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return sums[a].first > sums[b].first; });
  std::vector<std::int32_t> listed(sums.size(), -1);
  for (const std::int32_t s : order) {
    std::vector<std::size_t> others;
    for (auto it = together.lower_bound({s, 0}); it != together.end() && it->first == s; ++it) {
      if (it->second != s && listed[it->second] >= 0) others.push_back(at(listed[it->second]));
    }
    const bool mayChange = std::any_of(sums[s].second.terms.begin(), sums[s].second.terms.end(),
                                       [&](const auto& t) { return free[t.first] != 0; });
    if (!mayChange) others.clear();
    listed[s] = static_cast<std::int32_t>(program.distinct.size());
    program.distinct.emplace_back(sums[s].second, std::move(others));
  }
}

void shareSizes(const PlanRelations& relations, std::vector<std::int64_t>& sizes) {
  const PlanLines& lines = relations.lines;
  for (const Tiling& t : relations.tilings) {
    std::vector<std::int32_t> inner;
    const auto on = stretchOf(relations, t, inner);
    if (inner.empty()) continue;  // it was an equation of the program
    std::int64_t length = lines.before(on.line, on.lo + on.length).value(sizes) -
                          lines.before(on.line, on.lo).value(sizes);
    for (const std::int32_t line : inner) length *= lines.total(line).value(sizes);
    if (length % t.newCount != 0)
      throw Unsupported("a dimension of " + std::to_string(length) +
                        " positions cannot be shared by " + std::to_string(t.newCount) + " ranks");
    const LinearSum own = lines.total(lines.linesOf(t.part).front());
    if (own.terms.size() != 1)
      throw Unsupported("a dimension that several axes share is taken apart by a view");
    sizes[own.terms.front().first] =
        length / t.newCount;  // one line, one piece: it has no structure
  }
}

}  // namespace shardproof
