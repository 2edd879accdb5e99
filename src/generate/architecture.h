// The forward pass of each architecture, written with the builder.
#pragma once

#include "generate/builder.h"

namespace shardproof::generate {

// Everything up to the loss. `options` are complete.
ValueId buildForward(Builder& builder, const Options& options);

}  // namespace shardproof::generate
