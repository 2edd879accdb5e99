// SPDX-License-Identifier: Apache-2.0
#include "compare/layout.h"

#include <algorithm>

#include "shardproof/error.h"

namespace shardproof::compare {
namespace {

std::int64_t sizeOf(const Trace& trace, std::size_t calls, std::size_t axis) {
  return axis < trace.mesh.size() ? trace.mesh[axis].size : static_cast<std::int64_t>(calls);
}

std::int64_t coordinateOf(const Trace& trace, const Piece& piece, std::size_t axis) {
  return axis < trace.mesh.size() ? trace.coordinate(piece.rank, axis) : piece.call;
}

bool isSummed(Along along) { return along == Along::kSum || along == Along::kMean; }

// Adds a choice for axes[i] and those behind it to `chosen`, in all ways.
struct Enumeration {
  const Trace& trace;
  std::size_t calls;
  const std::vector<std::size_t>& axes;
  bool sums;
  std::size_t most;
  std::vector<std::vector<Choice>>& found;
  std::vector<Choice> chosen;
  std::vector<std::int64_t> ratios;  // by which dimensions have to grow still

  void from(std::size_t i) {
    if (found.size() >= most) return;
    if (i == axes.size()) {
      if (std::all_of(ratios.begin(), ratios.end(), [](std::int64_t r) { return r == 1; }))
        found.push_back(chosen);
      return;
    }
    const std::int64_t size = sizeOf(trace, calls, axes[i]);
    const auto choose = [&](Along along, std::size_t dimension) {
      chosen.push_back({axes[i], along, dimension});
      from(i + 1);
      chosen.pop_back();
    };
    choose(Along::kEqual, 0);
    for (std::size_t d = 0; d < ratios.size(); ++d) {
      if (ratios[d] % size != 0) continue;
      ratios[d] /= size;
      choose(Along::kCut, d);
      ratios[d] *= size;
    }
    if (sums) {
      choose(Along::kSum, 0);
      choose(Along::kMean, 0);
    }
  }
};

}  // namespace

std::size_t Layout::elements() const {
  std::size_t n = 1;
  for (const std::int64_t size : shape) n *= static_cast<std::size_t>(size);
  return n;
}

Layout layoutOf(const Trace& trace, const std::vector<const Piece*>& pieces, std::size_t calls,
                const std::vector<Choice>& choices) {
  Layout layout;
  const Piece& first = *pieces.front();
  layout.shape = first.shape;
  layout.choices = choices;
  for (const Choice& choice : choices)
    if (choice.along == Along::kCut)
      layout.shape[choice.dimension] *= sizeOf(trace, calls, choice.axis);
  std::vector<std::size_t> summed = first.sum;
  summed.insert(summed.end(), first.mean.begin(), first.mean.end());
  for (const std::size_t axis : first.mean)
    layout.scale /= static_cast<double>(trace.mesh[axis].size);
  for (const Choice& choice : choices) {
    if (isSummed(choice.along)) summed.push_back(choice.axis);
    if (choice.along == Along::kMean)
      layout.scale /= static_cast<double>(sizeOf(trace, calls, choice.axis));
  }
  for (const std::size_t axis : summed)
    layout.summands *= static_cast<std::size_t>(sizeOf(trace, calls, axis));
  for (const Piece* piece : pieces) {
    if (piece->shape != first.shape || piece->sum != first.sum || piece->mean != first.mean)
      throw InputError(
          piece->file->path(), "trace/tensors/" + piece->key,
          "shape, sum or mean are not those of the same tensor in " + first.file->path());
    PlacedPiece placed;
    placed.piece = piece;
    placed.parts = piece->parts;
    for (const std::size_t axis : summed)
      placed.summand = placed.summand * static_cast<std::size_t>(sizeOf(trace, calls, axis)) +
                       static_cast<std::size_t>(coordinateOf(trace, *piece, axis));
    // Of axes that cut the same dimension the slower one has the larger stretches.
    std::vector<std::int64_t> at(first.shape.size(), 0);
    for (const Choice& choice : choices)
      if (choice.along == Along::kCut)
        at[choice.dimension] = at[choice.dimension] * sizeOf(trace, calls, choice.axis) +
                               coordinateOf(trace, *piece, choice.axis);
    for (Part& part : placed.parts)
      for (std::size_t d = 0; d < at.size(); ++d) part.low[d] += at[d] * first.shape[d];
    layout.pieces.push_back(std::move(placed));
  }
  return layout;
}

std::vector<std::vector<Choice>> choicesFor(const Trace& trace,
                                            const std::vector<const Piece*>& pieces,
                                            std::size_t calls,
                                            const std::vector<std::int64_t>& shape, bool sums,
                                            std::size_t most) {
  std::vector<std::vector<Choice>> found;
  const Piece& first = *pieces.front();
  if (first.shape.size() != shape.size()) return found;
  std::vector<std::int64_t> ratios;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (first.shape[d] == shape[d]) ratios.push_back(1);
    else if (first.shape[d] == 0 || shape[d] % first.shape[d] != 0) return found;
    else ratios.push_back(shape[d] / first.shape[d]);
  }
  for (const Piece* piece : pieces)
    if (piece->shape != first.shape) return found;
  std::vector<std::size_t> axes = first.unknown;
  if (calls > 1) axes.push_back(trace.mesh.size());
  Enumeration{trace, calls, axes, sums, most, found, {}, ratios}.from(0);
  return found;
}

std::string describe(const Trace& trace, const std::vector<Choice>& choices) {
  std::string text;
  for (const Choice& choice : choices) {
    if (choice.along == Along::kEqual) continue;
    const std::string axis =
        choice.axis < trace.mesh.size() ? trace.mesh[choice.axis].name : "calls";
    if (!text.empty()) text += ", ";
    if (choice.along == Along::kCut)
      text += "cut over " + axis + " in dimension " + std::to_string(choice.dimension);
    else text += (choice.along == Along::kSum ? "sum over " : "mean over ") + axis;
  }
  return text;
}

}  // namespace shardproof::compare
