// SPDX-License-Identifier: Apache-2.0
#include "reader/graph_reader.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "ir/suggestions.h"
#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/registry.h"
#include "reader/communication_reader.h"

namespace shardproof::reader {

namespace {

using Fields = std::vector<std::string_view>;

// Of what is known of an integer input.
constexpr std::int64_t kMostIndex = std::int64_t{1} << 60;

struct DtypeRow {
  std::string_view name;
  ElementKind kind;
};
constexpr DtypeRow kDtypes[] = {
    {"float32", ElementKind::kReal},       {"float64", ElementKind::kReal},
    {"float16", ElementKind::kReal},       {"bfloat16", ElementKind::kReal},
    {"float8_e4m3fn", ElementKind::kReal}, {"float8_e5m2", ElementKind::kReal},
    {"float", ElementKind::kReal},         {"double", ElementKind::kReal},
    {"half", ElementKind::kReal},          {"int8", ElementKind::kInteger},
    {"int16", ElementKind::kInteger},      {"int32", ElementKind::kInteger},
    {"int64", ElementKind::kInteger},      {"uint8", ElementKind::kInteger},
    {"uint16", ElementKind::kInteger},     {"uint32", ElementKind::kInteger},
    {"uint64", ElementKind::kInteger},     {"int", ElementKind::kInteger},
    {"long", ElementKind::kInteger},       {"short", ElementKind::kInteger},
    {"bool", ElementKind::kInteger},       {"complex64", ElementKind::kComplex},
    {"complex128", ElementKind::kComplex},
};

ElementKind readDtype(const Value& value) {
  const std::string_view text = value.string();
  for (const DtypeRow& row : kDtypes) {
    if (row.name == text) return row.kind;
  }
  std::vector<std::string> known;
  for (const DtypeRow& row : kDtypes) known.emplace_back(row.name);
  value.expectedOneOf(
      "a torch dtype: a float, int, bool or complex type such as \"float32\", \"int64\", \"bool\", "
      "\"complex64\"",
      known);
}

TensorKind readKind(const Value& value) {
  const std::string_view text = value.string();
  if (text == "input") return TensorKind::kInput;
  if (text == "parameter") return TensorKind::kParameter;
  if (text == "constant") return TensorKind::kConstant;
  value.expectedOneOf(
      "\"input\", \"parameter\" or \"constant\" (or no \"kind\" for what a node produces)",
      {"input", "parameter", "constant"});
}

Shape readShape(const Value& value) {
  Shape shape;
  shape.reserve(value.expectArray().size());
  for (const Value dim : value) {
    if (dim.kind() == ValueKind::kString || (dim.kind() == ValueKind::kInteger && dim.isNegative()))
      dim.expectedAs("a size", "shapes are not dynamic: write the size that this run has");
    shape.push_back(dim.integer(0));
  }
  return shape;
}

Rational readElement(const Value& value, ElementKind element) {
  Rational number = value.number();
  if (element == ElementKind::kInteger && !number.isInteger())
    value.expected("an integer, as the tensor's dtype is one");
  return number;
}

void readNested(const Value& value, const Shape& shape, std::size_t dim, ElementKind element,
                std::vector<Rational>& out) {
  if (dim == shape.size()) {
    out.push_back(readElement(value, element));
    return;
  }
  if (value.kind() != ValueKind::kArray || static_cast<std::int64_t>(value.size()) != shape[dim]) {
    value.expected("a list of length " + std::to_string(shape[dim]) + ", as the shape is " +
                   ops::toText(shape));
  }
  for (const Value inner : value) readNested(inner, shape, dim + 1, element, out);
}

ConstantValue readConstant(const Value& value, const Tensor& tensor) {
  ConstantValue out;
  out.fill = value.kind() != ValueKind::kArray;
  if (out.fill) {
    out.elements.push_back(readElement(value, tensor.element));
  } else {
    readNested(value, tensor.shape, 0, tensor.element, out.elements);
  }
  return out;
}

double readDouble(const Value& value) {
  const double number = std::strtod(value.numberText("a number").c_str(), nullptr);
  if (!std::isfinite(number)) value.expected("a number that a double can hold");
  return number;
}

std::vector<std::pair<std::int64_t, std::int64_t>> readStretches(const Value& value) {
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  for (const Value stretch : value.expectArray()) {
    std::vector<std::int64_t> bounds;
    for (const Value bound : stretch.expectArray())
      bounds.push_back(bound.integer(-kMostIndex, kMostIndex));
    if (bounds.size() != 2 || bounds[0] >= bounds[1] ||
        (!out.empty() && bounds[0] <= out.back().second))
      stretch.fail("expected two integers, [low, high), above and apart from the stretch before");
    out.emplace_back(bounds[0], bounds[1]);
  }
  if (out.empty()) value.expected("at least one stretch");
  return out;
}

std::shared_ptr<const KnownInput> readKnown(const Value& value, const Tensor& tensor) {
  static const Fields kFields{"numbers", "number_of", "plus", "within"};
  value.expectFields(kFields);
  if (tensor.kind != TensorKind::kInput && tensor.kind != TensorKind::kParameter)
    value.fail("found what is known of a tensor that is neither \"input\" nor \"parameter\"");
  const auto numbers = value.find("numbers"), of = value.find("number_of"),
             plus = value.find("plus"), within = value.find("within");
  if (int{numbers.has_value()} + int{of.has_value()} + int{within.has_value()} != 1)
    value.fail("expected one of \"numbers\", \"number_of\" and \"within\"");
  if (plus && !of) plus->fail("expected only beside \"number_of\"");
  if (tensor.element != (within ? ElementKind::kInteger : ElementKind::kReal))
    value.fail(within ? "expected only of a tensor of integers" : "expected only of reals");
  KnownInput known;
  if (numbers) {
    known.kind = KnownInput::Kind::kNumbers;
    if (numbers->isNull()) return std::make_shared<const KnownInput>(std::move(known));
    std::int64_t count = 1;
    bool overflow = false;
    for (const std::int64_t d : tensor.shape)
      overflow = overflow || __builtin_mul_overflow(count, d, &count);
    if (overflow) value.fail("the number of elements exceeds 64 bits");
    if (static_cast<std::int64_t>(numbers->expectArray().size()) != count)
      numbers->expected("null or a list of " + std::to_string(count) +
                        " numbers, as the shape is " + ops::toText(tensor.shape));
    known.numbers.reserve(numbers->size());
    for (const Value number : *numbers) known.numbers.push_back(readDouble(number));
  } else if (of) {
    known.kind = KnownInput::Kind::kNumberOf;
    if (plus) known.plus = plus->integer(-kMostIndex, kMostIndex);
  } else {
    known.kind = KnownInput::Kind::kWithin;
    known.within = readStretches(*within);
  }
  return std::make_shared<const KnownInput>(std::move(known));
}

AttributeValue readAttribute(const Value& value) {
  switch (value.kind()) {
    case ValueKind::kBool:
      return value.boolean();
    case ValueKind::kInteger:
    case ValueKind::kDecimal:
      return value.number();
    case ValueKind::kString:
      return std::string(value.string());
    case ValueKind::kArray: {
      std::vector<std::int64_t> list;
      list.reserve(value.size());
      for (const Value element : value) list.push_back(element.integer());
      return list;
    }
    case ValueKind::kNull:
    case ValueKind::kObject:
      break;
  }
  value.expectedAs("a number, a string, true, false or a list of integers",
                   "an attribute that has its default is left out");
}

Microbatch readMicrobatch(const Value& value) {
  if (value.kind() == ValueKind::kString) {
    if (value.string() != "*") value.expected("\"*\" or the number of a microbatch");
    return Microbatch::each();
  }
  return Microbatch::of(
      static_cast<std::int32_t>(value.integer(0, std::numeric_limits<std::int32_t>::max())));
}

std::string unknownOperator(std::string_view op) {
  const std::string suggestion = ir::suggestOperator(op);
  return "unknown operator \"" + std::string(op) + "\"" +
         (suggestion.empty() ? ", expected one of docs/operators.md" : suggestion);
}

// Both lists grow past 32-bit ids only in a file of some hundred GB, but an id that wrapped round
// would be a wrong graph.
void checkCount(std::size_t count, const Value& value) {
  if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    value.fail("more than 2^31 tensors or operands in one graph");
}

}  // namespace

void GraphReader::begin(ir::GraphDraft* graph, std::vector<ir::CommunicationDraft>* communications,
                        Asynchrony* asynchrony) {
  graph_ = graph;
  communications_ = communications;
  asynchrony_ = asynchrony;
}

std::vector<NameId> GraphReader::readHandles(const Value& value) const {
  std::vector<NameId> handles;
  if (value.kind() == ValueKind::kString)
    value.expectedAs(
        "a list", "`waits` is a list of handles: write [\"" + std::string(value.string()) + "\"]");
  for (const Value handle : value.expectArray()) handles.push_back(names_.intern(handle.name()));
  return handles;
}

// A name, or [name, low, high].
BufferPlace GraphReader::readBuffer(const Value& value) const {
  BufferPlace place;
  if (value.kind() == ValueKind::kString) {
    place.buffer = names_.intern(value.name());
    return place;
  }
  if (value.expectArray().size() != 3)
    value.expected("a name, or a list of a name, the first element and the one after the last");
  std::int64_t bounds[2] = {0, 0};
  std::size_t i = 0;
  for (const Value v : value) {
    if (i == 0) place.buffer = names_.intern(v.name());
    else bounds[i - 1] = v.integer(0, std::numeric_limits<std::int64_t>::max());
    ++i;
  }
  if (bounds[0] >= bounds[1])
    value.expected("a stretch that is not empty: the first element and the one after the last");
  place.low = bounds[0];
  place.high = bounds[1];
  return place;
}

void GraphReader::readTensor(std::string_view name, const Value& value) {
  static const Fields kModelFields{"shape", "kind", "dtype", "value", "grad_of", "known"};
  static const Fields kProgramFields{"shape", "kind", "dtype", "value", "per_mb", "buffer"};
  value.expectFields(source_ == Source::kModel ? kModelFields : kProgramFields);
  if (name.empty()) value.fail("found a tensor without a name");
  Tensor tensor;
  tensor.name = names_.intern(name);
  tensor.shape = readShape(value.require("shape"));
  if (const auto kind = value.find("kind")) tensor.kind = readKind(*kind);
  const auto dtype = value.find("dtype");
  if (dtype) tensor.element = readDtype(*dtype);
  tensor.elementDeclared = dtype.has_value();
  if (const auto perMicrobatch = value.find("per_mb"))
    tensor.perMicrobatch = perMicrobatch->boolean();
  if (const auto parameter = value.find("grad_of"))
    tensor.gradientOf = names_.intern(parameter->name());
  const auto constant = value.find("value");
  if (constant && tensor.kind != TensorKind::kConstant)
    constant->fail("found a value, expected one only where \"kind\" is \"constant\"");
  if (tensor.kind == TensorKind::kConstant) {
    tensor.constant = static_cast<std::int32_t>(graph_->constants.size());
    graph_->constants.push_back(
        std::make_shared<const ConstantValue>(readConstant(value.require("value"), tensor)));
  }
  if (const auto known = value.find("known")) {
    tensor.known = readKnown(*known, tensor);
    if (const auto of = known->find("number_of"))
      graph_->numbersOf.emplace_back(static_cast<std::int32_t>(graph_->tensors.size()),
                                     names_.intern(of->name()));
  }
  checkCount(graph_->tensors.size(), value);
  if (const auto buffer = value.find("buffer"))
    asynchrony_->buffers.emplace_back(TensorId(graph_->tensors.size()), readBuffer(*buffer));
  graph_->tensors.push_back(std::move(tensor));
}

void GraphReader::readNode(const Value& value) {
  value.expectObject();
  const Value op = value.require("op");
  Node node;
  const Communication communication = ops::findCommunication(op.string());
  if (communication == Communication::kNone) {
    readOperator(op.string(), value, node);
  } else if (source_ == Source::kModel) {
    op.fail("found the communication operator \"" + std::string(op.string()) +
            "\" in the model, expected it only in a plan");
  } else {
    node.communication = static_cast<std::int32_t>(communications_->size());
    communications_->push_back(readCommunication(communication, value, names_));
  }
  readOperands(value, node);
  if (const auto attributes = value.find("attrs"))
    node.attributes = attributes_.intern(readAttributes(*attributes));
  else node.attributes = attributes_.intern({});
  if (const auto location = value.find("loc")) node.location = names_.intern(location->string());
  if (const auto microbatch = value.find("mb")) node.microbatch = readMicrobatch(*microbatch);
  if (const auto steps = value.find("step"); steps && node.communication < 0)
    graph_->steps.emplace_back(NodeId(graph_->nodes.size()), readSteps(*steps));
  if (source_ == Source::kProgram) {
    if (const auto handle = value.find("handle"))  // of communications only: their fields
      asynchrony_->handles.emplace_back(NodeId(graph_->nodes.size()),
                                        names_.intern(handle->name()));
    if (const auto waits = value.find("waits"))
      for (const NameId handle : readHandles(*waits))
        asynchrony_->waits.emplace_back(NodeId(graph_->nodes.size()), handle);
  }
  graph_->nodes.push_back(node);
}

void GraphReader::readOperator(std::string_view op, const Value& value, Node& node) {
  static const Fields kModelFields{"op", "in", "out", "attrs", "loc"};
  static const Fields kProgramFields{"op", "in", "out", "attrs", "step", "loc", "mb", "waits"};
  node.op = ops::Registry::instance().find(op);
  if (!node.op.valid()) value.require("op").fail(unknownOperator(op));
  value.expectFields(source_ == Source::kModel ? kModelFields : kProgramFields);
}

void GraphReader::readOperands(const Value& value, Node& node) {
  const auto listOf = [&](const char* field) {
    const Value list = value.require(field);
    if (list.kind() == ValueKind::kString)
      list.expectedAs("a list", std::string("`") + field + "` is a list of tensors: write [\"" +
                                    std::string(list.string()) + "\"]");
    return list.expectArray();
  };
  const Value in = listOf("in"), out = listOf("out");
  const auto nameOf = [&](const Value& v) {
    return v.isNull() ? NameId() : names_.intern(v.name());
  };
  const auto refuseNull = [&](const Value& v) {
    if (node.communication >= 0 && v.isNull())
      v.expected("a tensor, as every operand of a communication is present");
  };
  checkCount(graph_->operands.size() + in.size(), value);
  checkCount(graph_->results.size() + out.size(), value);
  node.firstIn = static_cast<std::uint32_t>(graph_->operands.size());
  node.inCount = static_cast<std::uint32_t>(in.size());
  for (const Value v : in) {
    refuseNull(v);
    graph_->operands.push_back(nameOf(v));
  }
  node.firstOut = static_cast<std::uint32_t>(graph_->results.size());
  node.outCount = static_cast<std::uint32_t>(out.size());
  for (const Value v : out) {
    refuseNull(v);
    graph_->results.push_back(nameOf(v));
  }
}

Attributes GraphReader::readAttributes(const Value& attributes) {
  Attributes out;
  for (const Value a : attributes.expectObject())
    out.emplace(std::string(a.key()), readAttribute(a));
  return out;
}

std::vector<std::pair<NameId, Attributes>> GraphReader::readSteps(const Value& steps) const {
  std::vector<std::pair<NameId, Attributes>> out;
  for (const Value step : steps.expectObject())
    out.emplace_back(names_.intern(step.key()), readAttributes(step));
  return out;
}

}  // namespace shardproof::reader
