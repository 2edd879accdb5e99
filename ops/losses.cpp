// SPDX-License-Identifier: Apache-2.0
// cross_entropy (torch.nn.functional.cross_entropy with class indices, without weights or label
// smoothing).
#include <stdexcept>

#include "ops/definition.h"

namespace shardproof::ops {
namespace {

// logits [..., V], labels [...] (integers in [0, V)) -> log(sum_v exp(x_v)) - x_label at each
// position; `reduction`: mean (default) or sum over all positions, or none. The classes are the
// last dimension (PyTorch has them second, which is the same for [N, V]). x_label is sum_v [label =
// v] x_v. The labels must be classes, and there is no value where one is not: the loss is
// multiplied by s / s, where s = sum_v [label = v] is 1 or 0. PyTorch's ignore_index is not part of
// this operator.
struct CrossEntropy {
  static Interface interface() {
    return {.name = "cross_entropy",
            .attributes = {{.key = "reduction",
                            .type = AttributeType::kText,
                            .choices = {"mean", "sum", "none"}}},
            .minOperands = 2,
            .maxOperands = 2,
            .scalarMayBeOne = true,
            .traits = {.total = true},
            .finiteGradient = true};
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needReal(s, 0);
    needInteger(s, 1);
    const Shape& x = shapeOf(s, 0);
    if (x.empty()) throw ShapeError("operand 0 has shape [], expected [..., V]");
    const Shape lead(x.begin(), x.end() - 1);
    if (shapeOf(s, 1) != lead)
      throw ShapeError("the labels have shape " + toText(shapeOf(s, 1)) + ", expected " +
                       toText(lead));
    return {TensorInfo{text(s.attributes, "reduction", "mean") == "none" ? lead : Shape{}}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const std::size_t rank = shapeOf(s, 1).size();
    const bool none = text(s.attributes, "reduction", "mean") == "none";
    for (std::size_t d = 0; d < rank; ++d) {
      relations.equal(ref(0, d), ref(1, d));
      if (none) relations.equal(ref(1, d), ref(slotOfResult(s, 0), d));
      else relations.summed(ref(0, d));
    }
    relations.range({1, kValues}, 0, ref(0, rank));
    relations.summed(ref(0, rank));
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    using Element = typename A::Element;
    A& a = e.algebra;
    const TensorValue<A>&x = *e.in[0], &labels = *e.in[1];
    TensorValue<A>& out = *e.out[0];
    expectDims(labels.dims, std::span(x.dims).first(x.dims.size() - 1));
    const ReducedDim& classes = x.dims.back();
    const std::vector<std::int64_t> weights = weightsOf(std::span(&classes, 1));
    const auto size = static_cast<std::size_t>(classes.size());
    std::vector<Element> losses, exps(size), isLabel(size), chosen(size);
    for (std::size_t n = 0; n < labels.data.size(); ++n) {
      for (std::size_t v = 0; v < size; ++v) {
        const Element& logit = x.data[n * size + v];
        exps[v] = a.exp(logit);
        isLabel[v] = a.indicator(labels.data[n], classes.position[v]);
        chosen[v] = a.select(isLabel[v], logit);
      }
      const std::array<Element, 1> total{weightedSum(a, exps, weights)};
      const Element log = a.apply(Function::kLog, {}, std::span<const Element>(total));
      const Element isClass = weightedSum(a, isLabel, weights);
      losses.push_back(a.mul(subtract(a, log, weightedSum(a, chosen, weights)),
                             a.mul(isClass, a.power(isClass, -2))));
    }
    const std::string reduction = text(e.attributes, "reduction", "mean");
    if (reduction == "none" && !labels.dims.empty()) {
      expectDims(out.dims, labels.dims);
      out.data = std::move(losses);
      return;
    }
    if (out.dims.size() == 1) expectDim(out.dims[0], ReducedDim{});
    else expectDims(out.dims, {});
    Element loss = weightedSum(a, losses, weightsOf(labels.dims));
    if (reduction == "mean") {
      std::int64_t full = 1;
      for (const ReducedDim& d : labels.dims) full = checkedProduct(full, d.full);
      loss = a.scale(Rational(1, full), loss);
    }
    out.data.assign(1, loss);
  }
};

}  // namespace

void defineLosses(Catalog& catalog) { define<CrossEntropy>(catalog); }

}  // namespace shardproof::ops
