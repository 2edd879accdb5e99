// SPDX-License-Identifier: Apache-2.0
// Computations, calls, and what an instruction is passed on to.
#include "reader/hlo/lowering.h"

#include <algorithm>
#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include "reader/hlo/mesh.h"
#include "shardproof/error.h"
#include "util/index.h"

namespace shardproof::hlo {
namespace {

constexpr std::size_t kMostInstructions = 4'000'000;  // with loops unrolled
constexpr int kMostCalls = 200;                       // inside each other
constexpr std::int64_t kMostKeyElements = 64;

std::string shortened(const std::string& text) {
  constexpr std::size_t kMost = 160;
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

}  // namespace

Lowering::Lowering(const Module& module, std::string file, Shared& shared, Devices devices,
                   const Grouping* grouping)
    : module_(module),
      file_(std::move(file)),
      shared_(shared),
      devices_(std::move(devices)),
      grouping_(grouping) {
  if (grouping == nullptr) graph.shareEqual();
}

void Lowering::unsupported(const Instruction& i, const std::string& what) const {
  const std::string source = parseMetadata(module_, i, file_).source;
  failAt(file_, i.place,
         "instruction '" + i.name + "', opcode '" + i.opcode + "': " + what +
             (source.empty() ? "" : " (from " + source + ")"));
}

const Value& Lowering::operand(const Frame& frame, const Instruction& i, std::size_t k) const {
  if (k >= i.operands.size())
    unsupported(i, "found " + std::to_string(i.operands.size()) + " operands, expected more");
  return frame.values[frame.computation->byName.at(i.operands[k].name)];
}

std::vector<std::int64_t> Lowering::dims(const Instruction& i, std::string_view attribute) const {
  const Attribute* a = i.attribute(attribute);
  if (a == nullptr) unsupported(i, "no attribute '" + std::string(attribute) + "'");
  return parseIntegers(*a, file_);
}

void Lowering::expectShape(const Instruction& i, const Sizes& found) const {
  if (i.shape.tuple || i.shape.sizes != found)
    unsupported(
        i, "its shape is " + toText(i.shape) + ", but its operands make sizes " + listJson(found));
}

const Computation& Lowering::called(const Instruction& i, std::string_view attribute) const {
  const Attribute* a = i.attribute(attribute);
  if (a == nullptr) unsupported(i, "no attribute '" + std::string(attribute) + "'");
  Cursor c(a->value, file_, a->place);
  const auto found = module_.byName.find(c.name("a computation"));
  if (found == module_.byName.end())
    failAt(file_, a->place, "found '" + shortened(a->value) + "', expected a computation");
  return module_.computations[found->second];
}

std::string Lowering::binaryRegion(const Instruction& i, const Computation& c) const {
  // Copies and conversions between floats change nothing; one from or to an integer may.
  const auto operandOf = [&](const Operand& from) -> const Instruction& {
    return c.instructions[c.byName.at(from.name)];
  };
  const auto handsOn = [&](const Instruction& at) {
    if (at.operands.size() != 1) return false;
    const std::string& from = operandOf(at.operands[0]).shape.type;
    return at.opcode == "copy" ||
           (at.opcode == "convert" &&
            (at.shape.type == from || (isFloat(at.shape.type) && isFloat(from))));
  };
  const auto behind = [&](const Instruction& from) -> const Instruction& {
    const Instruction* at = &from;
    while (handsOn(*at)) at = &operandOf(at->operands[0]);
    return *at;
  };
  const Instruction* root = &behind(c.instructions[c.root]);
  static const std::set<std::string, std::less<>> kKnown{"add",     "multiply", "maximum",
                                                         "minimum", "and",      "or"};
  if (kKnown.contains(root->opcode) && root->operands.size() == 2) {
    const Instruction &a = behind(operandOf(root->operands[0])),
                      &b = behind(operandOf(root->operands[1]));
    if (a.opcode == "parameter" && b.opcode == "parameter" && a.literal != b.literal)
      return root->opcode;
  }
  unsupported(i, "computation '" + c.name +
                     "' is none of add, multiply, maximum, minimum, and, "
                     "or of its two parameters");
}

// Of numbers it is that; the choice of a + b where a - b is none is for infinities.
bool Lowering::addsExponentials(const Computation& c) {
  std::function<std::string(const Instruction&, int)> text = [&](const Instruction& i,
                                                                 int depth) -> std::string {
    constexpr int kDeepest = 12;
    if (depth > kDeepest) return "";
    const auto operandText = [&](std::size_t k) {
      return text(c.instructions[c.byName.at(i.operands[k].name)], depth + 1);
    };
    if (i.opcode == "parameter") return i.literal;
    if (i.opcode == "copy" || (i.opcode == "convert" && isFloat(i.shape.type)))
      return operandText(0);
    const Attribute* direction = i.attribute("direction");
    std::string made = i.opcode + (direction == nullptr ? "" : " " + direction->value) + "(";
    for (std::size_t k = 0; k < i.operands.size(); ++k)
      made += (k == 0 ? "" : ",") + operandText(k);
    return made + ")";
  };
  const std::string found = text(c.instructions[c.root], 0);
  for (const bool turned : {false, true}) {
    const std::string both = turned ? "(1,0)" : "(0,1)", difference = "subtract" + both;
    for (const std::string& sides : {std::string("(0,1)"), std::string("(1,0)")})
      if (found == "select(compare NE(" + difference + "," + difference + "),add" + sides +
                       ",add(maximum" + sides + ",log-plus-one(exponential(negate(abs(" +
                       difference + "))))))")
        return true;
  }
  return false;
}

void Lowering::run() {
  const Computation& entry = module_.computations[module_.entry];
  const Value root = lowerComputation(entry, {}, "", "");
  const Instruction& i = entry.instructions[entry.root];
  std::vector<Value> values = root.shape.tuple ? root.elements : std::vector<Value>{root};
  std::optional<Sharding> sharding;
  if (const Attribute* a = i.attribute("sharding")) sharding = parseSharding(*a, file_);
  if (root.shape.tuple && sharding && sharding->kind == Sharding::Kind::kTuple &&
      sharding->elements.size() != values.size())
    failAt(file_, i.place,
           "found a tuple of " + std::to_string(sharding->elements.size()) +
               " shardings, expected " + std::to_string(values.size()));
  for (std::size_t k = 0; k < values.size(); ++k) {
    path_ = "out." + std::to_string(k);
    graph.begin(path_, file_ + ":" + std::to_string(i.place.line) + " result " + std::to_string(k));
    if (values[k].shape.tuple) unsupported(i, "a tuple in a tuple of results");
    std::string name;
    try {
      values[k] = own(values[k]);
      name = node(values[k]);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      unsupported(i, "result " + std::to_string(k) + ": " + error.what());
    }
    std::string own = graph.alias(name, values[k].shape.sizes);
    if (graph.nameLast(own)) own = graph.name();
    std::optional<Sharding> ofThis = sharding;
    if (sharding && sharding->kind == Sharding::Kind::kTuple)
      ofThis = root.shape.tuple ? std::optional(sharding->elements[k]) : std::nullopt;
    results.push_back(
        {own, values[k].shape, std::move(ofThis), static_cast<std::int64_t>(k), i.place});
  }
  std::sort(parameters.begin(), parameters.end(),
            [](const Port& a, const Port& b) { return a.number < b.number; });
}

Value Lowering::lowerComputation(const Computation& computation, std::vector<Value> arguments,
                                 const std::string& path, const std::string& operation) {
  if (depth_ >= kMostCalls)
    failAt(file_, computation.place,
           "found calls nested more than " + std::to_string(kMostCalls) + " deep");
  ++depth_;
  Frame frame;
  frame.computation = &computation;
  frame.arguments = std::move(arguments);
  frame.path = path;
  frame.operation = operation;
  frame.values.reserve(computation.instructions.size());
  for (const Instruction& i : computation.instructions) {
    if (++instructions_ > kMostInstructions)
      unsupported(i, "more than " + std::to_string(kMostInstructions) +
                         " instructions with loops unrolled");
    const Metadata metadata = parseMetadata(module_, i, file_);
    // Inside of a call names are often relative to the call's.
    std::string name = metadata.operation;
    if (!operation.empty() && !name.starts_with(operation))
      name = operation + (name.empty() ? "" : "/" + name);
    path_ = path + i.name;
    operation_ = name;
    std::string loc = file_ + ":" + std::to_string(i.place.line) + " " + i.opcode;
    if (!name.empty()) loc += " " + shortened(name);
    if (!metadata.source.empty()) loc += " " + metadata.source;
    graph.begin(path_, std::move(loc));
    const std::size_t before = graph.nodes().size();
    try {
      frame.values.push_back(lowerInstruction(frame, i));
    } catch (const InputError&) {
      throw;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      // What is not supported, and what does not fit together in a way that nothing above saw.
      unsupported(i, error.what());
    }
    Value& made = frame.values.back();
    // The same name on all devices, however many steps it took.
    static const std::set<std::string, std::less<>> kCalls{"call", "fusion", "async-start", "while",
                                                           "conditional"};
    if (made.kind == Value::Kind::kNode && graph.nodes().size() > before &&
        !kCalls.contains(i.opcode) && !isNumber(made.name) && graph.nameLast(made.name))
      made.name = graph.name();
    if (frame.values.back().shape.tuple != i.shape.tuple ||
        (!i.shape.tuple && frame.values.back().shape.sizes != i.shape.sizes))
      unsupported(i, "its shape is " + toText(i.shape) + ", but its operands make " +
                         toText(frame.values.back().shape));
    if (made.kind == Value::Kind::kNode && isPredicate(made)) {
      GraphTensor& t = graph.tensor(made.name);
      t.least = std::max(t.least, 0.0);
      t.greatest = std::min(t.greatest, 1.0);
    }
    checkOverflow(i, frame.values.back());
    mark(i, metadata, name, frame.values.back());
  }
  --depth_;
  return frame.values[computation.root];
}

bool Lowering::isNumber(const std::string& tensor) const {
  return std::any_of(numbers_.begin(), numbers_.end(),
                     [&](const auto& entry) { return entry.second == tensor; });
}

void Lowering::mark(const Instruction& i, const Metadata& metadata, const std::string& operation,
                    const Value& value) {
  static const std::set<std::string, std::less<>> kMoved{
      "broadcast", "reshape", "parameter", "copy", "constant", "get-tuple-element", "bitcast"};
  if (metadata.operation.empty() || value.kind != Value::Kind::kNode || kMoved.contains(i.opcode) ||
      graph.tensor(value.name).kind == "input")
    return;
  Mark m{operation, value.shape.sizes, value.name, std::nullopt};
  if (const Attribute* a = i.attribute("sharding")) m.sharding = parseSharding(*a, file_);
  marks.push_back(std::move(m));
}

Value Lowering::lowerInstruction(Frame& frame, const Instruction& i) {
  if (auto v = lowerKnown(frame, i)) return *v;
  return lowerOpcode(frame, i);
}

Value Lowering::lowerOpcode(Frame& frame, const Instruction& i) {
  if (auto v = lowerControl(frame, i)) return *v;
  if (auto v = lowerOpaque(frame, i)) return *v;
  if (auto v = lowerBits(frame, i)) return *v;
  if (auto v = lowerElementwise(frame, i)) return *v;
  if (auto v = lowerLayout(frame, i)) return *v;
  if (auto v = lowerOrder(frame, i)) return *v;
  if (auto v = lowerSums(frame, i)) return *v;
  if (auto v = lowerLookup(frame, i)) return *v;
  if (auto v = lowerCollective(frame, i)) return *v;
  unsupported(i, "not supported");
}

std::optional<Value> Lowering::lowerControl(Frame& frame, const Instruction& i) {
  const std::string& op = i.opcode;
  if (op == "parameter") return lowerParameter(frame, i);
  if (op == "constant") return lowerConstant(i);
  if (op == "copy" || op == "opt-barrier" || op == "optimization-barrier" || op == "domain")
    return operand(frame, i, 0);
  if (op == "copy-start") return tupleValue(i.shape, {operand(frame, i, 0)});
  if (op == "copy-done" || op == "async-done") {
    const Value& x = operand(frame, i, 0);
    return x.elements.size() == 1 ? x.elements[0] : x;
  }
  if (op == "tuple") {
    std::vector<Value> elements;
    Shape shape;
    shape.tuple = true;
    for (std::size_t k = 0; k < i.operands.size(); ++k) {
      elements.push_back(operand(frame, i, k));
      shape.elements.push_back(elements.back().shape);
    }
    return tupleValue(std::move(shape), std::move(elements));
  }
  if (op == "get-tuple-element") {
    const Attribute* a = i.attribute("index");
    if (a == nullptr) unsupported(i, "no attribute 'index'");
    const std::int64_t index = parseInteger(*a, file_);
    const Value& tuple = operand(frame, i, 0);
    if (index < 0 || index >= static_cast<std::int64_t>(tuple.elements.size()))
      unsupported(i, "an index outside of the tuple");
    return tuple.elements[static_cast<std::size_t>(index)];
  }
  if (op == "iota") {
    const Attribute* a = i.attribute("iota_dimension");
    const std::int64_t d = a == nullptr ? -1 : parseInteger(*a, file_);
    if (d < 0 || d >= static_cast<std::int64_t>(i.shape.sizes.size()))
      unsupported(i, "an iota_dimension that is not there");
    return tableValue(i.shape, iotaTable(i.shape.sizes, static_cast<std::size_t>(d),
                                         shared_.scalars, i.shape.type));
  }
  if (op == "partition-id" || op == "replica-id") {
    if (devices_.replicas == (op == "replica-id")) return deviceNumber(i.shape);
    return tableValue(i.shape, uniformTable(i.shape.sizes, shared_.scalars.rational(0)));
  }
  if (op == "call" || op == "fusion" || op == "async-start") {
    std::vector<Value> arguments;
    for (std::size_t k = 0; k < i.operands.size(); ++k) arguments.push_back(operand(frame, i, k));
    const Computation& c = called(i, op == "call" ? "to_apply" : "calls");
    const Metadata metadata = parseMetadata(module_, i, file_);
    std::string operation = metadata.operation;
    if (operation.empty() || (!frame.operation.empty() && !operation.starts_with(frame.operation)))
      operation = frame.operation + (operation.empty() ? "" : "/" + operation);
    if (operation.starts_with('/')) operation.erase(0, 1);
    Value result = lowerComputation(c, std::move(arguments), frame.path + i.name + "/", operation);
    return op == "async-start" ? tupleValue(i.shape, {result}) : result;
  }
  if (op == "async-update") return operand(frame, i, 0);
  if (op == "while") return lowerWhile(frame, i);
  if (op == "conditional") return lowerConditional(frame, i);
  if (op == "after-all" || op == "add-dependency") unsupported(i, "tokens are not supported");
  return std::nullopt;
}

Value Lowering::lowerParameter(Frame& frame, const Instruction& i) {
  Cursor c(i.literal, file_, i.literalPlace);
  const std::int64_t number = c.integer("the parameter's number");
  c.skipSpace();
  if (!c.atEnd()) c.expected("the end of the parameter's number");
  if (!frame.computation->entry || !frame.path.empty()) {
    if (number < 0 || number >= static_cast<std::int64_t>(frame.arguments.size()))
      unsupported(i, "the call has " + std::to_string(frame.arguments.size()) + " operands");
    return frame.arguments[static_cast<std::size_t>(number)];
  }
  if (i.shape.tuple) unsupported(i, "a tuple, expected arrays as parameters of the program");
  for (const std::int64_t size : i.shape.sizes)
    if (size == 0) unsupported(i, "a dimension of size 0");
  const Metadata metadata = parseMetadata(module_, i, file_);
  std::string name = metadata.operation.empty() ? i.name : metadata.operation;
  if (const auto range = shared_.ranges.find(static_cast<std::size_t>(number));
      range != shared_.ranges.end() && range->second.shift() > 0)
    name += " + " + std::to_string(range->second.shift());
  name = graph.fresh(name);
  Port port{name, i.shape, std::nullopt, number, i.place};
  if (const Attribute* a = i.attribute("sharding")) port.sharding = parseSharding(*a, file_);
  for (const Port& other : parameters)
    if (other.number == number) unsupported(i, "a parameter's number used twice");
  parameters.push_back(port);
  if (integerType(i.shape.type)) {
    graph.input(name, i.shape.sizes, true, "int64");
    if (auto key = keyTable(port)) return *key;
    const std::size_t k = static_cast<std::size_t>(number);
    if (grouping_ == nullptr) shared_.integerTypes[k] = i.shape.type;
    else if (shared_.integerTypes[k] != i.shape.type)
      unsupported(i,
                  "type " + i.shape.type + ", which is another one than the model's parameter has");
    parameterOf_.emplace(name, k);
    const auto [low, high] = typeRange(*integerType(i.shape.type));
    IndexFunction f{name, {}, identityPieces(low, high)};
    for (std::size_t d = 0; d < i.shape.sizes.size(); ++d) f.labels.push_back(static_cast<int>(d));
    return indexValue(i.shape, std::move(f));
  }
  if (!isFloat(i.shape.type) && i.shape.type != "pred")
    unsupported(i, "type " + i.shape.type + " is not supported");
  graph.input(name, i.shape.sizes, false, "float32");
  // A condition is 0 or 1: that of a number which may be any.
  return nodeValue(i.shape, i.shape.type == "pred" ? step(name) : name);
}

// A random generator's key, by its shape: pairs of 32 bits, or four of them; or what a key is made
// of (Shared::asBits). It is computed with bit by bit, each element as a symbol; a device has those
// of its part.
std::optional<Value> Lowering::keyTable(const Port& port) {
  const std::size_t number = at(port.number);
  const Shape& shape = port.shape;
  const bool pairs = shape.type == "u32" && !shape.sizes.empty() &&
                     (shape.sizes.back() == 2 || shape.sizes == Sizes{4});
  const bool counts = shared_.asBits.contains(number);
  if (grouping_ == nullptr) {
    if (!pairs && !counts) return std::nullopt;
    std::int64_t count = 1;
    for (const std::int64_t n : shape.sizes) {
      if (n > kMostKeyElements) return std::nullopt;
      count *= n;
      if (count > kMostKeyElements) return std::nullopt;
    }
    shared_.keys[number] = shape.sizes;
  }
  const auto key = shared_.keys.find(number);
  if (key == shared_.keys.end()) return std::nullopt;
  const Sizes& full = key->second;
  // What each device has of it.
  const auto tiling = tilingOf(port.sharding.value_or(Sharding{}), full.size(), devices_.count);
  bool fits = tiling.has_value() && shape.sizes.size() == full.size();
  for (std::size_t d = 0; fits && d < full.size(); ++d)
    fits = shape.sizes[d] * tiling->tiles[d] == full[d];
  if (!fits)
    failAt(file_, port.place,
           "found parameter " + std::to_string(number) +
               ", whose bits are used: which of them a device has is not known");
  std::vector<Value> values;
  std::vector<std::uint32_t> valueOf(at(devices_.count), 0);
  for (const std::int64_t device : devices_.candidates) {
    Table t{shape.sizes, shape.sizes, {}};
    Sizes index(full.size(), 0);
    std::int64_t count = 1;
    for (const std::int64_t n : shape.sizes) count *= n;
    for (std::int64_t k = 0; k < count; ++k) {
      std::int64_t element = 0;
      for (std::size_t d = 0; d < full.size(); ++d)
        element = element * full[d] + tiling->tileOf[at(device)][d] * shape.sizes[d] + index[d];
      t.values.push_back(shared_.scalars.symbol(number, at(element), counts));
      for (std::size_t d = full.size(); d-- > 0 && ++index[d] == shape.sizes[d];) index[d] = 0;
    }
    valueOf[at(device)] = static_cast<std::uint32_t>(values.size());
    values.push_back(tableValue(shape, std::move(t)));
  }
  return varyingValue(shape, std::move(values), valueOf);
}

// A counter that is folded into a key: an integer of few elements whose bits are combined, or which
// is computed with together with those of a key. From then on it is one of the symbols in both
// programs, everywhere: as a symbol it is every integer, too, so nothing is lost but that it cannot
// be a position any more.
void Lowering::askForBits(const std::string& opcode, const std::vector<Value>& x) {
  static const std::set<std::string, std::less<>> kOfBits{
      "and", "or", "xor", "not", "shift-left", "shift-right-logical", "shift-right-arithmetic"};
  const bool combines = kOfBits.contains(opcode);
  const bool withKey =
      std::any_of(x.begin(), x.end(), [&](const Value& v) { return dependsOnBits(v); });
  for (const Value& v : x) {
    if (!v.isIndex() || !(withKey || (combines && isUnsigned(v.shape.type)))) continue;
    const auto parameter = parameterOf_.find(v.index->base);
    if (parameter == parameterOf_.end()) continue;
    std::int64_t count = 1;
    for (const std::int64_t size : sizesOf(v.index->base)) count *= size;
    if (count > kMostKeyElements || !shared_.asBits.insert(parameter->second).second) continue;
    shared_.forget(parameter->second);
    throw Shared::MoreBits();
  }
}

Value Lowering::lowerConstant(const Instruction& i) {
  const std::vector<std::string> texts = parseLiteral(i, file_);
  std::vector<ScalarId> values;
  for (const std::string& text : texts) {
    try {
      values.push_back(shared_.scalars.parse(text, i.shape.type, shared_.exactConstants));
    } catch (const std::invalid_argument& error) {
      failAt(file_, i.literalPlace, error.what());
    }
  }
  for (const std::int64_t size : i.shape.sizes)
    if (size == 0) unsupported(i, "a dimension of size 0");
  const bool alike =
      std::all_of(values.begin(), values.end(), [&](ScalarId v) { return v == values[0]; });
  if (alike) return tableValue(i.shape, uniformTable(i.shape.sizes, values[0]));
  if (static_cast<std::int64_t>(values.size()) > kMostTableValues)
    unsupported(i, "more than " + std::to_string(kMostTableValues) + " numbers");
  return tableValue(i.shape, {i.shape.sizes, i.shape.sizes, std::move(values)});
}

}  // namespace shardproof::hlo
