#include "generate/generate.h"

#include "generate/architecture.h"
#include "generate/builder.h"
#include "generate/write.h"

namespace shardproof::generate {

Files generate(const Options& asked, const std::string& modelFile) {
  const Options options = complete(asked);
  Builder builder(options);
  builder.backward(buildForward(builder, options));
  const Generated generated = builder.finish();
  return {modelText(generated, options), planText(generated, options, modelFile)};
}

}  // namespace shardproof::generate
