// SPDX-License-Identifier: Apache-2.0
#include "generate/generate.h"

#include <stdexcept>

#include "generate/architecture.h"
#include "generate/builder.h"
#include "generate/write.h"

namespace shardproof::generate {
namespace {

using Forward = void (*)(Builder&, const Options&);
Forward forwardOf(const std::string& architecture) {
  if (architecture == "mlp") return buildMlp;
  if (architecture == "gpt") return buildGpt;
  if (architecture == "llama3" || architecture == "mixtral" || architecture == "qwen3-moe" ||
      architecture == "gpt-oss")
    return buildLlama;
  if (architecture == "deepseek-v3") return buildDeepSeek;
  throw std::logic_error("architecture '" + architecture + "' has presets but no forward pass");
}

}  // namespace

Files generate(const Options& asked, const std::string& modelFile) {
  const Options options = complete(asked);
  Builder builder(options);
  forwardOf(options.architecture)(builder, options);
  builder.backward();
  const Generated generated = builder.finish();
  return {modelText(generated, options), planText(generated, options, modelFile)};
}

}  // namespace shardproof::generate
