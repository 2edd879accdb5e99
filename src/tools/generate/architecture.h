// SPDX-License-Identifier: Apache-2.0
// The forward pass of each architecture, everything up to the loss, written with the builder.
// `options` are complete.
#pragma once

#include "generate/builder.h"

namespace shardproof::generate {

ValueId buildMlp(Builder& builder, const Options& options);
ValueId buildLlama(Builder& builder, const Options& options);
ValueId buildGpt(Builder& builder, const Options& options);

}  // namespace shardproof::generate
