// SPDX-License-Identifier: Apache-2.0
// What `check-log` found, for people and for programs.
#pragma once

#include <string>

#include "certificate/check_log.h"

namespace shardproof {

// How many classes were proved by what, and what independent evidence there is for them; empty
// where none was looked for. Ends with a newline.
std::string evidenceText(const ProofLog& log, const CheckLogResult& result);

// JSON of format "shardproof-log-check", version 1 (docs/certificate.md).
std::string logCheckJson(const ProofLog& log, const CheckLogResult& result);

}  // namespace shardproof
