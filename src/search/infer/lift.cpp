// SPDX-License-Identifier: Apache-2.0
#include "infer/lift.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "infer/subsets.h"
#include "plan/mesh.h"
#include "util/index.h"

namespace shardproof::infer {

namespace {

constexpr std::size_t kMostFits = 16;    // of one place of the first running
constexpr std::size_t kMostSteps = 256;  // that are tried for them

}  // namespace

Lift::Lift(const Problem& full, const Shrunk& shrunk, const Relations& relations)
    : full_(full), shrunk_(shrunk) {
  collectWays(relations);
}

Lift::Kind Lift::kindOf(const Relation& relation, const std::vector<Axis>& axes,
                        TensorId tensor) const {
  const Problem& here = executed();
  Kind kind{here.model.graph.tensors[tensor].shape,
            relation.arrangement.shapeOf(
                here.plan.programs[relation.program].graph.tensors[relation.tensor].shape),
            {}};
  for (const Axis& axis : axes) std::get<2>(kind).push_back(axis.axis);
  return kind;
}

// Of local tensors that are at one place of a tensor only.
void Lift::collectWays(const Relations& relations) {
  std::vector<Fit> fits;
  for (const Relation& relation : relations.relations) {
    const std::vector<Axis> axes = axesOf(relation);
    const auto& places = relation.found.front().places;
    for (const BoxPosition& base : places) {
      if (std::count_if(places.begin(), places.end(),
                        [&](const BoxPosition& p) { return p.tensor == base.tensor; }) > 1)
        continue;
      fits.clear();
      fit(relation, axes, base, fits);
      if (fits.size() == 1) ++ways_[kindOf(relation, axes, base.tensor)][{base.low, fits[0].steps}];
    }
  }
}

std::vector<Lift::Axis> Lift::axesOf(const Relation& relation) const {
  const Plan& here = executed().plan;
  const Program& program = here.programs[relation.program];
  std::vector<Axis> axes;
  const auto free = [&](std::int32_t a) {
    return std::none_of(program.at.begin(), program.at.end(),
                        [&](const auto& c) { return c.first == a; }) &&
           std::find(relation.sum.begin(), relation.sum.end(), a) == relation.sum.end();
  };
  for (std::int32_t a = 0; at(a) < here.mesh.size(); ++a) {
    if (here.mesh[a].size < 2 || !free(a)) continue;
    Axis axis{a, here.mesh[a].size, full_.plan.mesh[a].size, {}};
    if (shrunk_.problem) {
      axis.coordinates = shrunk_.coordinatesOf[a];
    } else {
      axis.coordinates.resize(at(axis.here));
      std::iota(axis.coordinates.begin(), axis.coordinates.end(), 0);
    }
    axes.push_back(std::move(axis));
  }
  if (program.graph.tensors[relation.tensor].perMicrobatch && here.microbatches > 1 &&
      free(kMicrobatchAxis)) {
    Axis axis{kMicrobatchAxis, here.microbatches, full_.plan.microbatches, {}};
    if (shrunk_.problem) {
      axis.coordinates = shrunk_.microbatchOf;
    } else {
      axis.coordinates.resize(at(axis.here));
      std::iota(axis.coordinates.begin(), axis.coordinates.end(), 0);
    }
    axes.push_back(std::move(axis));
  }
  return axes;
}

std::vector<std::int64_t> Lift::coordinatesOf(const std::vector<Axis>& axes,
                                              const Found& found) const {
  const MeshView mesh(executed().plan.mesh);
  std::vector<std::int64_t> coordinates;
  for (const Axis& axis : axes)
    coordinates.push_back(axis.axis == kMicrobatchAxis ? found.microbatch
                                                       : mesh.coordinate(found.rank, axis.axis));
  return coordinates;
}

// Of the runnings at coordinate 0 of the axes from `upTo` on.
bool Lift::holds(const Relation& relation,
                 const std::vector<std::vector<std::int64_t>>& coordinates, const Fit& fit,
                 std::size_t upTo) const {
  for (std::size_t i = 0; i < coordinates.size(); ++i) {
    BoxPosition place = fit.base;
    bool known = true;
    for (std::size_t a = 0; a < fit.steps.size(); ++a) {
      known = known && (a < upTo || coordinates[i][a] == 0);
      for (std::size_t d = 0; d < place.low.size(); ++d)
        place.low[d] += coordinates[i][a] * fit.steps[a][d];
    }
    const auto& places = relation.found[i].places;
    if (known && std::find(places.begin(), places.end(), place) == places.end()) return false;
  }
  return true;
}

// The steps are those to the neighbours of the first running; all others must agree. Where a tensor
// is the same at several places there are several.
void Lift::fit(const Relation& relation, const std::vector<Axis>& axes, const BoxPosition& base,
               std::vector<Fit>& fits) const {
  std::vector<std::vector<std::int64_t>> coordinates;
  for (const Found& found : relation.found) coordinates.push_back(coordinatesOf(axes, found));
  Fit fit{base, std::vector<Shape>(axes.size(), Shape(base.low.size(), 0))};
  const auto neighbourAlong = [&](std::size_t a) {
    for (std::size_t i = 0; i < coordinates.size(); ++i) {
      bool next = true;
      for (std::size_t b = 0; b < axes.size(); ++b)
        next = next && coordinates[i][b] == (b == a ? 1 : 0);
      if (next) return i;
    }
    return coordinates.size();
  };
  std::size_t tried = 0;
  const auto extend = [&](const auto& self, std::size_t a) -> void {
    if (a == axes.size()) {
      fits.push_back(fit);
      return;
    }
    const std::size_t neighbour = neighbourAlong(a);
    if (neighbour == coordinates.size()) return;
    for (const BoxPosition& place : relation.found[neighbour].places) {
      if (place.tensor != base.tensor) continue;
      if (fits.size() >= kMostFits || ++tried > kMostSteps) return;
      for (std::size_t d = 0; d < base.low.size(); ++d)
        fit.steps[a][d] = place.low[d] - base.low[d];
      if (holds(relation, coordinates, fit, a + 1)) self(self, a + 1);
    }
  };
  if (holds(relation, coordinates, fit, 0)) extend(extend, 0);
}

std::optional<std::pair<std::int64_t, std::vector<std::int64_t>>> Lift::atFullSize(
    const Fit& fit, std::size_t d, const std::vector<Axis>& axes, std::int64_t extentHere,
    std::int64_t extent, const std::vector<std::pair<std::int64_t, std::int64_t>>& fixed) const {
  const std::int64_t base = fit.base.low[d];
  std::vector<std::int64_t> steps(axes.size(), 0);
  if (!shrunk_.problem) {
    for (std::size_t a = 0; a < axes.size(); ++a) steps[a] = fit.steps[a][d];
    return std::pair(base, steps);
  }
  const TensorId t = fit.base.tensor;
  const std::int64_t size = full_.model.graph.tensors[t].shape[d];
  const auto inside = [&](std::int64_t low) {
    std::int64_t first = low, last = low;
    for (std::size_t a = 0; a < axes.size(); ++a)
      (steps[a] < 0 ? first : last) += (axes[a].full - 1) * steps[a];
    return low >= 0 && first >= 0 && last + extent <= size;
  };
  // By bounds: those of the first running, of its neighbours, and of its end.
  const auto byBounds = [&]() -> std::optional<std::int64_t> {
    std::int64_t low = shrunk_.fullPosition(t, d, base);
    if (low < 0) return std::nullopt;
    for (std::size_t a = 0; a < axes.size(); ++a) {
      const std::int64_t step = fit.steps[a][d];
      steps[a] = 0;
      if (step == 0) continue;
      const std::int64_t next = shrunk_.fullPosition(t, d, base + step);
      const std::int64_t apart = axes[a].coordinates[1] - axes[a].coordinates[0];
      if (next < 0 || (next - low) % apart != 0) return std::nullopt;
      steps[a] = (next - low) / apart;
      for (std::int64_t c = 2; c < axes[a].here; ++c) {
        const std::int64_t there = shrunk_.fullPosition(t, d, base + c * step);
        if (there != low + (axes[a].coordinates[c] - axes[a].coordinates[0]) * steps[a])
          return std::nullopt;
      }
    }
    for (std::size_t a = 0; a < axes.size(); ++a) low -= axes[a].coordinates[0] * steps[a];
    return inside(low) ? std::optional(low) : std::nullopt;
  };
  if (const auto low = byBounds()) return std::pair(*low, steps);
  // By shares: so many times the tensor's own extent, and where that is the number of coordinates
  // of some axes that move it here, it is theirs at full size.
  if (extentHere == 0 || base % extentHere != 0) return std::nullopt;
  const auto atFull = [&](std::int64_t times, std::size_t except) {
    std::vector<std::int32_t> others;
    for (std::size_t b = 0; b < axes.size(); ++b)
      if (b != except && fit.steps[b][d] != 0) others.push_back(static_cast<std::int32_t>(b));
    for (const auto& set : subsetsOf(others)) {
      std::int64_t here = 1, full = 1;
      for (const std::int32_t b : set) here *= axes[b].here, full *= axes[b].full;
      if (here == std::abs(times)) return times < 0 ? -full : full;
    }
    return times;
  };
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (fit.steps[a][d] % extentHere != 0) return std::nullopt;
    steps[a] = atFull(fit.steps[a][d] / extentHere, a) * extent;
  }
  // Where it begins is a number of shares, too: a multiple of a coordinate that the program fixes.
  std::int64_t shares = base / extentHere, full = shares;
  for (const auto& [here, there] : fixed) {
    if (shares == 0 || here == 0 || shares % here != 0) continue;
    const std::int64_t each = atFull(shares / here, axes.size());
    if (each == shares / here && here == there) continue;
    full = there * each;
    break;
  }
  const std::int64_t low = full * extent;
  return inside(low) ? std::optional(std::pair(low, steps)) : std::nullopt;
}

namespace {

// In how many places a box lies, over all coordinates; where these are too many to be counted, in
// as many as there are coordinates.
double countPlaces(const std::vector<std::pair<std::int64_t, Shape>>& moves) {
  constexpr std::size_t kMostCounted = 4096;
  std::set<Shape> offsets{Shape(moves.empty() ? 0 : moves.front().second.size(), 0)};
  double more = 1;
  for (const auto& [coordinates, step] : moves) {
    if (offsets.size() * at(coordinates) > kMostCounted) {
      more *= static_cast<double>(coordinates);
      continue;
    }
    std::set<Shape> wider;
    for (const Shape& offset : offsets) {
      for (std::int64_t c = 0; c < coordinates; ++c) {
        Shape moved = offset;
        for (std::size_t d = 0; d < moved.size(); ++d) moved[d] += c * step[d];
        wider.insert(std::move(moved));
      }
    }
    offsets = std::move(wider);
  }
  return static_cast<double>(offsets.size()) * more;
}

}  // namespace

double Lift::placesOf(const std::vector<Axis>& axes, const std::vector<Shape>& steps) const {
  Moves moves;
  for (std::size_t a = 0; a < axes.size(); ++a)
    if (std::any_of(steps[a].begin(), steps[a].end(), [](std::int64_t s) { return s != 0; }))
      moves.emplace_back(axes[a].full, steps[a]);
  const auto [it, inserted] = places_.try_emplace(std::move(moves));
  if (inserted) it->second = countPlaces(it->first);
  return it->second;
}

// Programs that were not executed, as others that differ in attributes only were
// (ShrinkOptions::windowsAlike): the same tensors of theirs are parts of the sum, too.
void Lift::addLeftOut(const Relation& relation, const Program& program, Shard& shard) const {
  const auto alike = [&](const Coordinates& at) {
    return std::equal(at.begin(), at.end(), program.at.begin(), program.at.end(),
                      [&](const auto& a, const auto& b) {
                        return a.first == b.first &&
                               (a.second == b.second ||
                                std::find(relation.sum.begin(), relation.sum.end(), a.first) !=
                                    relation.sum.end());
                      });
  };
  const Tensor& tensor = program.graph.tensors[relation.tensor];
  for (const Program& other : full_.plan.programs) {
    if (!alike(other.at) || other.graph.tensors.size() != program.graph.tensors.size() ||
        std::any_of(shard.parts.begin(), shard.parts.end(),
                    [&](const Part& part) { return part.at == other.at; }))
      continue;
    const Tensor& same = other.graph.tensors[relation.tensor];
    if (same.name == tensor.name && same.shape == tensor.shape)
      shard.parts.push_back({same.name, other.at, Microbatch::none()});
  }
}

// A dimension that is taken apart has the model's extents, or their shares along an axis.
std::optional<Arrangement> Lift::arrangementAtFullSize(const Arrangement& arrangement, TensorId of,
                                                       const Tensor& localHere,
                                                       const Tensor& local) const {
  if (arrangement.regrouped < 0 || arrangement.inner == 0 || !shrunk_.problem) return arrangement;
  const std::size_t d = at(arrangement.regrouped);
  const std::int64_t all = local.shape[d];
  const Shape &whole = full_.model.graph.tensors[of].shape,
              &wholeHere = executed().model.graph.tensors[of].shape;
  // Where the part that is dimension `v` of the view is in the tensor of the model.
  const auto placeOf = [&](std::size_t v) {
    const auto it = std::find(arrangement.permute.begin(), arrangement.permute.end(), v);
    return arrangement.permute.empty() ? v
                                       : static_cast<std::size_t>(it - arrangement.permute.begin());
  };
  const auto extent = [&](std::size_t v, std::int64_t here) -> std::int64_t {
    const std::size_t k = placeOf(v);
    if (k >= whole.size() || wholeHere.size() != whole.size()) return 0;
    if (here == wholeHere[k]) return whole[k];
    for (std::size_t a = 0; a < full_.plan.mesh.size(); ++a)
      if (here * executed().plan.mesh[a].size == wholeHere[k] &&
          whole[k] % full_.plan.mesh[a].size == 0)
        return whole[k] / full_.plan.mesh[a].size;
    return 0;
  };
  Arrangement full = arrangement;
  full.inner = extent(d + 1, arrangement.inner);
  if (full.inner == 0) {
    const std::int64_t outer = extent(d, localHere.shape[d] / arrangement.inner);
    if (outer == 0 || all % outer != 0) return std::nullopt;
    full.inner = all / outer;
  }
  return all % full.inner == 0 ? std::optional(full) : std::nullopt;
}

std::optional<Lift::ShardProposal> Lift::lifted(const Relation& relation,
                                                const std::vector<Axis>& axes,
                                                const Fit& fit) const {
  const Program& here = executed().plan.programs[relation.program];
  const Program& program = full_.plan.programs[fullProgram(relation.program)];
  // Both have the same tensors in the same order, but for masks of dropout, which come last.
  const Tensor& tensorHere = here.graph.tensors[relation.tensor];
  if (at(relation.tensor) >= program.graph.tensors.size()) return std::nullopt;
  const Tensor& tensor = program.graph.tensors[relation.tensor];
  const Tensor& whole = full_.model.graph.tensors[fit.base.tensor];
  if (full_.names.text(tensor.name) != executed().names.text(tensorHere.name)) return std::nullopt;
  if (tensor.kind != tensorHere.kind || tensor.shape.size() != tensorHere.shape.size())
    return std::nullopt;
  const auto atFull =
      arrangementAtFullSize(relation.arrangement, fit.base.tensor, tensorHere, tensor);
  if (!atFull || atFull->shapeOf(tensor.shape).size() != whole.shape.size()) return std::nullopt;
  const Arrangement& arrangement = *atFull;
  if (arrangement.dim >= 0 && tensor.shape[at(arrangement.dim)] % arrangement.count != 0)
    return std::nullopt;
  const Shape extentHere = relation.arrangement.shapeOf(tensorHere.shape),
              extent = arrangement.shapeOf(tensor.shape);
  ShardProposal proposal;
  proposal.tensor = fit.base.tensor;
  proposal.covered = 1;
  proposal.where = arrangement.partOf(tensor.shape);
  std::vector<Shape> steps(axes.size());
  std::vector<std::pair<std::int64_t, std::int64_t>> fixed;
  for (std::size_t i = 0; i < here.at.size(); ++i)
    fixed.emplace_back(here.at[i].second, program.at[i].second);
  for (std::size_t d = 0; d < extent.size(); ++d) {
    const auto full = atFullSize(fit, d, axes, extentHere[d], extent[d], fixed);
    if (!full) return std::nullopt;
    proposal.shard.box.emplace_back(full->first, full->first + extent[d]);
    proposal.covered *= static_cast<double>(extent[d]) / static_cast<double>(whole.shape[d]);
    for (std::size_t a = 0; a < axes.size(); ++a) steps[a].push_back(full->second[a]);
  }
  proposal.covered *= placesOf(axes, steps);
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (std::any_of(steps[a].begin(), steps[a].end(), [](std::int64_t s) { return s != 0; }))
      proposal.shard.step.emplace_back(axes[a].axis, std::move(steps[a]));
  }
  proposal.shard.parts.push_back({tensor.name, program.at, Microbatch::none()});
  for (const auto& [p, t] : relation.others) {
    const Program& other = full_.plan.programs[at(fullProgram(p))];
    if (at(t) >= other.graph.tensors.size() || other.graph.tensors[at(t)].shape != tensor.shape)
      return std::nullopt;
    proposal.shard.parts.push_back({other.graph.tensors[at(t)].name, other.at, Microbatch::none()});
  }
  if (!relation.others.empty()) addLeftOut(relation, program, proposal.shard);
  // Where programs fix an axis, its sum is that of the parts, which must be all there are.
  std::int64_t parts = 1;
  for (const std::int32_t a : relation.sum) {
    const bool named = std::any_of(program.at.begin(), program.at.end(),
                                   [&](const auto& c) { return c.first == a; });
    if (named) parts *= full_.plan.mesh[at(a)].size;
    else proposal.shard.sum.push_back(a);
  }
  if (parts != static_cast<std::int64_t>(proposal.shard.parts.size())) return std::nullopt;
  return proposal;
}

std::vector<Lift::ShardProposal> Lift::proposal(const Relation& relation) const {
  const std::vector<Axis> axes = axesOf(relation);
  std::vector<BoxPosition> places = relation.found.front().places;
  std::stable_sort(places.begin(), places.end(),
                   [](const BoxPosition& a, const BoxPosition& b) { return a.tensor < b.tensor; });
  std::vector<std::vector<std::int64_t>> coordinates;
  for (const Found& found : relation.found) coordinates.push_back(coordinatesOf(axes, found));
  std::vector<ShardProposal> all;
  std::vector<Fit> fits;
  for (std::size_t i = 0; i < places.size();) {
    const TensorId tensor = places[i].tensor;
    fits.clear();
    if (const auto ways = ways_.find(kindOf(relation, axes, tensor)); ways != ways_.end()) {
      std::vector<std::pair<std::size_t, const Way*>> known;
      for (const auto& [way, count] : ways->second) known.emplace_back(count, &way);
      std::stable_sort(known.begin(), known.end(),
                       [](const auto& a, const auto& b) { return a.first > b.first; });
      for (const auto& [count, way] : known) {
        Fit one{{tensor, way->first}, way->second};
        if (fits.empty() && holds(relation, coordinates, one, axes.size()))
          fits.push_back(std::move(one));
      }
    }
    bool settled = false;
    if (fits.empty() && !relation.sum.empty()) {
      // As what is no sum lies, which is the same along the axes that are summed here.
      Relation whole{relation.program, relation.tensor, {}, {}, {}, {}};
      const std::vector<Axis> more = axesOf(whole);
      const auto wider = ways_.find(kindOf(whole, more, tensor));
      std::size_t most = 0;
      if (wider != ways_.end()) {
        for (const auto& [way, count] : wider->second) {
          Fit one{{tensor, way.first}, {}};
          bool still = true;
          for (std::size_t a = 0; a < more.size(); ++a) {
            const bool kept = std::any_of(axes.begin(), axes.end(),
                                          [&](const Axis& x) { return x.axis == more[a].axis; });
            if (kept) one.steps.push_back(way.second[a]);
            else
              still = still && std::all_of(way.second[a].begin(), way.second[a].end(),
                                           [](std::int64_t s) { return s == 0; });
          }
          if (!still || count <= most || !holds(relation, coordinates, one, axes.size())) continue;
          most = count;
          fits.clear();
          fits.push_back(std::move(one));
          settled = true;
        }
      }
    }
    std::size_t next = i;
    for (; next < places.size() && places[next].tensor == tensor; ++next)
      if (fits.size() < kMostFits && !settled) fit(relation, axes, places[next], fits);
    i = next;
    std::optional<ShardProposal> best;
    for (const Fit& one : fits) {
      auto made = lifted(relation, axes, one);
      if (made && (!best || made->covered > best->covered)) best = std::move(made);
    }
    if (best) all.push_back(std::move(*best));
  }
  return all;
}

}  // namespace shardproof::infer
