// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <set>
#include <stdexcept>
#include <string>

#include "ir/error_list.h"
#include "ir/node_error.h"
#include "ir/suggestions.h"
#include "ir/validate.h"
#include "ops/collectives.h"
#include "ops/registry.h"
#include "shardproof/error.h"
#include "util/json_pointer.h"

namespace shardproof::ir {

namespace {

class NodeValidator {
 public:
  explicit NodeValidator(const Problem& problem) : problem_(problem) {}

  void run() {
    checkGraph(problem_.model.graph, nullptr, problem_.model.file, "");
    for (const ProgramId p : firstIds<ProgramId>(problem_.plan.programs.size())) {
      const Program& program = problem_.plan.programs[p];
      checkGraph(program.graph, &program, problem_.plan.file, "/programs/" + std::to_string(p));
    }
    errors_.throwIfAny();
  }

 private:
  void checkGraph(const Graph& graph, const Program* program, const std::string& file,
                  const std::string& owner) {
    for (const Tensor& tensor : graph.tensors)
      errors_.attempt([&] { checkTensor(graph, tensor, file, owner); });
    for (const NodeId n : firstIds<NodeId>(graph.nodes.size())) {
      const Node& node = graph.nodes[n];
      const auto fail = [&](const std::string& message) {
        failAtNode(file, owner + "/nodes/" + std::to_string(n), problem_.names, node, message);
      };
      errors_.attempt([&] {
        if (node.communication < 0) {
          checkOperator(node, node.attributes, fail);
          if (node.steps >= 0) checkSteps(*program, node, fail);
          return;
        }
        if (program == nullptr)
          fail("found a communication in the model, expected it only in a plan");
        checkCommunication(*program, node, fail);
      });
    }
  }

  // The place of a tensor is made only for a message.
  void checkTensor(const Graph& graph, const Tensor& tensor, const std::string& file,
                   const std::string& owner) const {
    const auto fail = [&](const std::string& field, const std::string& message) {
      throw InputError(
          file, owner + "/tensors/" + escapePointer(problem_.names.text(tensor.name)) + field,
          message);
    };
    std::int64_t elements = 1;
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      const std::string field = "/shape/" + std::to_string(d);
      if (tensor.shape[d] < 0)
        fail(field, "found a dimension of size " + std::to_string(tensor.shape[d]) +
                        ", expected a size from 1");
      if (tensor.shape[d] == 0)
        fail(field, "found a dimension of size 0: tensors without elements are not supported");
      if (__builtin_mul_overflow(elements, tensor.shape[d], &elements))
        fail(field, "the number of elements exceeds 64 bits");
    }
    if ((tensor.kind == TensorKind::kConstant) != (tensor.constant >= 0))
      fail("", "expected a value exactly where the kind is \"constant\"");
    if (tensor.constant < 0) return;
    if (tensor.element == ElementKind::kComplex)
      fail("/value",
           "constants of a complex dtype are not supported, expected a parameter or an input");
    const ConstantValue& value = *graph.constants.at(tensor.constant);
    const auto expected = value.fill ? std::int64_t{1} : elements;
    if (static_cast<std::int64_t>(value.elements.size()) != expected)
      fail("/value", "found " + std::to_string(value.elements.size()) + " numbers, expected " +
                         std::to_string(expected));
    if (tensor.element != ElementKind::kInteger) return;
    for (const Rational& number : value.elements) {
      if (!number.isInteger())
        fail("/value", "found the number " + number.toString() +
                           ", expected an integer, as the tensor's dtype is one");
    }
  }

  template <class Fail>
  void checkSteps(const Program& program, const Node& node, Fail fail) {
    const std::string& op = ops::Registry::instance().at(node.op).name;
    if (op == "dropout" || op == "dropout_backward")
      fail("found a \"step\" of a " + op +
           ", expected the same attributes on all ranks: which part "
           "of a mask a rank draws follows from lineage");
    for (const AttributesId set : program.steps.at(node.steps).sets) checkOperator(node, set, fail);
  }

  template <class Fail>
  void checkOperator(const Node& node, AttributesId attributes, Fail fail) {
    if (!node.op.valid()) fail("found a node without an operator");
    const std::array<std::int64_t, 4> key{node.op.value, attributes.value, node.inCount,
                                          node.outCount};
    if (valid_.contains(key)) return;
    const ops::OperatorInfo& info = ops::Registry::instance().at(node.op);
    try {
      info.validate(problem_.attributes.at(attributes), node.inCount, node.outCount);
    } catch (const std::invalid_argument& error) {
      fail("operator \"" + info.name + "\": " + error.what() +
           suggest(info.name, node, error.what()) +
           (attributes == node.attributes ? "" : "; \"step\" leads there on some ranks"));
    }
    valid_.insert(key);
  }

  std::string suggest(const std::string& op, const Node& node, const std::string& message) const {
    for (const auto& [key, value] : problem_.attributes.at(node.attributes))
      if (message.find("unknown attribute '" + key + "'") != std::string::npos)
        return suggestAttribute(op, key);
    return "";
  }

  template <class Fail>
  static void checkCommunication(const Program& program, const Node& node, Fail fail) {
    const CommunicationSpec& spec = program.communications.at(node.communication);
    for (const Operand& operand : program.graph.in(node)) {
      if (!operand.present()) fail("found an absent operand of a communication, expected a tensor");
    }
    for (const TensorId result : program.graph.out(node)) {
      if (result < 0) fail("found an absent result of a communication, expected a tensor");
    }
    // Who gives or gets only empty pieces has no operand or result: src/core/plan compares.
    if (!spec.sizes.empty() && node.inCount <= 1 && node.outCount <= 1) return;
    const std::string wrong = communicationArity(spec.kind, node.inCount, node.outCount);
    if (!wrong.empty()) fail(wrong);
  }

  const Problem& problem_;
  std::set<std::array<std::int64_t, 4>>
      valid_;  // (operator, attributes, operands, results) that passed OperatorInfo::validate
  ErrorList errors_;
};

}  // namespace

void validateNodes(const Problem& problem) { NodeValidator(problem).run(); }

namespace {

std::string countOf(std::size_t n, const char* what) {
  return (n == 0 ? "no " : "one ") + std::string(what);
}

}  // namespace

std::string communicationArity(Communication kind, std::size_t operands, std::size_t results) {
  if (kind == Communication::kNone || kind == Communication::kPart)
    return "found a communication of no kind that a plan has";
  const ops::Collective& c = ops::collectiveOf(kind);
  const auto fits = [&](bool root) {
    return operands == c.operands(root) && results == c.results(root);
  };
  if (fits(false) || (c.rooted() && fits(true))) return "";
  const auto needs = [&](bool root) {
    return countOf(c.operands(root), "operand") + " and " + countOf(c.results(root), "result");
  };
  return "found " + std::to_string(operands) + " operands and " + std::to_string(results) +
         " results, expected " +
         (c.rooted() ? needs(true) + " on the root of a " + c.name + ", or " + needs(false) +
                           " on the others"
                     : needs(false) + " for " + c.name);
}

const char* elementName(ElementKind kind) {
  switch (kind) {
    case ElementKind::kReal:
      return "real";
    case ElementKind::kInteger:
      return "integer";
    case ElementKind::kComplex:
      return "complex";
  }
  return "unknown";
}

}  // namespace shardproof::ir
