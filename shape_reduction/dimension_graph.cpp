#include "shape_reduction/dimension_graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "ops/collectives.h"
#include "ops/registry.h"
#include "shape_reduction/reduction.h"
#include "shardproof/error.h"
#include "util/union_find.h"

namespace shardproof {

namespace {

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// Dimension variables before grouping: one per dimension of every tensor, plus the values of
// integer tensors.
struct RangeRelation {
  std::int32_t whole;
  std::int64_t lo;
  std::int32_t part;
  bool fromLineage;
  friend auto operator<=>(const RangeRelation&, const RangeRelation&) = default;
};
struct StretchRelation {  // stretches of two dimensions (all_to_all)
  std::int32_t a;
  std::int64_t loA;
  std::int32_t b;
  std::int64_t loB, length;
  friend auto operator<=>(const StretchRelation&, const StretchRelation&) = default;
};
struct RegroupRelation {
  std::vector<std::int32_t> a, b;
  friend auto operator<=>(const RegroupRelation&, const RegroupRelation&) = default;
};

class Builder {
 public:
  Builder(const Stage& stage, bool knownInputs) : stage_(stage), knownInputs_(knownInputs) {}

  DimensionGraph run() {
    for (const StageTensor& tensor : stage_.tensors) {
      std::vector<std::int32_t> dims;
      for (const std::int64_t n : tensor.info.shape) dims.push_back(newDim(n));
      dimVars_.push_back(std::move(dims));
      valueVars_.push_back(tensor.info.element == ElementKind::kInteger ? newDim(kUnboundedValues)
                                                                        : -1);
      if (tensor.origin == Origin::kConstant) {
        keepUnlessFill(tensor, dimVars_.back());
        if (valueVars_.back() >= 0) singleOutValues(tensor, valueVars_.back());
      }
    }
    if (knownInputs_) relateKnownInputs();
    for (const StageNode& node : stage_.nodes) relateNode(node);
    for (const Equation& e : stage_.assumptions) relateEquation(e);
    for (const Equation& e : stage_.claims) relateEquation(e);
    group();
    factorize();
    layLines();
    return std::move(graph_);
  }

 private:
  friend class NodeRelations;

  std::int32_t newDim(std::int64_t size) {
    sizes_.push_back(size);
    flags_.emplace_back();
    return dims_.add();
  }

  // A constant given element by element has no two positions known to be alike.
  void keepUnlessFill(const StageTensor& tensor, const std::vector<std::int32_t>& dims) {
    if (tensor.constant->fill) return;
    for (const std::int32_t d : dims) flags_[at(d)].keep = true;
  }

  void relateKnownInputs() {
    for (std::size_t t = 0; t < stage_.tensors.size(); ++t) {
      const StageTensor& tensor = stage_.tensors[t];
      if (!tensor.known) continue;
      if (tensor.known->kind == KnownInput::Kind::kNumbers) {
        for (const std::int32_t d : dimVars_[t]) flags_[at(d)].absolute = true;
      } else if (const std::int32_t of = knownSource(stage_, tensor); of >= 0) {
        for (std::size_t d = 0; d < dimVars_[t].size(); ++d)
          dims_.unite(dimVars_[t][d], dimVars_[at(of)][d]);
      }
    }
  }

  // A constant index names one row of its table, which must not disappear behind a representative:
  // the range of values is cut around it.
  void singleOutValues(const StageTensor& tensor, std::int32_t values) {
    std::set<std::int64_t> distinct;
    for (const Rational& r : tensor.constant->elements) {
      if (r.fitsInt64() && r.toInt64() >= 0 && r.toInt64() < kUnboundedValues)
        distinct.insert(r.toInt64());
    }
    for (const std::int64_t v : distinct) valueCuts_.emplace_back(values, v);
  }

  void relateNode(const StageNode& node);
  void relateCommunication(const StageNode& node);

  void relateEquation(const Equation& e) {
    for (const auto& [part, weight] : e.parts) {
      const auto& local = dimVars_[at(part)];
      const auto& logical = dimVars_[at(e.logical)];
      if (local.size() != e.box.size() || logical.size() != e.box.size())
        throw Unsupported("lineage relates tensors of different rank");
      for (std::size_t d = 0; d < e.box.size(); ++d) {
        if (sizes_[at(local[d])] != e.box[d].second - e.box[d].first)
          throw Unsupported("lineage relates a box and a local tensor of different shapes");
        relateRange(logical[d], e.box[d].first, local[d], true);
      }
      if (valueVars_[at(part)] >= 0 && valueVars_[at(e.logical)] >= 0) {
        dims_.unite(valueVars_[at(part)], valueVars_[at(e.logical)]);
        if (e.parts.size() > 1 || weight != 1) summedValues_.push_back(valueVars_[at(part)]);
      }
    }
    equations_.push_back(&e);
  }

  void relateRange(std::int32_t whole, std::int64_t lo, std::int32_t part, bool fromLineage) {
    if (lo < 0 || sizes_[at(whole)] - lo < sizes_[at(part)])
      throw Unsupported("a stretch lies outside its dimension");
    if (lo == 0 && sizes_[at(whole)] == sizes_[at(part)]) dims_.unite(whole, part);
    else ranges_.push_back({whole, lo, part, fromLineage});
  }

  void group() {
    groupOf_.resize(dims_.size());
    std::map<std::int32_t, std::int32_t> ids;
    for (std::size_t d = 0; d < dims_.size(); ++d) {
      const std::int32_t root = dims_.find(static_cast<std::int32_t>(d));
      const auto [it, inserted] = ids.emplace(root, static_cast<std::int32_t>(ids.size()));
      groupOf_[d] = it->second;
      if (inserted) {
        graph_.groupSize.push_back(sizes_[d]);
        groupFlags_.emplace_back();
      } else if (graph_.groupSize[at(it->second)] != sizes_[d]) {
        throw std::logic_error("dimensions of different sizes were said to be equal");
      }
      groupFlags_[at(it->second)].merge(flags_[d]);
    }
    const auto unique = [](auto& list) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    };
    for (RangeRelation& r : ranges_) {
      r.whole = groupOf_[at(r.whole)];
      r.part = groupOf_[at(r.part)];
    }
    for (StretchRelation& r : stretches_) {
      r.a = groupOf_[at(r.a)];
      r.b = groupOf_[at(r.b)];
    }
    for (RegroupRelation& r : regroups_) {
      for (std::int32_t& d : r.a) d = groupOf_[at(d)];
      for (std::int32_t& d : r.b) d = groupOf_[at(d)];
    }
    // A sum of indices is no index that runs with its operands: the rows that it may name are told
    // apart.
    for (const std::int32_t v : summedValues_) {
      for (const RangeRelation& r : ranges_) {
        if (r.whole == groupOf_[at(v)]) groupFlags_[at(r.part)].keep = true;
      }
    }
    unique(ranges_);
    unique(stretches_);
    unique(regroups_);
    for (std::size_t t = 0; t < dimVars_.size(); ++t) {
      std::vector<std::int32_t> groups;
      for (const std::int32_t d : dimVars_[t]) groups.push_back(groupOf_[at(d)]);
      graph_.dimOfTensor.push_back(std::move(groups));
      graph_.valuesOfTensor.push_back(valueVars_[t] < 0 ? -1 : groupOf_[at(valueVars_[t])]);
    }
  }

  // ---- row-major factors
  // bounds_[g] is a chain of strides 1 < s1 | s2 | ... < n at which the dimension is taken apart.
  // Where no such chain exists for all that is related, the dimension becomes flat: one factor,
  // every position kept.

  void makeFlat(std::int32_t g) {
    if (flat_[at(g)]) return;
    flat_[at(g)] = true;
    changed_ = true;
    bounds_[at(g)].clear();
  }

  void addBound(std::int32_t g, std::int64_t s) {
    const std::int64_t n = graph_.groupSize[at(g)];
    if (flat_[at(g)] || s <= 1 || s >= n) return;
    auto& chain = bounds_[at(g)];
    if (std::find(chain.begin(), chain.end(), s) != chain.end()) return;
    const bool fits = n != kUnboundedValues && n % s == 0 &&
                      std::all_of(chain.begin(), chain.end(),
                                  [&](std::int64_t b) { return b % s == 0 || s % b == 0; });
    if (!fits) {
      makeFlat(g);
      return;
    }
    chain.insert(std::upper_bound(chain.begin(), chain.end(), s), s);
    changed_ = true;
  }

  void closeRegroup(const RegroupRelation& r) {
    const auto anyFlat = [&](const std::vector<std::int32_t>& side) {
      return std::any_of(side.begin(), side.end(), [&](std::int32_t g) { return flat_[at(g)]; });
    };
    const auto allFlat = [&] {
      for (const std::int32_t g : r.a) makeFlat(g);
      for (const std::int32_t g : r.b) makeFlat(g);
    };
    if (anyFlat(r.a) || anyFlat(r.b)) {
      allFlat();
      return;
    }
    std::set<std::int64_t> strides;
    for (const auto* side : {&r.a, &r.b}) {
      std::int64_t stride = 1;
      for (auto it = side->rbegin(); it != side->rend(); ++it) {
        if (stride > 1) strides.insert(stride);
        for (const std::int64_t s : bounds_[at(*it)]) strides.insert(stride * s);
        stride *= graph_.groupSize[at(*it)];
      }
    }
    for (const auto* side : {&r.a, &r.b}) {
      std::int64_t stride = 1;
      for (auto it = side->rbegin(); it != side->rend(); ++it) {
        const std::int64_t end = stride * graph_.groupSize[at(*it)];
        for (const std::int64_t s : strides) {
          if (s <= stride || s >= end) continue;
          if (s % stride != 0 || end % s != 0) {
            allFlat();
            return;
          }
          addBound(*it, s / stride);
        }
        stride = end;
      }
    }
  }

  void closeStretch(std::int32_t a, std::int64_t loA, std::int32_t b, std::int64_t loB,
                    std::int64_t length) {
    // Flat dimensions keep every position; a relative must be a single factor for the cuts to carry
    // over, hence flat too when it has more.
    if (flat_[at(a)] && !bounds_[at(b)].empty()) makeFlat(b);
    if (flat_[at(b)] && !bounds_[at(a)].empty()) makeFlat(a);
    for (int side = 0; side < 2; ++side) {
      const auto chain = bounds_[at(side == 0 ? a : b)];
      for (const std::int64_t s : chain) {
        if (s < length) {
          if (loA % s == 0 && loB % s == 0 && length % s == 0) {
            addBound(a, s);
            addBound(b, s);
            if (flat_[at(a)] || flat_[at(b)]) break;
          } else {
            makeFlat(a);
            makeFlat(b);
          }
        } else {
          const std::int64_t lo = side == 0 ? loA : loB;
          if (lo / s != (lo + length - 1) / s) {  // straddles two blocks of the outer factor
            makeFlat(a);
            makeFlat(b);
          }
        }
      }
    }
    if (flat_[at(a)] && !bounds_[at(b)].empty()) makeFlat(b);
    if (flat_[at(b)] && !bounds_[at(a)].empty()) makeFlat(a);
  }

  void factorize() {
    bounds_.resize(graph_.groupSize.size());
    flat_.assign(graph_.groupSize.size(), false);
    do {
      changed_ = false;
      for (const RegroupRelation& r : regroups_) closeRegroup(r);
      for (const RangeRelation& r : ranges_)
        closeStretch(r.whole, r.lo, r.part, 0, graph_.groupSize[at(r.part)]);
      for (const StretchRelation& r : stretches_) closeStretch(r.a, r.loA, r.b, r.loB, r.length);
    } while (changed_);
  }

  // ---- lines

  // Factor j (innermost is 0) of group g: its line, size and stride.
  std::size_t levels(std::int32_t g) const { return bounds_[at(g)].size() + 1; }
  std::int64_t stride(std::int32_t g, std::size_t level) const {
    return level == 0 ? 1 : bounds_[at(g)][level - 1];
  }
  std::int64_t factorSize(std::int32_t g, std::size_t level) const {
    const std::int64_t end =
        level + 1 == levels(g) ? graph_.groupSize[at(g)] : bounds_[at(g)][level];
    return end / stride(g, level);
  }
  std::int32_t rawLine(std::int32_t g, std::size_t level) const {
    return firstLine_[at(g)] + static_cast<std::int32_t>(level);
  }

  void layLines() {
    std::vector<Line> raw;
    for (std::size_t g = 0; g < graph_.groupSize.size(); ++g) {
      firstLine_.push_back(static_cast<std::int32_t>(raw.size()));
      for (std::size_t j = 0; j < levels(static_cast<std::int32_t>(g)); ++j) {
        lineUnion_.add();
        raw.push_back({factorSize(static_cast<std::int32_t>(g), j), groupFlags_[g].summed,
                       groupFlags_[g].keep || flat_[g], groupFlags_[g].absolute});
      }
    }
    for (const RegroupRelation& r : regroups_) matchRegroup(r);
    for (const RangeRelation& r : ranges_)
      matchStretch(r.whole, r.lo, r.part, 0, graph_.groupSize[at(r.part)], r.fromLineage);
    for (const StretchRelation& r : stretches_)
      matchStretch(r.a, r.loA, r.b, r.loB, r.length, false);

    std::vector<std::int32_t> lineId(raw.size(), -1);
    const auto lineOf = [&](std::int32_t l) {
      const std::int32_t root = lineUnion_.find(l);
      if (lineId[at(root)] < 0) {
        lineId[at(root)] = static_cast<std::int32_t>(graph_.lines.size());
        graph_.lines.push_back(raw[at(root)]);
      }
      return lineId[at(root)];
    };
    for (std::size_t l = 0; l < raw.size(); ++l) {
      Line& line = graph_.lines[at(lineOf(static_cast<std::int32_t>(l)))];
      if (line.size != raw[l].size)
        throw std::logic_error("factors of different sizes were matched");
      line.summed = line.summed || raw[l].summed;
      line.keep = line.keep || raw[l].keep;
      line.absolute = line.absolute || raw[l].absolute;
    }
    for (std::size_t g = 0; g < graph_.groupSize.size(); ++g) {
      std::vector<std::int32_t> lines;
      for (std::size_t j = levels(static_cast<std::int32_t>(g)); j-- > 0;)
        lines.push_back(lineOf(rawLine(static_cast<std::int32_t>(g), j)));
      graph_.linesOfGroup.push_back(std::move(lines));
    }
    for (Segment& s : segments_) {
      s.lineA = lineOf(s.lineA);
      s.lineB = lineOf(s.lineB);
      if (s.lineA == s.lineB && s.loA == s.loB) {
        // The same stretch of the same line: only its ends matter.
        graph_.cuts.push_back({s.lineA, s.loA, s.fromLineage});
        graph_.cuts.push_back({s.lineA, s.loA + s.length, s.fromLineage});
        if (!s.fromLineage) graph_.segments.push_back(s);
        continue;
      }
      graph_.segments.push_back(s);
    }
    std::sort(graph_.segments.begin(), graph_.segments.end());
    graph_.segments.erase(std::unique(graph_.segments.begin(), graph_.segments.end()),
                          graph_.segments.end());
    for (const auto& [d, v] : valueCuts_) {
      const std::int32_t line = graph_.linesOfGroup[at(groupOf_[at(d)])].front();
      graph_.cuts.push_back({line, v, false});
      graph_.cuts.push_back({line, v + 1, false});
    }
    for (const DimensionGraph::Cut& c : cuts_)
      graph_.cuts.push_back({lineOf(c.line), c.position, c.fromLineage});
    for (const Equation* e : equations_) boxesOf(*e, lineOf);
    std::set<std::pair<bool, std::vector<DimensionGraph::Variable>>> seen;
    for (const auto& [logical, variables] : iterations_) {
      DimensionGraph::Iteration iteration{logical, {}};
      for (const auto& variable : variables) {
        std::set<std::vector<std::int32_t>> dims;
        for (const std::int32_t d : variable) dims.insert(graph_.linesOfGroup[at(groupOf_[at(d)])]);
        iteration.variables.emplace_back(dims.begin(), dims.end());
      }
      if (seen.emplace(logical, iteration.variables).second)
        graph_.iterations.push_back(std::move(iteration));
    }
  }

  void matchRegroup(const RegroupRelation& r) {
    const auto flatten = [&](const std::vector<std::int32_t>& side) {
      std::vector<std::pair<std::int32_t, std::int64_t>>
          factors;  // outermost first, without those of size 1
      for (const std::int32_t g : side) {
        for (std::size_t j = levels(g); j-- > 0;) {
          if (factorSize(g, j) > 1) factors.emplace_back(rawLine(g, j), factorSize(g, j));
        }
      }
      return factors;
    };
    if (std::any_of(r.a.begin(), r.a.end(), [&](std::int32_t g) { return flat_[at(g)]; }))
      return;  // every position is kept on both sides
    const auto a = flatten(r.a), b = flatten(r.b);
    if (a.size() != b.size())
      throw Unsupported("a view regroups dimensions in a way that has no common factors");
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (a[i].second != b[i].second)
        throw Unsupported("a view regroups dimensions in a way that has no common factors");
      lineUnion_.unite(a[i].first, b[i].first);
    }
  }

  void matchStretch(std::int32_t a, std::int64_t loA, std::int32_t b, std::int64_t loB,
                    std::int64_t length, bool fromLineage) {
    // Levels whose stride is below the length run together; the topmost of them as a stretch, the
    // ones below as a whole.
    std::size_t top = 0;
    while (top + 1 < levels(a) && stride(a, top + 1) < length) ++top;
    std::size_t topB = 0;
    while (topB + 1 < levels(b) && stride(b, topB + 1) < length) ++topB;
    if (top != topB)
      throw Unsupported(
          "a stretch of a dimension does not follow the factors that a view takes it apart into");
    for (std::size_t j = 0; j < top; ++j) {
      if (stride(a, j) != stride(b, j) || factorSize(a, j) != factorSize(b, j))
        throw std::logic_error("unequal factors");
      lineUnion_.unite(rawLine(a, j), rawLine(b, j));
    }
    const std::int64_t s = stride(a, top);
    const std::int64_t offsetA = loA / s % factorSize(a, top),
                       offsetB = loB / s % factorSize(b, top);
    segments_.push_back(
        {rawLine(a, top), offsetA, rawLine(b, top), offsetB, length / s, fromLineage});
    for (const auto& [g, lo] : {std::pair{a, loA}, std::pair{b, loB}}) {
      for (std::size_t j = top + 1; j < levels(g); ++j) {
        const std::int64_t q = lo / stride(g, j) % factorSize(g, j);
        cuts_.push_back({rawLine(g, j), q, fromLineage});
        cuts_.push_back({rawLine(g, j), q + 1, fromLineage});
      }
    }
  }

  template <class LineOf>
  void boxesOf(const Equation& e, LineOf&& lineOf) {
    if (stage_.collapsedAxes.empty()) return;
    for (std::size_t d = 0; d < e.box.size(); ++d) {
      const std::int32_t g = graph_.dimOfTensor[at(e.logical)][d];
      const std::int64_t lo = e.box[d].first, length = e.box[d].second - lo;
      for (std::size_t j = 0; j < levels(g); ++j) {
        const std::int64_t s = stride(g, j), size = factorSize(g, j);
        BoxOnLine box{lineOf(rawLine(g, j)),
                      lo / s % size,
                      std::min(size, std::max<std::int64_t>(1, length / s)),
                      {}};
        for (const Equation::Step& step : e.step) {
          const std::int64_t offset = step.offset[d];
          if (offset == 0) continue;
          const bool here = offset % s == 0 && (j + 1 == levels(g) || offset < stride(g, j + 1));
          if (offset < 0)
            throw NotSymmetric("lineage steps backward along an interchangeable axis");
          if (here) box.moves.push_back({step.collapsed, step.coordinate, offset / s});
          else if (offset % s != 0)
            throw NotSymmetric(
                "lineage steps along an interchangeable axis by a stretch that a view takes apart");
        }
        graph_.boxes.push_back(std::move(box));
      }
    }
  }

  struct Flags {
    bool summed = false, keep = false, absolute = false;
    void merge(const Flags& o) {
      summed = summed || o.summed;
      keep = keep || o.keep;
      absolute = absolute || o.absolute;
    }
  };

  const Stage& stage_;
  bool knownInputs_ = false;
  DimensionGraph graph_;
  UnionFind<std::int32_t> dims_;
  std::vector<std::int64_t> sizes_;
  std::vector<Flags> flags_, groupFlags_;
  std::vector<std::vector<std::int32_t>> dimVars_;
  std::vector<std::int32_t> valueVars_;
  std::vector<std::pair<std::int32_t, std::int64_t>> valueCuts_;
  std::vector<std::int32_t> summedValues_;
  std::vector<RangeRelation> ranges_;
  std::vector<StretchRelation> stretches_;
  std::vector<RegroupRelation> regroups_;
  std::vector<const Equation*> equations_;
  std::vector<std::pair<bool, std::vector<std::vector<std::int32_t>>>> iterations_;
  std::vector<std::int32_t> groupOf_;
  std::vector<std::vector<std::int64_t>> bounds_;
  std::vector<bool> flat_;
  bool changed_ = false;
  std::vector<std::int32_t> firstLine_;
  UnionFind<std::int32_t> lineUnion_;
  std::vector<Segment> segments_;
  std::vector<DimensionGraph::Cut> cuts_;
};

// Collects what one operator call states, on the stage's dimension variables.
class NodeRelations : public ops::Relations {
 public:
  NodeRelations(Builder& builder, const StageNode& node,
                const std::vector<ops::TensorInfo>& results)
      : builder_(builder), node_(node), results_(results) {}

  void equal(ops::DimRef a, ops::DimRef b) override {
    const std::int32_t x = var(a), y = var(b);
    if (x < 0 || y < 0) return;
    if (builder_.sizes_[at(x)] != builder_.sizes_[at(y)])
      throw std::logic_error("operator relates dimensions of different sizes");
    builder_.dims_.unite(x, y);
    same_.emplace_back(key(a), key(b));
  }
  void range(ops::DimRef whole, std::int64_t lo, ops::DimRef part) override {
    const std::int32_t x = var(whole), y = var(part);
    if (x < 0 || y < 0) return;
    builder_.relateRange(x, lo, y, false);
    same_.emplace_back(key(whole), key(part));
  }
  void regroup(std::span<const ops::DimRef> a, std::span<const ops::DimRef> b) override {
    RegroupRelation relation;
    for (const ops::DimRef d : a) relation.a.push_back(var(d));
    for (const ops::DimRef d : b) {
      relation.b.push_back(var(d));
    }
    builder_.regroups_.push_back(std::move(relation));
  }
  void pairs(ops::DimRef whole, ops::DimRef half) override {
    const std::int32_t two = builder_.newDim(2);
    builder_.flags_[at(two)].keep = true;
    RegroupRelation relation;
    relation.a = {var(whole)};
    relation.b = {var(half), two};
    builder_.regroups_.push_back(std::move(relation));
    same_.emplace_back(key(whole), key(half));
  }
  void summed(ops::DimRef d) override {
    if (const std::int32_t x = var(d); x >= 0) {
      builder_.flags_[at(x)].summed = true;
      summed_.push_back(key(d));
    }
  }
  void keep(ops::DimRef d) override {
    if (const std::int32_t x = var(d); x >= 0) builder_.flags_[at(x)].keep = true;
  }
  void absolute(ops::DimRef d) override {
    if (const std::int32_t x = var(d); x >= 0) builder_.flags_[at(x)].absolute = true;
    anyAbsolute_ = true;
  }
  bool anyAbsolute() const { return anyAbsolute_; }
  void iterates(std::span<const ops::DimRef> dims) override {
    for (const ops::DimRef d : dims) {
      if (var(d) >= 0) listed_.push_back(key(d));
    }
  }
  void virtualTensor(int slot, const Shape& shape) override {
    std::vector<std::int32_t> dims;
    for (const std::int64_t n : shape) dims.push_back(builder_.newDim(n));
    virtual_[slot] = std::move(dims);
  }

  // The index variables of each result: its own dimensions and those that are summed, dimensions
  // that run together being one. Dimensions are told apart by slot, not by tensor: an operand that
  // is given twice (x x^T) runs through two variables. And one result may run twice along one
  // operand's dimension (the rows and columns of a causal mask): two variables.
  std::vector<std::vector<std::vector<std::int32_t>>> variables() {
    std::map<Key, Key> representative;
    const auto find = [&](Key k) {
      for (auto it = representative.find(k); it != representative.end() && it->second != k;
           it = representative.find(k))
        k = it->second;
      return k;
    };
    for (const auto& [x, y] : same_) {
      const Key a = find(x), b = find(y);
      if (a != b) representative[b] = a;
    }
    std::vector<std::vector<std::vector<std::int32_t>>> result;
    for (std::size_t r = 0; r < node_.out.size(); ++r) {
      if (node_.out[r] < 0) continue;
      std::map<Key, std::pair<std::set<std::int32_t>, int>>
          classes;  // its dimensions, how many variables it is
      const auto slot = static_cast<int>(node_.in.size() + r);
      const auto rank = static_cast<int>(builder_.dimVars_[at(node_.out[r])].size());
      for (int d = 0; d < rank; ++d) ++classes[find({slot, d})].second;
      for (const auto* more : {&summed_, &listed_}) {
        for (const Key& k : *more) {
          int& count = classes[find(k)].second;
          count = std::max(count, 1);
        }
      }
      const auto addDim = [&](Key k) {
        const auto it = classes.find(find(k));
        const std::int32_t d = it == classes.end() ? -1 : var({k.first, k.second});
        if (d >= 0 && builder_.sizes_[at(d)] > 1) it->second.first.insert(d);
      };
      for (int d = 0; d < rank; ++d) addDim({slot, d});
      for (const auto& [x, y] : same_) {
        addDim(x);
        addDim(y);
      }
      for (const Key& k : summed_) addDim(k);
      for (const Key& k : listed_) addDim(k);
      std::vector<std::vector<std::int32_t>> variables;
      for (const auto& [root, members] : classes) {
        if (members.first.empty()) continue;
        for (int i = 0; i < members.second; ++i)
          variables.emplace_back(members.first.begin(), members.first.end());
      }
      result.push_back(std::move(variables));
    }
    return result;
  }

 private:
  using Key = std::pair<int, int>;  // slot, dimension
  static Key key(ops::DimRef d) { return {d.slot, d.dim}; }

  std::int32_t var(ops::DimRef ref) {
    const auto operands = static_cast<int>(node_.in.size());
    if (const auto it = virtual_.find(ref.slot); it != virtual_.end())
      return ref.dim == ops::kValues ? -1 : it->second.at(at(ref.dim));
    std::int32_t tensor = -1;
    if (ref.slot < operands) tensor = node_.in.at(at(ref.slot));
    else if (ref.slot - operands < static_cast<int>(node_.out.size()))
      tensor = node_.out.at(at(ref.slot - operands));
    else throw std::logic_error("operator names a slot that it has not declared");
    if (tensor < 0) {
      // A result that this stage does not need still ties its operands together.
      if (ref.slot < operands) throw std::logic_error("operator relates an absent operand");
      virtualTensor(ref.slot, results_.at(at(ref.slot - operands)).shape);
      return var(ref);
    }
    return ref.dim == ops::kValues ? builder_.valueVars_[at(tensor)]
                                   : builder_.dimVars_[at(tensor)].at(at(ref.dim));
  }

  Builder& builder_;
  const StageNode& node_;
  const std::vector<ops::TensorInfo>& results_;
  std::map<int, std::vector<std::int32_t>> virtual_;
  std::vector<std::pair<Key, Key>> same_;
  std::vector<Key> summed_, listed_;
  bool anyAbsolute_ = false;
};

void Builder::relateNode(const StageNode& node) {
  if (node.communication != Communication::kNone) {
    relateCommunication(node);
    return;
  }
  const ops::OperatorInfo& op = ops::Registry::instance().at(node.op);
  std::vector<const ops::TensorInfo*> in, out;
  for (const std::int32_t t : node.in) in.push_back(t >= 0 ? &stage_.tensors[at(t)].info : nullptr);
  const ops::Signature signature{*node.attributes, in, node.out.size()};
  std::vector<ops::TensorInfo> results = op.infer(signature);
  for (std::size_t i = 0; i < node.out.size(); ++i) {
    // A declared [1] where the rule says [] is taken as declared.
    if (node.out[i] >= 0) results[i] = stage_.tensors[at(node.out[i])].info;
    out.push_back(node.out[i] >= 0 ? &results[i] : nullptr);
  }
  NodeRelations relations(*this, node, results);
  op.relate(signature, out, relations);
  if (!node.logical && op.followsLogicalPosition && relations.anyAbsolute()) {
    throw Unsupported(op.name +
                      " on a rank follows the logical position of its operand, which the rank's "
                      "own tensor does not tell");
  }
  for (auto& variables : relations.variables())
    iterations_.emplace_back(node.logical, std::move(variables));
}

void Builder::relateCommunication(const StageNode& node) {
  const std::int32_t result = node.out.at(0);
  if (result < 0) return;
  const auto& out = dimVars_[at(result)];
  const ops::Collective& collective = ops::collectiveOf(node.communication);
  const auto dimension = [&](ops::Along along) {
    return ops::Collective::dimension(along, node.dim, node.odim, out.size());
  };
  const std::int32_t gathered = dimension(collective.gathers),
                     scattered = dimension(collective.scatters);
  for (std::size_t i = 0; i < node.in.size(); ++i) {
    const auto& in = dimVars_[at(node.in[i])];
    const auto index = static_cast<std::int64_t>(i);
    for (std::size_t d = 0; d < out.size(); ++d) {
      const std::int64_t inSize = sizes_[at(in[d])], outSize = sizes_[at(out[d])];
      const bool gathers = static_cast<std::int32_t>(d) == gathered,
                 scatters = static_cast<std::int32_t>(d) == scattered;
      if (gathers && scatters) {
        const std::int64_t piece = inSize / static_cast<std::int64_t>(node.in.size());
        stretches_.push_back({out[d], index * piece, in[d], node.member * piece, piece});
      } else if (gathers) {
        relateRange(out[d], index * inSize, in[d], false);
      } else if (scatters) {
        relateRange(in[d], node.member * outSize, out[d], false);
      } else {
        dims_.unite(in[d], out[d]);
      }
    }
    if (valueVars_[at(result)] >= 0)
      dims_.unite(valueVars_[at(result)], valueVars_[at(node.in[i])]);
  }
  if (collective.reduces && valueVars_[at(result)] >= 0 &&
      (node.reduction == Reduction::kSum || node.reduction == Reduction::kMean))
    summedValues_.push_back(valueVars_[at(result)]);
  std::vector<std::vector<std::int32_t>> variables;
  for (const std::int32_t d : out) variables.push_back({d});
  iterations_.emplace_back(false, std::move(variables));
}

}  // namespace

DimensionGraph buildDimensionGraph(const Stage& stage, bool knownInputs) {
  return Builder(stage, knownInputs).run();
}

}  // namespace shardproof
