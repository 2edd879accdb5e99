// The communication operators of a plan: which fields and attributes each one has, and how they are
// read. They are no entries of the operator registry because they mean something only between
// ranks.
#pragma once

#include <optional>
#include <string_view>

#include "reader/value.h"
#include "shardproof/graph.h"

namespace shardproof::reader {

// kNone when `op` is no communication operator.
Communication findCommunication(std::string_view op);

// Checks and reads the communication fields and attributes of a plan's node. Axes in the result are
// still names (see graph_reader.h).
CommunicationSpec readCommunication(Communication kind, const Value& node, Names& names);

// {"pp": 1, "tp": 0}; axes are still names.
Coordinates readCoordinates(const Value& value, Names& names);

// How many operands and results the node must have; broadcast has one of either.
void checkCommunicationOperands(Communication kind, const Value& node, std::size_t operands,
                                std::size_t results);

}  // namespace shardproof::reader
