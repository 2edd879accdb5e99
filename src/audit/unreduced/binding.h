// SPDX-License-Identifier: Apache-2.0
// What assumed lineage says of single elements, found on demand, at full size: no tensor is listed.
//
// * logical[box] == local: the two elements are one. Elements that are one with each other form a
//   class; its value is that of a logical element of it, free ones before computed ones. A class
//   with two values, or a constant with another, cannot be chosen freely any more:
//   `overdetermined`.
// * logical[box] == sum of parts: all parts but one are free and the last that nothing else
//   determines is the difference. Equations are taken in their order, so that each part is settled
//   by the first equation that has it.
//
// The second is a way to choose values that satisfy the equation: every choice of the free ones
// does. With overdetermined elements the values satisfy some of the assumed equations only; equal
// sides are as good a sign as ever, different ones are none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stages/stage.h"
#include "unreduced/positions.h"

namespace shardproof::unreduced {

struct ElementOf {
  StageTensorId tensor;  // of the stage
  Index flat = 0;        // row-major, two for each position of a complex tensor
  friend auto operator<=>(const ElementOf&, const ElementOf&) = default;
};

class Binding {
 public:
  // Throws Unsupported for a stage with collapsed axes: only of all coordinates it can be said what
  // equations mean at full size.
  explicit Binding(const Stage& stage);

  struct Value {
    enum class Kind : std::uint8_t { kFree, kElement, kDifference } kind = Kind::kFree;
    ElementOf element;  // kFree: by what its value is drawn; kElement: the logical element
    std::vector<std::pair<ElementOf, std::int64_t>>
        subtract;             // kDifference: element minus these, each with its weight ...
    std::int64_t divide = 1;  // ... divided by this
  };
  // Of an element of a local boundary tensor.
  Value local(ElementOf e);
  // By which element a free logical one is drawn: itself, or the first of those that lineage makes
  // one with it.
  ElementOf canonical(ElementOf logical);

  bool overdetermined() const { return overdetermined_; }

 private:
  struct Mention {
    std::int32_t equation, part;
  };

  const StageTensor& tensor(StageTensorId t) const { return stage_.tensors[t]; }
  static bool single(const Equation& e) { return e.parts.size() == 1 && e.parts[0].second == 1; }
  Index planes(StageTensorId t) const {
    return tensor(t).info.element == ElementKind::kComplex ? 2 : 1;
  }
  // The element of the other side of an equation.
  ElementOf logicalOf(const Equation& e, ElementOf local) const;
  std::optional<ElementOf> localOf(const Equation& e, std::int32_t part, ElementOf logical) const;
  // Of the class of elements that are one with this one: the logical element that gives it its
  // value.
  std::optional<ElementOf> logicalValue(ElementOf local);
  ElementOf representative(ElementOf start);
  bool bound(ElementOf e) const;
  std::optional<std::size_t> solvedFor(std::int32_t equation, ElementOf logical) const;

  const Stage& stage_;
  std::vector<std::vector<std::int32_t>>
      singles_;  // by local tensor: equations that make its elements one with logical ones
  std::vector<std::vector<Mention>> sums_;  // by local tensor, ascending
  std::vector<std::vector<std::int32_t>>
      bridges_;  // by logical tensor: single equations of local tensors that have several
  bool overdetermined_ = false;
};

}  // namespace shardproof::unreduced
