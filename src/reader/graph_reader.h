// Tensors and nodes, as the model and every program of a plan state them. Keys come in any order,
// so while a file is being read every id that refers to something else in it (Operand::tensor,
// Graph::results, an axis in Coordinates, LineageEntry::tensor, ...) holds the value of that
// thing's NameId; the resolvers replace it once the enclosing object is complete. That keeps one
// copy of everything.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include "reader/value.h"
#include "shardproof/graph.h"

namespace shardproof::reader {

class GraphReader {
 public:
  enum class Source : std::uint8_t { kModel, kProgram };
  GraphReader(Source source, Names& names, AttributeTable& attributes)
      : source_(source), names_(names), attributes_(attributes) {}

  // What is read from now on goes here. `communications` is null for the model.
  void begin(Graph* graph, std::vector<CommunicationSpec>* communications);
  void readTensor(std::string_view name, const Value& value);
  void readNode(const Value& value);

 private:
  Attributes readAttributes(const Value& node) const;
  void readOperator(std::string_view op, const Value& value, Node& node);
  void readOperands(const Value& value, Node& node);
  void checkOperator(const Value& value, const Node& node);

  Source source_;
  Names& names_;
  AttributeTable& attributes_;
  Graph* graph_ = nullptr;
  std::vector<CommunicationSpec>* communications_ = nullptr;
  std::set<std::array<std::int64_t, 4>>
      valid_;  // (operator, attributes, operands, results) that passed OperatorInfo::validate
};

// "real", "integer" or "complex".
std::string_view elementName(ElementKind kind);

// The tensors of one graph by name.
class TensorIndex {
 public:
  TensorIndex() = default;
  explicit TensorIndex(const Graph& graph);
  std::int32_t find(NameId name) const;  // -1 when there is none

 private:
  std::vector<std::pair<std::int32_t, std::int32_t>>
      sorted_;  // (name, tensor): thousands of programs, so compact
};

}  // namespace shardproof::reader
