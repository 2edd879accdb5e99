// SPDX-License-Identifier: Apache-2.0
// A plan as a document, and known bugs put into it: `shardproof mutate` takes hostile files, too.
#include <functional>
#include <string>

#include "fuzz_support.h"
#include "mutate/mutate.h"
#include "shardproof/error.h"

using namespace shardproof;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string file =
      fuzz::writeInput("plan.json", {reinterpret_cast<const char*>(data), size});
  try {
    const mutate::Json plan = mutate::readDocument(file);
    const std::string text = mutate::documentText(plan);
    fuzz::require(
        mutate::documentText(mutate::readDocument(fuzz::writeInput("again.json", text))) == text,
        "a document that is written is read again as it was");
    // All bugs are asked where they apply, and a few of those that do, chosen by the input, are put
    // in.
    const mutate::PlanGraph graph(plan, file);
    std::uint64_t left = 3, random = std::hash<std::string>()(text);
    for (std::size_t i = 0; i < mutate::bugs().size(); ++i) {
      const mutate::Bug& bug = mutate::bugs()[(i + random) % mutate::bugs().size()];
      if (mutate::sitesOf(bug, graph, file).empty() || left == 0) continue;
      --left;
      mutate::Json changed = plan;
      mutate::mutate(changed, file, bug, {.seed = random});
    }
  } catch (const InputError&) {
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  return fuzz::mutateDocument(data, size, most, seed);
}
