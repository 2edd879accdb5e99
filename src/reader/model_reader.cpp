#include "reader/model_reader.h"

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "ops/attributes.h"
#include "ops/registry.h"
#include "reader/file_header.h"
#include "reader/graph_reader.h"
#include "reader/json_stream.h"
#include "shardproof/error.h"
#include "util/shapes.h"

namespace shardproof::reader {

namespace {

class ModelClient : public StreamClient {
 public:
  explicit ModelClient(Problem& problem)
      : problem_(problem),
        graph_(GraphReader::Source::kModel, problem.names, problem.attributes),
        header_("shardproof-model") {
    graph_.begin(&problem.model.graph, nullptr);
  }

  int open(int state, std::string_view key, bool object, const Place&) override {
    if (state == kOutside && object) return kModel;
    if (state == kModel && key == "tensors" && object) return tensorsSeen_ = true, kTensors;
    if (state == kModel && key == "nodes" && !object) return nodesSeen_ = true, kNodes;
    return kWhole;
  }

  void value(int state, std::string_view key, const Value& v) override {
    switch (state) {
      case kTensors:
        graph_.readTensor(key, v);
        break;
      case kNodes:
        graph_.readNode(v);
        break;
      case kModel:
        field(key, v);
        break;
      default:
        v.expected("an object (a model)");
    }
  }

  void close(int state, const Place& place) override {
    if (state != kModel) return;
    header_.checkComplete(place);
    if (!tensorsSeen_) place.fail("the field \"tensors\" is missing");
    if (!nodesSeen_) place.fail("the field \"nodes\" is missing");
    if (!outputsSeen_) place.fail("the field \"outputs\" is missing");
  }

 private:
  enum State { kModel = 1, kTensors, kNodes };

  void field(std::string_view key, const Value& v) {
    if (header_.read(key, v)) return;
    if (key == "name") {
      problem_.model.name = v.string();
    } else if (key == "source") {
      v.string();  // where the file came from: for people only
    } else if (key == "outputs") {
      if (v.expectArray().size() == 0)
        v.expected("at least one output: without one there is nothing to prove");
      for (const Value output : v)
        problem_.model.outputs.push_back(problem_.names.intern(output.name()).value);
      outputsSeen_ = true;
    } else if (key == "tensors") {
      v.expectObject();
    } else if (key == "nodes") {
      v.expectArray();
    } else {
      v.fail("unknown field \"" + std::string(key) +
             "\", expected only \"format\", \"version\", \"name\", \"source\", \"tensors\", "
             "\"nodes\" and \"outputs\"");
    }
  }

  Problem& problem_;
  GraphReader graph_;
  FileHeader header_;
  bool tensorsSeen_ = false, nodesSeen_ = false, outputsSeen_ = false;
};

// Names to ids, then one walk in execution order: single assignment, production before use, shapes
// and element kinds.
class ModelResolver {
 public:
  explicit ModelResolver(Problem& problem)
      : model_(problem.model),
        names_(problem.names),
        attributes_(problem.attributes),
        index_(model_.graph) {}

  void run() {
    checkGradients();
    resolveKnown();
    producer_.assign(model_.graph.tensors.size(), -1);
    infos_.reserve(model_.graph.tensors.size());
    for (const Tensor& t : model_.graph.tensors) infos_.push_back({t.shape, t.element});
    for (std::size_t n = 0; n < model_.graph.nodes.size(); ++n) {
      resolveNode(static_cast<std::int32_t>(n));
      checkShapes(static_cast<std::int32_t>(n));
    }
    resolveOutputs();
  }

 private:
  [[noreturn]] void fail(const std::string& pointer, const std::string& message) const {
    throw InputError(model_.file, pointer, message);
  }
  std::string quoted(std::int32_t tensor) const {
    return "\"" + names_.text(model_.graph.tensors[static_cast<std::size_t>(tensor)].name) + "\"";
  }
  Tensor& tensor(std::int32_t t) { return model_.graph.tensors[static_cast<std::size_t>(t)]; }
  std::int32_t& producer(std::int32_t t) { return producer_[static_cast<std::size_t>(t)]; }

  // `name` is an id as the reader left it: the value of a NameId.
  std::int32_t find(std::int32_t name, const std::string& pointer) const {
    const std::int32_t t = index_.find(NameId(name));
    if (t < 0)
      fail(pointer, "found \"" + names_.text(NameId(name)) +
                        "\", expected the name of a tensor in \"tensors\"");
    return t;
  }

  void checkGradients() {
    for (std::size_t i = 0; i < model_.graph.tensors.size(); ++i) {
      const NameId parameter = model_.graph.tensors[i].gradientOf;
      if (!parameter.valid()) continue;
      const std::string pointer =
          model_.tensorPointer(static_cast<std::int32_t>(i), names_) + "/grad_of";
      if (tensor(find(parameter.value, pointer)).kind != TensorKind::kParameter) {
        fail(pointer,
             "found \"" + names_.text(parameter) + "\", expected a tensor of kind \"parameter\"");
      }
    }
  }

  // Inputs that are the numbers of integer inputs: which, and what is known of those.
  void resolveKnown() {
    for (std::size_t i = 0; i < model_.graph.tensors.size(); ++i) {
      Tensor& t = model_.graph.tensors[i];
      if (!t.known || t.known->kind != KnownInput::Kind::kNumberOf) continue;
      const std::string pointer =
          model_.tensorPointer(static_cast<std::int32_t>(i), names_) + "/known/number_of";
      KnownInput known = *t.known;
      known.tensor = find(known.tensor, pointer);
      const Tensor& of = tensor(known.tensor);
      if ((of.kind != TensorKind::kInput && of.kind != TensorKind::kParameter) ||
          of.element != ElementKind::kInteger || of.shape != t.shape)
        fail(pointer, "found " + quoted(known.tensor) +
                          ", expected an input or a parameter of integers and of the same shape");
      if (of.known) known.within = of.known->within;
      t.known = std::make_shared<const KnownInput>(std::move(known));
    }
  }

  void resolveNode(std::int32_t n) {
    Graph& g = model_.graph;
    const Node& node = g.nodes[static_cast<std::size_t>(n)];
    for (std::uint32_t i = 0; i < node.inCount; ++i) {
      Operand& operand = g.operands[node.firstIn + i];
      if (!operand.present()) continue;
      const std::string pointer = Model::nodePointer(n) + "/in/" + std::to_string(i);
      operand.tensor = find(operand.tensor, pointer);
      if (tensor(operand.tensor).kind == TensorKind::kProduced && producer(operand.tensor) < 0) {
        fail(pointer,
             "tensor " + quoted(operand.tensor) +
                 " is used before any node produces it, expected nodes in execution order");
      }
    }
    for (std::uint32_t i = 0; i < node.outCount; ++i) {
      std::int32_t& result = g.results[node.firstOut + i];
      if (result < 0) continue;
      resolveResult(n, result, Model::nodePointer(n) + "/out/" + std::to_string(i));
    }
  }

  void resolveResult(std::int32_t n, std::int32_t& result, const std::string& pointer) {
    result = find(result, pointer);
    if (tensor(result).kind != TensorKind::kProduced) {
      fail(pointer, "tensor " + quoted(result) +
                        " is declared as an input, a parameter or a constant, expected one that no "
                        "declaration gives a value");
    }
    if (producer(result) >= 0) {
      fail(pointer, "tensor " + quoted(result) + " is already produced by " +
                        Model::nodePointer(producer(result)) + ", expected one producer");
    }
    producer(result) = n;
  }

  std::vector<ops::TensorInfo> infer(std::int32_t n) {
    const Graph& g = model_.graph;
    const Node& node = g.nodes[static_cast<std::size_t>(n)];
    std::vector<const ops::TensorInfo*> in;
    for (const Operand& o : g.in(node))
      in.push_back(o.present() ? &infos_[static_cast<std::size_t>(o.tensor)] : nullptr);
    const ops::OperatorInfo& info = ops::Registry::instance().at(node.op);
    std::string reason;
    try {
      return info.infer({attributes_.at(node.attributes), in, node.outCount});
    } catch (const ShapeError& error) {
      reason = error.what();
    } catch (const Unsupported& error) {
      reason = std::string("not supported: ") + error.what();
    } catch (const std::invalid_argument& error) {
      reason = error.what();
    }
    fail(Model::nodePointer(n),
         "operator \"" + info.name + "\" does not fit its operands: " + reason);
  }

  void checkShapes(std::int32_t n) {
    const Graph& g = model_.graph;
    const Node& node = g.nodes[static_cast<std::size_t>(n)];
    const std::vector<ops::TensorInfo> inferred = infer(n);
    if (inferred.size() < node.outCount) {
      fail(Model::nodePointer(n) + "/out", "found " + std::to_string(node.outCount) +
                                               " results, expected at most " +
                                               std::to_string(inferred.size()));
    }
    for (std::uint32_t i = 0; i < node.outCount; ++i) {
      const std::int32_t result = g.results[node.firstOut + i];
      if (result >= 0) checkResult(n, result, inferred[i]);
    }
  }

  void checkResult(std::int32_t n, std::int32_t result, const ops::TensorInfo& inferred) {
    Tensor& t = tensor(result);
    const ops::OperatorInfo& op =
        ops::Registry::instance().at(model_.graph.nodes[static_cast<std::size_t>(n)].op);
    const std::string by =
        "as operator \"" + op.name + "\" at " + Model::nodePointer(n) + " produces";
    const std::string pointer = model_.tensorPointer(result, names_);
    if (!fitsDeclared(inferred.shape, t.shape, op.scalarMayBeOne)) {
      fail(pointer + "/shape", "found the shape " + ops::toText(t.shape) + ", expected " +
                                   ops::toText(inferred.shape) + ", " + by);
    }
    if (t.elementDeclared && t.element != inferred.element) {
      fail(pointer + "/dtype", "found a dtype of " + std::string(elementName(t.element)) +
                                   " elements, expected " +
                                   std::string(elementName(inferred.element)) + ", " + by);
    }
    // Exporters leave the dtype of results out; indices, for one, are still integers then.
    t.element = inferred.element;
    infos_[static_cast<std::size_t>(result)].element = inferred.element;
  }

  void resolveOutputs() {
    std::vector<bool> seen(model_.graph.tensors.size(), false);
    for (std::size_t i = 0; i < model_.outputs.size(); ++i) {
      const std::string pointer = "/outputs/" + std::to_string(i);
      std::int32_t& output = model_.outputs[i];
      output = find(output, pointer);
      if (seen[static_cast<std::size_t>(output)])
        fail(pointer, "output " + quoted(output) + " is listed twice");
      seen[static_cast<std::size_t>(output)] = true;
      if (tensor(output).kind == TensorKind::kProduced && producer(output) < 0) {
        fail(pointer, "output " + quoted(output) + " is produced by no node");
      }
    }
  }

  Model& model_;
  const Names& names_;
  const AttributeTable& attributes_;
  TensorIndex index_;
  std::vector<std::int32_t> producer_;  // per tensor, -1: none so far
  std::vector<ops::TensorInfo> infos_;
};

}  // namespace

void readModel(const Input& input, Problem& problem) {
  problem.model.file = input.name;
  ModelClient client(problem);
  problem.model.sha256 = readJson(input, client);
  ModelResolver(problem).run();
}

}  // namespace shardproof::reader
