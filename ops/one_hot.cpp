// SPDX-License-Identifier: Apache-2.0
// one_hot: labels to indicators, over the whole vocabulary or a window of it
// (torch.nn.functional.one_hot of ids - start, where ids outside the window give zeros, as in
// Megatron-LM's vocabulary-parallel cross entropy).
#include <stdexcept>

#include "ops/definition.h"

namespace shardproof::ops {
namespace {

// ids [...] -> [..., stop - start]: 1 where ids = start + position, else 0. Errors: ids that are
// not integers, an empty window.
struct OneHot {
  static Interface interface() {
    Interface i{.name = "one_hot",
                .attributes = {{.key = "start", .required = true, .min = Rational(0)},
                               {.key = "stop", .required = true, .min = Rational(1)}},
                .differentiable = false,
                .traits = {.total = true, .sign = Sign::kNotNegative}};
    i.check = [](const Attributes& attributes, std::size_t, std::size_t) {
      if (integer(attributes, "start") >= integer(attributes, "stop"))
        throw std::invalid_argument(
            "attribute 'stop': found " + std::to_string(integer(attributes, "stop")) +
            ", expected more than 'start', " + std::to_string(integer(attributes, "start")));
    };
    return i;
  }
  static std::vector<TensorInfo> infer(const Signature& s) {
    needInteger(s, 0);
    Shape shape = shapeOf(s, 0);
    shape.push_back(integer(s.attributes, "stop") - integer(s.attributes, "start"));
    return {TensorInfo{std::move(shape)}};
  }
  static void relate(const Signature& s, std::span<const TensorInfo* const>, Relations& relations) {
    const std::size_t rank = shapeOf(s, 0).size();
    for (std::size_t d = 0; d < rank; ++d) relations.equal(ref(0, d), ref(slotOfResult(s, 0), d));
    relations.range({0, kValues}, integer(s.attributes, "start"), ref(slotOfResult(s, 0), rank));
  }
  template <class A>
  static void eval(Evaluation<A>& e) {
    const TensorValue<A>& ids = *e.in[0];
    TensorValue<A>& out = *e.out[0];
    expectDims(std::span(out.dims).first(out.dims.size() - 1), ids.dims);
    const std::int64_t start = integer(e.attributes, "start");
    out.data.clear();
    for (const auto& id : ids.data)
      for (const std::int64_t position : out.dims.back().position)
        out.data.push_back(e.algebra.indicator(id, start + position));
  }
};

}  // namespace

void defineOneHot(Catalog& catalog) { define<OneHot>(catalog); }

}  // namespace shardproof::ops
