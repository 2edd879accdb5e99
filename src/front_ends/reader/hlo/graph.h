// SPDX-License-Identifier: Apache-2.0
// The graph that an HLO program becomes, in the words of docs/format.md: operators of the registry
// on named tensors, and the tensors that they need. It is written as JSON text.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ops/traits.h"
#include "shardproof/rational.h"

namespace shardproof::hlo {

using Sizes = std::vector<std::int64_t>;

// What is known of the elements of a tensor for every input on which they have a value (minus
// infinity counts as neither).
enum class Known : std::uint8_t { kNothing, kNotNegative, kPositive };

// Whether the elements of a tensor have values for every input. What is minus infinity or has none
// whatever the input is, is a constant to whoever computes with it.
enum class Definedness : std::uint8_t {
  kSometimes,
  kAlwaysOrNever,  // each has a number, is minus infinity or has none, whatever the input is
  kMaybeMasked,    // each is a number or minus infinity, whatever the input is
  kNumber,
};

// Whether the elements that have values are above zero for every input.
enum class Positive : std::uint8_t {
  kUnknown,
  kOrMasked,  // or zero whatever the input is: exponentials of minus infinity
  kYes,
};

// Of an operator of the format; none for what is not one.
ops::Traits traitsOf(std::string_view op);

// Attributes of a node, as JSON text: {"dim", "1"}.
using NodeAttributes = std::vector<std::pair<std::string, std::string>>;

struct GraphTensor {
  Sizes sizes;
  bool integer = false;
  Known known = Known::kNothing;
  // Of inputs and constants.
  std::string kind, dtype, value;
  std::size_t producer = 0;  // index into nodes, if kind is empty
  std::string facts;         // of an input of the model: "known" of docs/format.md, as JSON
  std::uint64_t serial = 0;  // which of all tensors that the graph ever had; names may come again
  Definedness definedness = Definedness::kSometimes;
  Positive positive = Positive::kUnknown;
  // Between which the elements lie that have values; minus infinity aside.
  double least = -std::numeric_limits<double>::infinity();
  double greatest = std::numeric_limits<double>::infinity();
};

struct GraphNode {
  std::string op;
  std::vector<std::string> in, out;
  NodeAttributes attributes;
  std::string loc;
  // The fields of communication, as JSON text: "comm", "group", ...
  NodeAttributes communication;
  // Where devices that share the graph have different attributes: those of each of them.
  std::map<std::int64_t, NodeAttributes> ofDevice = {};
  std::string step = {};  // "step" of docs/format.md, as JSON; empty: none
};

std::string quotedJson(std::string_view text);
std::string listJson(const Sizes& list);

class Graph {
 public:
  // Names that nodes get from now on: this, "/" and a number.
  void begin(std::string name, std::string loc);

  // Gives the tensor, if it is what the last node made, the name of begin() itself; false if it is
  // not, or the name is taken. What refers to it by the old name is the caller's to change.
  bool nameLast(const std::string& tensor);
  const std::string& name() const { return name_; }

  // From now on a node that would do what another does is that one.
  void shareEqual() { sharing_ = true; }

  // A node of one result, which gets a name made from begin(); gives that name.
  std::string emit(const std::string& op, std::vector<std::string> in, NodeAttributes attributes,
                   Sizes sizes, bool integer = false);
  // A node of two results, numbers and integers.
  std::pair<std::string, std::string> emitPair(const std::string& op, const std::string& in,
                                               NodeAttributes attributes, Sizes sizes);
  std::string communicate(const std::string& op, const std::string& in, NodeAttributes attributes,
                          NodeAttributes communication, Sizes sizes);
  // Another name for a tensor: a node of its own even where equal ones are shared.
  std::string alias(const std::string& in, Sizes sizes);
  void input(const std::string& name, Sizes sizes, bool integer, const std::string& dtype);
  // An input that need not stay where nothing needs it.
  void dispensableInput(const std::string& name, Sizes sizes, bool integer);
  bool isDispensable(const std::string& name) const { return dispensable_.contains(name); }
  // A constant of one number, or listed in `value` as JSON; equal ones are one tensor.
  std::string constant(const Sizes& sizes, bool integer, const std::string& value,
                       Known known = Known::kNothing);

  // Positive, or zero whatever the input is.
  Positive positive(const std::string& name) const;
  GraphTensor& tensor(const std::string& name);
  const GraphTensor& tensor(const std::string& name) const;
  bool has(const std::string& name) const { return tensors_.contains(name); }
  // Whether the tensor of this name is still that one.
  bool has(const std::string& name, std::uint64_t serial) const {
    const auto found = tensors_.find(name);
    return found != tensors_.end() && found->second.serial == serial;
  }
  const std::vector<GraphNode>& nodes() const { return nodes_; }
  // A name that no tensor has, made from this one.
  std::string fresh(const std::string& name);
  const std::string& location() const { return loc_; }

  // What the graph has at a moment.
  struct Mark {
    std::size_t nodes = 0, order = 0, steps = 0, taken = 0;
    std::string name, loc;
  };
  // Everything after mark() is undone by undo(), and has to be. nameLast() only of what came after.
  Mark mark();
  void undo(const Mark& mark);
  // The tensors that came after.
  std::vector<std::string> since(const Mark& mark) const;

  // Gives the devices that have one of a node's attributes.
  void setOfDevice(std::size_t node, std::map<std::int64_t, NodeAttributes> ofDevice);
  // The attributes of a node, and how they move.
  void setAttributes(std::size_t node, NodeAttributes attributes, std::string step);

  // Only what these tensors need stays, and all communication.
  void keepOnly(const std::set<std::string>& wanted);
  // "tensors": {...}, "nodes": [...]
  std::string json() const;

 private:
  std::string produce(GraphNode node, GraphTensor tensor);
  // What is known of the result of a node: valued, positive.
  void judge(const GraphNode& node, GraphTensor& made) const;
  // Between which the elements of the result lie (bounds.cpp).
  void bound(const GraphNode& node, GraphTensor& made) const;
  void add(const std::string& name, GraphTensor tensor);
  // Where equal nodes are shared: the index of one that does this, or nothing, and it is noted.
  std::optional<std::size_t> equalNode(const std::string& op, const std::vector<std::string>& in,
                                       const NodeAttributes& attributes, const Sizes& sizes);

  std::unordered_map<std::string, GraphTensor> tensors_;
  std::vector<std::string> order_;
  std::set<std::string> dispensable_;
  std::vector<GraphNode> nodes_;
  std::map<std::string, std::string> constants_;
  bool sharing_ = false;
  std::unordered_map<std::string, std::size_t> equal_;  // what a node does, to its index
  std::unordered_map<std::string, std::size_t> taken_;
  // What `taken_` had before each change since the first of `marks_` moments.
  std::vector<std::pair<std::string, std::size_t>> journal_;
  std::size_t marks_ = 0;
  std::string name_ = "t", loc_;
  std::size_t steps_ = 0;
  std::uint64_t made_ = 0;
};

// The least and the greatest number of a JSON list of numbers, or of one; infinite where it has
// something else.
std::pair<double, double> boundsOfNumbers(const std::string& json);

// A number as JSON text, where it is a finite decimal of moderate length; else empty.
std::string decimalJson(const Rational& value);

}  // namespace shardproof::hlo
