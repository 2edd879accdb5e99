// SPDX-License-Identifier: Apache-2.0
// One operator on arrays: its kernel, and what it may not be applied to.
#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "executor/call.h"
#include "executor/floating_point_guard.h"
#include "executor/setup.h"
#include "ops/registry.h"

namespace shardproof::executor {

// By the registry's ids.
template <class T>
const std::vector<Kernel<T>>& kernels() {
  static const std::vector<Kernel<T>> table = [] {
    std::vector<Kernel<T>> k;
    const ops::Registry& registry = ops::Registry::instance();
    for (std::size_t i = 0; i < registry.size(); ++i)
      k.push_back(findKernel<T>(registry.at(OperatorId(static_cast<std::int64_t>(i))).name));
    return k;
  }();
  return table;
}

template <class T>
class OperatorRun {
 public:
  OperatorRun(const Problem& problem, Memory& memory, Context& context,
              FloatingPointGuard<T>& guard)
      : problem_(problem), memory_(memory), context_(context), guard_(guard) {}

  // What apply() reads and yields.
  std::vector<const Value<T>*> in;
  std::vector<Value<T>> out;

  // `mask`: an operand to be added.
  void apply(const Graph& graph, const Node& node, const NodeView& view, const Value<T>* mask) {
    const Kernel<T> kernel = kernels<T>()[node.op.index()];
    const std::string& name = ops::Registry::instance().at(node.op).name;
    out.clear();
    out.resize(std::max<std::size_t>(view.out.size(), 6));  // kernels may fill all that they have
    wanted_.clear();
    for (const TensorId t : view.out) wanted_.push_back(t >= 0);
    std::shared_ptr<const std::string> unknown;
    for (const Value<T>* v : in)
      if (v != nullptr && v->unknown) unknown = v->unknown;
    if (mask != nullptr) {
      if (mask->unknown) unknown = mask->unknown;
      const std::size_t place = name.ends_with("_backward") ? 2 : 1;
      in.resize(std::max(in.size(), place + 1), nullptr);
      in[place] = mask;
    }
    if (kernel == nullptr) throw std::logic_error("no kernel for operator '" + name + "'");
    Call<T> call{context_, problem_.attributes.at(view.attributes), in, wanted_, out};
    try {
      kernel(call);
    } catch (const NoMeaning& nothing) {
      fillUnknown(graph, view, name + ": " + nothing.what());
      return;
    }
    if (unknown)
      for (Value<T>& v : out) v.unknown = unknown;
    if (std::any_of(in.begin(), in.end(),
                    [](const Value<T>* v) { return v != nullptr && v->masked; }) ||
        name == "create_mask")
      guard_.refusePlusInfinity(out);
    if (name == "sigmoid" || name == "tanh") guard_.countSaturated(out[0]);
    if (!guard_.measures) return;
    guard_.refuseSingularity(name, call.attributes, in, out);
    guard_.measureResults(in, out);
    if (name == "exp" || name == "sigmoid" || name == "softmax") guard_.refuseZero(in, out);
    if (name == "exp") guard_.refuseOne(*in[0], out[0]);
  }

  // Throws Misfit.
  void checkDeclared(const Node& node, const Tensor& tensor, Value<T>& value) const {
    if (!value)
      throw Misfit("there is no such result as '" + problem_.names.text(tensor.name) + "'");
    if (value.shape != tensor.shape) {
      if (!(value.shape.empty() && tensor.shape == Shape{1} &&
            ops::Registry::instance().at(node.op).scalarMayBeOne))
        throw Misfit("the result '" + problem_.names.text(tensor.name) +
                     "' is declared with shape " + text(tensor.shape) +
                     ", but the operator gives " + text(value.shape));
      value.shape = tensor.shape;
    }
    if (tensor.elementDeclared && value.element != tensor.element)
      throw Misfit("the result '" + problem_.names.text(tensor.name) +
                   "' is declared with another kind of element than the operator gives");
  }

  Value<T> meaningless(const Tensor& tensor, const std::string& why) {
    Value<T> v(memory_, tensor.shape, tensor.element);
    std::fill(v.writable(), v.writable() + v.size(), undefined<T>());
    v.unknown = std::make_shared<const std::string>(why);
    return v;
  }

 private:
  void fillUnknown(const Graph& graph, const NodeView& view, const std::string& why) {
    for (std::size_t r = 0; r < view.out.size(); ++r)
      if (view.out[r] >= 0) out[r] = meaningless(graph.tensors[view.out[r]], why);
  }

  const Problem& problem_;
  Memory& memory_;
  Context& context_;
  FloatingPointGuard<T>& guard_;
  std::vector<char> wanted_;
};

}  // namespace shardproof::executor
