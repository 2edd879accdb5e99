// SPDX-License-Identifier: Apache-2.0
// The communication operators of a plan: which fields and attributes each one has, and how they are
// read. They are no entries of the operator registry because they mean something only between
// ranks.
#pragma once

#include "ir/draft.h"
#include "reader/value.h"

namespace shardproof::reader {

// Checks and reads the communication fields and attributes of a plan's node. Whether
// it has the operands it needs, and a group that makes sense, is for ir/validate.h.
ir::CommunicationDraft readCommunication(Communication kind, const Value& node, Names& names);

// {"pp": 1, "tp": 0}. `stretches`: where those are allowed, {"dp": [0, 4]}, they are put there.
ir::NamedCoordinates readCoordinates(const Value& value, Names& names,
                                     std::vector<ir::NamedStretch>* stretches = nullptr);

}  // namespace shardproof::reader
