// SPDX-License-Identifier: Apache-2.0
#include "adversary/families/random_graph.h"

#include <algorithm>

namespace shardproof::adversary {
namespace {

using ops::testing::Call;
using ops::testing::numbers;
using ops::testing::OperandSpec;
using List = std::vector<std::int64_t>;

std::int64_t elementsOf(const Shape& s) {
  std::int64_t n = 1;
  for (const std::int64_t d : s) n *= d;
  return n;
}

}  // namespace

BuilderOptions randomOptions(Random& random) {
  BuilderOptions o;
  const std::int64_t axes = random.between(0, 3);
  std::int64_t ranks = 1;
  for (std::int64_t a = 0; a < axes; ++a) {
    const std::int64_t n = random.pick({1, 2, 2, 2, 3, 4, 4, 6, 8});
    if (ranks * n > 12) continue;
    ranks *= n;
    o.mesh.push_back(n);
  }
  o.microbatches = random.pick({1, 1, 2, 2, 3, 4});
  o.issueOrder = random.chance(15);
  o.cutPoints = random.pick({0, 30, 60, 100});
  o.cut = random.pick({30, 60, 90});
  return o;
}

int RandomGraph::somewhere() {
  if (builder_.size() == 0) return operand({{random_.pick({2, 4, 8}), random_.pick({3, 4, 6})}});
  return random_.chance(80) && !made_.empty() ? random_.pick(made_)
                                              : static_cast<int>(random_.below(builder_.size()));
}

int RandomGraph::apply(const Call& call, const std::vector<int>& operands) {
  const std::vector<int> results = builder_.apply(call, operands);
  int first = -1;
  for (const int r : results) {
    if (r >= 0) made_.push_back(r);
    if (first < 0) first = r;
  }
  calls_.push_back({call, operands, results});
  return first;
}
int RandomGraph::positive(int t) {  // something that roots and logarithms exist of, mostly
  if (random_.chance(10)) return t;
  if (random_.chance(50)) return unary("exp", t);
  const int square = unary("square", t);
  Call call{"add", {{"scalar", Rational(random_.between(1, 4), 4)}}, {spec(square)}, 1};
  return apply(call, {square});
}
int RandomGraph::unary(const std::string& op, int t, Attributes attributes) {
  return apply({op, std::move(attributes), {spec(t)}, 1}, {t});
}

int RandomGraph::operand(const OperandSpec& wanted) {
  if (!wanted.present) return -1;
  std::vector<int> fitting;
  for (int t = 0; t < builder_.size(); ++t)
    if (builder_.info(t).shape == wanted.shape && builder_.info(t).element == wanted.element)
      fitting.push_back(t);
  if (!fitting.empty() && random_.chance(60)) return random_.pick(fitting);
  if (wanted.element == ElementKind::kReal && random_.chance(10))
    return builder_.constant(wanted.shape);
  return builder_.input(wanted.shape, wanted.element, random_.chance(40));
}

void RandomGraph::listed(const std::string& name) {
  std::mt19937_64 engine(random_.next());
  const auto calls = ops::testing::forwardCalls(engine, random_.pick({1, 2, 2, 4}));
  Call call = calls[random_.index(calls.size())];
  for (int attempt = 0; !name.empty() && call.op != name && attempt < 2000; ++attempt)
    call = calls[random_.index(calls.size())];
  if (ops::testing::hasBackward(call) && random_.chance(35))
    call = ops::testing::backwardCall(call);
  for (const OperandSpec& o : call.in)
    if (elementsOf(o.shape) > 3000) return;
  std::vector<int> operands;
  for (const OperandSpec& o : call.in) {
    int t = operand(o);
    if (o.positive && t >= 0 && random_.chance(80)) t = positive(t);
    operands.push_back(t);
  }
  apply(call, operands);
}

void RandomGraph::gradient() {
  const Applied from = random_.pick(calls_);
  if (!ops::testing::hasBackward(from.call)) return;
  const Call call = ops::testing::backwardCall(from.call);
  std::vector<int> operands;
  for (std::size_t i = 0; i < call.in.size(); ++i)
    operands.push_back(i < call.in.size() - from.operands.size()
                           ? operand(call.in[i])
                           : from.operands[i - (call.in.size() - from.operands.size())]);
  apply(call, operands);
}

void RandomGraph::onWhatIsThere() {
  const int t = somewhere();
  const ops::TensorInfo info = builder_.info(t);
  if (info.element != ElementKind::kReal || elementsOf(info.shape) > 1500) return;
  const Shape& s = info.shape;
  const std::int64_t rank = static_cast<std::int64_t>(s.size());
  const std::int64_t dim = rank > 0 ? random_.below(rank) : 0;
  const auto size = [&](std::int64_t d) { return s[static_cast<std::size_t>(d)]; };
  switch (random_.below(rank == 0 ? 3 : 14)) {
    case 0:
      unary(random_.pick(unaryOperators()), t);
      break;
    case 1: {
      const char* op = random_.pick({"log", "sqrt", "rsqrt"});
      unary(op, positive(t));
      break;
    }
    case 2:
      binary(t);
      break;
    case 3: {
      const char* op = random_.pick({"sum", "mean", "amax", "amin", "logsumexp"});
      Attributes a{{"dim", List{dim}}, {"keepdim", random_.chance(50)}};
      if (random_.chance(20) && op != std::string("logsumexp")) a = {};
      unary(op, t, a);
      break;
    }
    case 4:
      unary(random_.pick({"softmax", "log_softmax"}), t, numbers({{"dim", dim}}));
      break;
    case 5:
      unary("transpose", t, numbers({{"dim0", dim}, {"dim1", random_.below(rank)}}));
      break;
    case 6: {  // neighbouring dimensions become one, or one becomes two
      List to(s.begin(), s.end());
      if (dim + 1 < rank && random_.chance(50)) {
        to[static_cast<std::size_t>(dim)] *= size(dim + 1);
        to.erase(to.begin() + dim + 1);
      } else {
        const std::int64_t factor = size(dim) % 4 == 0   ? 4
                                    : size(dim) % 3 == 0 ? 3
                                    : size(dim) % 2 == 0 ? 2
                                                         : 1;
        to[static_cast<std::size_t>(dim)] /= factor;
        to.insert(to.begin() + dim + (random_.chance(50) ? 1 : 0), factor);
      }
      unary(random_.pick({"view", "reshape"}), t, {{"size", to}});
      break;
    }
    case 7: {
      const std::int64_t start = random_.below(size(dim)),
                         stop = random_.between(start + 1, size(dim)),
                         step = random_.chance(70) ? 1 : random_.between(1, 3);
      unary("slice", t, numbers({{"dim", dim}, {"start", start}, {"stop", stop}, {"step", step}}));
      break;
    }
    case 8: {
      Call call{"cat", numbers({{"dim", dim}}), {spec(t), spec(t)}, 1};
      apply(call, {t, operand(spec(t))});
      break;
    }
    case 9: {
      List pad{random_.below(3), random_.below(3)};
      unary("pad", t, {{"pad", pad}, {"value", Rational(random_.between(-1, 2))}});
      break;
    }
    case 10: {
      const std::int64_t n = random_.pick({2, 4, 6});
      const OperandSpec w{{n, s.back()}};
      apply({"linear", {}, {spec(t), w}, 1}, {t, operand(w)});
      break;
    }
    case 11: {
      const OperandSpec w{{s.back()}};
      apply(
          {random_.pick({"layer_norm", "rms_norm"}), {{"eps", Rational(1, 100)}}, {spec(t), w}, 1},
          {t, operand(w)});
      break;
    }
    case 12: {
      if (rank < 2) return;
      const OperandSpec ids{{s.begin(), s.end() - 1}, ElementKind::kInteger, false, s.back()};
      apply({"cross_entropy",
             {{"reduction", std::string(random_.pick({"mean", "sum", "none"}))}},
             {spec(t), ids},
             1},
            {t, operand(ids)});
      break;
    }
    default: {
      if (rank < 2) return;
      Shape swapped = s;
      std::swap(swapped[s.size() - 1], swapped[s.size() - 2]);
      const int other = random_.chance(50)
                            ? unary("transpose", t, numbers({{"dim0", -1}, {"dim1", -2}}))
                            : operand({swapped});
      apply({"matmul", {}, {spec(t), spec(other)}, 1}, {t, other});
      break;
    }
  }
}

void RandomGraph::binary(int t) {
  const char* op = random_.pick({"add", "sub", "mul", "div", "add", "mul"});
  if (random_.chance(25)) {
    unary(op, t, {{"scalar", Rational(random_.pick({-3, -1, 2, 3, 5}), random_.pick({1, 2, 4}))}});
    return;
  }
  OperandSpec other = spec(t);
  if (random_.chance(40)) {
    const std::size_t kept = random_.index(other.shape.size() + 1);
    other.shape.erase(other.shape.begin(), other.shape.end() - static_cast<std::ptrdiff_t>(kept));
    for (std::int64_t& n : other.shape)
      if (random_.chance(25)) n = 1;
  }
  int o = operand(other);
  if (op == std::string("div")) o = positive(o);
  std::vector<int> operands{t, o};
  if (random_.chance(20) && builder_.info(t).shape == builder_.info(o).shape)
    std::swap(operands[0], operands[1]);
  apply({op, {}, {spec(operands[0]), spec(operands[1])}, 1}, operands);
}

void RandomGraph::elementwise() {
  const int t = somewhere();
  if (builder_.info(t).element != ElementKind::kReal) return;
  if (random_.chance(60)) unary(random_.pick(unaryOperators()), t);
  else binary(t);
}

// q k^T / scale + mask, exp or softmax of it, times v.
void RandomGraph::attention() {
  const std::int64_t b = random_.pick({1, 2}), h = random_.pick({1, 2, 4}),
                     s = random_.pick({2, 3, 4, 6, 8}), d = random_.pick({1, 2, 4});
  const OperandSpec tokens{{b, s}, ElementKind::kInteger, false, 4};
  Call create{"create_mask", {}, {tokens}, 1};
  std::vector<int> given{operand(tokens)};
  if (random_.chance(40)) {
    create.in.push_back(spec(given[0]));
    given.push_back(given[0]);
  }
  const int mask = apply(create, given);
  const int q = operand({{b, h, s, d}}), k = operand({{b, h, s, d}});
  const int kt = unary("transpose", k, numbers({{"dim0", 2}, {"dim1", 3}}));
  int scores = apply({"matmul", {}, {spec(q), spec(kt)}, 1}, {q, kt});
  if (random_.chance(40)) scores = unary("div", scores, {{"scalar", Rational(2)}});
  const int masked = apply({"apply_mask", {}, {spec(scores), spec(mask)}, 1}, {scores, mask});
  const char* kind = random_.pick({"softmax", "softmax", "exp", "log_softmax", "logsumexp"});
  if (kind == std::string("softmax") || kind == std::string("exp")) {
    const int p =
        unary(kind, masked, kind == std::string("softmax") ? numbers({{"dim", -1}}) : Attributes{});
    const int v = operand({{b, h, s, d}});
    apply({"matmul", {}, {spec(p), spec(v)}, 1}, {p, v});
    if (random_.chance(30)) gradient();
  } else if (kind == std::string("logsumexp")) {
    unary(kind, masked, {{"dim", List{3}}});
  } else {
    unary(kind, masked, numbers({{"dim", -1}}));
  }
}

void RandomGraph::experts() {
  const std::int64_t n = random_.pick({2, 4, 6}), d = random_.pick({2, 4}),
                     e = random_.pick({2, 4, 4, 8}), f = random_.pick({2, 4}),
                     topk = random_.between(1, std::min<std::int64_t>(e, 3));
  const int x = operand({{n, d}}), w = operand({{e, d}});
  Attributes a = numbers({{"topk", topk}});
  a["score_func"] = std::string(random_.pick({"softmax", "sigmoid"}));
  if (random_.chance(30)) a["route_scale"] = Rational(5, 2);
  if (e == 4 && topk <= 2 && random_.chance(30)) {
    a["n_groups"] = Rational(2);
    a["topk_groups"] = Rational(random_.between(1, 2));
  }
  Call gate{"moe_gate", a, {spec(x), spec(w)}, 2};
  std::vector<int> operands{x, w};
  if (random_.chance(30)) {
    gate.in.push_back({{e}});
    operands.push_back(operand({{e}}));
  }
  const int weights = apply(gate, operands), indices = weights + 1;
  const int g = operand({{e, f, d}}), u = operand({{e, f, d}}), down = operand({{e, d, f}});
  Call call{"moe_experts",
            numbers({{"n_routed_experts", e}, {"local_expert_start", 0}, {"local_expert_end", e}}),
            {spec(x), spec(indices), spec(weights), spec(g), spec(u), spec(down)},
            1};
  apply(call, {x, indices, weights, g, u, down});
  if (random_.chance(30)) gradient();
}

void RandomGraph::lookup() {
  const std::int64_t v = random_.pick({2, 4, 6, 8}), d = random_.pick({2, 4});
  const Shape shape = random_.chance(50) ? Shape{random_.pick({2, 4, 6})}
                                         : Shape{random_.pick({1, 2}), random_.pick({2, 4})};
  const OperandSpec ids{shape, ElementKind::kInteger, false, v};
  const int i = operand(ids);
  switch (random_.below(3)) {
    case 0: {
      Attributes a;
      if (random_.chance(40)) a = numbers({{"start", 1}, {"stop", v + 1}});
      const int table = operand({{v, d}});
      apply({"embedding", a, {spec(i), spec(table)}, 1}, {i, table});
      if (random_.chance(40)) gradient();
      break;
    }
    case 1: {
      const int hot = apply({"one_hot", numbers({{"start", 0}, {"stop", v}}), {spec(i)}, 1}, {i});
      const int table = operand({{v, d}});
      apply({"matmul", {}, {spec(hot), spec(table)}, 1}, {hot, table});
      break;
    }
    default: {
      Shape logits = shape;
      logits.push_back(v);
      const int x = operand({logits});
      apply({"cross_entropy",
             {{"reduction", std::string(random_.pick({"mean", "sum", "none"}))}},
             {spec(x), spec(i)},
             1},
            {x, i});
      if (random_.chance(50)) gradient();
    }
  }
}

void RandomGraph::dropped() {
  const int t = somewhere();
  if (builder_.info(t).element != ElementKind::kReal || builder_.info(t).shape.empty()) return;
  const Rational p(random_.pick({1, 2, 5}), 10);
  if (random_.chance(70)) {
    unary("dropout", t, {{"p", p}, {"seed", Rational(random_.below(3))}});
  } else {
    const OperandSpec mask{builder_.info(t).shape, ElementKind::kInteger, false, 2};
    apply({"dropout", {{"p", p}}, {spec(t), mask}, 1}, {t, operand(mask)});
  }
  if (random_.chance(30)) gradient();
}

}  // namespace shardproof::adversary
