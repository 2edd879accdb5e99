// SPDX-License-Identifier: Apache-2.0
// Executes a model in doubles with the operators of ops/, for the tests that compare them with
// PyTorch (tests/pytorch/).
//
//   evaluate_model MODEL INPUTS [TENSOR...]
//     writes the named tensors, without names the model's outputs, as JSON:
//     {NAME: {"shape": [...], "values": [...]}}, values in row-major order
//   evaluate_model --operators
//     writes every operator of the registry as JSON: {NAME: [ATTRIBUTE, ...]}
//
// INPUTS is an object with the elements of every input and parameter, as a list, nested or not. A
// complex tensor has two numbers for each position, real and imaginary part, here and in what is
// written. Numbers that JSON has not are the strings "inf", "-inf" and "nan".
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/complete.h"
#include "numbers/double_algebra.h"
#include "ops/registry.h"
#include "reader/model_reader.h"
#include "shardproof/error.h"
#include "shardproof/graph.h"

namespace shardproof {
namespace {

using Json = nlohmann::json;
using Value = ops::TensorValue<ops::RealNumbers>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Json toJson(double x) {
  if (std::isfinite(x)) return x;
  return std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf";
}

void flatten(const Json& json, std::vector<double>& to) {
  if (json.is_array()) {
    for (const Json& entry : json) flatten(entry, to);
  } else if (json.is_number()) {
    to.push_back(json.get<double>());
  } else if (json == "inf" || json == "-inf") {
    to.push_back(json == "inf" ? kInfinity : -kInfinity);
  } else if (json == "nan") {
    to.push_back(std::numeric_limits<double>::quiet_NaN());
  } else {
    throw std::invalid_argument("found " + json.dump() +
                                ", expected a number, \"inf\", \"-inf\", \"nan\" or a list");
  }
}

class Evaluator {
 public:
  explicit Evaluator(const Problem& problem)
      : problem_(problem), graph_(problem.model.graph), values_(graph_.tensors.size()) {
    for (std::size_t t = 0; t < values_.size(); ++t) {
      byName_.emplace(graph_.tensors[t].name, t);
      values_[t].element = graph_.tensors[t].element;
      for (const std::int64_t n : graph_.tensors[t].shape)
        values_[t].dims.push_back(ops::ReducedDim::whole(n));
    }
  }

  void run(const Json& inputs) {
    for (const auto& [name, unused] : inputs.items()) {
      const Tensor& tensor = graph_.tensors[find(name)];
      if (tensor.kind != TensorKind::kInput && tensor.kind != TensorKind::kParameter)
        throw std::invalid_argument("inputs: \"" + name +
                                    "\" is neither an input nor a parameter of the model");
    }
    for (std::size_t t = 0; t < values_.size(); ++t) bind(t, inputs);
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
      try {
        evaluate(graph_.nodes[n]);
      } catch (const std::exception& error) {
        throw std::runtime_error(Model::nodePointer(NodeId(n)) + ", " +
                                 ops::Registry::instance().at(graph_.nodes[n].op).name + ": " +
                                 error.what());
      }
    }
  }

  std::vector<std::string> outputs() const {
    std::vector<std::string> names;
    for (const std::int32_t t : problem_.model.outputs)
      names.push_back(nameOf(static_cast<std::size_t>(t)));
    return names;
  }

  Json tensor(const std::string& name) const {
    const std::size_t t = find(name);
    Json values = Json::array();
    for (const double x : values_[t].data) values.push_back(toJson(x));
    return {{"shape", graph_.tensors[t].shape}, {"values", std::move(values)}};
  }

 private:
  std::string nameOf(std::size_t t) const { return problem_.names.text(graph_.tensors[t].name); }

  std::size_t find(const std::string& name) const {
    const auto it = byName_.find(problem_.names.find(name));
    if (it == byName_.end())
      throw std::invalid_argument("the model has no tensor \"" + name + "\"");
    return it->second;
  }

  // What no node produces.
  void bind(std::size_t t, const Json& inputs) {
    const Tensor& tensor = graph_.tensors[t];
    Value& value = values_[t];
    const auto size = static_cast<std::size_t>(value.positions() * value.planes());
    if (tensor.kind == TensorKind::kConstant) {
      const ConstantValue& constant = *graph_.constants[static_cast<std::size_t>(tensor.constant)];
      for (std::size_t i = 0; i < size; ++i)
        value.data.push_back(constant.elements[constant.fill ? 0 : i].toDouble());
    } else if (tensor.kind != TensorKind::kProduced) {
      const auto given = inputs.find(nameOf(t));
      if (given == inputs.end())
        throw std::invalid_argument("inputs: \"" + nameOf(t) + "\" is missing");
      flatten(*given, value.data);
      if (value.data.size() != size)
        throw std::invalid_argument("inputs: \"" + nameOf(t) + "\" has " +
                                    std::to_string(value.data.size()) + " numbers, expected " +
                                    std::to_string(size));
    }
  }

  void evaluate(const Node& node) {
    std::vector<const Value*> in;
    std::vector<Value*> out;
    for (const Operand& o : graph_.in(node))
      in.push_back(o.present() ? &values_[static_cast<std::size_t>(o.tensor)] : nullptr);
    for (const std::int32_t t : graph_.out(node))
      out.push_back(t >= 0 ? &values_[static_cast<std::size_t>(t)] : nullptr);
    const ops::OperatorInfo& op = ops::Registry::instance().at(node.op);
    ops::Evaluation<ops::RealNumbers> evaluation{algebra_, problem_.attributes.at(node.attributes),
                                                 in, out};
    op.doubles(evaluation);
    for (const Value* v : out)
      if (v != nullptr && static_cast<std::int64_t>(v->data.size()) != v->positions() * v->planes())
        throw std::logic_error(op.name + " did not fill its result");
  }

  const Problem& problem_;
  const Graph& graph_;
  std::unordered_map<NameId, std::size_t> byName_;
  std::vector<Value> values_;
  DoubleAlgebra algebra_;
};

Json evaluateModel(const std::string& modelFile, const std::string& inputsFile,
                   std::vector<std::string> wanted) {
  ir::ProblemDraft draft;
  reader::readModel(modelFile, draft);
  const std::unique_ptr<Problem> problem = ir::completeModel(std::move(draft));
  std::ifstream stream(inputsFile);
  if (!stream) throw std::invalid_argument(inputsFile + ": cannot be read");
  const Json inputs = Json::parse(stream);
  Evaluator evaluator(*problem);
  evaluator.run(inputs);
  if (wanted.empty()) wanted = evaluator.outputs();
  Json result = Json::object();
  for (const std::string& name : wanted) result[name] = evaluator.tensor(name);
  return result;
}

// The attributes an operator has: what it says it expects in place of one that it does not have.
Json attributesOf(const ops::OperatorInfo& op) {
  try {
    op.validate({{"?", Rational(0)}}, 0, 0);
  } catch (const std::invalid_argument& error) {
    const std::string message = error.what(), before = "expected only: ";
    Json names = Json::array();
    if (message.ends_with("expected no attributes")) return names;
    std::size_t at = message.find(before);
    if (at == std::string::npos) throw std::logic_error("unexpected message: " + message);
    for (at += before.size(); at < message.size();) {
      const std::size_t end = std::min(message.find(", ", at), message.size());
      names.push_back(message.substr(at, end - at));
      at = end + 2;
    }
    return names;
  }
  throw std::logic_error(op.name + " has any attribute");
}

Json operators() {
  const ops::Registry& registry = ops::Registry::instance();
  Json list = Json::object();
  for (std::size_t i = 0; i < registry.size(); ++i) {
    const ops::OperatorInfo& op = registry.at(OperatorId(static_cast<std::int64_t>(i)));
    list[op.name] = attributesOf(op);
  }
  return list;
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) {
  CLI::App app("Executes a model in doubles");
  std::string model, inputs;
  std::vector<std::string> tensors;
  bool listOperators = false;
  app.add_option("MODEL", model);
  app.add_option("INPUTS", inputs);
  app.add_option("TENSOR", tensors);
  app.add_flag("--operators", listOperators);
  CLI11_PARSE(app, argc, argv);
  try {
    std::cout << (listOperators ? shardproof::operators()
                                : shardproof::evaluateModel(model, inputs, tensors))
              << "\n";
    return std::cout.flush() ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "evaluate_model: " << error.what() << "\n";
    return 1;
  }
}
