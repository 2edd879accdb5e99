// SPDX-License-Identifier: Apache-2.0
// The training step (docs/operators.md, "Training step").
#include "unreduced/definitions.h"

namespace shardproof::unreduced {
namespace {

const Rational kOne(1);

}  // namespace

void defineTraining(DefinitionTable& table) {
  table.add("grad_norm", [](const auto& n, std::size_t, Index) {
    auto sum = n.sum();
    for (Index i = 0; i < elementsOf(n.shape(0)); ++i) {
      const auto g = n.in(0, i);
      sum.add(g * g);
    }
    return sum.value().power(1);
  });
  table.add("clip_grad", [](const auto& n, std::size_t, Index i) {
    const auto shifted =
        n.in(1, 0) + n.constant(ops::number(n.attributes(), "eps", Rational(1, 1000000)));
    auto factor = shifted.power(-2).times(ops::number(n.attributes(), "max_norm"));
    const decltype(factor.value) candidates[] = {factor.of(1).value, factor.value};
    factor.value = n.algebra().apply(ops::Function::kMinimum, {}, candidates);
    return n.in(0, i) * factor;
  });
  table.add("sgd", [](const auto& n, std::size_t r, Index i) {
    const Attributes& a = n.attributes();
    const Rational momentum = ops::number(a, "momentum", Rational(0));
    const auto p = n.in(0, i);
    auto d = n.in(1, i) + p.times(ops::number(a, "weight_decay", Rational(0)));
    if (n.has(2)) {
      const auto buffer =
          n.in(2, i).times(momentum) + d.times(kOne - ops::number(a, "dampening", Rational(0)));
      if (r == 1) return buffer;
      d = ops::flag(a, "nesterov", false) ? d + buffer.times(momentum) : buffer;
    }
    return p - d.times(ops::number(a, "lr"));
  });
  table.add("adamw", [](const auto& n, std::size_t r, Index i) {
    const Attributes& a = n.attributes();
    const Rational beta1 = ops::number(a, "beta1", Rational(9, 10)),
                   beta2 = ops::number(a, "beta2", Rational(999, 1000)), lr = ops::number(a, "lr");
    const Index step = ops::integer(a, "step");
    const auto p = n.in(0, i), g = n.in(1, i);
    const auto mean = n.in(2, i).times(beta1) + g.times(kOne - beta1),
               square = n.in(3, i).times(beta2) + (g * g).times(kOne - beta2);
    if (r > 0) return r == 1 ? mean : square;
    const auto root = square.times((kOne - beta2.pow(step)).inverse()).power(1) +
                      n.constant(ops::number(a, "eps", Rational(1, 100000000)));
    const auto update = mean.times((kOne - beta1.pow(step)).inverse() * lr) * root.power(-2);
    return p.times(kOne - lr * ops::number(a, "weight_decay", Rational(1, 100))) - update;
  });
}

}  // namespace shardproof::unreduced
