// SPDX-License-Identifier: Apache-2.0
// Values of single elements of a stage at full size: each asks for the elements that it is made
// from, back to elements that are free, whose values the caller makes from their place. No tensor
// is stored, however large; what has been computed is kept.
//
// Nothing of how proofs are made is used: not the operators' definitions (ops/*.cpp), nor shape
// reduction, nor the interpreter of reduced stages. Of the rest of the program there are the stage
// itself and the arithmetic of one number (numbers/double_algebra.h, numbers/modular_algebra.h).
#pragma once

#include <ctime>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "numbers/double_algebra.h"
#include "numbers/modular_algebra.h"
#include "ops/attributes.h"
#include "ops/registry.h"
#include "shardproof/error.h"
#include "stages/stage.h"
#include "unreduced/binding.h"
#include "unreduced/positions.h"

namespace shardproof::unreduced {

// Seconds of processor time of this thread: what an evaluation may cost does not depend on what
// else the machine does.
inline double processorSeconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

// Too many elements for what one evaluation may cost.
class TooMuch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// In the prime field: a division by an element that is zero.
class Undefined : public std::runtime_error {
 public:
  Undefined() : std::runtime_error("it divides by zero") {}
};

template <class A>
class Evaluator;

// A number with its algebra, so that formulas read as formulas.
template <class A>
struct Number {
  A* algebra;
  typename A::Element value;

  Number of(std::int64_t n) const { return {algebra, algebra->constant(Rational(n))}; }
  Number of(const Rational& r) const { return {algebra, algebra->constant(r)}; }
  Number times(const Rational& r) const { return {algebra, algebra->scale(r, value)}; }
  Number power(int halves) const {  // this^(halves/2)
    if (std::is_same_v<A, ModularAlgebra> && halves < 0 && algebra->isZero(value))
      throw Undefined();
    return {algebra, algebra->power(value, halves)};
  }
  Number exp() const { return {algebra, algebra->exp(value)}; }
  Number apply(ops::Function f) const {
    const typename A::Element argument[] = {value};
    return {algebra, algebra->apply(f, {}, argument)};
  }
  friend Number operator+(Number a, Number b) {
    return {a.algebra, a.algebra->add(a.value, b.value)};
  }
  friend Number operator*(Number a, Number b) {
    return {a.algebra, a.algebra->mul(a.value, b.value)};
  }
  friend Number operator-(Number a, Number b) { return a + b.times(Rational(-1)); }
};

// A long sum, which never holds many terms.
template <class A>
class Sum {
 public:
  explicit Sum(A& algebra) : algebra_(algebra) {}
  void add(Number<A> n) {
    terms_.push_back(n.value);
    if (terms_.size() == kMost) terms_.assign(1, algebra_.sum(terms_, {}));
  }
  Number<A> value() const {
    return {&algebra_, terms_.empty()       ? algebra_.constant(Rational(0))
                       : terms_.size() == 1 ? terms_[0]
                                            : algebra_.sum(terms_, {})};
  }

 private:
  static constexpr std::size_t kMost = 4096;
  A& algebra_;
  std::vector<typename A::Element> terms_;
};

// What an operator's definition sees: elements of its operands, its attributes, the shapes.
template <class A>
class NodeView {
 public:
  using N = Number<A>;

  NodeView(Evaluator<A>& evaluator, std::int32_t id)
      : evaluator_(evaluator), id_(id), node_(evaluator.stage().nodes[id]) {}

  const Attributes& attributes() const { return *node_.attributes; }
  A& algebra() const { return evaluator_.algebra(); }
  std::size_t operands() const { return node_.in.size(); }
  std::size_t results() const { return node_.out.size(); }
  bool has(std::size_t k) const { return k < node_.in.size() && node_.in[k] >= 0; }
  const Shape& shape(std::size_t k) const {
    return evaluator_.stage().tensors[operand(k)].info.shape;
  }
  const Shape& resultShape(std::size_t r) const {
    return evaluator_.stage().tensors[node_.out.at(r)].info.shape;
  }
  Index planes(std::size_t k) const {
    return evaluator_.stage().tensors[operand(k)].info.element == ElementKind::kComplex ? 2 : 1;
  }

  // By row-major number, with planes.
  N in(std::size_t k, Index flat) const {
    return {&algebra(), evaluator_.element(operand(k), flat)};
  }
  N in(std::size_t k, const Position& p) const { return in(k, ravel(shape(k), p)); }
  std::optional<std::int64_t> integer(std::size_t k, Index flat) const {
    return integerOf(in(k, flat).value);
  }
  N constant(const Rational& r) const { return {&algebra(), algebra().constant(r)}; }
  N zero() const { return constant(Rational(0)); }
  N apply(ops::Function f) const { return {&algebra(), algebra().apply(f, {}, {})}; }
  Sum<A> sum() const { return Sum<A>(algebra()); }

  // A number that several elements of the node need, by `what` and a row: computed once.
  template <class F>
  N shared(int what, Index row, F&& f) const {
    const auto key = std::tuple(id_, what, row);
    if (const auto it = evaluator_.shared_.find(key); it != evaluator_.shared_.end())
      return {&algebra(), it->second};
    const N value = f();
    evaluator_.shared_.emplace(key, value.value);
    return value;
  }

  static std::optional<std::int64_t> integerOf(typename A::Element value) {
    if constexpr (std::is_same_v<A, DoubleAlgebra>) {
      if (!(value > -0x1p62 && value < 0x1p62) ||
          value != static_cast<double>(static_cast<std::int64_t>(value)))
        return std::nullopt;
      return static_cast<std::int64_t>(value);
    } else {
      if (value.negativeInfinity) return std::nullopt;
      return value.value > A::kPrime / 2
                 ? static_cast<std::int64_t>(value.value) - static_cast<std::int64_t>(A::kPrime)
                 : static_cast<std::int64_t>(value.value);
    }
  }

 private:
  StageTensorId operand(std::size_t k) const {
    if (!has(k)) throw Unsupported("an operand that is needed is absent");
    return node_.in[k];
  }
  Evaluator<A>& evaluator_;
  std::int32_t id_;
  const StageNode& node_;
};

// The element `flat` of result `result`.
template <class A>
using Definition = std::function<Number<A>(const NodeView<A>&, std::size_t result, Index flat)>;

struct Definitions {
  Definition<DoubleAlgebra> doubles;
  Definition<ModularAlgebra> modular;
};

// By operator name; nullptr: there is none.
const Definitions* definitionsOf(const std::string& name);

template <class A>
class Evaluator {
 public:
  using Element = typename A::Element;
  using Supply = std::function<Element(ElementOf)>;  // the value of a free element

  Evaluator(const Stage& stage, Binding& binding, A& algebra, Supply supply)
      : stage_(stage),
        binding_(binding),
        algebra_(algebra),
        supply_(std::move(supply)),
        producer_(stage.tensors.size(), {-1, 0}),
        known_(stage.tensors.size()),
        definitions_(stage.nodes.size(), nullptr) {
    for (std::size_t n = 0; n < stage.nodes.size(); ++n) {
      const StageNode& node = stage.nodes[n];
      for (std::size_t r = 0; r < node.out.size(); ++r) {
        if (node.out[r] >= 0) producer_[node.out[r]] = {static_cast<std::int32_t>(n), r};
      }
    }
  }

  const Stage& stage() const { return stage_; }
  A& algebra() { return algebra_; }
  std::uint64_t left() const { return left_; }
  // How many elements may be asked for from now on, counted with repetition, and until which of
  // processorSeconds(). What is known stays known.
  void allow(std::uint64_t most, double until) {
    left_ = most;
    until_ = until;
  }

  // Throws TooMuch, Unsupported.
  Element element(StageTensorId t, Index flat) {
    if (left_ == 0) throw TooMuch("it is made from too many elements");
    --left_;
    if (left_ % kClockInterval == 0 && processorSeconds() > until_)
      throw TooMuch("it is made from too many elements for the time");
    const StageTensor& tensor = stage_.tensors[t];
    switch (tensor.origin) {
      case Origin::kConstant:
        return constant(tensor, flat);
      case Origin::kVariable:
        return supply_(binding_.canonical({t, flat}));
      case Origin::kUnbound:
        return supply_({t, flat});
      case Origin::kBoundary:
        // Asked anew each time, which is quicker than to look it up.
        if (const Binding::Value v = binding_.local({t, flat});
            v.kind == Binding::Value::Kind::kFree)
          return supply_(v.element);
        else if (v.kind == Binding::Value::Kind::kElement)
          return element(v.element.tensor, v.element.flat);
        break;
      case Origin::kComputed:
        break;
    }
    auto& known = known_[t];
    if (const auto it = known.find(flat); it != known.end()) return it->second;
    if (++depth_ > kMostDeep) throw TooMuch("it is made by too many operators one after the other");
    const Element value =
        tensor.origin == Origin::kBoundary ? difference({t, flat}) : computed(t, flat);
    --depth_;
    known.emplace(flat, value);
    return value;
  }
  // After TooMuch or Unsupported, before the next element.
  void recover() { depth_ = 0; }

 private:
  friend class NodeView<A>;
  static constexpr int kMostDeep = 3000;
  static constexpr std::uint64_t kClockInterval = 4096;

  Element constant(const StageTensor& tensor, Index flat) {
    const ConstantValue& value = *tensor.constant;
    if (tensor.info.element == ElementKind::kComplex) throw Unsupported("complex constants");
    return algebra_.constant(value.elements[value.fill ? 0 : at(flat)]);
  }

  // An assumed sum without its other parts.
  Element difference(ElementOf e) {
    const Binding::Value v = binding_.local(e);
    Sum<A> sum(algebra_);
    sum.add({&algebra_, element(v.element.tensor, v.element.flat)});
    for (const auto& [part, weight] : v.subtract)
      sum.add(Number<A>{&algebra_, element(part.tensor, part.flat)}.times(Rational(-weight)));
    return sum.value().times(Rational(1, v.divide)).value;
  }

  Element computed(StageTensorId t, Index flat) {
    const auto [id, result] = producer_[t];
    if (id < 0) throw Unsupported("a tensor of the stage has no producer");
    const StageNode& node = stage_.nodes[id];
    if (node.communication != Communication::kNone) return communicated(node, t, flat);
    const Definitions*& definitions = definitions_[id];
    const std::string& name = ops::Registry::instance().at(node.op).name;
    if (definitions == nullptr) definitions = definitionsOf(name);
    if (definitions == nullptr)
      throw Unsupported("the operator " + name + " has no definition by elements");
    const NodeView<A> view(*this, id);
    if constexpr (std::is_same_v<A, DoubleAlgebra>)
      return definitions->doubles(view, result, flat).value;
    else return definitions->modular(view, result, flat).value;
  }

  // One member's result from the operands of all, in group order (docs/format.md).
  Element communicated(const StageNode& node, StageTensorId t, Index flat) {
    const Shape& shape = stage_.tensors[t].info.shape;
    const Index planes = stage_.tensors[t].info.element == ElementKind::kComplex ? 2 : 1;
    const auto members = static_cast<Index>(node.in.size());
    Position p = unravel(shape, flat / planes);
    const auto read = [&](Index member) {
      const StageTensorId operand = node.in[member];
      return element(operand,
                     ravel(stage_.tensors[operand].info.shape, p) * planes + flat % planes);
    };
    const std::size_t d = dimension(node.dim, shape.size()), o = dimension(node.odim, shape.size());
    switch (node.communication) {
      case Communication::kReceive:
      case Communication::kBroadcast:
        return element(node.in[0], flat);
      case Communication::kPart:
        p[d] += node.member * shape[d];
        return read(0);
      case Communication::kReduceScatter:
        p[d] += node.member * shape[d];
        [[fallthrough]];
      case Communication::kAllReduce:
        return reduced(node, members, read);
      case Communication::kAllGather: {
        const Index each = stage_.tensors[node.in[0]].info.shape[d], from = p[d] / each;
        p[d] %= each;
        return read(from);
      }
      case Communication::kAllToAll: {
        // Operand k is cut along d, this member gets its own piece of each and puts them one after
        // the other along o.
        const Shape& operand = stage_.tensors[node.in[0]].info.shape;
        const Index piece = operand[d] / members, placed = d == o ? piece : operand[o];
        const Index from = p[o] / placed;
        p[o] %= placed;
        p[d] += node.member * piece;
        return read(from);
      }
      default:
        throw Unsupported("this communication has no definition by elements");
    }
  }

  template <class F>
  Element reduced(const StageNode& node, Index members, F&& read) {
    std::vector<Element> elements;
    for (Index k = 0; k < members; ++k) elements.push_back(read(k));
    std::int64_t count = 0;
    for (const std::int64_t m : node.weight) count += m;
    switch (node.reduction) {
      case Reduction::kSum:
        return algebra_.sum(elements, node.weight);
      case Reduction::kMean:
        return algebra_.scale(Rational(1, count), algebra_.sum(elements, node.weight));
      case Reduction::kMax:
        return algebra_.apply(ops::Function::kMaximum, {}, elements);
      case Reduction::kMin:
        return algebra_.apply(ops::Function::kMinimum, {}, elements);
    }
    throw Unsupported("an unknown reduction");
  }

  const Stage& stage_;
  Binding& binding_;
  A& algebra_;
  Supply supply_;
  std::uint64_t left_ = 0;
  double until_ = 0;
  int depth_ = 0;
  std::vector<std::pair<std::int32_t, std::size_t>> producer_;  // by tensor: node and result
  std::vector<std::unordered_map<Index, Element>> known_;       // by tensor
  std::vector<const Definitions*> definitions_;                 // by node
  std::map<std::tuple<std::int32_t, int, Index>, Element> shared_;
};

}  // namespace shardproof::unreduced
