// SPDX-License-Identifier: Apache-2.0
// Random stages, executed over each algebra on one reduction: the terms' values are the
// fingerprints and the doubles that direct execution gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "choices.h"
#include "ops/registry.h"
#include "prover/stage_interpreter.h"
#include "shape_reduction/reduction.h"
#include "values.h"

namespace shardproof::test {
namespace {

constexpr std::int64_t kMostElements = 96;  // of a tensor: stages are many and small

// A graph of operators on the model's side, each on what came before and on fresh inputs.
class RandomStage {
 public:
  explicit RandomStage(Choices& c) : c_(c) {
    Shape shape;
    for (int rank = 1 + c_.below(3); rank > 0; --rank) shape.push_back(1 + c_.below(5));
    current_ = input(shape);
    for (int nodes = 1 + c_.below(5); nodes > 0; --nodes) grow();
  }

  Stage stage;
  std::set<std::string> used;

 private:
  const ops::TensorInfo& info(std::int32_t t) const {
    return stage.tensors[static_cast<std::size_t>(t)].info;
  }
  Shape shape() const { return info(current_).shape; }
  int rank() const { return static_cast<int>(shape().size()); }

  std::int32_t add(const ops::TensorInfo& tensor, Origin origin) {
    StageTensor made;
    made.info = tensor;
    made.origin = origin;
    made.logical = true;
    stage.tensors.push_back(made);
    return static_cast<std::int32_t>(stage.tensors.size()) - 1;
  }
  std::int32_t input(const Shape& s, ElementKind element = ElementKind::kReal) {
    return add({s, element}, Origin::kVariable);
  }

  // The operator's first result; -1 as an operand is an absent one.
  std::int32_t node(const std::string& op, const Attributes& attributes,
                    const std::vector<std::int32_t>& in, std::size_t results = 1) {
    const OperatorId id = ops::Registry::instance().find(op);
    const ops::OperatorInfo& operation = ops::Registry::instance().at(id);
    operation.validate(attributes, in.size(), results);
    std::vector<ops::TensorInfo> infos;
    for (const std::int32_t t : in) infos.push_back(t >= 0 ? info(t) : ops::TensorInfo{});
    std::vector<const ops::TensorInfo*> operands;
    for (std::size_t i = 0; i < in.size(); ++i)
      operands.push_back(in[i] >= 0 ? &infos[i] : nullptr);
    StageNode made;
    made.logical = true;
    made.op = id;
    made.attributes = std::make_shared<const Attributes>(attributes);
    for (const std::int32_t operand : in) made.in.emplace_back(operand);
    std::int32_t first = -1;
    for (const ops::TensorInfo& result :
         operation.infer(ops::Signature{attributes, operands, results})) {
      made.out.push_back(StageTensorId(result.absent ? -1 : add(result, Origin::kComputed)));
      if (first < 0) first = made.out.back();
    }
    stage.nodes.push_back(made);
    used.insert(op);
    return first;
  }

  std::int32_t positive() {
    return node("add", {{"scalar", Rational(1, 2)}}, {node("square", {}, {current_})});
  }

  void grow() {
    using List = std::vector<std::int64_t>;
    const Shape s = shape();
    const std::int64_t last = s.empty() ? 1 : s.back();
    const auto dim = [&] { return Rational(c_.below(rank())); };
    std::string op;
    Attributes attributes;
    std::vector<std::int32_t> in{current_};
    switch (c_.below(s.empty() ? 4 : 17)) {
      case 0:
        op = c_.among<std::string>(
            {"neg", "square", "sigmoid", "tanh", "silu", "relu", "gelu", "exp", "identity"});
        break;
      case 1:
        op = c_.among<std::string>({"add", "sub", "mul"});
        in.push_back(c_.oneIn(3) ? current_
                                 : input(c_.oneIn(2) ? s
                                         : s.empty() ? Shape{}
                                                     : Shape{last}));
        break;
      case 2:
        op = "div";
        in = {input(s), positive()};
        break;
      case 3:
        op = c_.among<std::string>({"log", "sqrt", "rsqrt"});
        in = {positive()};
        break;
      case 4:
        op = c_.among<std::string>({"sum", "mean", "amax", "amin", "logsumexp"});
        attributes = {{"dim", List{c_.below(rank())}}, {"keepdim", c_.oneIn(2)}};
        break;
      case 5:
        op = c_.among<std::string>({"softmax", "log_softmax"});
        attributes = {{"dim", dim()}};
        break;
      case 6:
        op = "transpose";
        attributes = {{"dim0", dim()}, {"dim1", dim()}};
        break;
      case 7: {  // two dimensions together, or one apart
        Shape size = s;
        if (rank() > 1 && c_.oneIn(2)) {
          size.pop_back();
          size.back() *= last;
        } else if (last % 2 == 0) {
          size.back() = last / 2;
          size.push_back(2);
        }
        op = "view";
        attributes = {{"size", size}};
        break;
      }
      case 8: {
        const std::int64_t d = c_.below(rank()), n = s[static_cast<std::size_t>(d)];
        const std::int64_t start = c_.below(static_cast<int>(n));
        op = "slice";
        attributes = {{"dim", Rational(d)},
                      {"start", Rational(start)},
                      {"stop", Rational(start + 1 + c_.below(static_cast<int>(n - start)))}};
        break;
      }
      case 9: {
        op = "cat";
        attributes = {{"dim", dim()}};
        in.push_back(c_.oneIn(2) ? current_ : input(s));
        break;
      }
      case 10: {
        const std::int64_t out = 1 + c_.below(4);
        op = "linear";
        in.push_back(input({out, last}));
        if (c_.oneIn(2)) in.push_back(input({out}));
        break;
      }
      case 11: {
        op = "matmul";
        if (rank() < 2) in = {current_, input({last, 3})};
        else
          in = {current_, node("transpose", {{"dim0", Rational(-1)}, {"dim1", Rational(-2)}},
                               {c_.oneIn(2) ? current_ : input(s)})};
        break;
      }
      case 12:
        op = c_.among<std::string>({"rms_norm", "layer_norm"});
        attributes = {{"eps", Rational(1, 100)}};
        in.push_back(input({last}));
        if (op == "layer_norm") in.push_back(input({last}));
        break;
      case 13:
        op = c_.among<std::string>({"unsqueeze", "chunk"});
        attributes = {{"dim", dim()}};
        if (op == "chunk") {
          const auto d = static_cast<std::size_t>(std::get<Rational>(attributes["dim"]).toInt64());
          attributes["parts"] = Rational(s[d] % 2 == 0 ? 2 : s[d]);
          attributes["index"] = Rational(0);
        }
        break;
      case 14: {
        op = "embedding";  // the tensor so far is the table
        const Shape rows{1 + c_.below(3)};
        if (rank() != 2) return;
        in = {input(rows, ElementKind::kInteger), current_};
        break;
      }
      case 15: {
        op = "pad";
        attributes = {{"pad", List{c_.below(2), c_.below(3)}}, {"value", Rational(c_.below(3), 2)}};
        break;
      }
      default: {
        if (rank() < 2) return;
        op = "cross_entropy";
        attributes = {{"reduction", c_.among<std::string>({"mean", "sum", "none"})}};
        in.push_back(input(Shape(s.begin(), s.end() - 1), ElementKind::kInteger));
      }
    }
    std::int32_t result = node(op, attributes, in);
    // Its gradient for the first operand that has one, for any gradient of the result.
    if (c_.oneIn(3) && ops::Registry::instance().find(op + "_backward").valid()) {
      std::vector<std::int32_t> operands{input(info(result).shape)};
      operands.insert(operands.end(), in.begin(), in.end());
      const std::int32_t gradient = node(op + "_backward", attributes, operands, in.size());
      if (gradient >= 0) result = gradient;
    }
    std::int64_t elements = 1;
    for (const std::int64_t n : info(result).shape) elements *= n;
    if (elements <= kMostElements) current_ = result;
  }

  Choices& c_;
  std::int32_t current_ = -1;
};

// Everything that some operator of the stage computes and that nothing reads: (tensor, element).
template <class A>
std::vector<typename A::Element> resultsOf(
    const RandomStage& random, const ReducedStage& reduced, A& algebra,
    const std::function<typename A::Element(StageTensorId, std::int64_t)>& supply) {
  StageInterpreter<ops::OperatorAlgebra<A>> interpreter(random.stage, reduced, algebra);
  interpreter.run(supply);
  std::vector<typename A::Element> results;
  for (std::size_t t = 0; t < random.stage.tensors.size(); ++t) {
    if (random.stage.tensors[t].origin != Origin::kComputed) continue;
    const auto& data = interpreter.value(StageTensorId(t)).data;
    results.insert(results.end(), data.begin(), data.end());
  }
  return results;
}

struct Terms {
  explicit Terms(TermAlgebra::Mode mode) : algebra(mode, 2'000'000) {}
  TermAlgebra algebra;
  std::vector<Term> results;
};

bool reaches(const TermAlgebra& algebra, const std::vector<Term>& roots,
             const std::function<bool(Term)>& what) {
  std::set<std::uint32_t> seen;
  std::vector<Term> stack = roots;
  while (!stack.empty()) {
    const Term t = stack.back();
    stack.pop_back();
    if (!seen.insert(t.id).second) continue;
    if (what(t)) return true;
    switch (algebra.kind(t)) {
      case TermKind::kSum:
      case TermKind::kProduct:
        for (const auto& part : algebra.parts(t)) stack.push_back(part.term);
        break;
      case TermKind::kExp:
      case TermKind::kSqrt:
      case TermKind::kFunction:
      case TermKind::kIndicator:
        for (const Term a : algebra.arguments(t)) stack.push_back(a);
        break;
      default:
        break;
    }
  }
  return false;
}

// A step or a choice that rounding may turn over.
bool onAnEdge(const TermAlgebra& algebra, const TermValues<DoubleAlgebra>& values) {
  return std::any_of(values.known().begin(), values.known().end(), [&](const auto& known) {
    const Term t{known.first};
    return algebra.kind(t) == TermKind::kFunction && algebra.function(t) == ops::Function::kStep &&
           std::abs(values.known().at(algebra.arguments(t)[0].id)) < 1e-9;
  });
}

struct Counts {
  int stages = 0, fingerprints = 0, normalFingerprints = 0, doubles = 0, reducedDims = 0;
  std::set<std::string> operators;
};

void compare(Choices& c, Counts& counts) {
  const RandomStage random(c);
  const ReducedStage reduced = reduceStage(random.stage, ReductionOptions{});
  std::mt19937_64 draw = c.random();
  // One point: integers that the reduced tables tell apart, residues and doubles for the rest.
  std::vector<ModularAlgebra::Element> residues;
  std::vector<double> doubles;
  const auto extend = [&](std::int32_t t) {
    if (random.stage.tensors[static_cast<std::size_t>(t)].info.element == ElementKind::kInteger) {
      const auto& values = reduced.values[static_cast<std::size_t>(t)];
      const std::int64_t i = values.empty() ? 0 : values[draw() % values.size()];
      residues.push_back({static_cast<std::uint64_t>(i), false});
      doubles.push_back(static_cast<double>(i));
    } else {
      residues.push_back({draw() % ModularAlgebra::kPrime, false});
      doubles.push_back(static_cast<double>(static_cast<std::int64_t>(draw() % 4001) - 2000) /
                        1600);
    }
  };
  Terms raw(TermAlgebra::Mode::kRaw), normal(TermAlgebra::Mode::kNormalized);
  for (Terms* terms : {&raw, &normal}) {
    terms->results =
        resultsOf<TermAlgebra>(random, reduced, terms->algebra, [&](std::int32_t t, std::int64_t) {
          if (terms == &raw) extend(t);
          return terms->algebra.variable(
              random.stage.tensors[static_cast<std::size_t>(t)].info.element ==
              ElementKind::kInteger);
        });
  }
  ++counts.stages;
  counts.operators.insert(random.used.begin(), random.used.end());
  for (const auto& dims : reduced.dims)
    counts.reducedDims += std::any_of(dims.begin(), dims.end(),
                                      [](const ops::ReducedDim* d) { return d->reduced(); });

  const auto kind = [&](TermKind k) {
    return reaches(raw.algebra, raw.results, [&](Term t) { return raw.algebra.kind(t) == k; });
  };
  // Also where the root of a constant is folded.
  const bool roots =
      kind(TermKind::kSqrt) ||
      std::any_of(random.used.begin(), random.used.end(), [](const std::string& op) {
        return op.find("sqrt") != std::string::npos || op.find("_norm") != std::string::npos;
      });
  const bool laws = roots || kind(TermKind::kExp) || reaches(raw.algebra, raw.results, [&](Term t) {
                      return raw.algebra.kind(t) == TermKind::kFunction &&
                             raw.algebra.function(t) == ops::Function::kLog;
                    });
  // Constants, which are folded, may come out of a pad; those that are no integers have another
  // order modulo a prime.
  const bool orders =
      random.used.contains("pad") &&
      std::any_of(random.used.begin(), random.used.end(), [](const std::string& op) {
        return op.find("relu") != std::string::npos || op.find("ama") != std::string::npos ||
               op.find("ami") != std::string::npos || op.find("softmax") != std::string::npos ||
               op.find("logsumexp") != std::string::npos ||
               op.find("cross_entropy") != std::string::npos;
      });
  // A root of a residue has either sign, and exp and log are no homomorphisms modulo a prime.
  if (!roots && !orders) {
    ModularAlgebra modular;
    std::size_t next = 0;
    const auto direct = resultsOf<ModularAlgebra>(
        random, reduced, modular, [&](std::int32_t, std::int64_t) { return residues[next++]; });
    for (const Terms* terms : {&raw, &normal}) {
      if (terms == &normal && laws) continue;
      TermValues<ModularAlgebra> values(terms->algebra, modular, residues);
      for (std::size_t i = 0; i < direct.size(); ++i) {
        if (!(values.of(terms->results[i]) == direct[i]))
          RC_FAIL("the fingerprint of " + terms->algebra.toString(terms->results[i], {}) +
                  (terms == &raw ? " (raw)" : " (normal form)"));
        ++(terms == &raw ? counts.fingerprints : counts.normalFingerprints);
      }
    }
  }
  DoubleAlgebra algebra;
  std::size_t next = 0;
  const auto direct = resultsOf<DoubleAlgebra>(
      random, reduced, algebra, [&](std::int32_t, std::int64_t) { return doubles[next++]; });
  for (const Terms* terms : {&raw, &normal}) {
    TermValues<DoubleAlgebra> values(terms->algebra, algebra, doubles);
    std::vector<double> found;
    for (const Term t : terms->results) found.push_back(values.of(t));
    if (onAnEdge(terms->algebra, values))
      return;  // seen in the raw terms; in the normal form it may have been folded
    double largest = 1;
    for (const auto& [id, value] : values.known())
      largest = std::max(largest, std::isnan(value) ? INFINITY : std::abs(value));
    if (!(largest < 1e6) || values.extreme()) continue;  // an exponential that overflows
    for (std::size_t i = 0; i < direct.size(); ++i) {
      if (!std::isfinite(direct[i])) continue;
      if (!(std::abs(found[i] - direct[i]) <= 1e-8 * largest)) {
        RC_FAIL("the value of " + terms->algebra.toString(terms->results[i], {}) +
                (terms == &raw ? " (raw)" : " (normal form)") + ": " + std::to_string(found[i]) +
                ", executed " + std::to_string(direct[i]));
      }
      ++counts.doubles;
    }
  }
}

TEST(RandomStages, TermsFingerprintsAndDoublesAgree) {
  Counts counts;
  int refused = 0;
  EXPECT_TRUE(holds(2000, [&] {
    Choices c = drawChoices(60);
    try {
      compare(c, counts);
    } catch (const Unsupported&) {  // what has no value, or is too large for one term
      ++refused;
    }
  }));
  EXPECT_GT(counts.stages, 1500);
  EXPECT_LT(refused, counts.stages / 4);
  EXPECT_GT(counts.fingerprints, 5000);
  EXPECT_GT(counts.normalFingerprints, 2500);
  EXPECT_GT(counts.doubles, 20000);
  EXPECT_GT(counts.reducedDims, 250);
  EXPECT_GT(counts.operators.size(), 45u);  // with their gradients
}

}  // namespace
}  // namespace shardproof::test
