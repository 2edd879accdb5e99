// SPDX-License-Identifier: Apache-2.0
// What is not the same on all devices. A program is lowered for all devices that may have it at
// once. What follows from a device's number is computed for each of them and kept side by side. An
// instruction that reads such values is tried for each of them: where it emits the same nodes that
// differ in numbers of their attributes only, all devices stay, and each has its own attributes
// (which begin at a coordinate's rows, as a rule: programs.cpp); what it gives may differ again.
// Where it does not, or devices meet, only those stay for which the values are what the first one
// has. So in the end each device that is left would have got the very same graph, but for these
// attributes. The others are lowered again.
#include <algorithm>
#include <array>
#include <map>
#include <new>
#include <set>
#include <stdexcept>
#include <utility>

#include "reader/hlo/formula.h"
#include "reader/hlo/lowering.h"
#include "util/index.h"

namespace shardproof::hlo {
namespace {

// These hand on what they are given.
bool handsOn(const std::string& op) {
  static const std::set<std::string, std::less<>> kHandsOn{
      "tuple",       "get-tuple-element", "copy",         "opt-barrier", "optimization-barrier",
      "domain",      "copy-start",        "copy-done",    "call",        "fusion",
      "async-start", "async-done",        "async-update", "while",       "conditional",
      "parameter"};
  return kHandsOn.contains(op);
}

// These take formulas as they are; everything else takes lists.
bool takesFormulas(const std::string& op) {
  static const std::set<std::string, std::less<>> kTakes{
      "add",     "subtract",    "multiply",  "divide",      "remainder",
      "maximum", "minimum",     "power",     "and",         "or",
      "xor",     "compare",     "negate",    "abs",         "sign",
      "not",     "exponential", "log",       "sqrt",        "rsqrt",
      "tanh",    "logistic",    "sine",      "cosine",      "floor",
      "ceil",    "select",      "clamp",     "convert",     "broadcast",
      "reshape", "slice",       "transpose", "concatenate", "exponential-minus-one"};
  return kTakes.contains(op);
}

// Equal numbers have equal contents; of what is alike everywhere that is the value.
std::uintptr_t contentOf(const Value& v) {
  if (v.isUniform()) return 2 * std::uintptr_t{v.table->values[0]} + 1;
  return reinterpret_cast<std::uintptr_t>(v.isTable() ? static_cast<const void*>(v.table.get())
                                                      : v.formula.get());
}

bool samePieces(const Pieces& a, const Pieces& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Piece& x, const Piece& y) {
    return x.low == y.low && x.high == y.high && x.a == y.a && x.b == y.b;
  });
}

bool sameIndex(const IndexFunction& a, const IndexFunction& b) {
  return a.base == b.base && a.labels == b.labels && samePieces(a.pieces, b.pieces);
}

bool sameLookup(const Lookup& a, const Lookup& b) {
  return a.base == b.base && a.table == b.table && a.axis == b.axis && a.tied == b.tied &&
         a.labels == b.labels &&
         std::equal(a.pieces.begin(), a.pieces.end(), b.pieces.begin(), b.pieces.end(),
                    [](const LookupPiece& x, const LookupPiece& y) {
                      return x.low == y.low && x.high == y.high && x.kind == y.kind &&
                             x.offset == y.offset && x.number == y.number;
                    });
}

// Values that the same graph has.
bool sameValue(const Value& a, const Value& b) {
  if (a.kind != b.kind || !(a.shape == b.shape)) return false;
  switch (a.kind) {
    case Value::Kind::kTable:
    case Value::Kind::kFormula:
      return sameKnown(a, b);
    case Value::Kind::kNode:
      if (a.name != b.name || (a.guard == nullptr) != (b.guard == nullptr)) return false;
      return !a.guard || (a.guard->value == b.guard->value &&
                          sameIndex(a.guard->condition, b.guard->condition));
    case Value::Kind::kIndex:
      return sameIndex(*a.index, *b.index);
    case Value::Kind::kLookup:
      return sameLookup(*a.lookup, *b.lookup);
    case Value::Kind::kParts:
      return a.parts->dim == b.parts->dim &&
             std::equal(a.parts->parts.begin(), a.parts->parts.end(), b.parts->parts.begin(),
                        b.parts->parts.end(), [](const auto& x, const auto& y) {
                          return x.first == y.first && sameValue(x.second, y.second);
                        });
    case Value::Kind::kTuple:
      return std::equal(a.elements.begin(), a.elements.end(), b.elements.begin(), b.elements.end(),
                        sameValue);
    case Value::Kind::kVarying:
      return a.varying == b.varying;
  }
  return false;
}

// A whole number, or a list of them: what may move with a coordinate.
bool isWhole(const std::string& text) {
  return !text.empty() && text.find_first_not_of("-0123456789[], ") == std::string::npos;
}

bool sameTensor(const GraphTensor& a, const GraphTensor& b) {
  return a.sizes == b.sizes && a.integer == b.integer && a.known == b.known && a.kind == b.kind &&
         a.dtype == b.dtype && a.value == b.value && a.facts == b.facts;
}

bool sameButForNumbers(const GraphNode& a, const GraphNode& b) {
  return a.op == b.op && a.in == b.in && a.out == b.out && a.loc == b.loc &&
         std::equal(a.attributes.begin(), a.attributes.end(), b.attributes.begin(),
                    b.attributes.end(), [](const auto& x, const auto& y) {
                      return x.first == y.first &&
                             (x.second == y.second || (isWhole(x.second) && isWhole(y.second)));
                    });
}

// Nodes and tensors that an instruction makes on two devices.
template <class Attempt>
bool sameButForAttributes(const Attempt& a, const Attempt& b) {
  return std::equal(a.nodes.begin(), a.nodes.end(), b.nodes.begin(), b.nodes.end(),
                    sameButForNumbers) &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const auto& x, const auto& y) {
                      return x.first == y.first && sameTensor(x.second, y.second);
                    });
}

bool isLookup(const std::vector<Value>& values) {
  return std::all_of(values.begin(), values.end(),
                     [](const Value& v) { return v.kind == Value::Kind::kLookup; });
}

std::set<std::string> namesOf(const std::vector<std::pair<std::string, GraphTensor>>& tensors) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) names.insert(name);
  return names;
}

}  // namespace

void Lowering::narrow(const std::function<bool(std::int64_t)>& sameAsFirst) {
  std::vector<std::int64_t>& devices = devices_.candidates;
  if (devices.size() == 1) return;
  std::erase_if(devices, [&, first = devices.front()](std::int64_t d) {
    return d != first && !sameAsFirst(d);
  });
}

void Lowering::narrowByPart(const Instruction& i, std::size_t k,
                            const std::function<std::string(std::int64_t)>& text) {
  if (devices_.candidates.size() == 1) return;
  std::vector<std::string>& texts = shared_.takesPart[{&i, k}];
  if (texts.empty())
    for (std::int64_t d = 0; d < devices_.count; ++d) texts.push_back(text(d));
  narrow([&, mine = device()](std::int64_t d) { return texts[at(d)] == texts[at(mine)]; });
}

Value Lowering::own(const Value& v) {
  if (v.kind == Value::Kind::kVarying) {
    const Varying& varying = *v.varying;
    const std::uint32_t mine = varying.valueOf[at(device())];
    narrow([&](std::int64_t d) { return varying.valueOf[at(d)] == mine; });
    return varying.values[mine];
  }
  if (v.kind == Value::Kind::kTuple) {
    Value tuple = v;
    for (Value& element : tuple.elements) element = own(element);
    return tuple;
  }
  if (v.kind == Value::Kind::kParts) {
    Parts parts = *v.parts;
    for (auto& [size, part] : parts.parts) part = own(part);
    return partsValue(v.shape, std::move(parts));
  }
  return v;
}

void Lowering::listOperands(Frame& frame, const Instruction& i) {
  if (takesFormulas(i.opcode)) return;
  for (const Operand& operand : i.operands) {
    Value& v = frame.values[frame.computation->byName.at(operand.name)];
    if (v.kind == Value::Kind::kFormula) v = tableValue(v.shape, listed(shared_.scalars, v));
  }
}

// What refers to tensors that the graph has no more.
void Lowering::forgetTensors() {
  const auto gone = [&](const std::string& name) { return !graph.has(name); };
  std::erase_if(parameterOf_, [&](const auto& p) { return gone(p.first); });
  std::erase_if(resultTypes_, [&](const auto& t) { return gone(t.first); });
  std::erase_if(constantRanges_, [&](const auto& c) { return gone(c.first); });
  std::erase_if(numbers_, [&](const auto& n) { return gone(n.first) || gone(n.second); });
  std::erase_if(knownNodes_, [&](const auto& k) { return gone(k.second.name); });
}

std::optional<Lowering::Attempt> Lowering::attempt(const std::function<Value()>& make) {
  const auto sizes = [&] {
    return std::array{parameterOf_.size(), constantRanges_.size(), numbers_.size(),
                      knownNodes_.size(), resultTypes_.size()};
  };
  const auto before = sizes();
  const std::size_t inputs = localUnknowns.size(), calls = opaqueCalls.size();
  const std::vector<std::int64_t> devices = devices_.candidates;
  // What the instructions of a region leave behind.
  const std::size_t instructions = instructions_;
  const std::string path = path_, operation = operation_;
  const int depth = depth_;
  const Graph::Mark mark = graph.mark();
  const auto undo = [&] {
    graph.undo(mark);
    localUnknowns.resize(inputs);
    opaqueCalls.resize(calls);
    devices_.candidates = devices;
    instructions_ = instructions;
    path_ = path;
    operation_ = operation;
    depth_ = depth;
    if (sizes() != before) forgetTensors();
  };
  Attempt made;
  bool usable = true;
  try {
    made.value = make();
    usable = localUnknowns.size() == inputs && opaqueCalls.size() == calls &&
             devices_.candidates == devices;
    for (const std::string& name : graph.since(mark)) {
      made.tensors.emplace_back(name, graph.tensor(name));
      usable = usable && made.tensors.back().second.kind != "input";
    }
    made.nodes.assign(graph.nodes().begin() + static_cast<std::ptrdiff_t>(mark.nodes),
                      graph.nodes().end());
    for (const GraphNode& node : made.nodes) usable = usable && node.communication.empty();
  } catch (const std::bad_alloc&) {
    undo();
    throw;
  } catch (const std::exception&) {  // of device() it comes again
    usable = false;
  }
  undo();
  return usable ? std::optional(std::move(made)) : std::nullopt;
}

Value Lowering::makeForEach(const Shape& shape, const std::vector<Value*>& varying,
                            const std::function<Value()>& make) {
  std::vector<Value> before;
  for (const Value* v : varying) before.push_back(*v);
  // For each device the number of what its operands are, those of device() are 0.
  std::map<std::vector<std::uint32_t>, std::uint32_t> seen;
  std::vector<std::uint32_t> caseOf(at(devices_.count), 0);
  for (const std::int64_t d : devices_.candidates) {
    std::vector<std::uint32_t> key;
    for (const Value& v : before) key.push_back(v.varying->valueOf[at(d)]);
    caseOf[at(d)] =
        seen.emplace(std::move(key), static_cast<std::uint32_t>(seen.size())).first->second;
  }
  const auto set = [&](const std::vector<std::uint32_t>& key) {
    for (std::size_t k = 0; k < varying.size(); ++k)
      *varying[k] = before[k].varying->values[key[k]];
  };
  std::vector<std::optional<Attempt>> attempts(seen.size());
  const std::vector<std::uint32_t>* own = nullptr;
  for (const auto& [key, number] : seen) {
    set(key);
    attempts[number] = attempt(make);
    if (number == 0) own = &key;
  }
  const std::optional<Attempt>& mine = attempts[0];
  std::vector<bool> stays(seen.size(), false);
  for (std::size_t k = 0; k < stays.size(); ++k)
    stays[k] = k == 0 || (mine && attempts[k] && sameButForAttributes(*mine, *attempts[k]));
  narrow([&](std::int64_t d) { return stays[caseOf[at(d)]]; });
  const std::size_t nodes = graph.nodes().size();
  set(*own);
  const Value made = make();
  for (std::size_t k = 0; k < varying.size(); ++k) *varying[k] = before[k];
  if (!mine) return made;
  const std::vector<std::int64_t>& devices = devices_.candidates;
  for (std::size_t n = 0; n < mine->nodes.size(); ++n) {
    const auto attributesOf = [&](std::int64_t d) {
      return attempts[caseOf[at(d)]]->nodes[n].attributes;
    };
    if (std::all_of(devices.begin(), devices.end(),
                    [&](std::int64_t d) { return attributesOf(d) == mine->nodes[n].attributes; }))
      continue;
    std::map<std::int64_t, NodeAttributes> ofDevice;
    for (const std::int64_t d : devices) ofDevice[d] = attributesOf(d);
    graph.setOfDevice(nodes + n, std::move(ofDevice));
  }
  // Elements lie within the bounds of all.
  for (std::size_t t = 0; t < mine->tensors.size(); ++t) {
    GraphTensor& tensor = graph.tensor(mine->tensors[t].first);
    for (const std::int64_t d : devices) {
      const GraphTensor& there = attempts[caseOf[at(d)]]->tensors[t].second;
      tensor.least = std::min(tensor.least, there.least);
      tensor.greatest = std::max(tensor.greatest, there.greatest);
    }
  }
  // A tensor that stands for what device() knows stands for something else on others.
  const std::set<std::string> tensors = namesOf(mine->tensors);
  std::erase_if(knownNodes_, [&](const auto& k) { return tensors.contains(k.second.name); });
  std::vector<Value> values;
  for (std::size_t k = 0; k < attempts.size(); ++k)
    values.push_back(stays[k] ? attempts[k]->value : made);
  return varyingValue(shape, std::move(values), caseOf);
}

// Equal values become one; if all are one it is that.
Value Lowering::varyingValue(const Shape& shape, std::vector<Value> values,
                             const std::vector<std::uint32_t>& valueOf) const {
  if (values[0].kind == Value::Kind::kTuple) {
    Value tuple = values[0];
    for (std::size_t k = 0; k < tuple.elements.size(); ++k) {
      std::vector<Value> elements;
      for (const Value& v : values) elements.push_back(v.elements.at(k));
      tuple.elements[k] = varyingValue(tuple.elements[k].shape, std::move(elements), valueOf);
    }
    return tuple;
  }
  Varying varying;
  std::vector<std::uint32_t> kept;
  for (const Value& v : values) {
    std::uint32_t k = 0;
    while (k < varying.values.size() && !sameValue(varying.values[k], v)) ++k;
    if (k == varying.values.size()) varying.values.push_back(v);
    kept.push_back(k);
  }
  if (varying.values.size() == 1) return varying.values[0];
  for (const std::uint32_t k : valueOf) varying.valueOf.push_back(kept[k]);
  return valueWith(Value::Kind::kVarying, shape, &Value::varying, std::move(varying));
}

Value Lowering::deviceNumber(const Shape& shape) {
  std::vector<Value> values;
  std::vector<std::uint32_t> valueOf(at(devices_.count), 0);
  for (const std::int64_t d : devices_.candidates) {
    valueOf[at(d)] = static_cast<std::uint32_t>(values.size());
    values.push_back(tableValue(shape, uniformTable(shape.sizes, shared_.scalars.rational(d))));
  }
  return varyingValue(shape, std::move(values), valueOf);
}

// What an instruction makes of values that are all known, if that is known again and not alike
// everywhere (what is, is quickly made).
std::optional<Value> Lowering::remembered(Frame& frame, const Instruction& i) {
  constexpr std::size_t kMostMade = 20'000;
  std::vector<std::uintptr_t> contents;
  std::vector<Value> operands;
  for (std::size_t k = 0; k < i.operands.size(); ++k) {
    Value& v = frame.values[frame.computation->byName.at(i.operands[k].name)];
    if (v.kind == Value::Kind::kFormula && !takesFormulas(i.opcode))
      v = tableValue(v.shape, listed(shared_.scalars, v));
    contents.push_back(contentOf(v));
    operands.push_back(v);
  }
  const std::pair<const Instruction*, std::vector<std::uintptr_t>> key{&i, std::move(contents)};
  if (const auto found = shared_.made.find(key); found != shared_.made.end())
    return found->second.value;
  const std::size_t nodes = graph.nodes().size(), inputs = localUnknowns.size();
  Value made = lowerOpcode(frame, i);
  if (made.isKnown() && !made.isUniform() && graph.nodes().size() == nodes &&
      localUnknowns.size() == inputs && shared_.made.size() < kMostMade)
    shared_.made.emplace(key, Shared::Made{std::move(operands), made});
  return made;
}

std::optional<Value> Lowering::lowerKnown(Frame& frame, const Instruction& i) {
  if (handsOn(i.opcode)) return std::nullopt;
  std::set<std::size_t> operands;
  for (const Operand& operand : i.operands)
    operands.insert(frame.computation->byName.at(operand.name));
  std::vector<std::size_t> varying;
  bool known = true;
  for (const std::size_t k : operands) {
    const Value& v = frame.values[k];
    if (v.kind == Value::Kind::kVarying) varying.push_back(k);
    else known = known && v.isKnown();
  }
  static const std::set<std::string, std::less<>> kMeeting{
      "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"};
  const bool meets = std::any_of(kMeeting.begin(), kMeeting.end(),
                                 [&](const std::string& op) { return i.opcode.starts_with(op); });
  if (varying.empty() && known && !meets) return remembered(frame, i);
  if (!varying.empty() && !meets) {
    std::vector<Value*> values;
    for (const std::size_t k : varying) values.push_back(&frame.values[k]);
    return makeForEach(i.shape, values, [&] {
      listOperands(frame, i);
      return lowerInstruction(frame, i);
    });
  }
  if (varying.empty()) {
    for (const std::size_t k : operands) frame.values[k] = own(frame.values[k]);
    listOperands(frame, i);
    return std::nullopt;
  }
  // Where devices meet it matters which device it is, but for lookups, which are tensors there.
  const std::vector<Value> before = frame.values;
  for (const std::size_t k : operands) {
    Value& v = frame.values[k];
    const bool lookups = v.kind == Value::Kind::kVarying && isLookup(v.varying->values);
    if (lookups) v = makeForEach(v.shape, {&v}, [&] { return nodeValue(v.shape, node(v)); });
    v = own(v);
  }
  listOperands(frame, i);
  Value made = lowerOpcode(frame, i);
  frame.values = before;
  return made;
}

}  // namespace shardproof::hlo
