// SPDX-License-Identifier: Apache-2.0
#include "compare/sketch.h"

#include <algorithm>
#include <cmath>

#include "compare/runs.h"

namespace shardproof::compare {
namespace {

constexpr std::size_t kStretch = std::size_t{1} << 16;  // elements that are widened at a time
constexpr std::size_t kMostCells = std::size_t{1} << 22;

bool sameBoxes(const std::vector<Part>& a, const std::vector<Part>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Part& x, const Part& y) {
    return x.low == y.low && x.size == y.size;
  });
}

struct Stretch {
  std::size_t place, local, count;
};

Sketch sketchOfElements(const PlacedPiece& placed, const std::vector<std::int64_t>& shape,
                        [[maybe_unused]] bool parallel, bool& inexact) {
  std::vector<Stretch> stretches;
  for (const Part& part : placed.parts) {
    const Runs runs(shape, part);
    for (std::size_t run = 0; run < runs.count(); ++run)
      for (std::size_t done = 0; done < runs.length(); done += kStretch)
        stretches.push_back({runs.begin(run) + done, runs.local(run) + done,
                             std::min(kStretch, runs.length() - done)});
  }
  const Stored& stored = *placed.piece->stored;
  const std::size_t bytes = bytesOfElement(stored.dtype);
  const bool isLong = !isFloat(stored.dtype) && bytes == 8;
  Sketch sums(kBuckets, 0.0);
  bool large = false;
  const auto count = static_cast<std::int64_t>(stretches.size());
#pragma omp parallel if (parallel && count > 1)
  {
    Sketch mine(kBuckets, 0.0);
    std::vector<double> values;
    bool found = false;
#pragma omp for schedule(static)
    for (std::int64_t i = 0; i < count; ++i) {
      const Stretch& stretch = stretches[static_cast<std::size_t>(i)];
      values.resize(stretch.count);
      widen(stored.dtype, stored.data + stretch.local * bytes, stretch.count, values.data());
      if (isLong)
        for (const double value : values) found |= std::abs(value) >= kLargestExact;
      addToSketch(mine, stretch.place, values.data(), stretch.count);
    }
#pragma omp critical
    {
      large |= found;
      for (std::size_t b = 0; b < kBuckets; ++b) sums[b] += mine[b];
    }
  }
  inexact |= large;
  return sums;
}

// Whether the boxes of distinct pieces are apart, and which elements none has. A grid is laid
// through the bounds of all boxes; each of its cells is in a box or not.
class Coverage {
 public:
  Coverage(const std::vector<std::int64_t>& shape, const std::vector<const PlacedPiece*>& pieces)
      : shape_(shape), bounds_(shape.size()) {
    for (std::size_t d = 0; d < shape.size(); ++d) {
      std::vector<std::int64_t>& bounds = bounds_[d];
      bounds = {0, shape[d]};
      for (const PlacedPiece* piece : pieces)
        for (const Part& part : piece->parts) {
          bounds.push_back(part.low[d]);
          bounds.push_back(part.low[d] + part.size[d]);
        }
      std::sort(bounds.begin(), bounds.end());
      bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
      const std::size_t cells = bounds.size() - 1;
      if (cells == 0) return;  // no elements
      if (count_ > kMostCells / cells) {
        isTooFine_ = true;
        return;
      }
      count_ *= cells;
    }
    covered_.assign(count_, false);
    for (const PlacedPiece* piece : pieces)
      for (const Part& part : piece->parts) cover(part, 0, 0);
    findMissing(0, 0, 1, 0);
  }

  bool isTooFine() const { return isTooFine_; }
  bool overlaps() const { return overlaps_; }
  std::size_t missing() const { return missing_; }
  std::size_t firstMissing() const { return firstMissing_; }

 private:
  std::size_t cells(std::size_t d) const { return bounds_[d].size() - 1; }

  void cover(const Part& part, std::size_t d, std::size_t cell) {
    if (d == shape_.size()) {
      if (covered_[cell]) overlaps_ = true;
      covered_[cell] = true;
      return;
    }
    const auto at = [&](std::int64_t bound) {
      return static_cast<std::size_t>(
          std::lower_bound(bounds_[d].begin(), bounds_[d].end(), bound) - bounds_[d].begin());
    };
    const std::size_t end = at(part.low[d] + part.size[d]);
    for (std::size_t k = at(part.low[d]); k < end; ++k) cover(part, d + 1, cell * cells(d) + k);
  }

  // The cells in row-major order; the first corner of the first one is the first missing element.
  void findMissing(std::size_t d, std::size_t cell, std::size_t elements, std::size_t place) {
    if (d == shape_.size()) {
      if (covered_[cell]) return;
      if (missing_ == 0) firstMissing_ = place;
      missing_ += elements;
      return;
    }
    for (std::size_t k = 0; k < cells(d); ++k)
      findMissing(
          d + 1, cell * cells(d) + k,
          elements * static_cast<std::size_t>(bounds_[d][k + 1] - bounds_[d][k]),
          place * static_cast<std::size_t>(shape_[d]) + static_cast<std::size_t>(bounds_[d][k]));
  }

  const std::vector<std::int64_t>& shape_;
  std::vector<std::vector<std::int64_t>> bounds_;
  std::size_t count_ = 1, missing_ = 0, firstMissing_ = 0;
  std::vector<bool> covered_;
  bool isTooFine_ = false, overlaps_ = false;
};

}  // namespace

std::uint64_t hashOfPlace(std::uint64_t place) {
  std::uint64_t z = place + 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

void addToSketch(Sketch& sketch, std::size_t place, const double* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t hash = hashOfPlace(place + i);
    sketch[hash % kBuckets] += (hash >> 63U) != 0 ? -values[i] : values[i];
  }
}

bool hasSketch(const Layout& layout) {
  return std::any_of(layout.pieces.begin(), layout.pieces.end(),
                     [](const PlacedPiece& placed) { return placed.piece->isSketch; });
}

MergedSketch sketchOf(const Layout& layout, bool parallel) {
  MergedSketch whole{Sketch(kBuckets, 0.0), {}};
  Merged& merged = whole.merged;
  for (std::size_t summand = 0; summand < layout.summands; ++summand) {
    std::vector<const PlacedPiece*> distinct;
    std::vector<Sketch> sketches;
    for (const PlacedPiece& placed : layout.pieces) {
      if (placed.summand != summand) continue;
      const Piece& piece = *placed.piece;
      if (piece.isSketch &&
          (layout.shape != piece.shape || !sameBoxes(placed.parts, piece.parts))) {
        merged.obstacle = "was recorded as a sketch, and where its parts are was not declared";
        return whole;
      }
      Sketch sums(kBuckets, 0.0);
      if (piece.isSketch) widen(piece.stored->dtype, piece.stored->data, kBuckets, sums.data());
      else sums = sketchOfElements(placed, layout.shape, parallel, merged.inexact);
      if (!std::all_of(sums.begin(), sums.end(), [](double sum) { return std::isfinite(sum); })) {
        merged.obstacle = "has elements that are not finite, and was recorded as a sketch";
        return whole;
      }
      const auto same = std::find_if(
          distinct.begin(), distinct.end(),
          [&](const PlacedPiece* other) { return sameBoxes(other->parts, placed.parts); });
      if (same == distinct.end()) {
        distinct.push_back(&placed);
        sketches.push_back(std::move(sums));
        continue;
      }
      const Sketch& first = sketches[static_cast<std::size_t>(same - distinct.begin())];
      double squared = 0;
      for (std::size_t b = 0; b < kBuckets; ++b) squared += std::pow(first[b] - sums[b], 2);
      if (squared != 0) merged.replicas.push_back({(*same)->piece->rank, piece.rank, squared});
    }
    const Coverage coverage(layout.shape, distinct);
    if (coverage.isTooFine() || coverage.overlaps()) {
      merged.obstacle = "was recorded as sketches of parts that overlap or are too many";
      return whole;
    }
    if (coverage.missing() != 0 &&
        (merged.missing == 0 || coverage.firstMissing() < merged.firstMissing))
      merged.firstMissing = coverage.firstMissing();
    merged.missing += coverage.missing();
    for (const Sketch& sketch : sketches)
      for (std::size_t b = 0; b < kBuckets; ++b) whole.sums[b] += sketch[b];
  }
  for (double& sum : whole.sums) {
    sum *= layout.scale;
    merged.squared += static_cast<long double>(sum) * sum;
    merged.nonzero |= sum != 0;
  }
  return whole;
}

}  // namespace shardproof::compare
