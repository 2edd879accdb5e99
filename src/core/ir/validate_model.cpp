// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>
#include <string>
#include <vector>

#include "ir/error_list.h"
#include "ir/infer_node.h"
#include "ir/node_error.h"
#include "ir/validate.h"
#include "ops/attributes.h"
#include "ops/registry.h"
#include "shardproof/error.h"
#include "util/shapes.h"

namespace shardproof::ir {

namespace {

// One walk in execution order.
class ModelValidator {
 public:
  explicit ModelValidator(const Problem& problem)
      : model_(problem.model), names_(problem.names), attributes_(problem.attributes) {}

  void run() {
    errors_.attempt([&] { checkGradients(); });
    errors_.attempt([&] { checkKnown(); });
    producer_.assign(model_.graph.tensors.size(), NodeId());
    for (const NodeId n : firstIds<NodeId>(model_.graph.nodes.size())) {
      checkAssignment(n);
      errors_.attempt([&] { checkShapes(n); });
    }
    errors_.attempt([&] { checkOutputs(); });
    errors_.throwIfAny();
  }

 private:
  [[noreturn]] void fail(const std::string& pointer, const std::string& message) const {
    throw InputError(model_.file, pointer, message);
  }
  [[noreturn]] void failNode(NodeId n, const std::string& field, const std::string& message) const {
    failAtNode(model_.file, Model::nodePointer(n) + field, names_, model_.graph.nodes[n], message);
  }
  std::string quoted(TensorId t) const { return "\"" + names_.text(tensor(t).name) + "\""; }
  const Tensor& tensor(TensorId t) const { return model_.graph.tensors[t]; }
  NodeId& producer(TensorId t) { return producer_[t]; }

  void checkGradients() const {
    std::vector<bool> parameter(names_.size(), false);
    for (const Tensor& t : model_.graph.tensors) {
      if (t.kind == TensorKind::kParameter) parameter[t.name.index()] = true;
    }
    for (const TensorId i : firstIds<TensorId>(model_.graph.tensors.size())) {
      const NameId of = model_.graph.tensors[i].gradientOf;
      if (!of.valid() || parameter[of.index()]) continue;
      fail(model_.tensorPointer(i, names_) + "/grad_of",
           "found \"" + names_.text(of) + "\", expected a tensor of kind \"parameter\"");
    }
  }

  // Inputs that are the numbers of integer inputs.
  void checkKnown() const {
    for (const TensorId i : firstIds<TensorId>(model_.graph.tensors.size())) {
      const Tensor& t = model_.graph.tensors[i];
      if (!t.known || t.known->kind != KnownInput::Kind::kNumberOf) continue;
      const Tensor& of = tensor(t.known->tensor);
      const bool given = of.kind == TensorKind::kInput || of.kind == TensorKind::kParameter;
      if (given && of.element == ElementKind::kInteger && of.shape == t.shape) continue;
      fail(model_.tensorPointer(i, names_) + "/known/number_of",
           "found " + quoted(t.known->tensor) +
               ", expected an input or a parameter of integers and of the same shape");
    }
  }

  void checkAssignment(NodeId n) {
    const Graph& g = model_.graph;
    const Node& node = g.nodes[n];
    const auto in = g.in(node);
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (!in[i].present() || tensor(in[i].tensor).kind != TensorKind::kProduced ||
          producer(in[i].tensor) >= 0)
        continue;
      errors_.attempt([&] {
        failNode(n, "/in/" + std::to_string(i),
                 "tensor " + quoted(in[i].tensor) +
                     " is used before any node produces it, expected nodes in execution order");
      });
    }
    const auto out = g.out(node);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i] < 0) continue;
      const auto field = [&] { return "/out/" + std::to_string(i); };
      errors_.attempt([&] {
        if (tensor(out[i]).kind != TensorKind::kProduced) {
          failNode(n, field(),
                   "tensor " + quoted(out[i]) +
                       " is declared as an input, a parameter or a constant, expected one "
                       "that no declaration gives a value");
        }
        if (producer(out[i]) >= 0) {
          failNode(n, field(),
                   "tensor " + quoted(out[i]) + " is already produced by " +
                       Model::nodePointer(producer(out[i])) + ", expected one producer");
        }
      });
      producer(out[i]) = n;  // also of a wrong one: those that read it are not wrong for that
    }
  }

  std::vector<ops::TensorInfo> infer(NodeId n) const {
    const Graph& g = model_.graph;
    const Node& node = g.nodes[n];
    std::string reason;
    try {
      return inferNode(attributes_, g, node);
    } catch (const ShapeError& error) {
      reason = error.what();
    } catch (const Unsupported& error) {
      reason = std::string("not supported: ") + error.what();
    } catch (const std::invalid_argument& error) {
      reason = error.what();
    }
    failNode(n, "",
             "operator \"" + ops::Registry::instance().at(node.op).name +
                 "\" does not fit its operands: " + reason);
  }

  void checkShapes(NodeId n) const {
    const Graph& g = model_.graph;
    const Node& node = g.nodes[n];
    const std::vector<ops::TensorInfo> inferred = infer(n);
    if (inferred.size() < node.outCount) {
      failNode(n, "/out",
               "found " + std::to_string(node.outCount) + " results, expected at most " +
                   std::to_string(inferred.size()));
    }
    const auto out = g.out(node);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i] >= 0) checkResult(n, out[i], inferred[i]);
    }
  }

  void checkResult(NodeId n, std::int32_t result, const ops::TensorInfo& inferred) const {
    const Tensor& t = tensor(TensorId(result));
    const ops::OperatorInfo& op = ops::Registry::instance().at(model_.graph.nodes[n].op);
    const auto by = [&] {
      return "as operator \"" + op.name + "\" at " + Model::nodePointer(n) + " produces";
    };
    if (!fitsDeclared(inferred.shape, t.shape, op.scalarMayBeOne)) {
      fail(model_.tensorPointer(TensorId(result), names_) + "/shape",
           "found the shape " + ops::toText(t.shape) + ", expected " + ops::toText(inferred.shape) +
               ", " + by());
    }
    if (t.element != inferred.element) {
      fail(model_.tensorPointer(TensorId(result), names_) + "/dtype",
           "found a dtype of " + std::string(elementName(t.element)) + " elements, expected " +
               elementName(inferred.element) + ", " + by());
    }
  }

  void checkOutputs() {
    if (model_.outputs.empty())
      fail("/outputs", "expected at least one output: without one there is nothing to prove");
    std::vector<bool> seen(model_.graph.tensors.size(), false);
    for (std::size_t i = 0; i < model_.outputs.size(); ++i) {
      const std::string pointer = "/outputs/" + std::to_string(i);
      const std::int32_t output = model_.outputs[i];
      if (seen[output]) fail(pointer, "output " + quoted(TensorId(output)) + " is listed twice");
      seen[output] = true;
      if (tensor(TensorId(output)).kind == TensorKind::kProduced && producer(TensorId(output)) < 0)
        fail(pointer, "output " + quoted(TensorId(output)) + " is produced by no node");
    }
    for (std::size_t i = 0; i < model_.arguments.size(); ++i)
      if (!seen[model_.arguments[i].index()])
        fail("/arguments/" + std::to_string(i),
             "found " + quoted(model_.arguments[i]) + ", expected one of \"outputs\"");
  }

  const Model& model_;
  const Names& names_;
  const AttributeTable& attributes_;
  std::vector<NodeId> producer_;  // per tensor, -1: none so far
  ErrorList errors_;
};

}  // namespace

void validateModel(const Problem& problem) { ModelValidator(problem).run(); }

}  // namespace shardproof::ir
