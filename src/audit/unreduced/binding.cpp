// SPDX-License-Identifier: Apache-2.0
#include "unreduced/binding.h"

#include <algorithm>
#include <set>

namespace shardproof::unreduced {

Binding::Binding(const Stage& stage)
    : stage_(stage),
      singles_(stage.tensors.size()),
      sums_(stage.tensors.size()),
      bridges_(stage.tensors.size()) {
  if (!stage.collapsedAxes.empty())
    throw Unsupported("coordinates of interchangeable axes are collapsed in the stage");
  for (std::size_t e = 0; e < stage.assumptions.size(); ++e) {
    const Equation& equation = stage.assumptions[e];
    const auto id = static_cast<std::int32_t>(e);
    if (single(equation)) {
      singles_[equation.parts[0].first].push_back(id);
      // A constant has its value already, and the logical element another way to get one.
      if (tensor(equation.parts[0].first).origin == Origin::kConstant) overdetermined_ = true;
      continue;
    }
    for (std::size_t k = 0; k < equation.parts.size(); ++k)
      sums_[equation.parts[k].first].push_back({id, static_cast<std::int32_t>(k)});
  }
  for (const auto& equations : singles_) {
    if (equations.size() < 2) continue;
    for (const std::int32_t e : equations) bridges_[stage.assumptions[e].logical].push_back(e);
  }
}

ElementOf Binding::logicalOf(const Equation& e, ElementOf local) const {
  const Index n = planes(local.tensor);
  Position p = unravel(tensor(local.tensor).info.shape, local.flat / n);
  for (std::size_t d = 0; d < p.rank(); ++d) p[d] += e.box[d].first;
  return {e.logical, ravel(tensor(e.logical).info.shape, p) * n + local.flat % n};
}

std::optional<ElementOf> Binding::localOf(const Equation& e, std::int32_t part,
                                          ElementOf logical) const {
  const Index n = planes(logical.tensor);
  Position p = unravel(tensor(logical.tensor).info.shape, logical.flat / n);
  for (std::size_t d = 0; d < p.rank(); ++d) {
    if (p[d] < e.box[d].first || p[d] >= e.box[d].second) return std::nullopt;
    p[d] -= e.box[d].first;
  }
  const StageTensorId local = e.parts[part].first;
  return ElementOf{local, ravel(tensor(local).info.shape, p) * n + logical.flat % n};
}

// Only local tensors with several equations make different logical elements one, so there mostly is
// nothing to walk through.
ElementOf Binding::representative(ElementOf start) {
  std::set<ElementOf> logical{start};
  std::vector<ElementOf> next{start};
  while (!next.empty()) {
    const ElementOf l = next.back();
    next.pop_back();
    for (const std::int32_t e : bridges_[l.tensor]) {
      const auto p = localOf(stage_.assumptions[e], 0, l);
      if (!p) continue;
      for (const std::int32_t other : singles_[p->tensor]) {
        const ElementOf found = logicalOf(stage_.assumptions[other], *p);
        if (logical.insert(found).second) next.push_back(found);
      }
    }
  }
  std::optional<ElementOf> free, computed;
  for (const ElementOf& l : logical) {
    const bool isFree = tensor(l.tensor).origin == Origin::kVariable;
    if (isFree && !free) free = l;
    if (!isFree && (computed || logical.size() > 1)) overdetermined_ = true;
    if (!isFree && !computed) computed = l;
  }
  return free ? *free : *computed;
}

ElementOf Binding::canonical(ElementOf logical) {
  return bridges_[logical.tensor].empty() ? logical : representative(logical);
}

std::optional<ElementOf> Binding::logicalValue(ElementOf local) {
  const auto& equations = singles_[local.tensor];
  if (equations.empty()) return std::nullopt;
  const ElementOf l = logicalOf(stage_.assumptions[equations[0]], local);
  return equations.size() == 1 && bridges_[l.tensor].empty() ? l : representative(l);
}

bool Binding::bound(ElementOf e) const {
  return tensor(e.tensor).origin != Origin::kBoundary || !singles_[e.tensor].empty();
}

// Which part of a sum at one element is the difference: the last that is nothing else, that stands
// in no equation before and that occurs once.
std::optional<std::size_t> Binding::solvedFor(std::int32_t equation, ElementOf logical) const {
  const Equation& e = stage_.assumptions[equation];
  std::vector<ElementOf> parts;
  for (std::size_t k = 0; k < e.parts.size(); ++k)
    parts.push_back(*localOf(e, static_cast<std::int32_t>(k), logical));
  for (std::size_t k = parts.size(); k-- > 0;) {
    if (bound(parts[k]) || std::count(parts.begin(), parts.end(), parts[k]) != 1) continue;
    // A local tensor is of the size of the box, so an earlier equation about the tensor is one
    // about this element.
    if (sums_[parts[k].tensor].front().equation == equation) return k;
  }
  return std::nullopt;
}

Binding::Value Binding::local(ElementOf e) {
  Value value;
  if (const auto logical = logicalValue(e)) {
    value.kind = Value::Kind::kElement;
    value.element = *logical;
    // A sum of which every part is something else already is an equation more than there are
    // unknowns.
    for (const Mention& m : sums_[e.tensor]) {
      if (!solvedFor(m.equation, logicalOf(stage_.assumptions[m.equation], e)))
        overdetermined_ = true;
    }
    return value;
  }
  value.element = e;
  for (const Mention& m : sums_[e.tensor]) {
    const Equation& equation = stage_.assumptions[m.equation];
    const ElementOf logical = logicalOf(equation, e);
    const auto solved = solvedFor(m.equation, logical);
    if (!solved) overdetermined_ = true;
    if (m.equation == sums_[e.tensor].front().equation && solved && *solved == at(m.part)) {
      value.kind = Value::Kind::kDifference;
      value.element = logical;
      value.divide = equation.parts[*solved].second;
      for (std::size_t k = 0; k < equation.parts.size(); ++k) {
        if (k != *solved)
          value.subtract.emplace_back(*localOf(equation, static_cast<std::int32_t>(k), logical),
                                      equation.parts[k].second);
      }
    }
  }
  return value;
}

}  // namespace shardproof::unreduced
