// SPDX-License-Identifier: Apache-2.0
#include "infer/local_boxes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/registry.h"
#include "util/index.h"

namespace shardproof::infer {

namespace {

constexpr std::int64_t kMostArranged = 1 << 16;  // elements of a tensor that is looked up in pieces
constexpr std::size_t kMostWays = 4;             // in which one may be arranged

bool severalOfOne(const std::vector<BoxPosition>& places) {
  for (std::size_t i = 1; i < places.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (places[i].tensor == places[j].tensor) return true;
  return false;
}

template <class Real>
Real largestOf(const std::vector<Real>& x) {
  Real largest = 0;
  for (const Real y : x)
    if (std::isfinite(y)) largest = std::max(largest, std::abs(y));
  return largest;
}

}  // namespace

template <class Real>
LocalBoxes<Real>::LocalBoxes(const executor::Setup& setup, const Correspondence& correspondence,
                             const ModelTable<Real>& table, InferParts parts,
                             const std::vector<Rational>& scales)
    : setup_(setup),
      problem_(setup.problem),
      correspondence_(correspondence),
      table_(table),
      parts_(parts),
      scales_(scales),
      found_(at(setup.programs.slots())),
      uninformative_(at(setup.programs.slots()), 0) {
  if (parts != InferParts::kNone) extents_ = extentsOf(problem_);
}

template <class Real>
bool LocalBoxes<Real>::take(Rank rank, std::int32_t slot, const Value& value) {
  if (value.element == ElementKind::kComplex || value.size() == 0) return false;
  const Real* x = value.data();
  const std::int64_t n = value.size();
  // By its largest element: small ones are the closest to others.
  std::int64_t pivot = -1;
  bool uniform = true;
  for (std::int64_t i = 0; i < n; ++i) {
    if (std::isnan(x[i])) return false;
    uniform = uniform && x[i] == x[0];
    if (isInformative(x[i]) && (pivot < 0 || std::abs(x[i]) > std::abs(x[pivot]))) pivot = i;
  }
  const std::int64_t number = setup_.programs.slot(rank, slot);
  const bool integers = value.element == ElementKind::kInteger;
  if (pivot < 0 || (uniform && n > 1)) {
    uninformative_[at(number)] = 1;
    return !integers;
  }
  if (integers) pivot = 0;
  const Real wanted =
      integers ? static_cast<Real>(keyOf(
                     x, value.shape.empty() ? 1 : std::min(kIntegersInARow, value.shape.back())))
               : x[pivot];
  const Real largest = std::abs(x[pivot]), tolerance = integers ? 0 : kRounding<Real> * largest;
  auto& places = found_[number];
  places = table_.placesOf(x, value.shape, value.element, pivot, wanted, tolerance);
  ambiguous_ += severalOfOne(places);
  if (!places.empty() || integers) return false;
  if (parts_ != InferParts::kNone) arrange(rank, slot, value);
  return true;
}

template <class Real>
bool LocalBoxes<Real>::separatesPlaces() const {
  const auto& programs = setup_.programs;
  std::vector<double> first;
  for (const Rank r : firstIds<Rank>(programs.mesh().ranks())) {
    const auto& tensorOf = programs.layout(r).tensorOfSlot;
    const auto& tensors = problem_.plan.programs[programs.programOf(r)].graph.tensors;
    for (std::size_t slot = 0; slot < tensorOf.size(); ++slot) {
      const auto& places = found_[programs.slot(r, static_cast<std::int32_t>(slot))];
      if (places.size() < 2 || !severalOfOne(places)) continue;
      const Shape& shape = tensors[tensorOf[slot]].shape;
      first.clear();
      double largest = 0;
      table_.allOfKept(places[0], shape, [&](std::int64_t, double y) {
        first.push_back(y);
        if (std::isfinite(y)) largest = std::max(largest, std::abs(y));
        return true;
      });
      for (std::size_t p = 1; p < places.size(); ++p)
        if (!table_.allOfKept(places[p], shape, [&](std::int64_t i, double y) {
              return same(first[at(i)], y, kResampledRounding * largest);
            }))
          return true;
    }
  }
  return false;
}

template <class Real>
void LocalBoxes<Real>::dropPlaces(Rank rank, std::int32_t slot, const ResampledValue& value) {
  auto& places = found_[setup_.programs.slot(rank, slot)];
  if (places.size() < 2 || !severalOfOne(places)) return;
  double largest = 0;
  for (std::int64_t i = 0; i < value.size(); ++i)
    if (std::isfinite(value.data()[i])) largest = std::max(largest, std::abs(value.data()[i]));
  std::vector<BoxPosition> kept;
  for (const BoxPosition& place : places)
    if (table_.allOfKept(place, value.shape, [&](std::int64_t i, double y) {
          return same(value.data()[i], y, kResampledRounding * largest);
        }))
      kept.push_back(place);
  if (!kept.empty() && kept.size() < places.size()) {
    places = std::move(kept);
    ++dropped_;
  }
  ambiguous_ += severalOfOne(places);
}

// Of what an operator does not only move: what it made would be found again, moved.
template <class Real>
void LocalBoxes<Real>::arrange(Rank rank, std::int32_t slot, const Value& value) {
  const auto& programs = setup_.programs;
  const ProgramId p = programs.programOf(rank);
  const TensorId t = programs.layout(rank).tensorOfSlot[slot];
  const Graph& graph = problem_.plan.programs[p].graph;
  const NodeId n = correspondence_.producer(p, t);
  if (!n.valid() || graph.tensors[t].added || value.size() > kMostArranged) return;
  const Node& node = graph.nodes[n];
  if (node.communication < 0 && ops::Registry::instance().at(node.op).traits.rearranges) return;
  auto& ways = arranged_[programs.slot(rank, slot)];
  const auto& all = arrangements(value.shape);
  for (std::size_t a = 0; a < all.size() && ways.size() < kMostWays; ++a) {
    std::vector<std::vector<BoxPosition>> found;
    for (const Arrangement& arrangement : all[a]) {
      const std::vector<Real> piece = elementsOf(value.data(), value.shape, arrangement);
      const std::size_t pivot = rarePivotOf(piece, arrangement.shapeOf(value.shape).size());
      const bool uniform =
          std::all_of(piece.begin(), piece.end(), [&](Real y) { return y == piece.front(); });
      if (!isInformative(piece[pivot]) || (uniform && (piece.size() > 1 || all[a].size() > 1)))
        break;
      auto places = table_.placesOf(piece.data(), arrangement.shapeOf(value.shape), value.element,
                                    static_cast<std::int64_t>(pivot), piece[pivot],
                                    kRounding<Real> * largestOf(piece));
      if (places.empty()) break;
      found.push_back(std::move(places));
    }
    if (found.size() == all[a].size()) ways.emplace_back(a, std::move(found));
  }
}

// The largest element whose value few elements of the model share: a row of a softmax under a mask
// begins with 1, as do all others, and a piece that has it would be compared with each.
template <class Real>
std::size_t LocalBoxes<Real>::rarePivotOf(const std::vector<Real>& x, std::size_t dims) const {
  constexpr int kMostCommon = 3;  // values that are passed over
  std::size_t pivot = 0, first = 0;
  Real below = std::numeric_limits<Real>::infinity();
  for (int i = 0; i <= kMostCommon; ++i) {
    bool any = false;
    for (std::size_t k = 0; k < x.size(); ++k)
      if (isInformative(x[k]) && std::abs(x[k]) < below &&
          (!any || std::abs(x[k]) > std::abs(x[pivot]))) {
        pivot = k;
        any = true;
      }
    if (!any) return first;
    if (i == 0) first = pivot;
    if (!table_.common(x[pivot], dims)) return pivot;
    below = std::abs(x[pivot]);
  }
  return first;
}

template <class Real>
const std::vector<std::vector<Arrangement>>& LocalBoxes<Real>::arrangements(const Shape& shape) {
  const auto [it, inserted] = arrangements_.try_emplace(shape);
  if (inserted)
    it->second = arrangementsOf(shape, scales_, extents_, parts_ == InferParts::kMultiples);
  return it->second;
}

// Where a tensor is one box (the middle rank of a zigzag sequence) its pieces are next to each
// other.
template <class Real>
std::vector<BoxPosition> LocalBoxes<Real>::placesOfPiece(std::int64_t slot, std::size_t choice,
                                                         std::size_t piece,
                                                         const Arrangement& arrangement,
                                                         const Shape& shape) const {
  if (const auto ways = arranged_.find(slot); ways != arranged_.end())
    for (const auto& [a, found] : ways->second)
      if (a == choice) return found[piece];
  if (!arrangement.permute.empty() || arrangement.dim < 0) return {};
  std::vector<BoxPosition> places = found_[at(slot)];
  for (BoxPosition& place : places)
    place.low[at(arrangement.dim)] +=
        arrangement.index * (shape[at(arrangement.dim)] / arrangement.count);
  return places;
}

template <class Real>
std::vector<Relation> LocalBoxes<Real>::pieces(ProgramId p, TensorId t,
                                               const std::vector<Rank>& ranks) const {
  const Tensor& tensor = problem_.plan.programs[p].graph.tensors[t];
  const std::int32_t first = setup_.programs.layoutOf(p).firstSlot[t];
  const std::int32_t slots = slotsOf(tensor);
  const auto all = arrangements_.find(tensor.shape);
  if (all == arrangements_.end()) return {};
  for (std::size_t a = 0; a < all->second.size(); ++a) {
    std::vector<Relation> relations;
    for (const Arrangement& arrangement : all->second[a])
      relations.push_back({p, t, {}, {}, arrangement, {}});
    bool everywhere = true;
    for (const Rank r : ranks) {
      for (std::int32_t m = 0; everywhere && m < slots; ++m) {
        for (std::size_t i = 0; everywhere && i < relations.size(); ++i) {
          auto places = placesOfPiece(setup_.programs.slot(r, first + m), a, i,
                                      relations[i].arrangement, tensor.shape);
          everywhere = !places.empty();
          relations[i].found.push_back({r, tensor.perMicrobatch ? m : -1, std::move(places)});
        }
      }
      if (!everywhere) break;
    }
    if (everywhere) return relations;
  }
  return {};
}

template <class Real>
bool LocalBoxes<Real>::isUninformative(ProgramId p, TensorId t,
                                       const std::vector<Rank>& ranks) const {
  const std::int32_t first = setup_.programs.layoutOf(p).firstSlot[t];
  const std::int32_t slots = slotsOf(problem_.plan.programs[p].graph.tensors[t]);
  for (const Rank r : ranks)
    for (std::int32_t m = 0; m < slots; ++m)
      if (uninformative_[at(setup_.programs.slot(r, first + m))] == 0) return false;
  return true;
}

template <class Real>
std::optional<Relation> LocalBoxes<Real>::relation(ProgramId p, TensorId t,
                                                   const std::vector<Rank>& ranks) const {
  const Tensor& tensor = problem_.plan.programs[p].graph.tensors[t];
  const std::int32_t first = setup_.programs.layoutOf(p).firstSlot[t];
  const std::int32_t slots = slotsOf(tensor);
  Relation result{p, t, {}, {}, {}, {}};
  for (const Rank r : ranks) {
    for (std::int32_t m = 0; m < slots; ++m) {
      const auto& places = found_[setup_.programs.slot(r, first + m)];
      if (places.empty()) return std::nullopt;
      result.found.push_back({r, tensor.perMicrobatch ? m : -1, places});
    }
  }
  return result;
}

template class LocalBoxes<double>;
template class LocalBoxes<long double>;

}  // namespace shardproof::infer
