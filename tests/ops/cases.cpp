// SPDX-License-Identifier: Apache-2.0
#include "cases.h"

namespace shardproof::ops::testing {

std::vector<Call> forwardCalls(Random& random, std::int64_t scale) {
  std::vector<Call> calls;
  const std::int64_t m = scale;
  const auto n = [&](std::int64_t lo = 2, std::int64_t hi = 4) {
    return std::uniform_int_distribution<std::int64_t>(m * lo, m * hi)(random);
  };
  const auto real = [](Shape s) { return OperandSpec{std::move(s)}; };
  const auto positive = [](Shape s) { return OperandSpec{std::move(s), ElementKind::kReal, true}; };
  const auto ids = [](Shape s, std::int64_t values) {
    return OperandSpec{std::move(s), ElementKind::kInteger, false, values};
  };
  const OperandSpec absent{{}, ElementKind::kReal, false, 0, false};
  const auto call = [&](std::string op, Attributes a, std::vector<OperandSpec> in,
                        std::size_t results = 1) {
    calls.push_back({std::move(op), std::move(a), std::move(in), results});
  };
  const auto with = [](Attributes a, const char* key, AttributeValue v) {
    a[key] = std::move(v);
    return a;
  };
  using List = std::vector<std::int64_t>;

  for (const char* op : {"identity", "to", "contiguous"}) {
    call(op, {}, {real({n(), n()})});
    call(op, {}, {ids({n(), n()}, 5)});
  }
  call("identity", {}, {{{n(), n()}, ElementKind::kComplex}});
  call("float", {}, {real({n(), n()})});
  call("multiref", {}, {real({n(), n()})}, 3);
  call("multiref_backward", {}, {real({3 * m, 2}), absent, real({3 * m, 2})});
  call("identity_backward", {}, {real({3 * m, 2})});
  call("identity_backward", {}, {real({3 * m, 2}), real({3 * m, 2})});
  call("float_backward", {}, {real({3 * m, 2}), real({3 * m, 2})});

  for (const char* op : {"add", "sub", "mul", "div"}) {
    const auto y = [&](Shape s) {
      return std::string(op) == "div" ? positive(std::move(s)) : real(std::move(s));
    };
    const std::int64_t a = n(), b = n(), c = n();
    call(op, {}, {real({a, b}), y({a, b})});
    call(op, {}, {real({a, b, c}), y({c})});
    call(op, {}, {real({a, 1, c}), y({b, 1})});
    call(op, {}, {real({}), y({b})});
    call(op, {{"scalar", Rational(5, 3)}}, {real({a, b})});
  }
  call("add", {{"alpha", Rational(-2, 3)}}, {real({2, 3 * m}), real({3 * m})});
  call("sub", {{"alpha", Rational(7, 2)}}, {real({2, 3 * m}), real({2, 1})});
  call("add", {{"alpha", Rational(3)}, {"scalar", Rational(1, 4)}}, {real({2, 3 * m})});
  for (const char* op : {"neg", "exp", "sigmoid", "tanh", "silu", "relu", "square"})
    call(op, {}, {real({n(), n()})});
  for (const char* op : {"sin", "cos", "erf", "floor", "ceil", "round", "trunc"})
    call(op, {}, {real({n(), n()})});
  for (const char* op : {"log", "sqrt", "rsqrt"}) call(op, {}, {positive({n(), n()})});
  call("gelu", {}, {real({n(), n()})});
  call("gelu", {{"approximate", std::string("tanh")}}, {real({n(), n()})});
  for (const std::int64_t halves : {-4, -3, -1, 0, 1, 2, 3, 4, 6})
    call("pow", {{"scalar", Rational(halves, 2)}}, {positive({n(), n()})});
  call("pow", {{"scalar", Rational(3)}}, {real({n(), n()})});
  call("dropout", {{"p", Rational(0)}}, {real({n(), n()})});
  call("dropout", {{"p", Rational(1)}}, {real({n(), n()})});
  call("dropout", {{"p", Rational(1, 10)}, {"seed", Rational(7)}}, {real({n(), n()})});
  call("dropout", {{"p", Rational(1, 10)}}, {real({5, 4}), ids({5, 4}, 3)});
  {
    const std::int64_t a = n(), b = n();
    call("where", {}, {ids({a, b}, 2), real({a, b}), real({a, b})});
    call("where", {}, {ids({b}, 3), real({a, b}), real({})});
    call("where", {}, {real({a, 1}), real({b}), real({a, b})});
  }

  call("view", {{"size", List{2 * m, -1, 4}}}, {real({2 * m, 12 * m})});
  call("view", {{"size", List{2 * m, 12 * m}}}, {real({2 * m, 3 * m, 4})});
  call("reshape", {{"size", List{5 * m, 6 * m * m, 1, 4}}}, {real({5 * m, 2 * m, 1, 3 * m, 4})});
  call("reshape", {{"size", List{4 * m, 6}}}, {real({3 * m, 8})});
  call("view", {{"size", List{1, 6 * m}}}, {ids({2 * m, 3}, 4)});
  call("view", {{"size", List{2 * m, 6}}}, {{{2 * m, 2, 3}, ElementKind::kComplex}});
  call("transpose", numbers({{"dim0", -1}, {"dim1", 0}}), {real({n(), n(), n()})});
  call("transpose", numbers({{"dim0", 1}, {"dim1", 2}}), {real({n(), n(), n(), n()})});
  call("transpose", numbers({{"dim0", 1}, {"dim1", 0}}), {{{n(), n()}, ElementKind::kComplex}});
  call("permute", {{"dims", List{2, 0, -2}}}, {real({n(), n(), n()})});
  call("expand", {{"size", List{3, -1, 4 * m, 2 * m}}}, {real({3 * m, 1, 2 * m})});
  call("expand", {{"size", List{4 * m, 5}}}, {real({1})});
  call("unsqueeze", numbers({{"dim", 1}}), {real({n(), n()})});
  call("unsqueeze", numbers({{"dim", -1}}), {real({n(), n()})});
  call("squeeze", {}, {real({1, 3 * m, 1, 2})});
  call("squeeze", numbers({{"dim", -2}}), {real({1, 3 * m, 1, 2})});
  call("squeeze", {{"dim", List{0, 1}}}, {real({1, 3 * m, 1, 2})});
  call("slice", numbers({{"dim", 1}, {"start", 2 * m}, {"stop", 5 * m}}), {real({n(), 7 * m})});
  call("slice", numbers({{"dim", 0}, {"start", -3}}), {real({7 * m, n()})});
  call("slice", numbers({{"dim", 1}, {"start", 1}, {"stop", 100}, {"step", 2}}),
       {real({n(), 7 * m})});
  call("slice", numbers({{"dim", 1}, {"stop", 3 * m}}), {{{2, 5 * m}, ElementKind::kComplex}});
  call("select", numbers({{"dim", 1}, {"index", -2}}), {real({n(), 5 * m, n()})});
  call("cat", numbers({{"dim", 1}}),
       {real({2 * m, 3 * m}), real({2 * m, 1}), real({2 * m, 5 * m})});
  call("cat", numbers({{"dim", -2}}), {real({2 * m, 3 * m}), real({4 * m, 3 * m})});
  call("cat", numbers({{"dim", 0}}), {ids({2 * m, 3}, 5), ids({4 * m, 3}, 5)});
  call("pad", {{"pad", List{1, 2}}}, {real({n(), 4 * m})});
  call("pad", {{"pad", List{0, 2, 3, 0}}, {"value", Rational(5, 2)}}, {real({4 * m, 3 * m})});
  call("chunk", numbers({{"dim", 1}, {"parts", 3}, {"index", 1}}), {real({n(), 6 * m, n()})});
  call("chunk", numbers({{"dim", -1}, {"parts", 2}, {"index", 1}}), {ids({n(), 6 * m}, 4)});

  for (const char* op : {"sum", "mean", "amax", "amin", "logsumexp"}) {
    call(op, {{"dim", List{1}}, {"keepdim", true}}, {real({n(), n(), n()})});
    call(op, {{"dim", List{0, -1}}}, {real({n(), n(), n()})});
    call(op, numbers({{"dim", 0}}), {real({n()})});
    if (std::string(op) != "logsumexp") call(op, {}, {real({n(), n()})});
  }

  {
    const std::int64_t a = n(), b = n(), k = n(), o = n();
    call("linear", {}, {real({a, b, k}), real({o, k})});
    call("linear", {}, {real({a, k}), real({o, k}), real({o})});
    call("linear", {}, {real({k}), real({o, k}), absent});
    call("matmul", {}, {real({a, k}), real({k, o})});
    call("matmul", {}, {real({a, b, k, 3}), real({a, b, 3, o})});
    call("matmul", {}, {real({a, 1, b, k}), real({o, k, 2})});
    call("matmul", {}, {real({k}), real({a, k, o})});
    call("matmul", {}, {real({a, b, k}), real({k})});
    call("matmul", {}, {real({k}), real({k})});
    call("einsum", {{"equation", std::string("bik, bkj -> bji")}},
         {real({a, b, k}), real({a, k, o})});
    call("einsum", {{"equation", std::string("ij,jk,k->i")}},
         {real({a, b}), real({b, k}), real({k})});
    call("einsum", {{"equation", std::string("ij,kl->")}}, {real({a, b}), real({k, o})});
  }

  for (const char* op : {"softmax", "log_softmax"}) {
    call(op, numbers({{"dim", -1}}), {real({n(), n(), n()})});
    call(op, numbers({{"dim", 0}}), {real({n(), n()})});
  }
  for (const char* op : {"layer_norm", "rms_norm"}) {
    const std::int64_t d = n(3, 5);
    call(op, {{"eps", Rational(1, 100)}}, {real({n(), n(), d}), real({d})});
    call(op, {{"eps", Rational(1, 100)}}, {real({n(), d}), real({d}), real({d})});
  }

  call("embedding", {}, {ids({n(), n()}, 5 * m), real({5 * m, n()})});
  call("embedding", numbers({{"start", 3}, {"stop", 3 + 4 * m}}),
       {ids({n(), n()}, 5 + 4 * m), real({4 * m, n()})});
  call("create_mask", {}, {ids({n(), n()}, 5), real({n(), n()})});
  {
    const std::int64_t b = n(), h = n(), s = n();
    call("apply_mask", {}, {real({b, h, s, s}), real({1, 1, s, s})});
    call("apply_rotary_emb", {},
         {real({b, s, h, 6 * m}), real({b, s, 1, 6 * m}), {{s, 3 * m}, ElementKind::kComplex}}, 2);
  }
  {
    const std::int64_t b = n(), h = n(), s = n(), t = n(), d = n(), w = n();
    call("attention", {}, {real({s, d}), real({t, d}), real({t, w})}, 2);
    call("attention", {{"scale", Rational(1, 3)}},
         {real({b, h, s, d}), real({b, 1, t, d}), real({h, t, w}), real({1, 1, s, t})}, 2);
    call("attention", {}, {real({h, s, d}), real({t, d}), real({h, t, w}), real({h, s, 1})}, 2);
  }
  call("topk", numbers({{"topk", 2}}), {real({3 * m, 4 * m})}, 2);
  {
    Attributes least = numbers({{"topk", 3}});
    least["largest"] = false;
    call("topk", least, {real({2, 3 * m, 5})}, 2);
  }
  const auto gate = [](const char* f, std::int64_t groups, std::int64_t best, std::int64_t topk) {
    Attributes a = numbers({{"n_groups", groups}, {"topk_groups", best}, {"topk", topk}});
    a["score_func"] = std::string(f);
    a["route_scale"] = Rational(5, 2);
    return a;
  };
  for (const char* f : {"softmax", "sigmoid"}) {
    call("moe_gate", gate(f, 1, 1, 2), {real({3 * m, 4 * m}), real({4, 4 * m})}, 2);
    call("moe_gate", gate(f, 3, 2, 3), {real({3 * m, 4 * m}), real({6, 4 * m}), real({6})}, 2);
    call("moe_gate", gate(f, 2, 1, 2), {real({4 * m, 3 * m}), real({4, 3 * m})}, 2);
  }
  for (const auto& [start, end] : {std::pair{0 * m, 4 * m}, std::pair{1 * m, 3 * m}}) {
    const std::int64_t e = end - start;
    call("moe_experts",
         numbers({{"n_routed_experts", 4 * m},
                  {"local_expert_start", start},
                  {"local_expert_end", end}}),
         {real({3 * m, 4 * m}), ids({3 * m, 2}, 4 * m), real({3 * m, 2}), real({e, 3 * m, 4 * m}),
          real({e, 3 * m, 4 * m}), real({e, 4 * m, 3 * m})});
  }
  for (const char* r : {"mean", "sum", "none"})
    call("cross_entropy", with({}, "reduction", std::string(r)),
         {real({n(), n(), 5 * m}), OperandSpec{}});
  for (std::size_t i = calls.size() - 3; i < calls.size(); ++i) {
    Shape lead = calls[i].in[0].shape;
    lead.pop_back();
    calls[i].in[1] = ids(lead, 5 * m);
  }

  call("one_hot", numbers({{"start", 0}, {"stop", 5 * m}}), {ids({n(), n()}, 5 * m)});
  call("one_hot", numbers({{"start", 2}, {"stop", 2 + 2 * m}}), {ids({n()}, 4 + 2 * m)});

  call("grad_norm", {}, {positive({n(), n()})});
  call("grad_norm", {}, {positive({n()})});
  call("clip_grad", {{"max_norm", Rational(1, 2)}}, {real({n(), n()}), positive({})});
  call("clip_grad", {{"max_norm", Rational(50)}, {"eps", Rational(1, 10)}},
       {real({n(), n()}), positive({1})});
  {
    const Shape p{n(), n()};
    const Attributes lr{{"lr", Rational(1, 8)}};
    call("sgd", lr, {real(p), real(p)});
    call("sgd", with(with(lr, "momentum", Rational(9, 10)), "weight_decay", Rational(1, 100)),
         {real(p), real(p), real(p)}, 2);
    call("sgd", with(with(lr, "momentum", Rational(9, 10)), "nesterov", true),
         {real(p), real(p), real(p)}, 2);
    call("adamw", with(lr, "step", Rational(1)), {real(p), real(p), real(p), positive(p)}, 3);
    call("adamw", with(with(lr, "step", Rational(7)), "eps", Rational(1, 100)),
         {real(p), real(p), real(p), positive(p)}, 3);
  }
  return calls;
}

bool hasBackward(const Call& forward) {
  if (forward.op.ends_with("_backward") || forward.op == "multiref") return false;
  return Registry::instance().find(forward.op + "_backward").valid() &&
         inferResults(forward)[0].element == ElementKind::kReal;
}

Call backwardCall(const Call& forward) {
  Call b{forward.op + "_backward", forward.attributes, {}, forward.in.size()};
  for (const TensorInfo& r : inferResults(forward)) {
    OperandSpec g{r.shape};
    g.present = r.element == ElementKind::kReal;
    b.in.push_back(g);
  }
  b.in.insert(b.in.end(), forward.in.begin(), forward.in.end());
  return b;
}

std::vector<TensorInfo> infosOf(const Call& call) {
  std::vector<TensorInfo> infos;
  for (const OperandSpec& o : call.in) infos.push_back({o.shape, o.element});
  return infos;
}

std::vector<const TensorInfo*> pointers(const Call& call, const std::vector<TensorInfo>& infos) {
  std::vector<const TensorInfo*> p;
  for (std::size_t i = 0; i < infos.size(); ++i)
    p.push_back(call.in[i].present ? &infos[i] : nullptr);
  return p;
}

std::vector<TensorInfo> inferResults(const Call& call) {
  const OperatorInfo& op = Registry::instance().at(Registry::instance().find(call.op));
  op.validate(call.attributes, call.in.size(), call.results);
  const std::vector<TensorInfo> infos = infosOf(call);
  const std::vector<const TensorInfo*> in = pointers(call, infos);
  return op.infer(Signature{call.attributes, in, call.results});
}

TensorValue<RealNumbers> randomTensor(const OperandSpec& spec, Random& random) {
  TensorValue<RealNumbers> t;
  t.element = spec.element;
  for (const std::int64_t n : spec.shape) t.dims.push_back(ReducedDim::whole(n));
  std::uniform_real_distribution<double> real(-1.5, 1.5), positive(0.5, 2);
  for (std::int64_t i = 0; i < t.positions() * t.planes(); ++i) {
    if (spec.element == ElementKind::kInteger)
      t.data.push_back(static_cast<double>(
          std::uniform_int_distribution<std::int64_t>(0, spec.values - 1)(random)));
    else t.data.push_back(spec.positive ? positive(random) : real(random));
  }
  return t;
}

std::vector<TensorValue<RealNumbers>> randomOperands(const Call& call, Random& random) {
  std::vector<TensorValue<RealNumbers>> operands;
  for (const OperandSpec& o : call.in)
    operands.push_back(o.present ? randomTensor(o, random) : TensorValue<RealNumbers>{});
  return operands;
}

}  // namespace shardproof::ops::testing
