// SPDX-License-Identifier: Apache-2.0
#include "infer/relations.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>

#include "executor/run.h"
#include "executor/setup.h"
#include "executor/threads.h"
#include "infer/makers.h"
#include "infer/model_table.h"
#include "infer/subsets.h"
#include "ops/registry.h"
#include "util/index.h"

namespace shardproof::infer {

namespace {

constexpr std::uint64_t kSeed = 0x1e44a;
constexpr std::uint64_t kMostAgain = 3;  // further draws
// Elements by which a partial sum is looked up: the largest of so many, evenly apart. Most rows of
// a table's gradient are zero.
constexpr std::size_t kPivots = 16;
constexpr std::int64_t kMostArranged = 1 << 16;  // elements of a tensor that is looked up in pieces
constexpr std::size_t kMostWays = 4;             // in which one may be arranged

// The share of the tolerance that rounding in doubles may take of the model's own tensors.
constexpr double kNear = 0.1;

// Further apart than rounding explains: such an output is looked at in numbers before anything
// else.
constexpr double kApart = 1e-6;

// A factor for the i-th element, so that the sum over all elements tells tensors apart: 1 to 2.
template <class Real>
Real factorOf(std::int64_t i) {
  std::uint64_t x = static_cast<std::uint64_t>(i) + 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return 1 + static_cast<Real>((x ^ (x >> 31)) >> 1) * 0x1p-63;
}

// What stays of a local tensor that is no box: linear in its elements, so that sums over ranks can
// be taken of it.
template <class Real>
struct Print {
  Shape shape;
  std::int64_t size = 0;  // of its elements
  Real all = 0, largest = 0;
  std::array<Real, kPivots> pivots{};
};

std::int64_t pivotOf(std::size_t k, std::int64_t size) {
  return static_cast<std::int64_t>(k) * (size - 1) / static_cast<std::int64_t>(kPivots - 1);
}

// What nearly cancels: doubles do not have as much of it as is looked at.
class Cancels {};

// Nothing more is wanted of a run.
class Enough {};

template <class Real>
class Search {
 public:
  Search(const Problem& problem, const executor::Limits& limits, InferParts parts)
      : problem_(problem),
        limits_(limits),
        setup_(problem, options()),
        table_(problem.model),
        parts_(parts) {
    if (parts != InferParts::kNone) {
      scales_ = scalesOf(problem.plan);
      extents_ = extentsOf(problem);
    }
    for (const Program& program : problem.plan.programs) makers_.push_back(makersOf(program.graph));
    kinds_.resize(makers_.size());
    found_.resize(at(setup_.programs.slots()));
    printOf_.resize(at(setup_.programs.slots()), -1);
    silent_.resize(at(setup_.programs.slots()), 0);
    executor::Hooks<Real> hooks;
    hooks.ofModel = [&](TensorId t, const Value& value) {
      if constexpr (kDoubles)
        if (nearlyCancels(t, value)) throw Cancels();
      table_.take(t, value);
    };
    hooks.ofPlan = [&](Rank rank, std::int32_t slot, const Value& value) {
      if (late()) throw executor::Stopped("out of time");
      table_.sort();
      takeLocal(rank, slot, value);
    };
    const executor::Threads one(0);  // arrays are small
    try {
      if (kDoubles) executeExactly();
      executeAll(hooks);
    } catch (const executor::Stopped&) {
      // What has been looked up stays: a relation is of tensors that all ranks have.
      if (cancelled()) throw;
      stopped_ = true;
    }
  }

  Relations relations() {
    Relations result;
    result.differing = differing_;
    if (differing_.empty()) result.wrong = wrong_;
    const auto& programs = setup_.programs;
    std::vector<std::vector<Rank>> ranksOf(problem_.plan.programs.size());
    for (const Rank r : firstIds<Rank>(programs.mesh().ranks()))
      ranksOf[programs.programOf(r)].push_back(r);
    for (const ProgramId p : firstIds<ProgramId>(ranksOf.size())) {
      const auto& tensors = problem_.plan.programs[p].graph.tensors;
      for (const TensorId t : firstIds<TensorId>(tensors.size())) {
        if (tensors[t].kind != TensorKind::kProduced || tensors[t].element == ElementKind::kComplex)
          continue;
        ++result.looked;
        if (tensors[t].added) continue;
        stopped_ = stopped_ || late();
        if (cancelled()) throw executor::Stopped("cancelled");
        if (auto relation = relationOf(p, t, ranksOf[p])) {
          result.relations.push_back(std::move(*relation));
        } else if (!stopped_) {
          std::vector<Relation> pieces = arranged(p, t, ranksOf[p]);
          if (pieces.empty() && isSilent(p, t, ranksOf[p])) result.silent.emplace_back(p, t);
          for (Relation& piece : pieces) result.relations.push_back(std::move(piece));
        }
      }
    }
    result.stopped = stopped_;
    return result;
  }

 private:
  using Value = executor::Value<Real>;
  static constexpr bool kDoubles = std::is_same_v<Real, double>;

  static executor::Options options() { return {}; }

  // What nodes make: by operator (or communication), which result, and what it is like.
  using Kind = std::tuple<OperatorId, NameId, std::size_t, Shape, bool, ElementKind>;
  struct Kinds {
    std::map<Kind, std::vector<TensorId>> all;     // in the order of their nodes
    std::vector<std::pair<Kind, std::size_t>> of;  // by tensor: its kind, and its place there
  };
  static Kinds kindsOf(const Program& program, const std::vector<Maker>& makers) {
    Kinds kinds;
    const Graph& graph = program.graph;
    kinds.of.resize(graph.tensors.size());
    for (const Node& node : graph.nodes) {
      const bool communicates = node.communication >= 0;
      for (const TensorId t : graph.out(node)) {
        if (!t.valid()) continue;
        const Tensor& tensor = graph.tensors[t];
        Kind kind{communicates ? OperatorId() : node.op,
                  communicates ? program.communications[node.communication].comm : NameId(),
                  makers[t].result,
                  tensor.shape,
                  tensor.perMicrobatch,
                  tensor.element};
        auto& all = kinds.all[kind];
        kinds.of[t] = {std::move(kind), all.size()};
        all.push_back(t);
      }
    }
    return kinds;
  }

  // The model alone, in long doubles.
  void executeExactly() {
    executor::Draw draw;
    draw.seed = kSeed;
    exact_.resize(problem_.model.graph.tensors.size());
    executor::Hooks<long double> hooks;
    hooks.ofModel = [&](TensorId t, const executor::Value<long double>& value) {
      if (value.element == ElementKind::kReal)
        exact_[t].assign(value.data(), value.data() + value.size());
    };
    hooks.ofPlan = [](Rank, std::int32_t, const executor::Value<long double>&) { throw Enough(); };
    try {
      executor::run<long double>(setup_, draw, kApart, limits_, {}, hooks);
    } catch (const Enough&) {
      // The plan begins.
    }
  }

  // Whether rounding in doubles is near what tells elements apart.
  bool nearlyCancels(TensorId t, const Value& value) const {
    const auto& exact = exact_[t];
    if (exact.size() != at(value.size())) return false;
    long double largest = 0, apart = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      if (!std::isfinite(exact[i])) continue;
      largest = std::max(largest, std::abs(exact[i]));
      apart = std::max(apart, std::abs(exact[i] - value.data()[i]));
    }
    return apart > kNear * kRounding<double> * largest;
  }

  bool late() const { return std::chrono::steady_clock::now() > limits_.end; }
  bool cancelled() const {
    return limits_.cancel != nullptr && limits_.cancel->load(std::memory_order_relaxed);
  }

  void executeAll(const executor::Hooks<Real>& hooks) {
    executor::Draw draw;
    draw.seed = kSeed;
    for (const auto& [entry, comparison] :
         executor::run<Real>(setup_, draw, kApart, limits_, {}, hooks).entries)
      if (comparison.first)
        (problem_.plan.lineage[entry].role == Role::kOutput ? differing_ : wrong_)
            .emplace_back(entry);
    // Two tokens that were drawn alike look like one: other draws tell them apart.
    for (std::uint64_t again = 1; again <= kMostAgain && ambiguous_ > 0; ++again) {
      dropped_ = ambiguous_ = 0;
      draw.seed = kSeed + again;
      executor::Hooks<double> filter;
      filter.ofModel = [&](TensorId t, const Again& value) { table_.keep(t, value); };
      bool begun = false;
      filter.ofPlan = [&](Rank rank, std::int32_t slot, const Again& value) {
        if (!begun && !tellsPlacesApart()) throw Enough();
        begun = true;
        dropPlaces(rank, slot, value);
      };
      try {
        executor::run<double>(setup_, draw, kApart, limits_, {}, filter);
      } catch (const Enough&) {
        break;
      }
      if (dropped_ == 0) break;
    }
  }

  static bool severalOfOne(const std::vector<Place>& places) {
    for (std::size_t i = 1; i < places.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (places[i].tensor == places[j].tensor) return true;
    return false;
  }

  // Whether the model alone, at another draw, has different elements at two places of one tensor.
  // If not, no place would be dropped, and the plan need not be executed again.
  bool tellsPlacesApart() const {
    const auto& programs = setup_.programs;
    std::vector<double> first;
    for (const Rank r : firstIds<Rank>(programs.mesh().ranks())) {
      const auto& tensorOf = programs.layout(r).tensorOfSlot;
      const auto& tensors = problem_.plan.programs[programs.programOf(r)].graph.tensors;
      for (std::size_t slot = 0; slot < tensorOf.size(); ++slot) {
        const auto& places = found_[programs.slot(r, static_cast<std::int32_t>(slot))];
        if (places.size() < 2 || !severalOfOne(places)) continue;
        const Shape& shape = tensors[tensorOf[slot]].shape;
        first.clear();
        double largest = 0;
        table_.allOfKept(places[0], shape, [&](std::int64_t, double y) {
          first.push_back(y);
          if (std::isfinite(y)) largest = std::max(largest, std::abs(y));
          return true;
        });
        for (std::size_t p = 1; p < places.size(); ++p)
          if (!table_.allOfKept(places[p], shape, [&](std::int64_t i, double y) {
                return same(first[at(i)], y, kRoundingAgain * largest);
              }))
            return true;
      }
    }
    return false;
  }

  // Places at which the tensor is not, at another draw. Where it is at none of them any more, all
  // stay: what rounding does differs from draw to draw.
  void dropPlaces(Rank rank, std::int32_t slot, const Again& value) {
    auto& places = found_[setup_.programs.slot(rank, slot)];
    if (places.size() < 2 || !severalOfOne(places)) return;
    double largest = 0;
    for (std::int64_t i = 0; i < value.size(); ++i)
      if (std::isfinite(value.data()[i])) largest = std::max(largest, std::abs(value.data()[i]));
    std::vector<Place> kept;
    for (const Place& place : places)
      if (table_.allOfKept(place, value.shape, [&](std::int64_t i, double y) {
            return same(value.data()[i], y, kRoundingAgain * largest);
          }))
        kept.push_back(place);
    if (!kept.empty() && kept.size() < places.size()) {
      places = std::move(kept);
      ++dropped_;
    }
    ambiguous_ += severalOfOne(places);
  }

  void takeLocal(Rank rank, std::int32_t slot, const Value& value) {
    if (value.element == ElementKind::kComplex || value.size() == 0) return;
    const Real* x = value.data();
    const std::int64_t n = value.size();
    // By its largest element: small ones are the most like others.
    std::int64_t pivot = -1;
    bool uniform = true;
    for (std::int64_t i = 0; i < n; ++i) {
      if (std::isnan(x[i])) return;
      uniform = uniform && x[i] == x[0];
      if (tells(x[i]) && (pivot < 0 || std::abs(x[i]) > std::abs(x[pivot]))) pivot = i;
    }
    const std::int64_t number = setup_.programs.slot(rank, slot);
    const bool integers = value.element == ElementKind::kInteger;
    if (pivot < 0 || (uniform && n > 1)) {  // says nothing, but may be a summand
      silent_[at(number)] = 1;
      if (!integers) print(number, value);
      return;
    }
    if (integers) pivot = 0;
    const Real wanted =
        integers ? static_cast<Real>(keyOf(
                       x, value.shape.empty() ? 1 : std::min(kIntegersInARow, value.shape.back())))
                 : x[pivot];
    const Real largest = std::abs(x[pivot]), tolerance = integers ? 0 : kRounding<Real> * largest;
    auto& places = found_[number];
    places = table_.placesOf(x, value.shape, value.element, pivot, wanted, tolerance);
    ambiguous_ += severalOfOne(places);
    if (!places.empty() || integers) return;
    if (parts_ != InferParts::kNone) arrange(rank, slot, value);
    print(number, value);
  }

  void print(std::int64_t number, const Value& value) {
    const Real* x = value.data();
    const std::int64_t n = value.size();
    Print<Real> print{value.shape, n, 0, 0, {}};
    for (std::int64_t i = 0; i < n; ++i) {
      if (!std::isfinite(x[i])) return;
      print.all += factorOf<Real>(i) * x[i];
      print.largest = std::max(print.largest, std::abs(x[i]));
    }
    for (std::size_t k = 0; k < kPivots; ++k) print.pivots[k] = x[pivotOf(k, n)];
    printOf_[at(number)] = static_cast<std::int32_t>(prints_.size());
    prints_.push_back(print);
  }

  // Of what an operator does not only move: what it made would be found again, moved.
  void arrange(Rank rank, std::int32_t slot, const Value& value) {
    const auto& programs = setup_.programs;
    const ProgramId p = programs.programOf(rank);
    const TensorId t = programs.layout(rank).tensorOfSlot[slot];
    const Graph& graph = problem_.plan.programs[p].graph;
    const NodeId n = makers_[p][t].node;
    if (!n.valid() || graph.tensors[t].added || value.size() > kMostArranged) return;
    const Node& node = graph.nodes[n];
    if (node.communication < 0 && ops::Registry::instance().at(node.op).rearranges) return;
    auto& ways = arranged_[programs.slot(rank, slot)];
    const auto& all = arrangements(value.shape);
    for (std::size_t a = 0; a < all.size() && ways.size() < kMostWays; ++a) {
      std::vector<std::vector<Place>> found;
      for (const Lying& lying : all[a]) {
        const std::vector<Real> piece = elementsOf(value.data(), value.shape, lying);
        const std::size_t pivot = rarePivotOf(piece, lying.shapeOf(value.shape).size());
        const bool uniform =
            std::all_of(piece.begin(), piece.end(), [&](Real y) { return y == piece.front(); });
        if (!tells(piece[pivot]) || (uniform && (piece.size() > 1 || all[a].size() > 1))) break;
        auto places = table_.placesOf(piece.data(), lying.shapeOf(value.shape), value.element,
                                      static_cast<std::int64_t>(pivot), piece[pivot],
                                      kRounding<Real> * largestOf(piece));
        if (places.empty()) break;
        found.push_back(std::move(places));
      }
      if (found.size() == all[a].size()) ways.emplace_back(a, std::move(found));
    }
  }

  static Real largestOf(const std::vector<Real>& x) {
    Real largest = 0;
    for (const Real y : x)
      if (std::isfinite(y)) largest = std::max(largest, std::abs(y));
    return largest;
  }

  // The largest element whose value few elements of the model share: a row of a softmax under a
  // mask begins with 1, as do all others, and a piece that has it would be compared with each.
  std::size_t rarePivotOf(const std::vector<Real>& x, std::size_t dims) const {
    constexpr int kMostCommon = 3;  // values that are passed over
    std::size_t pivot = 0, first = 0;
    Real below = std::numeric_limits<Real>::infinity();
    for (int i = 0; i <= kMostCommon; ++i) {
      bool any = false;
      for (std::size_t k = 0; k < x.size(); ++k)
        if (tells(x[k]) && std::abs(x[k]) < below &&
            (!any || std::abs(x[k]) > std::abs(x[pivot]))) {
          pivot = k;
          any = true;
        }
      if (!any) return first;
      if (i == 0) first = pivot;
      if (!table_.common(x[pivot], dims)) return pivot;
      below = std::abs(x[pivot]);
    }
    return first;
  }

  const std::vector<std::vector<Lying>>& arrangements(const Shape& shape) {
    const auto [it, inserted] = arrangements_.try_emplace(shape);
    if (inserted)
      it->second = arrangementsOf(shape, scales_, extents_, parts_ == InferParts::kMultiples);
    return it->second;
  }

  // Where a tensor is one box (the middle rank of a zigzag sequence) its pieces are next to each
  // other.
  std::vector<Place> placesOfPiece(std::int64_t slot, std::size_t arrangement, std::size_t piece,
                                   const Lying& lying, const Shape& shape) const {
    if (const auto ways = arranged_.find(slot); ways != arranged_.end())
      for (const auto& [a, found] : ways->second)
        if (a == arrangement) return found[piece];
    if (!lying.permute.empty() || lying.dim < 0) return {};
    std::vector<Place> places = found_[at(slot)];
    for (Place& place : places)
      place.low[at(lying.dim)] += lying.index * (shape[at(lying.dim)] / lying.count);
    return places;
  }

  // A relation for each piece of the first arrangement that all ranks have.
  std::vector<Relation> arranged(ProgramId p, TensorId t, const std::vector<Rank>& ranks) const {
    const Tensor& tensor = problem_.plan.programs[p].graph.tensors[t];
    const std::int32_t first = setup_.programs.layoutOf(p).firstSlot[t];
    const std::int32_t slots = tensor.perMicrobatch ? problem_.plan.microbatches : 1;
    const auto all = arrangements_.find(tensor.shape);
    if (all == arrangements_.end()) return {};
    for (std::size_t a = 0; a < all->second.size(); ++a) {
      std::vector<Relation> relations;
      for (const Lying& lying : all->second[a]) relations.push_back({p, t, {}, {}, lying, {}});
      bool everywhere = true;
      for (const Rank r : ranks) {
        for (std::int32_t m = 0; everywhere && m < slots; ++m) {
          for (std::size_t i = 0; everywhere && i < relations.size(); ++i) {
            auto places = placesOfPiece(setup_.programs.slot(r, first + m), a, i,
                                        relations[i].lying, tensor.shape);
            everywhere = !places.empty();
            relations[i].found.push_back({r, tensor.perMicrobatch ? m : -1, std::move(places)});
          }
        }
        if (!everywhere) break;
      }
      if (everywhere) return relations;
    }
    return {};
  }

  // Whether it says nothing on all ranks, for all microbatches.
  bool isSilent(ProgramId p, TensorId t, const std::vector<Rank>& ranks) const {
    const std::int32_t first = setup_.programs.layoutOf(p).firstSlot[t];
    const std::int32_t slots =
        problem_.plan.programs[p].graph.tensors[t].perMicrobatch ? problem_.plan.microbatches : 1;
    for (const Rank r : ranks)
      for (std::int32_t m = 0; m < slots; ++m)
        if (silent_[at(setup_.programs.slot(r, first + m))] == 0) return false;
    return true;
  }

  std::optional<Relation> relationOf(ProgramId p, TensorId t,
                                     const std::vector<Rank>& ranks) const {
    const Tensor& tensor = problem_.plan.programs[p].graph.tensors[t];
    const std::int32_t first = setup_.programs.layoutOf(p).firstSlot[t];
    const std::int32_t slots = tensor.perMicrobatch ? problem_.plan.microbatches : 1;
    Relation relation{p, t, {}, {}, {}, {}};
    for (const Rank r : ranks) {
      for (std::int32_t m = 0; m < slots; ++m) {
        const auto& places = found_[setup_.programs.slot(r, first + m)];
        if (places.empty()) return stopped_ ? std::nullopt : sumOf(p, t, ranks);
        relation.found.push_back({r, tensor.perMicrobatch ? m : -1, places});
      }
    }
    return relation;
  }

  // Over the smallest set of axes that gives boxes at all ranks. Of programs that fix one of these
  // axes the first speaks for all.
  std::optional<Relation> sumOf(ProgramId p, TensorId t, const std::vector<Rank>& ranks) const {
    if (auto relation = sumOf(p, t, ranks, {})) return relation;
    for (const Rational& scale : scales_) {
      Lying lying;
      lying.scale = scale;
      if (auto relation = sumOf(p, t, ranks, lying)) return relation;
    }
    return std::nullopt;
  }

  std::optional<Relation> sumOf(ProgramId p, TensorId t, const std::vector<Rank>& ranks,
                                const Lying& lying) const {
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
      Relation relation{p, t, axes, {}, lying, {}};
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
          auto places = summed(p, t, r, m, axes, static_cast<Real>(lying.scale.toDouble()));
          all = !places.empty();
          relation.found.push_back(
              {r, tensor.perMicrobatch && !overMicrobatches ? m : -1, std::move(places)});
        }
        if (!all) break;
      }
      if (!all || relation.found.empty()) continue;
      for (const Rank r : over(ranks.front(), axes)) {
        const ProgramId q = setup_.programs.programOf(r);
        const std::pair other{q, counterpart(p, t, q)};
        if (q != p && std::find(relation.others.begin(), relation.others.end(), other) ==
                          relation.others.end())
          relation.others.push_back(other);
      }
      return relation;
    }
    return std::nullopt;
  }

  const Kinds& kindsIn(ProgramId p) const {
    if (!kinds_[p.index()]) kinds_[p.index()] = kindsOf(problem_.plan.programs[p], makers_[p]);
    return *kinds_[p.index()];
  }

  // What the same node makes in another program, if anything. Where one has other nodes besides (as
  // its shards are shorter), the k-th that makes something of a kind is the k-th there, if both
  // have as many.
  TensorId counterpart(ProgramId p, TensorId t, ProgramId q) const {
    if (p == q) return t;
    const Graph &here = problem_.plan.programs[p].graph, &there = problem_.plan.programs[q].graph;
    const auto [n, result] = makers_[p][t];
    if (!n.valid()) return {};
    if (here.nodes.size() != there.nodes.size()) {
      const Kinds &ours = kindsIn(p), &theirs = kindsIn(q);
      const auto& [kind, k] = ours.of[t];
      const auto own = ours.all.find(kind), other = theirs.all.find(kind);
      return other != theirs.all.end() && own->second.size() == other->second.size()
                 ? other->second[k]
                 : TensorId::none();
    }
    const Node &a = here.nodes[n], &b = there.nodes[n];
    if (a.op != b.op || a.outCount != b.outCount) return {};
    const TensorId other = there.out(b)[result];
    if (!other.valid()) return {};
    const Tensor &x = here.tensors[t], &y = there.tensors[other];
    return x.shape == y.shape && x.perMicrobatch == y.perMicrobatch && x.element == y.element
               ? other
               : TensorId::none();
  }

  // The ranks that differ from this one in these axes only.
  std::vector<Rank> over(Rank rank, const std::vector<std::int32_t>& axes) const {
    const auto& mesh = setup_.programs.mesh();
    std::vector<Rank> ranks{rank};
    for (const std::int32_t a : axes) {
      if (a == kMicrobatchAxis) continue;
      std::vector<Rank> wider;
      for (const Rank r : ranks)
        for (std::int64_t c = 0; c < mesh.size(at(a)); ++c)
          wider.push_back(mesh.moved(r, at(a), c));
      ranks = std::move(wider);
    }
    return ranks;
  }

  // Shares that are the same along one of the axes: that they add up to the whole says less than
  // what they are without that axis. `all`: of each summand, the last axis fastest.
  bool sameAlongOne(const std::vector<std::int32_t>& axes, const std::vector<Real>& all,
                    Real tolerance) const {
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

  std::vector<Place> summed(ProgramId p, TensorId t, Rank rank, std::int32_t m,
                            const std::vector<std::int32_t>& axes, Real scale) const {
    std::vector<std::int32_t> slots{m};
    if (!axes.empty() && axes.back() == kMicrobatchAxis) {
      slots.clear();
      for (std::int32_t k = 0; k < problem_.plan.microbatches; ++k) slots.push_back(k);
    }
    Print<Real> sum;
    std::vector<Real> alls;
    for (const Rank r : over(rank, axes)) {
      const ProgramId q = setup_.programs.programOf(r);
      const TensorId other = counterpart(p, t, q);
      if (!other.valid()) return {};
      const std::int32_t first = setup_.programs.layoutOf(q).firstSlot[other];
      for (const std::int32_t s : slots) {
        const std::int32_t number = printOf_[at(setup_.programs.slot(r, first + s))];
        if (number < 0) return {};
        const Print<Real>& one = prints_[at(number)];
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
    std::vector<Place> places;
    sum.all *= scale;
    sum.largest *= std::abs(scale);
    for (Real& pivot : sum.pivots) pivot *= scale;
    const Real tolerance = kRounding<Real> * sum.largest;
    const std::size_t k = static_cast<std::size_t>(
        std::max_element(sum.pivots.begin(), sum.pivots.end(),
                         [](Real a, Real b) { return std::abs(a) < std::abs(b); }) -
        sum.pivots.begin());
    if (sum.size == 0 || sameAlongOne(axes, alls, kRounding<Real> * sum.largest) ||
        std::abs(sum.pivots[k]) <= tolerance)
      return places;
    table_.forPlaces(sum.shape, ElementKind::kReal, pivotOf(k, sum.size), sum.pivots[k], tolerance,
                     [&](const Place& place) {
                       Real all = 0;
                       const bool numbers =
                           table_.allOf(place, sum.shape, [&](std::int64_t i, Real y) {
                             all += factorOf<Real>(i) * y;
                             return std::isfinite(y);
                           });
                       if (numbers && same(all, sum.all, tolerance * static_cast<Real>(sum.size)))
                         places.push_back(place);
                       return places.size() == kMostPlaces;
                     });
    return places;
  }

  const Problem& problem_;
  const executor::Limits limits_;
  bool stopped_ = false;
  executor::Setup setup_;
  std::vector<std::vector<Maker>> makers_;           // by program and tensor
  mutable std::vector<std::optional<Kinds>> kinds_;  // by program, where they were asked for
  ModelTable<Real> table_;
  std::vector<std::vector<long double>> exact_;  // of the model's tensors, where Real is double
  std::vector<std::vector<Place>> found_;        // by slot of all ranks
  std::deque<Print<Real>> prints_;
  std::vector<std::int32_t> printOf_;  // by slot: its place; -1: nothing is known
  std::vector<char> silent_;           // by slot: all elements are alike, or zero
  InferParts parts_;
  std::vector<Rational> scales_;
  std::set<std::int64_t> extents_;
  std::map<Shape, std::vector<std::vector<Lying>>> arrangements_;
  // By slot: places in arrangements_ of its shape, and where each piece lies.
  std::map<std::int64_t, std::vector<std::pair<std::size_t, std::vector<std::vector<Place>>>>>
      arranged_;
  std::vector<EntryId> differing_, wrong_;
  std::size_t ambiguous_ = 0, dropped_ = 0;  // tensors at several places of one, and made fewer
};

}  // namespace

Relations findRelations(const Problem& problem, const executor::Limits& limits, InferParts parts,
                        bool quick) {
  if (quick) {
    try {
      return Search<double>(problem, limits, parts).relations();
    } catch (const Cancels&) {
      // The model was executed, and nothing else.
    }
  }
  return Search<long double>(problem, limits, parts).relations();
}

}  // namespace shardproof::infer
