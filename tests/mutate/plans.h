// SPDX-License-Identifier: Apache-2.0
// Generated plans that the tests put bugs into.
#pragma once

#include <functional>
#include <string>

#include "generate/generate.h"
#include "mutate/document.h"
#include "support/problems.h"

namespace shardproof::mutate {

inline generate::Options small(const std::string& architecture) {
  generate::Options o;
  o.architecture = architecture;
  if (architecture == "mlp") return o;
  o.layers = 2;
  o.dim = 16;
  o.heads = 4;
  o.sequence = 8;
  o.vocabulary = 32;
  if (architecture == "llama3") {
    o.hidden = 24;
    o.kvHeads = 2;
  }
  if (architecture == "deepseek-v3") {
    o.size = "671B";
    o.hidden = 24;
    o.denseLayers = 1;
    o.experts = 8;
    o.activeExperts = o.activeGroups = 2;
    o.expertGroups = 4;
    o.expertHidden = 12;
    o.queryRank = 12;
    o.kvRank = 8;
    o.noPositionDim = 4;
    o.rotaryDim = 2;
    o.valueDim = 6;
  }
  return o;
}

// A generated problem in a directory of its own.
struct Written {
  explicit Written(const generate::Options& options)
      : files(generate::generate(options, "g.model.json")) {
    model = directory.write("g.model.json", files.model);
    plan = directory.write("g.plan.json", files.plan);
  }
  Json document() const { return readDocument(plan); }

  test::TemporaryDirectory directory;
  generate::Files files;
  std::string model, plan;
};

inline generate::Options with(generate::Options options,
                              const std::function<void(generate::Options&)>& set) {
  set(options);
  return options;
}

}  // namespace shardproof::mutate
