// SPDX-License-Identifier: Apache-2.0
// A report's causes as JSON, and back: reports are read again by `shardproof explain`.
#pragma once

#include <nlohmann/json.hpp>

#include "shardproof/report.h"

namespace shardproof {

nlohmann::ordered_json toJson(const NodePlace& place);
nlohmann::ordered_json toJson(const Cause& cause);
// Throws nlohmann's exceptions where `json` is not what toJson() makes.
Cause causeFromJson(const nlohmann::ordered_json& json);

}  // namespace shardproof
