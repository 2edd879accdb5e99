// SPDX-License-Identifier: Apache-2.0
#include "diagnose/finder.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "infer/arrangements.h"
#include "util/index.h"

namespace shardproof::diagnose {

namespace {

constexpr std::int64_t kMostRatio = 1 << 12;
constexpr std::size_t kMostIndexed = 1'500'000;  // elements of the model
constexpr std::size_t kMostTried = 64;           // places at which a box may begin

bool uniform(const Elements& x) {
  return std::all_of(x.of[0].begin(), x.of[0].end(), [&](Field f) { return f == x.of[0][0]; }) &&
         std::all_of(x.of[1].begin(), x.of[1].end(), [&](Field f) { return f == x.of[1][0]; });
}

void add(Elements& to, const Elements& more) {
  if (!to.known()) {
    to = more;
    return;
  }
  for (std::size_t d = 0; d < kDraws; ++d)
    for (std::size_t i = 0; i < to.of[d].size(); ++i) to.of[d][i] += more.of[d][i];
}

// a - b; nothing where sizes differ.
std::optional<Elements> difference(const Elements& a, const Elements& b) {
  if (a.size() != b.size()) return std::nullopt;
  Elements c = a;
  for (std::size_t d = 0; d < kDraws; ++d)
    for (std::size_t i = 0; i < c.of[d].size(); ++i) c.of[d][i] -= b.of[d][i];
  return c;
}

std::optional<Ratio> multiple(const Elements& a, const Elements& b) {
  if (a.size() != b.size() || a.size() == 0) return std::nullopt;
  std::optional<Field> factor;
  for (std::size_t d = 0; d < kDraws; ++d) {
    for (std::size_t i = 0; i < a.of[d].size(); ++i) {
      const Field x = a.of[d][i], y = b.of[d][i];
      if (x.special() || y.special()) {
        if (x != y) return std::nullopt;
        continue;
      }
      if (y.v == 0 || x.v == 0) {
        if (x.v != y.v) return std::nullopt;
        continue;
      }
      if (!factor) factor = x * executor::inverse(y);
      else if (y * *factor != x) return std::nullopt;
    }
  }
  return factor ? ratioOf(*factor) : std::nullopt;
}

}  // namespace

std::optional<Ratio> ratioOf(Field value) {
  if (value.special()) return std::nullopt;
  for (std::int64_t q = 1; q <= kMostRatio; ++q) {
    const std::uint64_t p = (value * Field(q)).v;
    if (p <= kMostRatio) return Ratio{static_cast<std::int64_t>(p), q};
    if (Field::kPrime - p <= kMostRatio)
      return Ratio{-static_cast<std::int64_t>(Field::kPrime - p), q};
  }
  return std::nullopt;
}

std::optional<Ratio> ratioOf(long double value) {
  if (!std::isfinite(value)) return std::nullopt;
  for (std::int64_t q = 1; q <= kMostRatio; ++q) {
    const long double p = std::round(value * static_cast<long double>(q));
    if (std::abs(p) > kMostRatio) return std::nullopt;
    if (p != 0 && std::abs(value * static_cast<long double>(q) - p) <= 1e-8L * std::abs(p))
      return Ratio{static_cast<std::int64_t>(p), q};
  }
  return std::nullopt;
}

ModelIndex::ModelIndex(const ModelValues& model) {
  const auto& values = model.field.values[0];
  std::size_t indexed = 0;
  for (std::size_t t = 0; t < values.size(); ++t) {
    const auto& value = values[t];
    if (!value || value.element != ElementKind::kReal) continue;
    indexed += shardproof::at(value.size());
    if (indexed > kMostIndexed) break;
    for (std::int64_t i = 0; i < value.size(); ++i)
      if (value.data()[i].v != 0 && !value.data()[i].special())
        all_.push_back({value.data()[i].v, TensorId(t), static_cast<std::int32_t>(i)});
  }
  std::stable_sort(all_.begin(), all_.end(),
                   [](const Position& a, const Position& b) { return a.value < b.value; });
}

std::span<const ModelIndex::Position> ModelIndex::at(Field value) const {
  const auto [from, to] =
      std::equal_range(all_.begin(), all_.end(), Position{value.v, TensorId(), 0},
                       [](const Position& a, const Position& b) { return a.value < b.value; });
  return {from, to};
}

Finder::Finder(const Image& image, const Numbers& numbers, const ModelValues& model,
               const ModelIndex& index)
    : image_(image),
      numbers_(numbers),
      model_(model),
      scales_(infer::scalesOf(numbers.setup().problem.plan)),
      index_(index) {}

bool Finder::matches(const Elements& x, const ModelIndex::Position& p, Match& match) const {
  const auto& whole = model_.field.values[0][p.tensor];
  if (!whole || static_cast<std::size_t>(whole.size()) < x.size()) return false;
  match = {};
  match.kind = Match::Kind::kBox;
  match.tensor = p.tensor;
  const Shape strides = executor::stridesOf(whole.shape);
  if (whole.shape.size() == x.shape.size()) {
    bool inside = true;
    for (std::size_t d = 0; d < strides.size(); ++d) {
      match.low.push_back(p.offset / strides[d] % whole.shape[d]);
      inside = inside && match.low[d] + x.shape[d] <= whole.shape[d];
    }
    if (inside) {
      match.extent = x.shape;
      const Elements box = boxOf(model_, p.tensor, match.low, match.extent);
      if (box == x) return true;
    }
  }
  if (p.offset + static_cast<std::int64_t>(x.size()) > whole.size()) return false;
  for (std::size_t d = 0; d < kDraws; ++d)
    if (!std::equal(x.of[d].begin(), x.of[d].end(),
                    model_.field.values[d][p.tensor].data() + p.offset))
      return false;
  match.low = {p.offset};
  match.extent = {};
  return true;
}

Match Finder::box(const Elements& x, std::int32_t likely) const {
  Match match;
  if (!x.known() || x.element != ElementKind::kReal) return match;
  if (uniform(x)) {
    match.kind =
        x.of[0][0].v == 0 && x.of[1][0].v == 0 ? Match::Kind::kZero : Match::Kind::kUniform;
    if (match.kind == Match::Kind::kZero || x.size() > 1) return match;
  }
  // A box begins at its first element; zeros begin too many.
  const auto all = index_.at(x.of[0][0]);
  std::vector<ModelIndex::Position> places(
      all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), 4 * kMostTried)));
  std::stable_partition(places.begin(), places.end(),
                        [&](const ModelIndex::Position& p) { return p.tensor == likely; });
  for (std::size_t i = 0; i < std::min(places.size(), kMostTried); ++i)
    if (matches(x, places[i], match)) return match;
  match = {};
  if (x.size() > 1 && uniform(x)) match.kind = Match::Kind::kUniform;
  return match;
}

std::vector<std::vector<std::int32_t>> Finder::axisSets(bool microbatches) const {
  std::vector<std::int32_t> axes;
  const Plan& plan = numbers_.setup().problem.plan;
  for (std::size_t a = 0; a < plan.mesh.size(); ++a)
    if (plan.mesh[a].size > 1) axes.push_back(static_cast<std::int32_t>(a));
  if (microbatches && plan.microbatches > 1) axes.push_back(kMicrobatchAxis);
  std::vector<std::vector<std::int32_t>> sets;
  for (std::size_t bits = 1; bits < (std::size_t{1} << axes.size()); ++bits) {
    sets.emplace_back();
    for (std::size_t i = 0; i < axes.size(); ++i)
      if (bits >> i & 1) sets.back().push_back(axes[i]);
  }
  std::stable_sort(sets.begin(), sets.end(),
                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return sets;
}

// Over all ranks (and microbatches) that differ in these axes only.
std::optional<Elements> Finder::summedOver(Rank rank, std::int32_t slot,
                                           const std::vector<std::int32_t>& axes) const {
  const executor::Programs& programs = numbers_.setup().programs;
  const auto& layout = programs.layout(rank);
  const TensorId t = layout.tensorOfSlot[slot];
  const Tensor& tensor = programs.program(rank).graph.tensors[t];
  const std::int32_t own = slot - layout.firstSlot[t];
  std::vector<Rank> ranks{rank};
  std::vector<std::int32_t> microbatches{own};
  for (const std::int32_t axis : axes) {
    if (axis == kMicrobatchAxis) {
      if (!tensor.perMicrobatch) return std::nullopt;
      microbatches.clear();
      for (std::int32_t m = 0; m < programs.problem().plan.microbatches; ++m)
        microbatches.push_back(m);
      continue;
    }
    std::vector<Rank> wider;
    for (const Rank r : ranks)
      for (std::int64_t c = 0; c < programs.mesh().size(at(axis)); ++c)
        wider.push_back(Rank(programs.mesh().moved(r, at(axis), c)));
    ranks = std::move(wider);
  }
  Elements sum;
  for (const Rank r : ranks) {
    const auto& other = programs.layout(r);
    const auto it = other.tensorByName.find(tensor.name);
    if (it == other.tensorByName.end()) return std::nullopt;
    const bool each = programs.program(r).graph.tensors[it->second].perMicrobatch;
    if (each != tensor.perMicrobatch) return std::nullopt;
    for (const std::int32_t m : microbatches) {
      const Elements& x = numbers_.local(r, other.firstSlot[it->second] + m);
      if (!x.known() || (sum.known() && (x.shape != sum.shape || x.element != sum.element)))
        return std::nullopt;
      add(sum, x);
    }
  }
  return sum;
}

Match Finder::local(Rank rank, std::int32_t slot) const {
  const Elements& x = numbers_.local(rank, slot);
  Match match = box(x);
  if (match.kind != Match::Kind::kUnknown || x.element != ElementKind::kReal) return match;
  std::vector<std::pair<std::vector<std::int32_t>, Elements>> sums;
  for (const auto& axes : axisSets(true)) {
    auto sum = summedOver(rank, slot, axes);
    if (!sum) continue;
    Match whole = box(*sum);
    if (whole.kind == Match::Kind::kBox) {
      whole.kind = Match::Kind::kPartial;
      whole.axes = axes;
      return whole;
    }
    sums.emplace_back(axes, std::move(*sum));
  }
  sums.insert(sums.begin(), {{}, x});
  for (const auto& [axes, sum] : sums) {
    for (const Rational& scale : scales_) {
      const auto factor = executor::fromRational<Field>(scale);
      if (index_.at(sum.of[0][0] * factor).empty()) continue;
      Elements scaled = sum;
      for (auto& draw : scaled.of)
        for (Field& f : draw) f = f * factor;
      Match whole = box(scaled);
      const auto ratio = ratioOf(executor::inverse(factor));
      if (whole.kind != Match::Kind::kBox || !ratio) continue;
      whole.kind = axes.empty() ? Match::Kind::kMultiple : Match::Kind::kPartial;
      whole.axes = axes;
      whole.ratio = *ratio;
      return whole;
    }
  }
  return match;
}

// Of the claims whose first parts differ in these axes only, added up: what they expect, or have.
std::optional<Elements> Finder::claimsOver(std::size_t c, const std::vector<std::int32_t>& axes,
                                           bool expected) const {
  const executor::Programs& programs = numbers_.setup().programs;
  const auto& mine = numbers_.claim(c).parts.front();
  Elements sum;
  std::size_t found = 0, wanted = 1;
  for (const std::int32_t axis : axes)
    wanted *= axis == kMicrobatchAxis ? at(programs.problem().plan.microbatches)
                                      : at(programs.mesh().size(at(axis)));
  for (std::size_t o = 0; o < numbers_.claims(); ++o) {
    const auto& other = numbers_.claim(o).parts.front();
    bool alike = true;
    for (std::size_t a = 0; a < programs.mesh().axes(); ++a) {
      const bool free =
          std::find(axes.begin(), axes.end(), static_cast<std::int32_t>(a)) != axes.end();
      alike = alike && (free || programs.mesh().coordinate(mine.rank, a) ==
                                    programs.mesh().coordinate(other.rank, a));
    }
    const bool each = std::find(axes.begin(), axes.end(), kMicrobatchAxis) != axes.end();
    alike = alike && (each || numbers_.claim(o).microbatch == numbers_.claim(c).microbatch);
    const Elements& x = expected ? numbers_.expected(o) : numbers_.actual(o);
    if (!alike || x.size() != numbers_.expected(c).size()) continue;
    add(sum, x);
    ++found;
  }
  return found == wanted ? std::optional(sum) : std::nullopt;
}

Match Finder::claim(std::size_t c) const {
  const Elements &wanted = numbers_.expected(c), &has = numbers_.actual(c);
  const TensorId tensor = numbers_.setup().problem.plan.lineage[numbers_.claim(c).entry].tensor;
  Match match;
  match.tensor = tensor;
  match.low = numbers_.claim(c).low;
  match.extent = numbers_.claim(c).extent;
  const auto found = [&](Match::Kind kind) {
    match.kind = kind;
    return match;
  };
  if (!has.known() || !wanted.known() || has.element != ElementKind::kReal) return match;
  const bool zero = uniform(has) && has.of[0][0].v == 0 && has.of[1][0].v == 0;
  if (zero) return found(Match::Kind::kZero);
  auto ratio = multiple(has, wanted);
  if (const auto real = numbers_.realRatio(c); !ratio && real && wanted.size() > 1)
    ratio = ratioOf(*real);
  if (ratio && *ratio != Ratio{}) {
    match.ratio = *ratio;
    return found(Match::Kind::kMultiple);
  }
  for (const auto& axes : axisSets(true)) {
    const auto sum =
        numbers_.claim(c).parts.size() == 1
            ? summedOver(numbers_.claim(c).parts[0].rank, numbers_.claim(c).parts[0].slot, axes)
            : claimsOver(c, axes, false);
    if (sum && *sum == wanted) {
      match.axes = axes;
      return found(Match::Kind::kPartial);
    }
  }
  if (Match other = box(has, tensor); other.kind == Match::Kind::kBox) return other;
  for (const auto& axes : axisSets(true)) {
    const auto sum = claimsOver(c, axes, true);
    if (sum && *sum == has) {
      match.axes = axes;
      return found(Match::Kind::kSummed);
    }
  }
  // One term too few or too many: some local tensor of the rank is the difference.
  const auto less = difference(wanted, has), more = difference(has, wanted);
  if (less) {
    const executor::Programs& programs = numbers_.setup().programs;
    const Rank rank = numbers_.claim(c).parts.front().rank;
    const auto& layout = programs.layout(rank);
    for (std::int32_t slot = 0; slot < layout.slots(); ++slot) {
      const Elements& x = numbers_.local(rank, slot);
      if (!x.known() || x.size() != has.size() || x.element != ElementKind::kReal || uniform(x))
        continue;
      const bool missing = x == *less;
      if (!missing && !(x == *more)) continue;
      const TensorId t = layout.tensorOfSlot[slot];
      const Graph& graph = programs.program(rank).graph;
      match.local = numbers_.setup().problem.names.text(graph.tensors[t].name);
      if (graph.tensors[t].perMicrobatch)
        match.local += "#" + std::to_string(slot - layout.firstSlot[t]);
      return found(missing ? Match::Kind::kLess : Match::Kind::kMore);
    }
  }
  if (has.size() == wanted.size() && has.size() > 1) {
    auto a = has.of, b = wanted.of;
    for (std::size_t d = 0; d < kDraws; ++d) {
      const auto less_ = [](Field x, Field y) { return x.v < y.v; };
      std::sort(a[d].begin(), a[d].end(), less_);
      std::sort(b[d].begin(), b[d].end(), less_);
    }
    if (a == b) return found(Match::Kind::kPermuted);
  }
  return match;
}

}  // namespace shardproof::diagnose
