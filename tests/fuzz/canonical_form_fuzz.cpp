// SPDX-License-Identifier: Apache-2.0
// Bytes to a stage, as a proof cache holds them, and what `shardproof cache verify` does with it.
#include <algorithm>
#include <string>

#include "check/checker.h"
#include "fuzz_support.h"
#include "shape_reduction/reduction.h"
#include "shardproof/error.h"
#include "stages/canonical_reader.h"

using namespace shardproof;

namespace {

bool isSmall(const Stage& stage) {
  return stage.nodes.size() <= 100 &&
         std::all_of(stage.tensors.begin(), stage.tensors.end(), [](const StageTensor& t) {
           std::int64_t elements = 1;
           for (const std::int64_t d : t.info.shape)
             elements = d > 0 && elements > 2000 / d ? 2001 : elements * d;
           return elements <= 2000;
         });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const Stage read = readCanonicalForm({reinterpret_cast<const char*>(data), size});
    const std::string form = canonicalForm(read);
    const Stage again = readCanonicalForm(form);
    fuzz::require(canonicalForm(again) == form, "a form's stage has the same form");
    if (!isSmall(read) || reduceStage(read, {}).largestIteration > 200'000) return 0;
    CheckOptions options;
    options.timeoutSeconds = 0.2;
    checkStage(read, options);
  } catch (const std::exception&) {  // reprove.cpp says what
  }
  return 0;
}
