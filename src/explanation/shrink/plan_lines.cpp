// SPDX-License-Identifier: Apache-2.0
#include "shrink/plan_lines.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>

#include "shardproof/error.h"

namespace shardproof {

namespace {

template <class T>
void sortUnique(std::vector<T>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

constexpr std::size_t kMostCuts = 400'000;

}  // namespace

PlanLines::Dim PlanLines::add(std::int64_t size) {
  sizes_.push_back(size);
  return dims_.add();
}

void PlanLines::equal(Dim a, Dim b) {
  if (sizes_[a] != sizes_[b])
    throw std::logic_error("dimensions of different sizes were said to be equal");
  dims_.unite(a, b);
}

void PlanLines::range(Dim whole, std::int64_t lo, Dim part) {
  if (lo < 0 || sizes_[whole] - lo < sizes_[part])
    throw Unsupported("a stretch lies outside its dimension");
  if (lo == 0 && sizes_[whole] == sizes_[part]) dims_.unite(whole, part);
  else ranges_.push_back({whole, lo, part});
}

void PlanLines::stretch(Dim a, std::int64_t loA, Dim b, std::int64_t loB, std::int64_t length) {
  stretches_.push_back({a, loA, b, loB, length});
}

void PlanLines::regroup(std::vector<Dim> a, std::vector<Dim> b) {
  regroups_.push_back({std::move(a), std::move(b)});
}

void PlanLines::drop(Dim d, std::int64_t lo, std::int64_t length) {
  drops_.push_back({d, lo, d, lo, length});
}

std::vector<char> PlanLines::structured() {
  std::vector<char> result(sizes_.size(), 0);
  const auto mark = [&](Dim d) { result[dims_.find(d)] = 1; };
  for (const Range& r : ranges_) mark(r.whole), mark(r.part);
  for (const auto* list : {&stretches_, &drops_}) {
    for (const Stretch& s : *list) mark(s.a), mark(s.b);
  }
  for (const Regroup& r : regroups_) {
    for (const auto* side : {&r.a, &r.b}) std::for_each(side->begin(), side->end(), mark);
  }
  std::for_each(keep_.begin(), keep_.end(), mark);
  for (const auto& [d, how] : telling_) mark(d);
  for (const auto& c : cuts_) mark(c.first);
  return result;
}

void PlanLines::close() {
  makeGroups();
  factorize();
  layLines();
  cutLines();
  makeClasses();
}

void PlanLines::makeGroups() {
  groupOf_.resize(sizes_.size());
  std::vector<std::int32_t> ofRoot(sizes_.size(), -1);
  for (std::size_t d = 0; d < sizes_.size(); ++d) {
    std::int32_t& g = ofRoot[dims_.find(static_cast<std::int32_t>(d))];
    if (g < 0) {
      g = static_cast<std::int32_t>(groupSize_.size());
      groupSize_.push_back(sizes_[d]);
      groupUses_.push_back(0);
    } else if (groupSize_[g] != sizes_[d]) {
      throw std::logic_error("dimensions of different sizes were said to be equal");
    }
    ++groupUses_[g];
    groupOf_[d] = g;
  }
  groupKeep_.assign(groupSize_.size(), 0);
  groupTelling_.assign(groupSize_.size(), Telling::kNo);
  for (const Dim d : keep_) groupKeep_[group(d)] = 1;
  for (const auto& [d, how] : telling_) {
    Telling& most = groupTelling_[group(d)];
    most = std::max(most, how);
  }
  for (Range& r : ranges_) r = {group(r.whole), r.lo, group(r.part)};
  for (auto* list : {&stretches_, &drops_}) {
    for (Stretch& s : *list) s.a = group(s.a), s.b = group(s.b);
  }
  for (Regroup& r : regroups_) {
    for (auto* side : {&r.a, &r.b}) {
      for (std::int32_t& d : *side) d = group(d);
    }
  }
  sortUnique(ranges_);
  for (const Range& r : ranges_)
    stretches_.push_back({r.whole, r.lo, r.part, 0, groupSize_[r.part]});
  sortUnique(stretches_);
  sortUnique(drops_);
  sortUnique(regroups_);
}

// ---- row-major factors, as in dimension_graph.cpp: a chain of strides for each dimension; where
// none fits, the dimension is flat, and stays as it is ----

void PlanLines::makeFlat(std::int32_t g) {
  if (flat_[g]) return;
  flat_[g] = 1;
  bounds_[g].clear();
  changed_ = true;
}

void PlanLines::addBound(std::int32_t g, std::int64_t s) {
  const std::int64_t n = groupSize_[g];
  if (flat_[g] || s <= 1 || s >= n) return;
  auto& chain = bounds_[g];
  if (std::binary_search(chain.begin(), chain.end(), s)) return;
  const bool fits = n != kUnbounded && n % s == 0 &&
                    std::all_of(chain.begin(), chain.end(),
                                [&](std::int64_t b) { return b % s == 0 || s % b == 0; });
  if (!fits) return makeFlat(g);
  chain.insert(std::upper_bound(chain.begin(), chain.end(), s), s);
  changed_ = true;
}

void PlanLines::closeRegroup(const Regroup& r) {
  const auto allFlat = [&] {
    for (const auto* side : {&r.a, &r.b}) {
      for (const std::int32_t g : *side) makeFlat(g);
    }
  };
  std::vector<std::int64_t> strides;
  for (const auto* side : {&r.a, &r.b}) {
    std::int64_t outer = 1;
    for (auto it = side->rbegin(); it != side->rend(); ++it) {
      if (flat_[*it]) return allFlat();
      if (outer > 1) strides.push_back(outer);
      for (const std::int64_t s : bounds_[*it]) strides.push_back(outer * s);
      outer *= groupSize_[*it];
    }
  }
  sortUnique(strides);
  for (const auto* side : {&r.a, &r.b}) {
    std::int64_t outer = 1;
    for (auto it = side->rbegin(); it != side->rend(); ++it) {
      const std::int64_t end = outer * groupSize_[*it];
      for (const std::int64_t s : strides) {
        if (s <= outer || s >= end) continue;
        if (s % outer != 0 || end % s != 0) return allFlat();
        addBound(*it, s / outer);
      }
      outer = end;
    }
  }
}

void PlanLines::closeStretch(const Stretch& s) {
  const auto bothFlat = [&] {
    makeFlat(s.a);
    makeFlat(s.b);
  };
  const auto followFlat = [&] {
    if (flat_[s.a] && !bounds_[s.b].empty()) makeFlat(s.b);
    if (flat_[s.b] && !bounds_[s.a].empty()) makeFlat(s.a);
  };
  followFlat();
  for (const auto& [g, lo] : {std::pair{s.a, s.loA}, std::pair{s.b, s.loB}}) {
    const std::vector<std::int64_t> chain = bounds_[g];
    for (const std::int64_t unit : chain) {
      if (unit < s.length) {
        if (s.loA % unit != 0 || s.loB % unit != 0 || s.length % unit != 0) return bothFlat();
        addBound(s.a, unit);
        addBound(s.b, unit);
        if (flat_[s.a] || flat_[s.b]) break;
      } else if (lo / unit != (lo + s.length - 1) / unit) {
        return bothFlat();  // straddles two blocks of the outer factor
      }
    }
  }
  followFlat();
}

void PlanLines::factorize() {
  bounds_.resize(groupSize_.size());
  flat_.assign(groupSize_.size(), 0);
  do {
    changed_ = false;
    for (const Regroup& r : regroups_) closeRegroup(r);
    for (const auto* list : {&stretches_, &drops_}) {
      for (const Stretch& s : *list) closeStretch(s);
    }
  } while (changed_);
}

std::int64_t PlanLines::factorSize(std::int32_t g, std::size_t level) const {
  const std::int64_t end = level + 1 == levels(g) ? groupSize_[g] : bounds_[g][level];
  return end / stride(g, level);
}

std::size_t PlanLines::topLevel(std::int32_t g, std::int64_t length) const {
  std::size_t top = 0;
  while (top + 1 < levels(g) && stride(g, top + 1) < length) ++top;
  return top;
}

void PlanLines::matchRegroup(const Regroup& r) {
  const auto factors = [&](const std::vector<std::int32_t>& side) {
    std::vector<std::pair<std::int32_t, std::int64_t>>
        list;  // outermost first, without those of size 1
    for (const std::int32_t g : side) {
      for (std::size_t j = levels(g); j-- > 0;) {
        if (factorSize(g, j) > 1) list.emplace_back(rawLine(g, j), factorSize(g, j));
      }
    }
    return list;
  };
  if (flat_[r.a.front()]) return;  // then all of them are, and keep their sizes
  const auto a = factors(r.a), b = factors(r.b);
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) same = a[i].second == b[i].second;
  if (!same) throw Unsupported("a view regroups dimensions in a way that has no common factors");
  for (std::size_t i = 0; i < a.size(); ++i) lineUnion_.unite(a[i].first, b[i].first);
}

void PlanLines::matchStretch(const Stretch& s) {
  const std::size_t top = topLevel(s.a, s.length);
  if (top != topLevel(s.b, s.length))
    throw Unsupported(
        "a stretch of a dimension does not follow the factors that a view takes it apart into");
  for (std::size_t j = 0; j < top; ++j) {
    if (stride(s.a, j) != stride(s.b, j) || factorSize(s.a, j) != factorSize(s.b, j))
      throw std::logic_error("unequal factors");
    lineUnion_.unite(rawLine(s.a, j), rawLine(s.b, j));
  }
  const std::int64_t unit = stride(s.a, top);
  const OnLine a{rawLine(s.a, top), s.loA / unit % factorSize(s.a, top), s.length / unit};
  const OnLine b{rawLine(s.b, top), s.loB / unit % factorSize(s.b, top), s.length / unit};
  segments_.emplace_back(a, b);
  for (const auto& [g, lo] : {std::pair{s.a, s.loA}, std::pair{s.b, s.loB}}) {
    for (std::size_t j = top + 1; j < levels(g); ++j) {
      const std::int64_t digit = lo / stride(g, j) % factorSize(g, j);
      lineCuts_.emplace_back(rawLine(g, j), digit);
      lineCuts_.emplace_back(rawLine(g, j), digit + 1);
    }
  }
}

// What is dropped lies on one line. Below the outermost one it does so only where every block of
// the lines outside it drops the same.
void PlanLines::dropOnLines() {
  std::map<std::tuple<std::int32_t, std::int64_t, std::int64_t>, std::int64_t>
      blocks;  // (line, offset, length) -> in how many
  for (const Stretch& s : drops_) {
    std::size_t level = levels(s.a) - 1;
    while (level > 0 && (s.loA % stride(s.a, level) != 0 || s.length % stride(s.a, level) != 0))
      --level;
    const std::int64_t unit = stride(s.a, level), size = factorSize(s.a, level);
    std::int64_t& count = blocks[{rawLine(s.a, level), s.loA / unit % size, s.length / unit}];
    if (++count < groupSize_[s.a] / (unit * size)) continue;
    droppedOnLine_.push_back({rawLine(s.a, level), s.loA / unit % size, s.length / unit});
    count = -1;  // done
  }
  for (const auto& [key, count] : blocks) {
    if (count >= 0)
      throw Unsupported("the ranks left out hold a part of a dimension that a view takes apart");
  }
}

void PlanLines::layLines() {
  std::vector<std::int64_t> rawSize;
  std::vector<std::int32_t> rawGroup;
  for (std::int32_t g = 0; at(g) < groupSize_.size(); ++g) {
    firstLine_.push_back(static_cast<std::int32_t>(rawSize.size()));
    for (std::size_t j = 0; j < levels(g); ++j) {
      lineUnion_.add();
      rawSize.push_back(factorSize(g, j));
      rawGroup.push_back(g);
    }
  }
  for (const Regroup& r : regroups_) matchRegroup(r);
  for (const Stretch& s : stretches_) matchStretch(s);
  dropOnLines();
  for (const auto& [d, position] : cuts_) {  // digits below the top one, too
    const std::int32_t g = group(d);
    for (std::size_t j = 0; j < levels(g); ++j) {
      const std::int64_t digit =
          j + 1 == levels(g) ? position / stride(g, j) : position / stride(g, j) % factorSize(g, j);
      lineCuts_.emplace_back(rawLine(g, j), digit);
    }
  }
  std::vector<std::int32_t> id(rawSize.size(), -1);
  const auto lineOf = [&](std::int32_t raw) {
    std::int32_t& line = id[lineUnion_.find(raw)];
    if (line < 0) {
      line = static_cast<std::int32_t>(lineSize_.size());
      lineSize_.push_back(rawSize[raw]);
      lineUses_.push_back(0);
      lineKeep_.push_back(0);
      lineTelling_.push_back(Telling::kNo);
    }
    if (lineSize_[line] != rawSize[raw])
      throw std::logic_error("factors of different sizes were matched");
    return line;
  };
  for (std::size_t raw = 0; raw < rawSize.size(); ++raw) {
    const std::int32_t line = lineOf(static_cast<std::int32_t>(raw)), g = rawGroup[raw];
    lineUses_[line] += groupUses_[g];
    if (groupKeep_[g] || flat_[g]) lineKeep_[line] = 1;
    lineTelling_[line] = std::max(lineTelling_[line], groupTelling_[g]);
  }
  for (std::int32_t g = 0; at(g) < groupSize_.size(); ++g) {
    std::vector<std::int32_t> lines;
    for (std::size_t j = levels(g); j-- > 0;) lines.push_back(lineOf(rawLine(g, j)));
    linesOfGroup_.push_back(std::move(lines));
  }
  for (auto& [a, b] : segments_) a.line = lineOf(a.line), b.line = lineOf(b.line);
  for (OnLine& d : droppedOnLine_) d.line = lineOf(d.line);
  for (auto& [line, position] : lineCuts_) line = lineOf(line);
  sortUnique(lineCuts_);
}

void PlanLines::cutLines() {
  std::vector<std::vector<std::size_t>> onLine(lineSize_.size());
  std::vector<std::set<std::int64_t>> cuts(lineSize_.size());
  std::vector<std::pair<std::int32_t, std::int64_t>> work;
  std::size_t count = 0;
  const auto insert = [&](std::int32_t line, std::int64_t position) {
    if (!cuts[line].insert(position).second) return;
    if (++count > kMostCuts)
      throw Unsupported("the bounds of the plan do not line up: more than " +
                        std::to_string(kMostCuts) + " pieces");
    work.emplace_back(line, position);
  };
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    onLine[segments_[s].first.line].push_back(s);
    if (segments_[s].second.line != segments_[s].first.line)
      onLine[segments_[s].second.line].push_back(s);
  }
  for (std::size_t l = 0; l < lineSize_.size(); ++l) {
    insert(static_cast<std::int32_t>(l), 0);
    insert(static_cast<std::int32_t>(l), lineSize_[l]);
  }
  for (const auto& [a, b] : segments_) {
    for (const OnLine& x : {a, b}) {
      insert(x.line, x.lo);
      insert(x.line, x.lo + x.length);
    }
  }
  for (const OnLine& d : droppedOnLine_) {
    insert(d.line, d.lo);
    insert(d.line, d.lo + d.length);
  }
  for (const auto& [line, position] : lineCuts_) insert(line, position);
  while (!work.empty()) {
    const auto [line, position] = work.back();
    work.pop_back();
    for (const std::size_t s : onLine[line]) {
      const auto& [a, b] = segments_[s];
      for (const auto& [x, y] : {std::pair{&a, &b}, std::pair{&b, &a}}) {
        if (x->line == line && position >= x->lo && position <= x->lo + x->length)
          insert(y->line, y->lo + (position - x->lo));
      }
    }
  }
  for (auto& c : cuts) cutsOfLine_.emplace_back(c.begin(), c.end());
}

std::size_t PlanLines::cutIndex(std::int32_t line, std::int64_t position) const {
  const auto& cuts = cutsOfLine_[line];
  const auto it = std::lower_bound(cuts.begin(), cuts.end(), position);
  if (it == cuts.end() || *it != position)
    throw Unsupported("a bound lies inside a piece of its dimension");
  return static_cast<std::size_t>(it - cuts.begin());
}

void PlanLines::makeClasses() {
  std::vector<std::int32_t> firstPiece;
  UnionFind<std::int32_t> pieces;
  for (const auto& cuts : cutsOfLine_) {
    firstPiece.push_back(static_cast<std::int32_t>(pieces.size()));
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) pieces.add();
  }
  for (const auto& [a, b] : segments_) {
    const std::size_t i = cutIndex(a.line, a.lo), j = cutIndex(b.line, b.lo),
                      n = cutIndex(a.line, a.lo + a.length) - i;
    for (std::size_t k = 0; k < n; ++k) {
      pieces.unite(firstPiece[a.line] + static_cast<std::int32_t>(i + k),
                   firstPiece[b.line] + static_cast<std::int32_t>(j + k));
    }
  }
  std::vector<std::int32_t> id(pieces.size(), -1);
  for (std::size_t l = 0; l < lineSize_.size(); ++l) {
    std::vector<std::int32_t> own;
    for (std::size_t i = 0; i + 1 < cutsOfLine_[l].size(); ++i) {
      std::int32_t& c = id[pieces.find(firstPiece[l] + static_cast<std::int32_t>(i))];
      if (c < 0) {
        c = static_cast<std::int32_t>(classes_.size());
        classes_.push_back({.size = cutsOfLine_[l][i + 1] - cutsOfLine_[l][i]});
      }
      Class& cls = classes_[c];
      if (lineKeep_[l] || lineSize_[l] == kUnbounded)
        cls.fixed = cls.fixed || lineKeep_[l] || i + 2 == cutsOfLine_[l].size();
      cls.telling = std::max(cls.telling, lineTelling_[l]);
      cls.uses += lineUses_[l];
      own.push_back(c);
    }
    classOfPiece_.push_back(std::move(own));
  }
  for (const OnLine& d : droppedOnLine_) {
    for (std::size_t i = cutIndex(d.line, d.lo), end = cutIndex(d.line, d.lo + d.length); i < end;
         ++i)
      classes_[classOfPiece_[d.line][i]].dropped = true;
  }
  for (std::size_t l = 0; l < lineSize_.size(); ++l) {
    if (std::all_of(classOfPiece_[l].begin(), classOfPiece_[l].end(),
                    [&](std::int32_t c) { return classes_[c].dropped; })) {
      throw Unsupported("a dimension of " + std::to_string(lineSize_[l]) +
                        " positions would have none left");
    }
  }
  for (const Class& c : classes_) {
    if (c.dropped && c.fixed)
      throw Unsupported(
          "a dimension that must stay as it is lies in part on ranks that are left out");
  }
}

LinearSum PlanLines::before(std::int32_t line, std::int64_t position) const {
  LinearSum sum;
  std::map<std::int32_t, std::int64_t> counts;
  for (std::size_t i = 0, end = cutIndex(line, position); i < end; ++i)
    ++counts[classOfPiece_[line][i]];
  for (const auto& [c, n] : counts) {
    if (!classes_[c].dropped) sum.terms.emplace_back(c, n);
  }
  return sum;
}

PlanLines::OnLine PlanLines::onLine(Dim d, std::int64_t lo, std::int64_t length,
                                    std::vector<std::int32_t>& inner) const {
  const std::int32_t g = group(d);
  const std::size_t top = topLevel(g, length);
  const std::int64_t unit = stride(g, top);
  if (lo % unit != 0 || length % unit != 0)
    throw Unsupported(
        "a stretch of a dimension does not follow the factors that a view takes it apart into");
  const auto& lines = linesOf(d);
  inner.assign(lines.end() - static_cast<std::ptrdiff_t>(top), lines.end());
  return {lines[lines.size() - 1 - top], lo / unit % factorSize(g, top), length / unit};
}

std::vector<std::int64_t> PlanLines::digits(Dim d, std::int64_t position) const {
  const std::int32_t g = group(d);
  std::vector<std::int64_t> result;
  for (std::size_t j = levels(g); j-- > 0;)
    result.push_back(j + 1 == levels(g) ? position / stride(g, j)
                                        : position / stride(g, j) % factorSize(g, j));
  for (std::size_t i = 0; i < result.size(); ++i) cutIndex(linesOfGroup_[g][i], result[i]);
  return result;
}

void PlanLines::assign(const std::vector<std::int64_t>& sizeOfClass) {
  newCuts_.clear();
  for (const auto& pieces : classOfPiece_) {
    std::vector<std::int64_t> cuts{0};
    for (const std::int32_t c : pieces)
      cuts.push_back(cuts.back() + (classes_[c].dropped ? 0 : sizeOfClass[c]));
    newCuts_.push_back(std::move(cuts));
  }
}

std::int64_t PlanLines::newSize(Dim d) const {
  std::int64_t product = 1;
  for (const std::int32_t line : linesOf(d)) product *= newSizeOfLine(line);
  return product;
}

std::int64_t PlanLines::newPosition(Dim d, std::int64_t position) const {
  const std::vector<std::int64_t> digit = digits(d, position);
  const auto& lines = linesOf(d);
  std::int64_t result = 0;
  for (std::size_t i = 0; i < lines.size(); ++i)
    result = result * newSizeOfLine(lines[i]) + newCuts_[lines[i]][cutIndex(lines[i], digit[i])];
  return result;
}

std::int64_t PlanLines::fullPosition(Dim d, std::int64_t newPosition) const {
  const auto& lines = linesOf(d);
  std::int64_t result = 0, stride = 1;
  for (std::size_t i = lines.size(); i-- > 0;) {
    const std::int64_t size = newSizeOfLine(lines[i]);
    const std::int64_t digit = i == 0 ? newPosition : newPosition % size;
    const auto& cuts = newCuts_[at(lines[i])];
    // Of several bounds that came to lie there the last: all but the piece after it are gone.
    const auto it = std::upper_bound(cuts.begin(), cuts.end(), digit);
    if (it == cuts.begin() || *std::prev(it) != digit) return -1;
    result += stride * cutsOfLine_[at(lines[i])][at(std::prev(it) - cuts.begin())];
    stride *= fullSizeOfLine(lines[i]);
    newPosition /= size;
  }
  return result;
}

}  // namespace shardproof
