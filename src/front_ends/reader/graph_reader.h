// SPDX-License-Identifier: Apache-2.0
// Tensors and nodes, as the model and every program of a plan state them: keys come in any order,
// so everything refers to everything else by name (ir/draft.h).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/draft.h"
#include "reader/value.h"

namespace shardproof::reader {

class GraphReader {
 public:
  enum class Source : std::uint8_t { kModel, kProgram };
  GraphReader(Source source, Names& names, AttributeTable& attributes)
      : source_(source), names_(names), attributes_(attributes) {}

  // What is read from now on goes here. The others are null for the model.
  void begin(ir::GraphDraft* graph, std::vector<ir::CommunicationDraft>* communications,
             Asynchrony* asynchrony);
  std::vector<NameId> readHandles(const Value& value) const;
  void readTensor(std::string_view name, const Value& value);
  void readNode(const Value& value);

 private:
  static Attributes readAttributes(const Value& attributes);
  std::vector<std::pair<NameId, Attributes>> readSteps(const Value& steps) const;
  void readOperator(std::string_view op, const Value& value, Node& node);
  void readOperands(const Value& value, Node& node);
  BufferPlace readBuffer(const Value& value) const;

  Source source_;
  Names& names_;
  AttributeTable& attributes_;
  ir::GraphDraft* graph_ = nullptr;
  std::vector<ir::CommunicationDraft>* communications_ = nullptr;
  Asynchrony* asynchrony_ = nullptr;
};

}  // namespace shardproof::reader
