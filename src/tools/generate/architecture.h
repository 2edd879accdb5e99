// SPDX-License-Identifier: Apache-2.0
// The forward pass of each architecture, everything up to the loss, written with the builder.
// `options` are complete.
#pragma once

#include "generate/builder.h"

namespace shardproof::generate {

void buildMlp(Builder& builder, const Options& options);
void buildLlama(Builder& builder, const Options& options);
void buildGpt(Builder& builder, const Options& options);
void buildDeepSeek(Builder& builder, const Options& options);

}  // namespace shardproof::generate
