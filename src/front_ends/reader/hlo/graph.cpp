// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/graph.h"

#include <gmpxx.h>

#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "ops/registry.h"
#include "writer/json_writer.h"

namespace shardproof::hlo {

std::string quotedJson(std::string_view text) {
  JsonWriter writer;
  writer.text(text);
  std::string quoted = writer.take();
  quoted.pop_back();
  return quoted;
}

std::string listJson(const Sizes& list) {
  std::string text = "[";
  for (std::size_t i = 0; i < list.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(list[i]);
  return text + "]";
}

std::string decimalJson(const Rational& value) {
  constexpr unsigned long kMostDigits = 400;
  const mpq_class q = value.toMpq();
  mpz_class den = q.get_den();
  unsigned long twos = 0, fives = 0;
  while (mpz_divisible_ui_p(den.get_mpz_t(), 2)) {
    den /= 2;
    ++twos;
  }
  while (mpz_divisible_ui_p(den.get_mpz_t(), 5)) {
    den /= 5;
    ++fives;
  }
  const unsigned long digits = std::max(twos, fives);
  if (den != 1 || digits > kMostDigits) return {};
  mpz_class scale = 1;
  mpz_ui_pow_ui(scale.get_mpz_t(), 10, digits);
  const mpq_class shifted = q * scale;
  std::string text = shifted.get_num().get_str();
  if (text.size() > 2 * kMostDigits) return {};
  return digits == 0 ? text : text + "e-" + std::to_string(digits);
}

void Graph::begin(std::string name, std::string loc) {
  name_ = std::move(name);
  loc_ = std::move(loc);
  steps_ = 0;
}

std::string Graph::fresh(const std::string& name) {
  if (!tensors_.contains(name)) return name;
  std::size_t& next = taken_[name];
  if (marks_ > 0) journal_.emplace_back(name, next);
  for (;;) {
    std::string candidate = name + "/" + std::to_string(++next);
    if (!tensors_.contains(candidate)) return candidate;
  }
}

std::string Graph::produce(GraphNode node, GraphTensor tensor) {
  std::string name = fresh(name_ + "/" + std::to_string(++steps_));
  node.out = {name};
  node.loc = loc_;
  tensor.producer = nodes_.size();
  judge(node, tensor);
  bound(node, tensor);
  nodes_.push_back(std::move(node));
  add(name, std::move(tensor));
  order_.push_back(name);
  return name;
}

ops::Traits traitsOf(std::string_view op) {
  const ops::Registry& registry = ops::Registry::instance();
  const OperatorId found = registry.find(op);
  return found.valid() ? registry.at(found).traits : ops::Traits();
}

// Of communication nothing: that depends on what the others give (Lowering::told).
void Graph::judge(const GraphNode& node, GraphTensor& made) const {
  if (!node.communication.empty()) return;
  const ops::Traits traits = traitsOf(node.op);
  const bool mask = node.op == "create_mask";
  Definedness definedness = Definedness::kNumber;
  Positive positive = node.in.empty() ? Positive::kUnknown : Positive::kYes;
  for (const std::string& operand : node.in) {
    definedness = std::min(definedness, tensor(operand).definedness);
    positive = std::min(positive, this->positive(operand));
  }
  if (definedness == Definedness::kSometimes) return;
  const bool scaled = !node.attributes.empty() && node.attributes[0].first == "scalar";
  const std::string scalar = scaled ? node.attributes[0].second : "";
  const bool exponential = traits.finite && traits.sign == ops::Sign::kPositive;
  const bool root = node.op == "sqrt" && tensor(node.in[0]).known != Known::kNothing;
  const bool whole =
      node.op == "pow" && scaled && scalar.find_first_not_of("0123456789") == std::string::npos;
  // Above zero so that there is a value: if only zeros of masked elements are not, some never have.
  Positive needed = Positive::kYes;
  if (node.op == "div" && !scaled) needed = this->positive(node.in.back());
  else if (node.op == "log" || node.op == "rsqrt" || node.op == "sqrt" || node.op == "pow")
    needed = root || whole ? Positive::kYes : positive;
  else if (node.op != "div" && !traits.total && !mask) needed = Positive::kUnknown;
  if (needed == Positive::kUnknown) return;
  made.definedness = Definedness::kAlwaysOrNever;
  const bool scaledUp = (node.op == "mul" || node.op == "div") && scaled && scalar.find('-') != 0 &&
                        scalar.find_first_of("123456789") < scalar.find('e');
  const bool keepsMinusInfinity =
      traits.picks || traits.sums || node.op == "sum" || node.op == "pad";
  if (mask) made.definedness = Definedness::kMaybeMasked;
  else if (definedness == Definedness::kNumber && needed == Positive::kYes)
    made.definedness = Definedness::kNumber;
  else if (definedness == Definedness::kMaybeMasked && exponential)
    made.definedness = Definedness::kNumber;
  else if (definedness == Definedness::kMaybeMasked &&
           (scaledUp || keepsMinusInfinity ||
            (node.op == "sub" && tensor(node.in[1]).definedness == Definedness::kNumber)))
    made.definedness = Definedness::kMaybeMasked;
  if (exponential)
    made.positive = definedness == Definedness::kNumber ? Positive::kYes : Positive::kOrMasked;
  else if (traits.keepsSign && scalar.find('-') != 0)
    made.positive = node.op == "mul" && scaled && !scaledUp
                        ? std::min(positive, Positive::kOrMasked)
                        : positive;
}

Positive Graph::positive(const std::string& name) const {
  const GraphTensor& t = tensor(name);
  return t.known == Known::kPositive ? Positive::kYes : t.positive;
}

void Graph::add(const std::string& name, GraphTensor tensor) {
  tensor.serial = ++made_;
  if (tensor.kind == "input") tensor.definedness = Definedness::kNumber;
  if (tensor.kind == "constant") {
    const std::string& value = tensor.value;
    std::tie(tensor.least, tensor.greatest) = boundsOfNumbers(value);
    if (value.find('N') == std::string::npos)
      tensor.definedness = Definedness::kNumber;  // not-a-number
    if (value.find_first_not_of("0123456789.e-") == std::string::npos && value.find('-') != 0 &&
        value.find_first_of("123456789") < value.find('e'))
      tensor.positive = Positive::kYes;
  }
  tensors_.emplace(name, std::move(tensor));
}

bool Graph::nameLast(const std::string& tensor) {
  if (nodes_.empty() || nodes_.back().out[0] != tensor || tensors_.contains(name_)) return false;
  auto entry = tensors_.extract(tensor);
  entry.key() = name_;
  tensors_.insert(std::move(entry));
  nodes_.back().out[0] = name_;
  order_.back() = name_;
  return true;
}

std::optional<std::size_t> Graph::equalNode(const std::string& op,
                                            const std::vector<std::string>& in,
                                            const NodeAttributes& attributes, const Sizes& sizes) {
  if (!sharing_) return std::nullopt;
  std::string key = op + listJson(sizes);
  for (const std::string& name : in) key += "\n" + name;
  for (const auto& [name, value] : attributes) key += "\n=" + name + "=" + value;
  const auto [it, added] = equal_.emplace(std::move(key), nodes_.size());
  return added ? std::nullopt : std::optional(it->second);
}

std::pair<std::string, std::string> Graph::emitPair(const std::string& op, const std::string& in,
                                                    NodeAttributes attributes, Sizes sizes) {
  if (const auto same = equalNode(op, {in}, attributes, sizes))
    return {nodes_[*same].out[0], nodes_[*same].out[1]};
  std::string first = produce({op, {in}, {}, std::move(attributes), {}, {}},
                              {sizes, false, Known::kNothing, {}, {}, {}, 0, {}});
  std::string second = fresh(name_ + "/" + std::to_string(++steps_));
  add(second,
      GraphTensor{std::move(sizes), true, Known::kNothing, {}, {}, {}, nodes_.size() - 1, {}});
  tensor(second).definedness = tensor(first).definedness;
  nodes_.back().out.push_back(second);
  // The first stays the last in order: see nameLast().
  order_.insert(order_.end() - 1, second);
  return {std::move(first), std::move(second)};
}

std::string Graph::emit(const std::string& op, std::vector<std::string> in,
                        NodeAttributes attributes, Sizes sizes, bool integer) {
  if (const auto same = equalNode(op, in, attributes, sizes)) return nodes_[*same].out[0];
  return produce({op, std::move(in), {}, std::move(attributes), {}, {}},
                 {std::move(sizes), integer, Known::kNothing, {}, {}, {}, 0, {}});
}

std::string Graph::alias(const std::string& in, Sizes sizes) {
  const bool integer = tensor(in).integer;
  return produce({"identity", {in}, {}, {}, {}, {}},
                 {std::move(sizes), integer, tensor(in).known, {}, {}, {}, 0, {}});
}

std::string Graph::communicate(const std::string& op, const std::string& in,
                               NodeAttributes attributes, NodeAttributes communication,
                               Sizes sizes) {
  const bool integer = tensor(in).integer;
  return produce({op, {in}, {}, std::move(attributes), {}, std::move(communication)},
                 {std::move(sizes), integer, Known::kNothing, {}, {}, {}, 0, {}});
}

void Graph::input(const std::string& name, Sizes sizes, bool integer, const std::string& dtype) {
  add(name, GraphTensor{std::move(sizes), integer, Known::kNothing, "input", dtype, {}, 0, {}});
  order_.push_back(name);
}

void Graph::dispensableInput(const std::string& name, Sizes sizes, bool integer) {
  input(name, std::move(sizes), integer, integer ? "int64" : "float32");
  dispensable_.insert(name);
}

std::string Graph::constant(const Sizes& sizes, bool integer, const std::string& value,
                            Known known) {
  const std::string key = listJson(sizes) + (integer ? "i" : "r") + value;
  const auto [it, added] = constants_.emplace(key, "");
  if (added) {
    it->second = fresh("constant." + std::to_string(constants_.size()));
    add(it->second,
        GraphTensor{
            sizes, integer, known, "constant", integer ? "int64" : "float32", value, 0, {}});
    order_.push_back(it->second);
  }
  return it->second;
}

Graph::Mark Graph::mark() {
  ++marks_;
  return {nodes_.size(), order_.size(), steps_, journal_.size(), name_, loc_};
}

void Graph::undo(const Mark& mark) {
  for (const std::string& name : since(mark)) {
    if (tensors_.at(name).kind == "constant")
      std::erase_if(constants_, [&](const auto& c) { return c.second == name; });
    tensors_.erase(name);
  }
  order_.resize(mark.order);
  nodes_.resize(mark.nodes);
  steps_ = mark.steps;
  name_ = mark.name;
  loc_ = mark.loc;
  for (; journal_.size() > mark.taken; journal_.pop_back())
    taken_[journal_.back().first] = journal_.back().second;
  --marks_;
}

std::vector<std::string> Graph::since(const Mark& mark) const {
  return {order_.begin() + static_cast<std::ptrdiff_t>(mark.order), order_.end()};
}

void Graph::setOfDevice(std::size_t node, std::map<std::int64_t, NodeAttributes> ofDevice) {
  nodes_.at(node).ofDevice = std::move(ofDevice);
}

void Graph::setAttributes(std::size_t node, NodeAttributes attributes, std::string step) {
  nodes_.at(node).attributes = std::move(attributes);
  nodes_.at(node).step = std::move(step);
}

GraphTensor& Graph::tensor(const std::string& name) { return tensors_.at(name); }
const GraphTensor& Graph::tensor(const std::string& name) const { return tensors_.at(name); }

void Graph::keepOnly(const std::set<std::string>& wanted) {
  std::set<std::string> needed = wanted;
  std::vector<bool> stays(nodes_.size(), false);
  for (std::size_t i = nodes_.size(); i-- > 0;) {
    bool keep = !nodes_[i].communication.empty();
    for (const std::string& name : nodes_[i].out) keep = keep || needed.contains(name);
    if (!keep) continue;
    stays[i] = true;
    needed.insert(nodes_[i].out.begin(), nodes_[i].out.end());
    needed.insert(nodes_[i].in.begin(), nodes_[i].in.end());
  }
  std::vector<GraphNode> nodes;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!stays[i]) continue;
    for (const std::string& name : nodes_[i].out) tensors_.at(name).producer = nodes.size();
    nodes.push_back(std::move(nodes_[i]));
  }
  nodes_ = std::move(nodes);
  std::erase_if(order_, [&](const std::string& name) {
    const bool given = tensors_.at(name).kind == "input" && !dispensable_.contains(name);
    if (needed.contains(name) || given) return false;
    tensors_.erase(name);
    return true;
  });
}

std::string Graph::json() const {
  JsonWriter w;
  w.beginObject();
  w.key("tensors").beginObject(JsonWriter::kLines);
  for (const std::string& name : order_) {
    const GraphTensor& t = tensors_.at(name);
    w.key(name).beginObject();
    w.key("shape").integers(t.sizes);
    if (!t.kind.empty()) {
      w.key("kind").text(t.kind);
      w.key("dtype").text(t.dtype);
    }
    if (!t.value.empty()) w.key("value").raw(t.value);
    if (!t.facts.empty()) w.key("known").raw(t.facts);
    w.endObject();
  }
  w.endObject();
  w.key("nodes").beginList(JsonWriter::kLines);
  for (const GraphNode& n : nodes_) {
    w.beginObject();
    w.key("op").text(n.op);
    w.key("in").beginList();
    for (const std::string& name : n.in) w.text(name);
    w.endList();
    w.key("out").beginList();
    for (const std::string& name : n.out) w.text(name);
    w.endList();
    if (!n.attributes.empty()) {
      w.key("attrs").beginObject();
      for (const auto& [key, value] : n.attributes) w.key(key).raw(value);
      w.endObject();
    }
    if (!n.step.empty()) w.key("step").raw(n.step);
    for (const auto& [key, value] : n.communication) w.key(key).raw(value);
    if (!n.loc.empty()) w.key("loc").text(n.loc);
    w.endObject();
  }
  w.endList();
  w.endObject();
  std::string text = w.take();
  // Without the braces around: what stands beside it in a document is the caller's.
  return text.substr(1, text.size() - 3);
}

}  // namespace shardproof::hlo
