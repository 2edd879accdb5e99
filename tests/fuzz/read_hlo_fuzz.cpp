// SPDX-License-Identifier: Apache-2.0
// Bytes to a problem: two HLO programs, and everything that is made of them.
#include <string_view>

#include "fuzz_support.h"
#include "reader/hlo/documents.h"
#include "reader/reader.h"
#include "shardproof/error.h"

using namespace shardproof;

namespace {

void read(std::string_view model, std::string_view plan, bool beforePass) {
  hlo::Options options;
  options.beforePass = beforePass;
  hlo::Documents documents;
  try {
    documents = hlo::documentsOf(model, "model.hlo", plan, "plan.hlo", "model", options);
  } catch (const InputError& error) {
    const std::string_view message = error.what();
    fuzz::require(message.starts_with("model.hlo") || message.starts_with("plan.hlo"),
                  "a message names its file", error.what());
    fuzz::require(message.find('\n') == std::string_view::npos, "a message is one line",
                  error.what());
    return;
  }
  try {
    readProblemText(documents.model, documents.plan);
  } catch (const InputError&) {
    // Shardings that make no lineage.
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  // Without a separator the program is a model, and its own plan.
  constexpr std::string_view kSeparator = "\n%%\n";
  const std::size_t at = text.find(kSeparator);
  const std::string_view model = text.substr(0, at),
                         plan = at == std::string_view::npos ? model
                                                             : text.substr(at + kSeparator.size());
  for (const bool beforePass : {false, true}) read(model, plan, beforePass);
  return 0;
}
