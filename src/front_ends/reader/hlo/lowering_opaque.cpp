// SPDX-License-Identifier: Apache-2.0
// Custom calls, and what else is taken for a function of which nothing is known: equal arguments
// give equal results. Its results become inputs, its arguments what opaque.h has to tie to the
// other program's.
//
// Which function it is says its text: the target, every attribute that may matter, types, layouts
// and sizes. So a call on a piece is another function than the call on the whole, unless the
// program itself says that it is one function, applied at each index of some first dimensions
// (num_batch_dims, by which XLA cuts such calls, too).
#include <set>

#include "reader/hlo/dimensions.h"
#include "reader/hlo/lowering.h"

namespace shardproof::hlo {
namespace {

// Attributes of a call that say nothing of what it computes.
bool isSilent(const std::string& attribute) {
  static const std::set<std::string, std::less<>> kSilent{
      "metadata",
      "sharding",
      "output_to_operand_aliasing",
      "schedule",
      "custom_call_schedule",
      "control-predecessors",
      "operand_layout_constraints",    // without its sizes, see layoutsOf()
      "frontend_attributes",           // see frontendAttributes()
      "custom_call_has_side_effect"};  // refused where it is true
  return kSilent.contains(attribute);
}

// A mark for partitioning; in the program of one device it hands its operand on.
bool isMark(const std::string& target) {
  return target == "\"Sharding\"" || target == "\"xla.sdy.FuncResultSharding\"" ||
         target == "\"xla.sdy.PropagationBarrier\"";
}

// Types and layouts of shapes as they are written, without sizes and comments.
std::string layoutsOf(std::string_view written) {
  std::string text;
  for (std::size_t k = 0; k < written.size(); ++k) {
    if (written.substr(k).starts_with("/*")) {
      const std::size_t end = written.find("*/", k);
      if (end == std::string_view::npos) break;
      k = end + 1;
      continue;
    }
    if (written[k] == '[') {
      const std::size_t end = written.find(']', k);
      if (end == std::string_view::npos) break;
      k = end;
      text += "[]";
      continue;
    }
    if (written[k] != ' ') text += written[k];
  }
  return text;
}

// {a="1",b="2"}: of the two texts of a field.
std::vector<std::pair<std::string, std::string>> fieldsOf(const Attribute& attribute,
                                                          const std::string& file) {
  std::vector<std::pair<std::string, std::string>> fields;
  Cursor c(attribute.value, file, attribute.place);
  c.take("{");
  while (!c.tryTake("}")) {
    c.skipSpace();
    const std::size_t begin = c.offset();
    while (!c.atEnd() && c.peek() != '=' && c.peek() != '}') c.advance();
    std::string name(c.since(begin));
    c.take("=");
    c.skipSpace();
    if (c.peek() != '"') c.expected("a text in quotation marks");
    fields.emplace_back(std::move(name), c.quoted());
    c.tryTake(",");
  }
  return fields;
}

// What the front end says of partitioning is not part of what is computed.
bool isOfPartitioning(const std::string& field) {
  return field.starts_with("xla.sdy.") || field == "num_batch_dims";
}

std::string sizesText(const Shape& shape, std::size_t batch) {
  std::string text = shape.type;
  for (std::size_t d = batch; d < shape.sizes.size(); ++d)
    text += (d == batch ? "[" : ",") + std::to_string(shape.sizes[d]);
  return text + (shape.sizes.size() > batch ? "]" : "[]");
}

std::vector<Shape> resultShapes(const Instruction& i) {
  return i.shape.tuple ? i.shape.elements : std::vector<Shape>{i.shape};
}

}  // namespace

// How many first dimensions the function is applied along one by one.
std::size_t Lowering::batchOf(const Instruction& i) const {
  if (i.opcode != "custom-call") {  // of matrices
    const std::size_t rank = i.shape.sizes.size();
    if (i.shape.tuple || rank < 2) unsupported(i, "a result that is no matrix");
    return rank - 2;
  }
  const Attribute* a = i.attribute("frontend_attributes");
  if (a == nullptr) return 0;
  for (const auto& [name, value] : fieldsOf(*a, file_)) {
    if (name != "num_batch_dims") continue;
    Cursor c(value, file_, a->place);
    const std::int64_t n = c.integer("num_batch_dims");
    if (n < 0 || !c.atEnd()) failAt(file_, a->place, "found num_batch_dims \"" + value + "\"");
    return at(n);
  }
  return 0;
}

std::string Lowering::opaqueFunction(const Instruction& i, const std::vector<Value>& x,
                                     std::size_t batch) const {
  std::string text = i.opcode + layoutsOf(i.written) + " batch " + std::to_string(batch);
  for (const Attribute& a : i.attributes)
    if (!isSilent(a.name)) text += "\n" + a.name + "=" + a.value;
  if (const Attribute* a = i.attribute("operand_layout_constraints"))
    text += "\n" + a->name + "=" + layoutsOf(a->value);
  if (const Attribute* a = i.attribute("frontend_attributes"))
    for (const auto& [name, value] : fieldsOf(*a, file_))
      if (!isOfPartitioning(name)) text += "\n" + name + "=" + value;
  for (const Value& v : x) text += "\n" + sizesText(v.shape, batch);
  for (const Shape& shape : resultShapes(i)) text += "\n-> " + sizesText(shape, batch);
  return text;
}

std::optional<Value> Lowering::lowerOpaque(const Frame& frame, const Instruction& i) {
  const bool custom = i.opcode == "custom-call";
  static const std::set<std::string, std::less<>> kOfMatrices{"cholesky", "triangular-solve"},
      kOfElements{"atan2", "popcnt", "count-leading-zeros"};
  const bool elements = kOfElements.contains(i.opcode);
  if (!custom && !elements && !kOfMatrices.contains(i.opcode)) return std::nullopt;
  std::string target = "'" + i.opcode + "'";
  if (custom) {
    const Attribute* a = i.attribute("custom_call_target");
    if (a == nullptr) unsupported(i, "a custom call without a target");
    target = "custom call " + a->value;
    if (grouping_ == nullptr && isMark(a->value) && i.operands.size() == 1) {
      Value x = operand(frame, i, 0);
      if (!(x.shape == i.shape)) unsupported(i, target + " changes " + toText(x.shape));
      return x;
    }
    // It may print or write what it is given. Nothing is computed of it.
    if (i.shape.tuple && i.shape.elements.empty()) {
      shared_.hostCalls.insert({file_, i.place.line});
      return tupleValue(i.shape, {});
    }
    if (const Attribute* effect = i.attribute("custom_call_has_side_effect");
        effect != nullptr && effect->value != "false")
      unsupported(i, target + " has a side effect, expected a function of its operands");
    for (const char* calls : {"called_computations", "to_apply", "calls"})
      if (i.attribute(calls) != nullptr)
        unsupported(i, target + " calls a computation, which is not supported");
  }
  std::vector<Value> x;
  for (std::size_t k = 0; k < i.operands.size(); ++k) x.push_back(operand(frame, i, k));
  return opaqueCall(i, target, x, elements ? i.shape.sizes.size() : batchOf(i));
}

Value Lowering::opaqueCall(const Instruction& i, const std::string& target,
                           const std::vector<Value>& x, std::size_t batch) {
  const std::vector<Shape> shapes = resultShapes(i);
  std::optional<Sizes> batchSizes;
  const auto check = [&](const Shape& shape, const std::string& what) {
    if (shape.tuple || (!isFloat(shape.type) && !integerType(shape.type) && shape.type != "pred"))
      unsupported(i, target + ": " + what + " is " + toText(shape) +
                         ", expected an array of floats, integers or conditions");
    for (const std::int64_t size : shape.sizes)
      if (size == 0) unsupported(i, target + ": " + what + " has a dimension of size 0");
    const std::size_t n = std::min(batch, shape.sizes.size());
    const Sizes own(shape.sizes.begin(), shape.sizes.begin() + static_cast<std::ptrdiff_t>(n));
    if (own.size() < batch || (batchSizes && *batchSizes != own))
      unsupported(i, target + ": " + what + " is " + toText(shape) + ", expected " +
                         std::to_string(batch) + " first dimensions that all have");
    batchSizes = own;
  };
  for (std::size_t k = 0; k < x.size(); ++k) check(x[k].shape, "operand " + std::to_string(k));
  for (std::size_t k = 0; k < shapes.size(); ++k) check(shapes[k], "result " + std::to_string(k));
  if (shapes.empty()) unsupported(i, target + " has no result");

  OpaqueCall call;
  call.target = target;
  call.function = opaqueFunction(i, x, batch);
  call.batch = *batchSizes;
  call.place = i.place;
  call.operation = operation_;
  if (const Attribute* a = i.attribute("sharding")) call.sharding = parseSharding(*a, file_);
  for (const Value& v : x) call.inputs.push_back(node(v));
  // The same call once more.
  const auto same = std::find_if(opaqueCalls.begin(), opaqueCalls.end(), [&](const OpaqueCall& c) {
    return c.function == call.function && c.inputs == call.inputs;
  });
  if (same != opaqueCalls.end()) {
    call.results = same->results;
  } else {
    const std::string path = path_, location = graph.location();
    for (std::size_t k = 0; k < call.inputs.size(); ++k) {
      graph.begin(path + "/argument." + std::to_string(k), location);
      std::string own = graph.alias(call.inputs[k], x[k].shape.sizes);
      if (graph.nameLast(own)) own = graph.name();
      call.arguments.push_back(std::move(own));
    }
    graph.begin(path, location);
    for (std::size_t k = 0; k < shapes.size(); ++k) {
      const std::string name = graph.fresh(path + "/result." + std::to_string(k));
      graph.dispensableInput(name, shapes[k].sizes, integerType(shapes[k].type).has_value());
      call.results.push_back(name);
    }
    call.path = call.results[0];
    opaqueCalls.push_back(call);
  }
  std::vector<Value> made;
  for (std::size_t k = 0; k < shapes.size(); ++k) {
    const std::string& name = call.results[k];
    if (!integerType(shapes[k].type)) {
      made.push_back(nodeValue(shapes[k], shapes[k].type == "pred" ? step(name) : name));
      continue;
    }
    resultTypes_.emplace(name, shapes[k].type);
    IndexFunction f{name, {}, domainOf(name)};
    for (std::size_t d = 0; d < shapes[k].sizes.size(); ++d)
      f.labels.push_back(static_cast<int>(d));
    made.push_back(indexValue(shapes[k], std::move(f)));
  }
  return i.shape.tuple ? tupleValue(i.shape, std::move(made)) : made[0];
}

}  // namespace shardproof::hlo
