// SPDX-License-Identifier: Apache-2.0
#include "infer/partial_sums.h"

#include <algorithm>
#include <cmath>

#include "infer/subsets.h"
#include "util/index.h"

namespace shardproof::infer {

namespace {

// A factor for the i-th element, 1 to 2, so that the sum over all elements separates tensors.
template <class Real>
Real factorOf(std::int64_t i) {
  std::uint64_t x = static_cast<std::uint64_t>(i) + 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return 1 + static_cast<Real>((x ^ (x >> 31)) >> 1) * 0x1p-63;
}

std::int64_t pivotOf(std::size_t k, std::int64_t size) {
  return static_cast<std::int64_t>(k) * (size - 1) / static_cast<std::int64_t>(kPivots - 1);
}

}  // namespace

template <class Real>
PartialSums<Real>::PartialSums(const executor::Setup& setup, const Correspondence& correspondence,
                               const ModelTable<Real>& table, const std::vector<Rational>& scales)
    : setup_(setup),
      problem_(setup.problem),
      correspondence_(correspondence),
      table_(table),
      scales_(scales),
      fingerprintOf_(at(setup.programs.slots()), -1) {}

template <class Real>
void PartialSums<Real>::take(std::int64_t slot, const executor::Value<Real>& value) {
  const Real* x = value.data();
  const std::int64_t n = value.size();
  Fingerprint<Real> fingerprint{value.shape, n, 0, 0, {}};
  for (std::int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return;
    fingerprint.all += factorOf<Real>(i) * x[i];
    fingerprint.largest = std::max(fingerprint.largest, std::abs(x[i]));
  }
  for (std::size_t k = 0; k < kPivots; ++k) fingerprint.pivots[k] = x[pivotOf(k, n)];
  fingerprintOf_[at(slot)] = static_cast<std::int32_t>(fingerprints_.size());
  fingerprints_.push_back(fingerprint);
}

template <class Real>
std::optional<Relation> PartialSums<Real>::relation(ProgramId p, TensorId t,
                                                    const std::vector<Rank>& ranks) const {
  if (auto found = relation(p, t, ranks, Arrangement())) return found;
  for (const Rational& scale : scales_) {
    Arrangement arrangement;
    arrangement.scale = scale;
    if (auto found = relation(p, t, ranks, arrangement)) return found;
  }
  return std::nullopt;
}

template <class Real>
std::optional<Relation> PartialSums<Real>::relation(ProgramId p, TensorId t,
                                                    const std::vector<Rank>& ranks,
                                                    const Arrangement& arrangement) const {
  const Program& program = problem_.plan.programs[p];
  const Tensor& tensor = program.graph.tensors[t];
  const auto& mesh = setup_.programs.mesh();
  std::vector<std::int32_t> free;
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    const bool later = std::any_of(program.at.begin(), program.at.end(), [&](const auto& c) {
      return at(c.first) == a && c.second != 0;
    });
    if (!later && mesh.size(a) > 1) free.push_back(static_cast<std::int32_t>(a));
  }
  if (tensor.perMicrobatch && problem_.plan.microbatches > 1) free.push_back(kMicrobatchAxis);
  for (const auto& axes : subsetsOf(free)) {
    Relation result{p, t, axes, {}, arrangement, {}};
    const bool overMicrobatches = !axes.empty() && axes.back() == kMicrobatchAxis;
    const std::int32_t slots =
        tensor.perMicrobatch && !overMicrobatches ? problem_.plan.microbatches : 1;
    bool all = true;
    for (const Rank r : ranks) {
      const bool origin = std::all_of(axes.begin(), axes.end(), [&](std::int32_t a) {
        return a == kMicrobatchAxis || mesh.coordinate(r, at(a)) == 0;
      });
      if (!origin) continue;
      for (std::int32_t m = 0; all && m < slots; ++m) {
        auto found = places(p, t, r, m, axes, static_cast<Real>(arrangement.scale.toDouble()));
        all = !found.empty();
        result.found.push_back(
            {r, tensor.perMicrobatch && !overMicrobatches ? m : -1, std::move(found)});
      }
      if (!all) break;
    }
    if (!all || result.found.empty()) continue;
    for (const Rank r : ranksAlong(ranks.front(), axes)) {
      const ProgramId q = setup_.programs.programOf(r);
      const std::pair other{q, correspondence_.result(p, t, q)};
      if (q != p &&
          std::find(result.others.begin(), result.others.end(), other) == result.others.end())
        result.others.push_back(other);
    }
    return result;
  }
  return std::nullopt;
}

// The ranks that differ from this one in these axes only.
template <class Real>
std::vector<Rank> PartialSums<Real>::ranksAlong(Rank rank,
                                                const std::vector<std::int32_t>& axes) const {
  const auto& mesh = setup_.programs.mesh();
  std::vector<Rank> ranks{rank};
  for (const std::int32_t a : axes) {
    if (a == kMicrobatchAxis) continue;
    std::vector<Rank> wider;
    for (const Rank r : ranks)
      for (std::int64_t c = 0; c < mesh.size(at(a)); ++c) wider.push_back(mesh.moved(r, at(a), c));
    ranks = std::move(wider);
  }
  return ranks;
}

// Parts that are equal along one of the axes: that they add up to the whole implies less than what
// they are without that axis. `all`: of each summand, the last axis fastest.
template <class Real>
bool PartialSums<Real>::equalAlongOne(const std::vector<std::int32_t>& axes,
                                      const std::vector<Real>& all, Real tolerance) const {
  std::size_t below = all.size();
  for (const std::int32_t a : axes) {
    const std::size_t count = a == kMicrobatchAxis ? at(problem_.plan.microbatches)
                                                   : at(setup_.programs.mesh().size(at(a)));
    const std::size_t step = below / count;  // between neighbours along the axis
    bool equal = true;
    for (std::size_t i = 0; i < all.size() && equal; ++i)
      equal = same(all[i], all[i - i / step % count * step], tolerance);
    if (equal) return true;
    below = step;
  }
  return false;
}

template <class Real>
std::vector<BoxPosition> PartialSums<Real>::places(ProgramId p, TensorId t, Rank rank,
                                                   std::int32_t microbatch,
                                                   const std::vector<std::int32_t>& axes,
                                                   Real scale) const {
  std::vector<std::int32_t> slots{microbatch};
  if (!axes.empty() && axes.back() == kMicrobatchAxis) {
    slots.clear();
    for (std::int32_t k = 0; k < problem_.plan.microbatches; ++k) slots.push_back(k);
  }
  Fingerprint<Real> sum;
  std::vector<Real> alls;
  for (const Rank r : ranksAlong(rank, axes)) {
    const ProgramId q = setup_.programs.programOf(r);
    const TensorId other = correspondence_.result(p, t, q);
    if (!other.valid()) return {};
    const std::int32_t first = setup_.programs.layoutOf(q).firstSlot[other];
    for (const std::int32_t s : slots) {
      const std::int32_t number = fingerprintOf_[at(setup_.programs.slot(r, first + s))];
      if (number < 0) return {};
      const Fingerprint<Real>& one = fingerprints_[at(number)];
      alls.push_back(one.all);
      if (sum.size == 0) {
        sum = one;
        continue;
      }
      if (sum.shape != one.shape) return {};
      sum.all += one.all;
      sum.largest += one.largest;
      for (std::size_t k = 0; k < kPivots; ++k) sum.pivots[k] += one.pivots[k];
    }
  }
  std::vector<BoxPosition> result;
  sum.all *= scale;
  sum.largest *= std::abs(scale);
  for (Real& pivot : sum.pivots) pivot *= scale;
  const Real tolerance = kRounding<Real> * sum.largest;
  const std::size_t k = static_cast<std::size_t>(
      std::max_element(sum.pivots.begin(), sum.pivots.end(),
                       [](Real a, Real b) { return std::abs(a) < std::abs(b); }) -
      sum.pivots.begin());
  if (sum.size == 0 || equalAlongOne(axes, alls, kRounding<Real> * sum.largest) ||
      std::abs(sum.pivots[k]) <= tolerance)
    return result;
  table_.forPlaces(sum.shape, ElementKind::kReal, pivotOf(k, sum.size), sum.pivots[k], tolerance,
                   [&](const BoxPosition& place) {
                     Real all = 0;
                     const bool numbers =
                         table_.allOf(place, sum.shape, [&](std::int64_t i, Real y) {
                           all += factorOf<Real>(i) * y;
                           return std::isfinite(y);
                         });
                     if (numbers && same(all, sum.all, tolerance * static_cast<Real>(sum.size)))
                       result.push_back(place);
                     return result.size() == kMostPlaces;
                   });
  return result;
}

template class PartialSums<double>;
template class PartialSums<long double>;

}  // namespace shardproof::infer
