// SPDX-License-Identifier: Apache-2.0
#include "prover/model_facts.h"

#include <algorithm>
#include <exception>
#include <map>
#include <string>

#include "prover/stage_interpreter.h"
#include "shape_reduction/reduction.h"
#include "terms/domain.h"
#include "terms/term_algebra.h"

namespace shardproof {

namespace {

class Facts {
 public:
  explicit Facts(const Problem& problem)
      : problem_(problem),
        model_(problem.model.graph),
        facts_(model_.tensors.size()),
        producer_(facts_.size(), NodeId()),
        kind_(facts_.size(), -1) {}

  ModelFacts run() {
    for (std::size_t t = 0; t < facts_.size(); ++t) {
      if (model_.tensors[t].kind == TensorKind::kConstant)
        facts_[t].sign = signOf(*model_.constants[model_.tensors[t].constant]);
    }
    for (std::size_t n = 0; n < model_.nodes.size(); ++n) {
      const Node& node = model_.nodes[n];
      const auto results = model_.out(node);
      for (const TensorId t : results) {
        if (t >= 0) producer_[t] = NodeId(n);
      }
      const Key key = keyOf(node);
      auto known = known_.find(key);
      if (known == known_.end())
        known = known_.emplace(key, Known{static_cast<std::int64_t>(known_.size()), factsOf(node)})
                    .first;
      for (std::size_t r = 0; r < results.size(); ++r) {
        if (results[r] < 0) continue;
        facts_[results[r]] = known->second.results[r];
        kind_[results[r]] = known->second.number * kMostResults + static_cast<std::int64_t>(r);
      }
    }
    return std::move(facts_);
  }

 private:
  // Nodes with equal keys have results of which the same is known: operator, attributes, and of
  // each operand its shape and kind of element, its facts, which of the operands are one tensor,
  // and where it may be infinite or is a constant what it is.
  using Key = std::vector<std::int64_t>;
  struct Known {
    std::int64_t number;
    std::vector<TensorFacts> results;
  };
  static constexpr std::int64_t kMostResults = 1 << 20;

  static Sign signOf(const ConstantValue& value) {
    Sign sign = Sign::kPositive;
    for (const Rational& r : value.elements) {
      if (r.sign() < 0) return Sign::kUnknown;
      if (r.isZero()) sign = Sign::kNonNegative;
    }
    return sign;
  }
  const ConstantValue* fillOf(TensorId t) const {
    const Tensor& tensor = model_.tensors[t];
    if (tensor.kind != TensorKind::kConstant) return nullptr;
    const ConstantValue& value = *model_.constants[tensor.constant];
    return value.fill ? &value : nullptr;
  }

  Key keyOf(const Node& node) {
    Key key{static_cast<std::int64_t>(node.op.value),
            static_cast<std::int64_t>(node.attributes.value)};
    const auto operands = model_.in(node);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (!operands[i].present()) {
        key.push_back(-1);
        continue;
      }
      const TensorId t = operands[i].tensor;
      std::size_t same = 0;
      while (operands[same].tensor != t) ++same;
      key.push_back(static_cast<std::int64_t>(same));
      if (same != i) continue;
      const Tensor& tensor = model_.tensors[t];
      key.push_back(static_cast<std::int64_t>(tensor.shape.size()));
      key.insert(key.end(), tensor.shape.begin(), tensor.shape.end());
      key.push_back(static_cast<std::int64_t>(tensor.element));
      key.push_back(facts_[t].code());
      key.push_back(facts_[t].mayBeInfinite ? kind_[t] : -1);
      const ConstantValue* fill = fillOf(t);
      key.push_back(fill ? fills_
                               .emplace(fill->elements[0].toString(),
                                        static_cast<std::int64_t>(fills_.size()))
                               .first->second
                         : -1);
    }
    key.push_back(-2);
    for (const TensorId t : model_.out(node)) {
      key.push_back(t >= 0);
      if (t < 0) continue;
      const Tensor& tensor = model_.tensors[t];  // a declared [1] where the operator says []
      key.push_back(static_cast<std::int64_t>(tensor.shape.size()));
    }
    return key;
  }

  StageTensorId add(Stage& stage, TensorId t, Origin origin) const {
    StageTensor made;
    made.info = {model_.tensors[t].shape, model_.tensors[t].element};
    made.logical = true;
    made.tensor = t;
    made.origin = origin;
    const Tensor& tensor = model_.tensors[t];
    made.kind = tensor.kind;
    made.name = tensor.name;
    if (origin == Origin::kConstant) made.constant = model_.constants[tensor.constant];
    if (origin == Origin::kVariable) made.facts = facts_[t];
    stage.tensors.push_back(std::move(made));
    return StageTensorId(static_cast<std::int32_t>(stage.tensors.size()) - 1);
  }

  // The operand as a stage tensor. What may be infinite is computed, each time anew: two such
  // operands that have something in common are then executed as if they had not, which knows less.
  StageTensorId operand(Stage& stage, TensorId t) const {
    if (fillOf(t)) return add(stage, t, Origin::kConstant);
    if (!facts_[t].mayBeInfinite || producer_[t] < 0) return add(stage, t, Origin::kVariable);
    if (stage.nodes.size() > kMostNodes) throw Unsupported("too much leads to an entry of a mask");
    const auto made = this->node(stage, model_.nodes[producer_[t]]);
    const auto results = model_.out(model_.nodes[producer_[t]]);
    return made[std::find(results.begin(), results.end(), t) - results.begin()];
  }
  static constexpr std::size_t kMostNodes = 64;

  // Adds the node with its operands; its results.
  std::vector<StageTensorId> node(Stage& stage, const Node& from) const {
    StageNode made;
    made.logical = true;
    made.op = from.op;
    made.attributes = problem_.attributes.share(from.attributes);
    std::map<TensorId, StageTensorId> ids;
    for (const Operand& o : model_.in(from)) {
      if (o.present() && !ids.contains(o.tensor)) ids.emplace(o.tensor, operand(stage, o.tensor));
      made.in.push_back(StageTensorId(o.present() ? ids.at(o.tensor) : -1));
    }
    for (const TensorId t : model_.out(from))
      made.out.push_back(StageTensorId(t >= 0 ? add(stage, t, Origin::kComputed) : -1));
    stage.nodes.push_back(std::move(made));
    return stage.nodes.back().out;
  }

  std::vector<TensorFacts> factsOf(const Node& from) const {
    const auto results = model_.out(from);
    TensorFacts none = TensorFacts::unknown();
    for (const Operand& o : model_.in(from))
      none.mayBeInfinite = none.mayBeInfinite || (o.present() && facts_[o.tensor].mayBeInfinite);
    std::vector<TensorFacts> found(results.size(), none);
    try {
      Stage stage;
      const auto made = node(stage, from);
      ReductionOptions options;
      options.maxElements = kMostElements;
      const ReducedStage reduced = reduceStage(stage, options);
      if (reduced.largestIteration > kMostWork) return found;
      TermAlgebra algebra(TermAlgebra::Mode::kNormalized, kMostTerms);
      StageInterpreter<TermAlgebra> interpreter(stage, reduced, algebra);
      interpreter.run([&](StageTensorId t, std::int64_t) {
        const StageTensor& tensor = stage.tensors[t];
        return algebra.variable(tensor.info.element == ElementKind::kInteger, tensor.facts);
      });
      for (std::size_t r = 0; r < results.size(); ++r) {
        if (results[r] >= 0)
          found[r] =
              factsOf(interpreter.value(made[r]), model_.tensors[results[r]].element, algebra);
      }
    } catch (const Unsupported&) {
    } catch (const NeedsRefinement&) {
    }
    return found;
  }

  // An element at a position that stands for several is passed over where as many positions of the
  // piece are kept as the element has indices in it: whatever its indices have to do with each
  // other (which of them are equal), those of some element that is looked at have, too, and the
  // piece's positions are all alike otherwise (docs/soundness.md, "Representatives with weights").
  // What stands for several has no diagonal.
  static TensorFacts factsOf(const ops::TensorValue<TermAlgebra>& value, ElementKind element,
                             TermAlgebra& algebra) {
    TensorFacts facts{.total = true,
                      .mayBeInfinite = false,
                      .sign = element == ElementKind::kReal ? Sign::kPositive : Sign::kUnknown};
    const Domain domain(algebra);
    for (std::size_t i = 0; i < value.data.size(); ++i) {
      const Term t = value.data[i];
      if (standsForOthers(value, static_cast<std::int64_t>(i) / value.planes())) continue;
      facts.mayBeInfinite = facts.mayBeInfinite || algebra.mayBeInfinite(t) ||
                            algebra.kind(t) == TermKind::kNegativeInfinity;
      facts.total = facts.total && t.condition == 0;
      facts.sign = std::min(facts.sign, domain.sign(t));
    }
    if (facts.mayBeInfinite) facts.sign = Sign::kUnknown;
    return facts;
  }
  static bool standsForOthers(const ops::TensorValue<TermAlgebra>& value, std::int64_t position) {
    std::map<std::int32_t, std::int64_t> indices;  // in each class of pieces
    std::map<std::int32_t, std::int64_t> kept;     // of those where one stands for several
    for (std::size_t d = value.dims.size(); d-- > 0;) {
      const ops::ReducedDim& dim = value.dims[d];
      const std::int64_t index = position % dim.size();
      position /= dim.size();
      if (dim.places.empty()) continue;
      for (const auto& place : dim.placesOf(index)) {
        ++indices[place.piece];
        if (place.weighted) kept[place.piece] = place.offset;
      }
    }
    return std::any_of(kept.begin(), kept.end(),
                       [&](const auto& k) { return k.second >= indices.at(k.first); });
  }

  static constexpr std::int64_t kMostElements = 100'000;
  static constexpr double kMostWork = 1e6;
  static constexpr std::size_t kMostTerms = 2'000'000;

  const Problem& problem_;
  const Graph& model_;
  ModelFacts facts_;
  std::vector<NodeId> producer_;
  std::vector<std::int64_t> kind_;  // of each produced tensor: which of the known results it is
  std::map<Key, Known> known_;
  std::map<std::string, std::int64_t> fills_;
};

}  // namespace

ModelFacts modelFacts(const Problem& problem) { return Facts(problem).run(); }

}  // namespace shardproof
