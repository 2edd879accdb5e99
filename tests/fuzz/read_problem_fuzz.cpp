// SPDX-License-Identifier: Apache-2.0
// Bytes to a problem: the readers of model and plan, plain and gzip, with everything that
// readProblem does after them.
#include <string_view>

#include "fuzz_support.h"
#include "reader/reader.h"
#include "shardproof/error.h"

using namespace shardproof;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto files = fuzz::splitInput({reinterpret_cast<const char*>(data), size});
  const std::string model = fuzz::writeInput("model.json", files.model),
                    plan = fuzz::writeInput("plan.json", files.plan);
  try {
    readProblem(model, plan);
  } catch (const InputError& error) {
    const std::string_view message = error.what();
    fuzz::require(message.starts_with(model) || message.starts_with(plan),
                  "a message names its file", error.what());
    fuzz::require(message.find('\n') == std::string_view::npos, "a message is one line",
                  error.what());
  }
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  return fuzz::mutateModelAndPlan(data, size, most, seed);
}
