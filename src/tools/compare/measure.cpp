// SPDX-License-Identifier: Apache-2.0
#include "compare/measure.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "compare/runs.h"
#include "compare/sketch.h"

namespace shardproof::compare {
namespace {

constexpr double kLargestSquared = 1e150;  // sums of squares of such numbers do not overflow

constexpr std::size_t kWindow = std::size_t{1} << 16;  // elements that are put together at a time

// Whether a sum of squares of doubles may have overflowed or lost small ones.
bool isUnsafe(double squared) { return !(squared > 1e-250 && squared < 1e300); }

long double squaredDifference(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const long double difference = static_cast<long double>(a) - b;
  return std::isnan(difference) ? std::numeric_limits<long double>::infinity()
                                : difference * difference;
}

struct PreparedPiece {
  const PlacedPiece* placed;
  std::vector<Runs> runs;
};

// One side of the comparison: stretches of its whole tensor.
class Source {
 public:
  explicit Source(const Layout& layout) : layout_(layout), summands_(layout.summands) {
    for (const PlacedPiece& placed : layout.pieces) {
      PreparedPiece prepared{&placed, {}};
      for (const Part& part : placed.parts) prepared.runs.emplace_back(layout.shape, part);
      summands_[placed.summand].push_back(std::move(prepared));
    }
  }

  struct Buffers {
    std::vector<double> values, summand, local;
    std::vector<std::int32_t> owner;
  };
  using Replicas = std::map<std::pair<std::int64_t, std::int64_t>, long double>;

  // The elements from begin up to end, in buffers.values; what is missing is zero.
  void fill(std::size_t begin, std::size_t end, Buffers& buffers, Merged& merged,
            Replicas& replicas) const {
    const std::size_t count = end - begin;
    buffers.values.assign(count, 0.0);
    for (const std::vector<PreparedPiece>& pieces : summands_) {
      std::vector<double>& into = summands_.size() == 1 ? buffers.values : buffers.summand;
      if (summands_.size() > 1) into.assign(count, 0.0);
      buffers.owner.assign(count, -1);
      for (std::size_t p = 0; p < pieces.size(); ++p)
        for (const Runs& runs : pieces[p].runs)
          take(pieces, p, runs, begin, end, into, buffers, merged, replicas);
      for (std::size_t i = 0; i < count; ++i) {
        if (buffers.owner[i] >= 0) continue;
        if (merged.missing == 0 || begin + i < merged.firstMissing) merged.firstMissing = begin + i;
        ++merged.missing;
      }
      if (summands_.size() > 1)
        for (std::size_t i = 0; i < count; ++i) buffers.values[i] += into[i];
    }
    double squared = 0;
    for (double& value : buffers.values) {
      value *= layout_.scale;
      if (!std::isfinite(value)) {
        ++merged.notFinite;
      } else {
        squared += value * value;
        merged.inexact |= std::abs(value) > kLargestSquared;
        merged.nonzero |= value != 0;
      }
    }
    if (!isUnsafe(squared)) {
      merged.squared += squared;
      return;
    }
    for (const double value : buffers.values)
      if (std::isfinite(value)) merged.squared += static_cast<long double>(value) * value;
  }

 private:
  void take(const std::vector<PreparedPiece>& pieces, std::size_t p, const Runs& runs,
            std::size_t begin, std::size_t end, std::vector<double>& into, Buffers& buffers,
            Merged& merged, Replicas& replicas) const {
    const Piece& piece = *pieces[p].placed->piece;
    const Stored& stored = *piece.stored;
    const std::size_t bytes = bytesOfElement(stored.dtype);
    for (std::size_t run = runs.firstBehind(begin); run < runs.count(); ++run) {
      const std::size_t at = runs.begin(run);
      if (at >= end) break;
      const std::size_t from = std::max(at, begin), to = std::min(at + runs.length(), end);
      const std::size_t n = to - from, offset = from - begin;
      buffers.local.resize(n);
      widen(stored.dtype, stored.data + (runs.local(run) + from - at) * bytes, n,
            buffers.local.data());
      if (!isFloat(stored.dtype) && bytes == 8)
        for (std::size_t i = 0; i < n; ++i)
          merged.inexact |= std::abs(buffers.local[i]) >= kLargestExact;
      for (std::size_t i = 0; i < n; ++i) {
        std::int32_t& owner = buffers.owner[offset + i];
        if (owner < 0) {
          owner = static_cast<std::int32_t>(p);
          into[offset + i] = buffers.local[i];
        } else if (const long double squared =
                       squaredDifference(into[offset + i], buffers.local[i]);
                   squared != 0) {
          replicas[{pieces[static_cast<std::size_t>(owner)].placed->piece->rank, piece.rank}] +=
              squared;
        }
      }
    }
  }

  const Layout& layout_;
  std::vector<std::vector<PreparedPiece>> summands_;
};

void add(Merged& all, const Merged& some) {
  if (some.missing != 0 && (all.missing == 0 || some.firstMissing < all.firstMissing))
    all.firstMissing = some.firstMissing;
  all.missing += some.missing;
  all.notFinite += some.notFinite;
  all.squared += some.squared;
  all.inexact |= some.inexact;
  all.nonzero |= some.nonzero;
}

void add(Source::Replicas& all, const Source::Replicas& some) {
  for (const auto& [ranks, squared] : some) all[ranks] += squared;
}

void list(Merged& merged, const Source::Replicas& replicas) {
  for (const auto& [ranks, squared] : replicas)
    merged.replicas.push_back({ranks.first, ranks.second, squared});
}

// By sketches, where one side has them.
Measured measureSketches(const Layout& reference, const Layout& other, bool parallel) {
  const MergedSketch left = sketchOf(reference, parallel), right = sketchOf(other, parallel);
  Measured measured;
  measured.reference = left.merged;
  measured.other = right.merged;
  for (std::size_t b = 0; b < kBuckets; ++b) {
    measured.difference += squaredDifference(left.sums[b], right.sums[b]);
    measured.product += static_cast<long double>(left.sums[b]) * right.sums[b];
  }
  if (!left.merged.obstacle.empty() || !right.merged.obstacle.empty())
    measured.difference = std::numeric_limits<long double>::infinity();
  return measured;
}

}  // namespace

Measured measure(const Layout& reference, const Layout& other, [[maybe_unused]] bool parallel) {
  if (hasSketch(reference) || hasSketch(other)) return measureSketches(reference, other, parallel);
  const Source left(reference), right(other);
  const std::size_t elements = reference.elements();
  const auto windows = static_cast<std::int64_t>((elements + kWindow - 1) / kWindow);
  Measured all;
  Source::Replicas leftReplicas, rightReplicas;
#pragma omp parallel if (parallel && windows > 1)
  {
    Source::Buffers a, b;
    Measured mine;
    Source::Replicas myLeft, myRight;
#pragma omp for schedule(dynamic)
    for (std::int64_t w = 0; w < windows; ++w) {
      const std::size_t begin = static_cast<std::size_t>(w) * kWindow,
                        end = std::min(elements, begin + kWindow);
      left.fill(begin, end, a, mine.reference, myLeft);
      right.fill(begin, end, b, mine.other, myRight);
      long double difference = 0, product = 0;
      for (std::size_t i = 0; i < end - begin; ++i) {
        difference += squaredDifference(a.values[i], b.values[i]);
        product += static_cast<long double>(a.values[i]) * b.values[i];
      }
      mine.difference += difference;
      mine.product += product;
    }
#pragma omp critical
    {
      add(all.reference, mine.reference);
      add(all.other, mine.other);
      all.difference += mine.difference;
      all.product += mine.product;
      add(leftReplicas, myLeft);
      add(rightReplicas, myRight);
    }
  }
  list(all.reference, leftReplicas);
  list(all.other, rightReplicas);
  return all;
}

}  // namespace shardproof::compare
