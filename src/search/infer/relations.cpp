// SPDX-License-Identifier: Apache-2.0
#include "infer/relations.h"

#include <chrono>
#include <cmath>
#include <optional>
#include <type_traits>

#include "correspondence/correspondence.h"
#include "executor/run.h"
#include "executor/setup.h"
#include "infer/local_boxes.h"
#include "infer/model_table.h"
#include "infer/partial_sums.h"
#include "util/index.h"

namespace shardproof::infer {

namespace {

constexpr std::uint64_t kSeed = 0x1e44a;
constexpr std::uint64_t kMaxResamples = 3;

// The share of the tolerance that rounding in doubles may take of the model's own tensors.
constexpr double kRoundingShare = 0.1;

// Executes the problem and looks each local tensor up in the model.
template <class Real>
class RelationSearch {
 public:
  RelationSearch(const Problem& problem, const executor::Limits& limits, InferParts parts)
      : problem_(problem),
        limits_(limits),
        setup_(problem, executor::Options()),
        correspondence_(problem),
        scales_(parts == InferParts::kNone ? std::vector<Rational>() : scalesOf(problem.plan)),
        table_(problem.model),
        boxes_(setup_, correspondence_, table_, parts, scales_),
        sums_(setup_, correspondence_, table_, scales_) {}

  // Nothing where doubles lose too much of the model: then only the model was executed.
  std::optional<Relations> run() {
    try {
      if (kDoubles) executeModelExactly();
      if (!execute()) return std::nullopt;
      resample();
    } catch (const executor::Stopped&) {
      // What has been looked up stays: a relation is of tensors that all ranks have.
      if (cancelled()) throw;
      stopped_ = true;
    }
    return relations();
  }

 private:
  using Value = executor::Value<Real>;
  static constexpr bool kDoubles = std::is_same_v<Real, double>;

  static executor::Draw draw(std::uint64_t sample) {
    executor::Draw draw;
    draw.seed = kSeed + sample;
    return draw;
  }

  bool cancelled() const {
    return limits_.cancel != nullptr && limits_.cancel->load(std::memory_order_relaxed);
  }

  // In long doubles.
  void executeModelExactly() {
    exact_.resize(problem_.model.graph.tensors.size());
    executor::Hooks<long double> hooks;
    hooks.ofModel = [&](TensorId t, const executor::Value<long double>& value) {
      if (value.element == ElementKind::kReal)
        exact_[t].assign(value.data(), value.data() + value.size());
    };
    hooks.afterModel = [] { return false; };
    executor::run<long double>(setup_, draw(0), kDiffering, limits_, {}, hooks);
  }

  // Whether rounding in doubles is close to what separates elements.
  bool losesPrecision(TensorId t, const Value& value) const {
    const auto& exact = exact_[t];
    if (exact.size() != at(value.size())) return false;
    long double largest = 0, difference = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      if (!std::isfinite(exact[i])) continue;
      largest = std::max(largest, std::abs(exact[i]));
      difference = std::max(difference, std::abs(exact[i] - value.data()[i]));
    }
    return difference > kRoundingShare * kRounding<double> * largest;
  }

  // False: doubles lose too much of the model.
  bool execute() {
    bool precise = true;
    executor::Hooks<Real> hooks;
    hooks.ofModel = [&](TensorId t, const Value& value) {
      if constexpr (kDoubles) precise = precise && !losesPrecision(t, value);
      if (precise) table_.take(t, value);
    };
    hooks.afterModel = [&] {
      if (precise) table_.sort();
      return precise;
    };
    hooks.ofPlan = [&](Rank rank, std::int32_t slot, const Value& value) {
      if (limits_.late()) throw executor::Stopped("out of time");
      if (boxes_.take(rank, slot, value)) sums_.take(setup_.programs.slot(rank, slot), value);
    };
    const executor::RunResult result =
        executor::run<Real>(setup_, draw(0), kDiffering, limits_, {}, hooks);
    for (const auto& [entry, comparison] : result.entries)
      if (comparison.first)
        (problem_.plan.lineage[entry].role == Role::kOutput ? differing_ : wrong_)
            .emplace_back(entry);
    return precise;
  }

  // Drops places that only this draw has.
  void resample() {
    for (std::uint64_t sample = 1; sample <= kMaxResamples && boxes_.ambiguous() > 0; ++sample) {
      bool separates = false;
      executor::Hooks<double> hooks;
      hooks.ofModel = [&](TensorId t, const ResampledValue& value) { table_.keep(t, value); };
      hooks.afterModel = [&] {
        separates = boxes_.separatesPlaces();
        if (separates) boxes_.beginDropping();
        return separates;
      };
      hooks.ofPlan = [&](Rank rank, std::int32_t slot, const ResampledValue& value) {
        boxes_.dropPlaces(rank, slot, value);
      };
      executor::run<double>(setup_, draw(sample), kDiffering, limits_, {}, hooks);
      if (!separates || boxes_.dropped() == 0) break;
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
        stopped_ = stopped_ || limits_.late();
        if (cancelled()) throw executor::Stopped("cancelled");
        addRelations(p, t, ranksOf[p], result);
      }
    }
    result.stopped = stopped_;
    return result;
  }

  void addRelations(ProgramId p, TensorId t, const std::vector<Rank>& ranks, Relations& result) {
    std::optional<Relation> relation = boxes_.relation(p, t, ranks);
    if (!relation && !stopped_) relation = sums_.relation(p, t, ranks);
    if (relation) {
      result.relations.push_back(std::move(*relation));
    } else if (!stopped_) {
      std::vector<Relation> pieces = boxes_.pieces(p, t, ranks);
      if (pieces.empty() && boxes_.isUninformative(p, t, ranks))
        result.uninformative.emplace_back(p, t);
      for (Relation& piece : pieces) result.relations.push_back(std::move(piece));
    }
  }

  const Problem& problem_;
  const executor::Limits limits_;
  const executor::Setup setup_;
  const Correspondence correspondence_;
  const std::vector<Rational> scales_;
  ModelTable<Real> table_;
  LocalBoxes<Real> boxes_;
  PartialSums<Real> sums_;
  std::vector<std::vector<long double>> exact_;  // of the model's tensors, where Real is double
  std::vector<EntryId> differing_, wrong_;
  bool stopped_ = false;
};

}  // namespace

Relations findRelations(const Problem& problem, const executor::Limits& limits, InferParts parts,
                        bool quick) {
  if (quick)
    if (std::optional<Relations> found = RelationSearch<double>(problem, limits, parts).run())
      return std::move(*found);
  return *RelationSearch<long double>(problem, limits, parts).run();
}

}  // namespace shardproof::infer
