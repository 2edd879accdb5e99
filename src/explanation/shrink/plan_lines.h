// SPDX-License-Identifier: Apache-2.0
// The dimensions of a whole problem (all tensors of the model and of every program) as lines of
// pieces whose sizes may be chosen anew.
//
// As in the reduction of a stage (dimension_graph.h), dimensions that run together are one, a view
// takes dimensions apart into row-major factors, and each factor is a line of positions that is cut
// at every bound that occurs on it. Here the result is not an image of one stage with weights but
// the integer program of a smaller plan: a line is its pieces one after another, in their order,
// and each piece may have any size. Whatever sizes are chosen, all that was collected holds again
// for the new sizes: equal dimensions stay equal, a stretch of a dimension stays the stretch
// between the same two bounds (one that is a position off stays a position off, because the piece
// between the two bounds has a position still), and a view regroups the same factors. That is the
// reason for pieces: no constraint is left that multiplies sizes.
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "shrink/optimizer.h"
#include "util/index.h"
#include "util/union_find.h"

namespace shardproof {

class PlanLines {
 public:
  using Dim = std::int32_t;  // a dimension, as add() numbered it
  static constexpr std::int64_t kUnbounded = std::int64_t{1}
                                             << 62;  // "size" of an index tensor's range of values

  // ---- what is collected, before close() ----
  Dim add(std::int64_t size);
  std::int64_t fullSize(Dim d) const { return sizes_[d]; }
  // Sizes must be equal (std::logic_error).
  void equal(Dim a, Dim b);
  // Position i of `part` is position lo + i of `whole`. Throws Unsupported where it leaves `whole`.
  void range(Dim whole, std::int64_t lo, Dim part);
  void stretch(Dim a, std::int64_t loA, Dim b, std::int64_t loB, std::int64_t length);
  // Row-major regroupings of one another.
  void regroup(std::vector<Dim> a, std::vector<Dim> b);
  // No position may go.
  void keep(Dim d) { keep_.push_back(d); }
  // Whether positions may be told apart along it.
  enum class Telling : std::uint8_t {
    kNo,
    kOrder,  // a mask sees their order
    kRows,   // they are looked up
  };
  void telling(Dim d, Telling how) { telling_.emplace_back(d, how); }
  // Positions [lo, lo + length) are held only where the smaller plan has no rank: they go.
  void drop(Dim d, std::int64_t lo, std::int64_t length);
  // A number that names a position.
  void cut(Dim d, std::int64_t position) { cuts_.emplace_back(d, position); }

  // One dimension of all that run together so far, and which of these have a structure of their
  // own: bounds, factors, or positions that must stay.
  Dim root(Dim d) { return dims_.find(d); }
  std::vector<char> structured();

  // Takes everything apart. Throws Unsupported where a dimension that is dropped in part cannot be.
  void close();

  // ---- the integer program, after close() ----
  struct Class {                     // pieces of one size: a variable of the program
    std::int64_t size = 0;           // at full size
    bool dropped = false;            // size 0 from now on
    bool fixed = false;              // keeps its full size
    Telling telling = Telling::kNo;  // the most of its lines
    std::int64_t uses = 0;           // dimensions of tensors that have such a piece
  };
  const std::vector<Class>& classes() const { return classes_; }
  // The lines of a dimension, outermost first; of all dimensions that run together the same ones.
  const std::vector<std::int32_t>& linesOf(Dim d) const { return linesOfGroup_[group(d)]; }
  std::int32_t group(Dim d) const { return groupOf_[d]; }
  std::int64_t fullSizeOfLine(std::int32_t line) const { return lineSize_[line]; }
  std::size_t lines() const { return lineSize_.size(); }
  // How many positions a line has, and how many there are before a cut of it, as a sum of classes.
  LinearSum total(std::int32_t line) const { return before(line, lineSize_[line]); }
  LinearSum before(std::int32_t line, std::int64_t position) const;
  // A stretch of a dimension lies on one line, and covers the lines inside it. Throws Unsupported
  // where it does not.
  struct OnLine {
    std::int32_t line;
    std::int64_t lo, length;
  };
  OnLine onLine(Dim d, std::int64_t lo, std::int64_t length,
                std::vector<std::int32_t>& inner) const;
  // A bound of a dimension: its digit on each line, outermost first. Throws Unsupported where a
  // digit is no cut.
  std::vector<std::int64_t> digits(Dim d, std::int64_t position) const;

  // ---- the smaller sizes ----
  void assign(const std::vector<std::int64_t>& sizeOfClass);
  std::int64_t newSizeOfLine(std::int32_t line) const { return newCuts_[line].back(); }
  std::int64_t newSize(Dim d) const;
  // Where a bound comes to lie. Throws Unsupported as digits() does.
  std::int64_t newPosition(Dim d, std::int64_t position) const;
  // The other way: the bound that a position of the smaller dimension stands for; -1: it is no
  // bound.
  std::int64_t fullPosition(Dim d, std::int64_t newPosition) const;

 private:
  struct Range {
    std::int32_t whole;
    std::int64_t lo;
    std::int32_t part;
    friend auto operator<=>(const Range&, const Range&) = default;
  };
  struct Stretch {
    std::int32_t a;
    std::int64_t loA;
    std::int32_t b;
    std::int64_t loB, length;
    friend auto operator<=>(const Stretch&, const Stretch&) = default;
  };
  struct Regroup {
    std::vector<std::int32_t> a, b;
    friend auto operator<=>(const Regroup&, const Regroup&) = default;
  };
  void makeGroups();
  void makeFlat(std::int32_t g);
  void addBound(std::int32_t g, std::int64_t stride);
  void closeRegroup(const Regroup& r);
  void closeStretch(const Stretch& s);
  void factorize();
  std::size_t levels(std::int32_t g) const { return bounds_[g].size() + 1; }
  std::int64_t stride(std::int32_t g, std::size_t level) const {
    return level == 0 ? 1 : bounds_[g][level - 1];
  }
  std::int64_t factorSize(std::int32_t g, std::size_t level) const;
  std::int32_t rawLine(std::int32_t g, std::size_t level) const {
    return firstLine_[g] + static_cast<std::int32_t>(level);
  }
  std::size_t topLevel(std::int32_t g, std::int64_t length) const;
  void matchRegroup(const Regroup& r);
  void matchStretch(const Stretch& s);
  void dropOnLines();
  void layLines();
  void cutLines();
  void makeClasses();
  std::size_t cutIndex(std::int32_t line, std::int64_t position) const;

  std::vector<std::int64_t> sizes_;
  UnionFind<std::int32_t> dims_;
  std::vector<Range> ranges_;
  std::vector<Stretch> stretches_, drops_;
  std::vector<Regroup> regroups_;
  std::vector<Dim> keep_;
  std::vector<std::pair<Dim, Telling>> telling_;
  std::vector<std::pair<Dim, std::int64_t>> cuts_;

  std::vector<std::int32_t> groupOf_;
  std::vector<std::int64_t> groupSize_, groupUses_;
  std::vector<char> groupKeep_, flat_;
  std::vector<Telling> groupTelling_;
  std::vector<std::vector<std::int64_t>>
      bounds_;  // per group: strides 1 < s1 | s2 | ... at which it is taken apart
  bool changed_ = false;
  std::vector<std::int32_t> firstLine_;
  UnionFind<std::int32_t> lineUnion_;
  std::vector<std::pair<OnLine, OnLine>> segments_;
  std::vector<OnLine> droppedOnLine_;
  std::vector<std::pair<std::int32_t, std::int64_t>> lineCuts_;
  std::vector<std::vector<std::int32_t>> linesOfGroup_;
  std::vector<std::int64_t> lineSize_, lineUses_;
  std::vector<char> lineKeep_;
  std::vector<Telling> lineTelling_;
  std::vector<std::vector<std::int64_t>> cutsOfLine_, newCuts_;
  std::vector<std::vector<std::int32_t>> classOfPiece_;
  std::vector<Class> classes_;
};

}  // namespace shardproof
