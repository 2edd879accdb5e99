// SPDX-License-Identifier: Apache-2.0
// An obligation (prover/obligation.h) as a script of SMT-LIB 2.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "stages/stage.h"

namespace shardproof {

// The obligation as a script of SMT-LIB 2, or why there is none.
struct WrittenObligation {
  std::string text, missing;  // one of them is empty
  std::string status, logic;
  bool conclusive = false;
  std::size_t pairs = 0, identical = 0;  // identical: already one term on both sides
  std::vector<std::string>
      functions;  // uninterpreted ones of which normal forms know more than the script says
};

struct ObligationNotes {
  std::vector<std::string> head;  // comments
  bool proved = false,
       refuted =
           false;  // by our own checker, with numbers that are defined on both sides if refuted
};

WrittenObligation writeObligation(const Stage& stage, const ObligationNotes& notes,
                                  std::size_t memoryMegabytes, std::size_t mostBytes);

// A message of a worker to the main process.
std::string serialize(const WrittenObligation& written);
WrittenObligation deserializeObligation(const std::string& text);

}  // namespace shardproof
