// SPDX-License-Identifier: Apache-2.0
#include "shape_reduction/reduction.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "shape_reduction/axis_blocks.h"
#include "shape_reduction/dimension_graph.h"
#include "shardproof/error.h"
#include "util/index.h"
#include "util/union_find.h"

namespace shardproof {

namespace {

class Reducer {
 public:
  Reducer(const Stage& stage, const ReductionOptions& options)
      : stage_(stage),
        options_(options),
        graph_(buildDimensionGraph(stage, options.knownInputs)),
        blocks_(stage, graph_) {}

  ReducedStage run() {
    analyse();
    return assemble();
  }

 private:
  void analyse() {
    cutLines();
    classifyPieces();
    countVariables();
  }

  // ---- cuts

  void cutLines() {
    const std::size_t n = graph_.lines.size();
    cuts_.resize(n);
    relations_.resize(n);
    std::vector<std::pair<std::int32_t, std::int64_t>> todo;
    const auto cut = [&](std::int32_t line, std::int64_t position) {
      if (position < 0 || position > graph_.lines[line].size)
        throw std::logic_error("cut outside a dimension");
      if (cuts_[line].insert(position).second) {
        todo.emplace_back(line, position);
        if (++cutCount_ > kMostCuts) {
          throw Unsupported(
              "no faithful reduction of a tractable size: bounds that do not line up cut a "
              "dimension into single positions");
        }
      }
    };
    // Blocks of one collapsed axis repeat the same pattern of cuts: that of the first.
    for (std::size_t l = 0; l < n; ++l) {
      const auto line = static_cast<std::int32_t>(l);
      for (const AxisBlocks::Blocks& b : blocks_.onLine(l)) {
        for (std::int64_t start = 0; start < b.period * b.periods; start += b.period) {
          for (const auto& [c, weight] : blocks_.axis(b).kept) {
            const std::int64_t at = start + c * b.unit;
            if (at > 0) graph_.segments.push_back({line, 0, line, at, b.unit, true});
          }
        }
      }
    }
    for (std::size_t i = 0; i < graph_.segments.size(); ++i) {
      relations_[graph_.segments[i].lineA].push_back(i);
      if (graph_.segments[i].lineB != graph_.segments[i].lineA)
        relations_[graph_.segments[i].lineB].push_back(i);
    }
    for (std::size_t l = 0; l < n; ++l) {
      const auto line = static_cast<std::int32_t>(l);
      const std::int64_t size = graph_.lines[l].size;
      cut(line, 0);
      cut(line, size);
      const bool keep = graph_.lines[l].keep || (options_.keepAbsolute && graph_.lines[l].absolute);
      if (keep && size != kUnboundedValues) {
        if (size > options_.maxKeptDimension) {
          throw Unsupported("a dimension of size " + std::to_string(size) +
                            " would have to be kept whole (limit " +
                            std::to_string(options_.maxKeptDimension) + ")");
        }
        for (std::int64_t p = 1; p < size; ++p) cut(line, p);
      }
      for (const AxisBlocks::Blocks& b : blocks_.onLine(l)) {
        for (std::int64_t start = 0; start < b.period * b.periods; start += b.period) {
          cut(line, start);
          for (const auto& [c, weight] : blocks_.axis(b).kept) {
            cut(line, start + c * b.unit);
            cut(line, start + (c + 1) * b.unit);
          }
          cut(line, start + b.count * b.unit);
        }
      }
    }
    for (const DimensionGraph::Cut& c : graph_.cuts) cut(c.line, c.position);
    for (const Segment& s : graph_.segments) {
      cut(s.lineA, s.loA);
      cut(s.lineA, s.loA + s.length);
      cut(s.lineB, s.loB);
      cut(s.lineB, s.loB + s.length);
    }
    while (!todo.empty()) {
      const auto [line, position] = todo.back();
      todo.pop_back();
      for (const std::size_t i : relations_[line]) {
        const Segment& s = graph_.segments[i];
        if (s.lineA == line && position > s.loA && position < s.loA + s.length)
          cut(s.lineB, position - s.loA + s.loB);
        if (s.lineB == line && position > s.loB && position < s.loB + s.length)
          cut(s.lineA, position - s.loB + s.loA);
      }
    }
    blocks_.checkCuts(cuts_);
  }

  // ---- pieces and their classes

  void classifyPieces() {
    const std::size_t n = graph_.lines.size();
    starts_.resize(n);
    firstPiece_.resize(n);
    std::int32_t pieces = 0;
    for (std::size_t l = 0; l < n; ++l) {
      starts_[l].assign(cuts_[l].begin(), cuts_[l].end());
      firstPiece_[l] = pieces;
      pieces += static_cast<std::int32_t>(starts_[l].size()) - 1;
    }
    classes_ = UnionFind<std::int32_t>(static_cast<std::size_t>(pieces));
    for (const Segment& s : graph_.segments) {
      auto i = index(s.lineA, s.loA), j = index(s.lineB, s.loB);
      const auto end = index(s.lineA, s.loA + s.length);
      for (; i < end; ++i, ++j)
        classes_.unite(firstPiece_[s.lineA] + static_cast<std::int32_t>(i),
                       firstPiece_[s.lineB] + static_cast<std::int32_t>(j));
    }
    summed_.assign(classes_.size(), 0);
    absolute_.assign(classes_.size(), 0);
    lookedUp_.assign(classes_.size(), 0);
    variables_.assign(classes_.size(), 0);
    for (std::size_t l = 0; l < n; ++l) {
      for (std::size_t i = 0; i + 1 < starts_[l].size(); ++i) {
        const std::int32_t c = classes_.find(firstPiece_[l] + static_cast<std::int32_t>(i));
        if (graph_.lines[l].summed) summed_[c] = 1;
        if (graph_.lines[l].absolute) absolute_[c] = 1;
        if (graph_.lines[l].size == kUnboundedValues) lookedUp_[c] = 1;
      }
    }
    classesOfLine_.resize(n);
    for (std::size_t l = 0; l < n; ++l) {
      std::set<std::int32_t> classes;
      for (std::size_t i = 0; i + 1 < starts_[l].size(); ++i)
        classes.insert(classes_.find(firstPiece_[l] + static_cast<std::int32_t>(i)));
      classesOfLine_[l].assign(classes.begin(), classes.end());
    }
  }

  // How many index variables of one summand may range over pieces of a class: that many positions
  // must be kept apart.
  void countVariables() {
    for (const auto& iteration : graph_.iterations) {
      std::map<std::int32_t, int> touching;
      for (const auto& variable : iteration.variables) {
        std::set<std::int32_t> classes;
        for (const auto& lines : variable) {
          for (const std::int32_t l : lines)
            classes.insert(classesOfLine_[l].begin(), classesOfLine_[l].end());
        }
        for (const std::int32_t c : classes) {
          touching[c] += DimensionGraph::Iteration::positions(variable, [&](std::int32_t l) {
            return std::binary_search(classesOfLine_[l].begin(), classesOfLine_[l].end(), c);
          });
        }
      }
      for (const auto& [c, count] : touching) variables_[c] = std::max(variables_[c], count);
    }
  }

  // ---- reduced dimensions

  struct Elements {
    std::vector<std::int64_t> position, weight;
    std::vector<ops::ReducedDim::Place> places;  // of one line: one for each position
  };

  // Positions of a class that are kept apart. An element of a tensor is told by as many positions
  // as it has index variables, and where something is summed each summand may involve as many
  // again: with fewer than both together, sums that differ at full size (x0 - mean, x1 - mean)
  // could become multiples of one another. Where nothing is summed every position stands for
  // itself.
  std::int64_t apart(std::int32_t c) const {
    // In numbers: an index that looks something up needs several rows to choose from (with one, all
    // tokens are the same and attention does not depend on scores), and order shows between two
    // positions only.
    if (options_.numbersOnly) return absolute_[c] ? options_.absoluteApart : lookedUp_[c] ? 2 : 1;
    const std::int64_t variables = std::max(1, variables_[c]);
    return variables * ((summed_[c] ? 2 : 1) + options_.extraSummands);
  }
  // And with the one that stands for all others.
  std::int64_t needed(std::int32_t c) const {
    return summed_[c] || options_.numbersOnly ? apart(c) + 1 : apart(c);
  }

  Elements reduceLine(std::size_t l) {
    Elements elements;
    for (std::size_t i = 0; i + 1 < starts_[l].size(); ++i) {
      const std::int64_t lo = starts_[l][i], size = starts_[l][i + 1] - lo;
      std::int64_t weight = 1;
      if (!blocks_.retained(l, lo, weight)) {
        pieces_.emplace_back(size, 1);
        continue;
      }
      const std::int32_t c = classes_.find(firstPiece_[l] + static_cast<std::int32_t>(i));
      const std::int64_t count = std::min(size, needed(c));
      pieces_.emplace_back(size, count);
      if (count < size) {
        mostVariables_ = std::max(mostVariables_, std::max(1, variables_[c]));
        if (absolute_[c]) reducesAbsolute_ = true;
        if (summed_[c] || lookedUp_[c]) standsForSummands_ = true;
      }
      const bool even =
          options_.numbersOnly && options_.evenShares && !absolute_[c] && !lookedUp_[c];
      const std::int64_t share = even ? size / count : 1;
      for (std::int64_t e = 0; e < count; ++e) {
        elements.position.push_back(lo + e * share);
        elements.weight.push_back(
            ops::checkedProduct(weight, e + 1 == count ? size - e * share : share));
        elements.places.push_back({c, lo, e, count < size, count < size && e + 1 == count});
      }
    }
    return elements;
  }

  // The places of a product of lines of which `dim` has the outer ones: one more factor, the
  // innermost.
  static void appendPlaces(ops::ReducedDim& dim, const std::vector<ops::ReducedDim::Place>& inner) {
    std::vector<ops::ReducedDim::Place> product;
    for (std::int64_t i = 0; i < dim.size(); ++i) {
      for (const ops::ReducedDim::Place& p : inner) {
        const auto outer = dim.placesOf(i);
        product.insert(product.end(), outer.begin(), outer.end());
        product.push_back(p);
      }
    }
    dim.places = std::move(product);
    ++dim.factors;
  }

  // Values of an index that the reduced stage tells apart from all others (a value that stands for
  // a representative of many table rows is none).
  std::vector<std::int64_t> singleValues(std::size_t l, const StageTensor& tensor) {
    std::vector<std::int64_t> values;
    for (std::size_t i = 0; i + 1 < starts_[l].size(); ++i) {
      const std::int64_t lo = starts_[l][i], size = starts_[l][i + 1] - lo;
      if (starts_[l][i + 1] == kUnboundedValues && !values.empty()) {
        // Indices that no table has: one of them, if the tensor is known to hold such.
        if (tensor.known)
          for (const auto& [low, high] : tensor.known->within)
            if (high > lo) {
              values.push_back(std::max(low, lo));
              break;
            }
        break;
      }
      const std::int32_t c = classes_.find(firstPiece_[l] + static_cast<std::int32_t>(i));
      for (std::int64_t e = 0; e < std::min(size, apart(c)); ++e) values.push_back(lo + e);
    }
    return values;
  }

  ReducedStage assemble() {
    ReducedStage reduced;
    std::vector<Elements> perLine(graph_.lines.size());
    std::vector<char> done(graph_.lines.size(), 0);
    std::vector<const ops::ReducedDim*> dimOfGroup(graph_.groupSize.size(), nullptr);
    std::vector<double> wholeOfGroup(graph_.groupSize.size(), 1);
    for (std::size_t t = 0; t < graph_.dimOfTensor.size(); ++t) {
      std::vector<const ops::ReducedDim*> dims;
      std::int64_t elements = stage_.tensors[t].info.element == ElementKind::kComplex ? 2 : 1;
      double whole = static_cast<double>(elements);
      for (const std::int32_t g : graph_.dimOfTensor[t]) {
        if (!dimOfGroup[g]) {
          auto dim = std::make_unique<ops::ReducedDim>();
          dim->full = graph_.groupSize[g];
          dim->position = {0};
          dim->weight = {1};
          const auto& lines = graph_.linesOfGroup[g];
          const bool compared = std::any_of(
              lines.begin(), lines.end(), [&](std::int32_t l) { return graph_.lines[l].absolute; });
          for (const std::int32_t l : graph_.linesOfGroup[g]) {
            if (!done[l]) {
              perLine[l] = reduceLine(at(l));
              done[l] = 1;
            }
            const Elements& line = perLine[l];
            wholeOfGroup[g] *= static_cast<double>(
                graph_.lines[l].absolute ? graph_.lines[l].size
                                         : static_cast<std::int64_t>(line.position.size()));
            if (static_cast<std::int64_t>(dim->position.size() * line.position.size()) >
                options_.maxElements)
              throw tooLarge();
            Elements product;
            for (std::size_t i = 0; i < dim->position.size(); ++i) {
              for (std::size_t j = 0; j < line.position.size(); ++j) {
                product.position.push_back(dim->position[i] * graph_.lines[l].size +
                                           line.position[j]);
                product.weight.push_back(ops::checkedProduct(dim->weight[i], line.weight[j]));
              }
            }
            if (compared) appendPlaces(*dim, line.places);
            dim->position = std::move(product.position);
            dim->weight = std::move(product.weight);
          }
          dimOfGroup[g] = dim.get();
          reduced.storage.push_back(std::move(dim));
        }
        elements *= dimOfGroup[g]->size();
        whole *= wholeOfGroup[g];
        if (elements > options_.maxElements) throw tooLarge();
        dims.push_back(dimOfGroup[g]);
      }
      reduced.wholeElements += whole;
      reduced.dims.push_back(std::move(dims));
    }
    for (std::size_t t = 0; t < graph_.valuesOfTensor.size(); ++t) {
      reduced.values.emplace_back();
      if (graph_.valuesOfTensor[t] >= 0)
        reduced.values.back() = singleValues(
            at(graph_.linesOfGroup[graph_.valuesOfTensor[t]].front()), stage_.tensors[t]);
    }
    for (const auto& iteration : graph_.iterations) {
      double combinations = 1;
      for (const auto& variable : iteration.variables) {
        double longest = 1;
        for (const auto& lines : variable) {
          double length = 1;
          for (const std::int32_t l : lines)
            length *= static_cast<double>(perLine[l].position.size());
          longest = std::max(longest, length);
        }
        combinations *= longest;
      }
      reduced.largestIteration = std::max(reduced.largestIteration, combinations);
    }
    if (!options_.numbersOnly) findOrbits(perLine, reduced);
    reduced.mostVariables = mostVariables_;
    reduced.reducesAbsolute = reducesAbsolute_;
    reduced.pieces = std::move(pieces_);
    reduced.standsForSummands = standsForSummands_ || !stage_.collapsedAxes.empty();
    return reduced;
  }

  // ReducedStage::firstOfOrbit.
  void findOrbits(const std::vector<Elements>& perLine, ReducedStage& reduced) const {
    reduced.firstOfOrbit.resize(stage_.tensors.size());
    for (const Equation& claim : stage_.claims) {
      std::vector<char>& first = reduced.firstOfOrbit[claim.logical];
      if (!first.empty()) continue;
      std::vector<std::int32_t> lines;  // of all dimensions, outermost first
      std::size_t positions = 1;
      for (const std::int32_t g : graph_.dimOfTensor[at(claim.logical)]) {
        const auto& own = graph_.linesOfGroup[g];
        lines.insert(lines.end(), own.begin(), own.end());
      }
      for (const std::int32_t l : lines) positions *= perLine[l].places.size();
      std::vector<std::size_t> index(lines.size(), 0);
      std::vector<std::pair<std::int32_t, std::int64_t>> met;  // class, how many of its offsets
      for (std::size_t i = 0; i < positions; ++i) {
        met.clear();
        bool ordered = true;
        for (std::size_t k = 0; k < lines.size() && ordered; ++k) {
          const ops::ReducedDim::Place& place = perLine[lines[k]].places[index[k]];
          if (!place.reduced) continue;
          auto it = std::find_if(met.begin(), met.end(),
                                 [&](const auto& m) { return m.first == place.piece; });
          if (it == met.end()) it = met.insert(it, {place.piece, 0});
          ordered = place.offset <= it->second;
          if (place.offset == it->second) ++it->second;
        }
        first.push_back(ordered);
        for (std::size_t k = lines.size();
             k-- > 0 && ++index[k] == perLine[lines[k]].places.size();)
          index[k] = 0;
      }
    }
  }

  Unsupported tooLarge() const {
    return Unsupported("the reduced stage is too large: more than " +
                       std::to_string(options_.maxElements) + " elements in one tensor");
  }

  std::size_t index(std::int32_t line, std::int64_t position) const {
    const auto& starts = starts_[line];
    return static_cast<std::size_t>(std::lower_bound(starts.begin(), starts.end(), position) -
                                    starts.begin());
  }

  static constexpr std::size_t kMostCuts = 400'000;

  const Stage& stage_;
  const ReductionOptions& options_;
  DimensionGraph graph_;
  AxisBlocks blocks_;
  std::vector<std::set<std::int64_t>> cuts_;
  std::size_t cutCount_ = 0;
  std::vector<std::vector<std::size_t>> relations_;
  std::vector<std::vector<std::int64_t>> starts_;
  std::vector<std::int32_t> firstPiece_;
  UnionFind<std::int32_t> classes_;                 // of pieces
  std::vector<char> summed_, absolute_, lookedUp_;  // lookedUp_: rows of a table
  std::vector<int> variables_;
  std::vector<std::vector<std::int32_t>> classesOfLine_;
  int mostVariables_ = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> pieces_;
  bool reducesAbsolute_ = false;
  bool standsForSummands_ = false;
};

}  // namespace

ReducedStage reduceStage(const Stage& stage, const ReductionOptions& options) {
  return Reducer(stage, options).run();
}

}  // namespace shardproof
