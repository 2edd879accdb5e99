// SPDX-License-Identifier: Apache-2.0
// The "capture" of a plan (docs/format.md) as JSON.
#pragma once

#include "shardproof/capture.h"
#include "writer/json_writer.h"

namespace shardproof {

void writeCapture(JsonWriter& json, const Capture& capture);

}  // namespace shardproof
