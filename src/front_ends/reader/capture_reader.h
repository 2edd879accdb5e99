// SPDX-License-Identifier: Apache-2.0
// Reads a plan's "capture" (docs/format.md): strictly, as a word that is misread could turn a
// condition of the verdict into none.
#pragma once

#include "reader/value.h"
#include "shardproof/capture.h"

namespace shardproof::reader {

// Throws InputError. Whether the model has these outputs is for ir::validateCapture.
Capture readCapture(const Value& value);

}  // namespace shardproof::reader
