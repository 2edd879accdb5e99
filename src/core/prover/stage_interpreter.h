// SPDX-License-Identifier: Apache-2.0
// Executes a reduced stage over any algebra: binds inputs through the assumed lineage, runs both
// sides, and pairs up what the claims say is equal.
//
// Over terms every element also carries the conditions under which it exists. Assumed lineage says
// of a local element that it exists, and equals the logical one, where the logical one is defined.
// So the local element carries the logical one's conditions (Guards), and where equations make
// several logical elements one unknown, every claim carries the conditions of all of these: only
// where they are all defined are they all equal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/registry.h"
#include "prover/evaluation_steps.h"
#include "prover/stage_communication.h"
#include "shape_reduction/reduction.h"
#include "shardproof/error.h"
#include "stages/stage.h"
#include "terms/conditions.h"
#include "util/index.h"
#include "util/union_find.h"

namespace shardproof {

// The operator's evaluation over one algebra.
inline const auto& evaluationOf(const ops::OperatorInfo& op, const TermAlgebra*) {
  return op.terms;
}
inline const auto& evaluationOf(const ops::OperatorInfo& op, const ops::RealNumbers*) {
  return op.doubles;
}
inline const auto& evaluationOf(const ops::OperatorInfo& op, const ops::Residues*) {
  return op.modular;
}

// Whether a sum made term by term holds every partial sum with all its parts: then n additions one
// after the other cost O(n^2).
template <class A>
bool storesPartialSums(const A& algebra) {
  if constexpr (requires { algebra.storesPartialSums(); }) return algebra.storesPartialSums();
  return false;
}

template <class A>
class StageInterpreter {
 public:
  using Element = typename A::Element;
  // A fresh value for element `index` (row-major over reduced positions and planes) of a free stage
  // tensor.
  using Supply = std::function<Element(StageTensorId tensor, std::int64_t index)>;

  StageInterpreter(const Stage& stage, const ReducedStage& reduced, A& algebra)
      : stage_(stage), reduced_(reduced), algebra_(algebra) {}

  static constexpr bool kConditions = requires(Element e) {
    e.condition;
  };  // elements carry conditions

  // Some assumed equation could not be used (the stage then knows less than it may: a proof stands,
  // a refutation does not).
  bool droppedAssumption() const { return dropped_; }
  // What claim equations pair up.
  struct Pair {
    std::size_t claim;
    std::int64_t logicalIndex;  // row-major over the reduced logical tensor's positions and planes
    Element logical, parallel;
  };
  const std::vector<Pair>& pairs() const { return pairs_; }
  // What Condition::Kind::kDefined numbers: the element of a logical tensor, row-major over its
  // reduced positions and planes.
  std::pair<StageTensorId, std::int64_t> definedElement(std::uint32_t number) const {
    StageTensorId t(0);
    for (const StageTensorId i : firstIds<StageTensorId>(base_.size())) {
      if (base_[i] >= 0 && base_[i] <= std::int64_t{number} &&
          (base_[t] < 0 || base_[i] >= base_[t]))
        t = i;
    }
    return {t, std::int64_t{number} - base_[t]};
  }
  // Empty when it was dropped after its last use (evaluateSide).
  const ops::TensorValue<A>& value(StageTensorId tensor) const { return values_[tensor]; }

  // `between` is called when the logical side is done and the plan's begins.
  void run(const Supply& supply, const std::function<void()>& between = nullptr) {
    prepare();
    unite();
    supplyLogical(supply);
    evaluateSide(true);
    if (between) between();
    if constexpr (kConditions) guard();
    bindLocal(supply);
    evaluateSide(false);
    pairUp();
  }

 private:
  using Value = ops::TensorValue<A>;

  // Results that nothing reads any more are dropped, except those that equations speak of.
  void evaluateSide(bool logical) {
    const std::vector<EvaluationStep> steps =
        evaluationSteps(stage_, reduced_, inEquation_, logical, storesPartialSums(algebra_));
    std::vector<std::size_t> lastUse(stage_.tensors.size(), steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (const StageTensorId t : steps[i].reads) {
        if (t >= 0) lastUse[t] = i;
      }
    }
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const StageNode& node = stage_.nodes[steps[i].node];
      if (steps[i].tree) {
        addUp(steps[i].reads, values_[node.out[0]]);
      } else {
        evaluate(node);
      }
      for (const StageTensorId t : steps[i].reads) {
        if (t < 0 || lastUse[t] != i || inEquation_[t] ||
            stage_.tensors[t].origin != Origin::kComputed)
          continue;
        values_[t].data = {};
      }
    }
  }

  void addUp(const std::vector<StageTensorId>& summands, Value& out) {
    out.data.clear();
    out.data.reserve(at(out.positions() * out.planes()));
    std::vector<Element> terms(summands.size());
    for (std::size_t k = 0; k < at(out.positions() * out.planes()); ++k) {
      for (std::size_t i = 0; i < summands.size(); ++i) terms[i] = values_[summands[i]].data.at(k);
      out.data.push_back(algebra_.sum(terms, {}));
    }
  }

  void prepare() {
    inEquation_.assign(stage_.tensors.size(), 0);
    for (const auto* equations : {&stage_.assumptions, &stage_.claims}) {
      for (const Equation& e : *equations) {
        inEquation_[e.logical] = 1;
        for (const auto& part : e.parts) inEquation_[part.first] = 1;
      }
    }
    values_.resize(stage_.tensors.size());
    base_.assign(stage_.tensors.size(), -1);
    std::int64_t slots = 0;
    for (const StageTensorId t : firstIds<StageTensorId>(stage_.tensors.size())) {
      const StageTensor& tensor = stage_.tensors[t];
      Value& value = values_[t];
      value.element = tensor.info.element;
      for (const ops::ReducedDim* d : reduced_.dims[t]) value.dims.push_back(*d);
      if (tensor.origin == Origin::kConstant) fillConstant(tensor, value);
      const bool given = tensor.origin == Origin::kVariable || tensor.origin == Origin::kBoundary;
      if (given || ((tensor.logical || isLocalConstant(t)) && inEquation_[t])) {
        base_[t] = slots;
        slots += value.positions() * value.planes();
      }
    }
    slots_ = UnionFind<std::int64_t>(at(slots));
  }

  void fillConstant(const StageTensor& tensor, Value& value) {
    const ConstantValue& constant = *tensor.constant;
    if (tensor.info.element == ElementKind::kComplex) throw Unsupported("complex constants");
    const std::int64_t n = value.positions();
    value.data.reserve(at(n));
    for (std::int64_t i = 0; i < n; ++i) {
      std::size_t from = 0;
      if (!constant.fill) {
        std::int64_t rest = i, flat = 0, stride = 1;
        for (std::size_t d = value.dims.size(); d-- > 0;) {
          flat += value.dims[d].position[rest % value.dims[d].size()] * stride;
          rest /= value.dims[d].size();
          stride *= value.dims[d].full;
        }
        from = at(flat);
      }
      value.data.push_back(algebra_.constant(constant.elements[from]));
    }
  }

  // Calls f(logicalIndex, localIndex) for every element of a lineage box.
  template <class F>
  void forEachElement(const Equation& e, StageTensorId local, F&& f) const {
    const Value& whole = values_[e.logical];
    const Value& part = values_[local];
    if (whole.element != part.element)
      throw std::logic_error("lineage relates tensors of different kinds of element");
    const std::size_t rank = part.dims.size();
    std::vector<std::int64_t> start(rank), index(rank, 0);
    for (std::size_t d = 0; d < rank; ++d) {
      // Not reducedBound: a box may end where blocks of a collapsed axis were dropped.
      const auto& positions = whole.dims[d].position;
      const auto first = std::lower_bound(positions.begin(), positions.end(), e.box[d].first);
      start[d] = first - positions.begin();
      const std::int64_t count = std::lower_bound(first, positions.end(), e.box[d].second) - first;
      bool same = count == part.dims[d].size();
      for (std::int64_t i = 0; same && i < count; ++i)
        same = whole.dims[d].position[start[d] + i] - e.box[d].first == part.dims[d].position[i];
      if (!same) throw std::logic_error("a reduced lineage box does not match its local tensor");
    }
    const std::int64_t planes = part.planes(), n = part.positions();
    for (std::int64_t i = 0; i < n; ++i) {
      std::int64_t flat = 0;
      for (std::size_t d = 0; d < rank; ++d)
        flat = flat * whole.dims[d].size() + start[d] + index[d];
      for (std::int64_t p = 0; p < planes; ++p) f(flat * planes + p, i * planes + p);
      for (std::size_t d = rank; d-- > 0 && ++index[d] == part.dims[d].size();) index[d] = 0;
    }
  }

  static bool single(const Equation& e) { return e.parts.size() == 1 && e.parts[0].second == 1; }

  // Lineage may have constants of a rank among its parts. Their elements are known before anything
  // else is.
  bool isLocalConstant(StageTensorId t) const {
    return !stage_.tensors[t].logical && stage_.tensors[t].origin == Origin::kConstant;
  }

  // The slot of an element of an equation's tensor. What has none (a local tensor that the stage
  // computes) cannot be assumed to be anything.
  std::int64_t slotOf(StageTensorId tensor, std::int64_t element) const {
    if (base_[tensor] < 0) throw std::logic_error("an assumption about a tensor that is computed");
    return base_[tensor] + element;
  }

  // logical == local, element by element: the same unknown.
  void unite() {
    for (const Equation& e : stage_.assumptions) {
      if (!single(e)) continue;
      const StageTensorId local = e.parts[0].first;
      if (isLocalConstant(local)) {  // the logical tensor keeps the value that it has otherwise
        dropped_ = true;
        continue;
      }
      forEachElement(e, local, [&](std::int64_t l, std::int64_t p) {
        slots_.unite(slotOf(local, p), slotOf(e.logical, l));
      });
    }
    known_.assign(slots_.size(), 0);
    element_.resize(slots_.size());
    for (const StageTensorId t : firstIds<StageTensorId>(stage_.tensors.size())) {
      if (!isLocalConstant(t) || base_[t] < 0) continue;
      for (std::size_t i = 0; i < values_[t].data.size(); ++i)
        settle(base_[t] + static_cast<std::int64_t>(i), values_[t].data[i]);
    }
  }

  void settle(std::int64_t slot, Element value) {
    const std::int64_t root = slots_.find(slot);
    known_[root] = 1;
    element_[root] = value;
  }

  void supplyLogical(const Supply& supply) {
    for (const StageTensorId t : firstIds<StageTensorId>(stage_.tensors.size())) {
      if (!stage_.tensors[t].logical || stage_.tensors[t].origin != Origin::kVariable) continue;
      Value& value = values_[t];
      const std::int64_t n = value.positions() * value.planes();
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t root = slots_.find(base_[t] + i);
        if (!known_[root]) settle(root, supply(t, i));
        Element element = element_[root];
        if constexpr (kConditions) {
          if (!stage_.tensors[t].facts.total)
            element.condition = algebra_.defined(static_cast<std::uint32_t>(base_[t] + i));
        }
        value.data.push_back(element);
      }
    }
  }

  // The conditions of each local element that an equation makes equal to a logical one; those of
  // all claims.
  void guard() {
    guards_.assign(slots_.size(), kNoGuard);
    std::vector<std::int64_t> first(slots_.size(), -1);  // of each class: a logical element of it
    for (const Equation& e : stage_.assumptions) {
      if (!single(e) || isLocalConstant(e.parts[0].first)) continue;
      const Value& whole = values_[e.logical];
      if (whole.data.empty()) throw std::logic_error("an assumed logical tensor has no value");
      forEachElement(e, e.parts[0].first, [&](std::int64_t l, std::int64_t p) {
        const std::int64_t local = slotOf(e.parts[0].first, p), logical = slotOf(e.logical, l),
                           root = slots_.find(local);
        const ConditionSet condition = whole.data[l].condition;
        if (guards_[local] == kNoGuard) guards_[local] = condition;
        if (first[root] < 0) {
          first[root] = logical;
          firstCondition_[root] = condition;
        } else if (first[root] != logical) {
          required_ = algebra_.conditions().unite(
              required_, algebra_.conditions().unite(firstCondition_[root], condition));
        }
      });
    }
  }

  Element localElement(std::int64_t slot) {
    Element element = element_[slots_.find(slot)];
    if constexpr (kConditions) {
      if (guards_[slot] != kNoGuard) element.condition = guards_[slot];
    }
    return element;
  }

  void bindLocal(const Supply& supply) {
    // A logical tensor that is computed (or constant) gives its value to the local elements that
    // equal it.
    for (const StageTensorId t : firstIds<StageTensorId>(stage_.tensors.size())) {
      if (!stage_.tensors[t].logical || stage_.tensors[t].origin == Origin::kVariable ||
          base_[t] < 0 || values_[t].data.empty())
        continue;
      for (std::size_t i = 0; i < values_[t].data.size(); ++i) {
        const std::int64_t root = slots_.find(base_[t] + static_cast<std::int64_t>(i));
        if (!known_[root]) settle(root, values_[t].data[i]);
      }
    }
    solveSums(supply);
    for (const StageTensorId t : firstIds<StageTensorId>(stage_.tensors.size())) {
      const StageTensor& tensor = stage_.tensors[t];
      if (tensor.logical) continue;
      Value& value = values_[t];
      const std::int64_t n = value.positions() * value.planes();
      if (tensor.origin == Origin::kBoundary) {
        for (std::int64_t i = 0; i < n; ++i) {
          const std::int64_t root = slots_.find(base_[t] + i);
          if (!known_[root]) settle(root, supply(t, i));
          value.data.push_back(localElement(base_[t] + i));
        }
      } else if (tensor.origin == Origin::kUnbound) {
        for (std::int64_t i = 0; i < n; ++i) value.data.push_back(supply(t, i));
      }
    }
  }

  // Whether the part that is the difference should be one without a weight: a weight that depends
  // on a size is nothing to divide by.
  bool avoidsWeights() const {
    if constexpr (kConditions) return algebra_.readsNumbers();
    return false;
  }

  // logical == sum of parts: all parts but one are free, that one is the difference. The one must
  // not be determined otherwise: an equation without such a part is dropped, which only weakens
  // what is assumed.
  void solveSums(const Supply& supply) {
    for (const Equation& e : stage_.assumptions) {
      if (single(e)) continue;
      const Value& whole = values_[e.logical];
      if (whole.data.empty()) {  // nothing of the stage reaches this tensor
        dropped_ = true;
        continue;
      }
      std::vector<std::vector<std::int64_t>> slots(e.parts.size());
      std::vector<std::int64_t> logicalIndex;
      for (std::size_t k = 0; k < e.parts.size(); ++k) {
        forEachElement(e, e.parts[k].first, [&](std::int64_t l, std::int64_t p) {
          if (k == 0) logicalIndex.push_back(l);
          slots[k].push_back(slots_.find(slotOf(e.parts[k].first, p)));
        });
      }
      for (std::size_t i = 0; i < logicalIndex.size(); ++i) {
        std::size_t chosen = e.parts.size();
        for (std::size_t k = e.parts.size(); k-- > 0;) {
          if (chosen < e.parts.size() && !(avoidsWeights() && e.parts[k].second == 1)) continue;
          const std::int64_t root = slots[k][i];
          bool unique = !known_[root];
          for (std::size_t j = 0; unique && j < e.parts.size(); ++j)
            unique = j == k || slots[j][i] != root;
          if (unique) chosen = k;
        }
        if (chosen == e.parts.size()) {
          dropped_ = true;
          continue;
        }
        std::vector<Element> terms{whole.data[logicalIndex[i]]};
        for (std::size_t k = 0; k < e.parts.size(); ++k) {
          if (k == chosen) continue;
          const std::int64_t root = slots[k][i];
          if (!known_[root]) {
            Element free = supply(e.parts[k].first, indexIn(e, k, i));
            if constexpr (kConditions)
              free.condition = terms[0].condition;  // the parts exist where their sum is said to
            settle(root, free);
          }
          terms.push_back(algebra_.scale(Rational(-e.parts[k].second),
                                         localElement(slotOf(e.parts[k].first, indexIn(e, k, i)))));
        }
        settle(slots[chosen][i],
               algebra_.scale(Rational(1, e.parts[chosen].second), algebra_.sum(terms, {})));
      }
    }
  }
  // The i-th element that forEachElement visits is the local tensor's own i-th.
  static std::int64_t indexIn(const Equation&, std::size_t, std::size_t i) {
    return static_cast<std::int64_t>(i);
  }

  void evaluate(const StageNode& node) {
    std::vector<const Value*> in;
    std::vector<Value*> out;
    for (const StageTensorId t : node.in) in.push_back(t >= 0 ? &values_[t] : nullptr);
    for (const StageTensorId t : node.out) out.push_back(t >= 0 ? &values_[t] : nullptr);
    if (node.communication != Communication::kNone) {
      if (out[0]) communicate(algebra_, node, in, *out[0]);
      return;
    }
    ops::Evaluation<A> evaluation{algebra_, *node.attributes, in, out};
    evaluationOf(ops::Registry::instance().at(node.op), &algebra_)(evaluation);
    for (const Value* v : out) {
      if (v && static_cast<std::int64_t>(v->data.size()) != v->positions() * v->planes())
        throw std::logic_error("an operator did not fill its result");
    }
  }

  void pairUp() {
    for (std::size_t c = 0; c < stage_.claims.size(); ++c) {
      const Equation& e = stage_.claims[c];
      const Value& whole = values_[e.logical];
      std::vector<std::int64_t> weights;
      for (const auto& part : e.parts) weights.push_back(part.second);
      std::vector<std::vector<std::int64_t>> local(e.parts.size());
      std::vector<std::int64_t> logical;
      for (std::size_t k = 0; k < e.parts.size(); ++k) {
        forEachElement(e, e.parts[k].first, [&](std::int64_t l, std::int64_t p) {
          // Over terms one of each orbit: a proof about it is one about all others.
          if (kConditions && !reduced_.firstOfOrbit[e.logical][at(l / whole.planes())]) return;
          if (k == 0) logical.push_back(l);
          local[k].push_back(p);
        });
      }
      std::vector<Element> elements(e.parts.size());
      for (std::size_t i = 0; i < logical.size(); ++i) {
        for (std::size_t k = 0; k < e.parts.size(); ++k)
          elements[k] = values_[e.parts[k].first].data[local[k][i]];
        Element parallel = single(e) ? elements[0] : algebra_.sum(elements, weights);
        if constexpr (kConditions)
          parallel.condition = algebra_.conditions().unite(parallel.condition, required_);
        pairs_.push_back({c, logical[i], whole.data[logical[i]], parallel});
      }
    }
  }

  const Stage& stage_;
  const ReducedStage& reduced_;
  A& algebra_;
  std::vector<Value> values_;
  std::vector<char> inEquation_;    // tensors of assumptions and claims
  std::vector<std::int64_t> base_;  // first slot of each logical or boundary tensor's elements
  UnionFind<std::int64_t> slots_;   // equal elements
  std::vector<char> known_;
  std::vector<Element> element_;  // of each class root
  std::vector<Pair> pairs_;
  bool dropped_ = false;
  static constexpr ConditionSet kNoGuard = ~ConditionSet{0};
  std::vector<ConditionSet> guards_;  // of each slot
  std::unordered_map<std::int64_t, ConditionSet> firstCondition_;
  ConditionSet required_ = 0;  // of every claim
};

}  // namespace shardproof
