// SPDX-License-Identifier: Apache-2.0
// One small plan with two outputs: y = linear(x, w) cut over tp by columns and gathered, z = y + y;
// and a wrong variant of it.
#pragma once

#include <string>

#include "stages/stage.h"
#include "support/problems.h"

namespace shardproof::test {

inline Draft smallDraft(std::int64_t width = 8) {
  Draft d = draft(
      R"({"tensors": {"x": {"shape": [4, 8], "kind": "input"},
          "w": {"shape": [8, 8], "kind": "parameter"}, "y": {"shape": [4, 8]},
          "z": {"shape": [4, 8]}},
                      "nodes": [{"op": "linear", "in": ["x", "w"], "out": ["y"]},
                       {"op": "add", "in": ["y", "y"], "out": ["z"], "attrs": {"alpha": 2}}],
                       "outputs": ["y", "z"]})",
      R"({"mesh": [["tp", 2]], "programs": [{"tensors": {"x": {"shape": [4, 8], "kind": "input"},
          "w": {"shape": [4, 8], "kind": "parameter"},
                          "h": {"shape": [4, 4]}, "y": {"shape": [4, 8]}, "z": {"shape": [4, 8]}},
                        "nodes": [{"op": "linear", "in": ["x", "w"], "out": ["h"]},
                                  {"op": "all_gather", "in": ["h"], "out": ["y"], "comm": "g",
                                   "group": ["tp"], "attrs": {"dim": 1}},
                                  {"op": "add", "in": ["y", "y"], "out": ["z"],
                                   "attrs": {"alpha": 2}}]}],
                      "lineage": [{"tensor": "x", "role": "input",
                       "shards": [{"box": [[0, 4], [0, 8]], "parts": [{"local": "x"}]}]},
                                  {"tensor": "w", "role": "input",
                                   "shards": [{"box": [[0, 4], [0, 8]], "step": {"tp": [4, 0]},
                                   "parts": [{"local": "w"}]}]},
                                  {"tensor": "y", "role": "output",
                                   "shards": [{"box": [[0, 4], [0, 8]],
                                   "parts": [{"local": "y"}]}]},
                                  {"tensor": "z", "role": "output",
                                   "shards": [{"box": [[0, 4], [0, 8]],
                                   "parts": [{"local": "z"}]}]}]})");
  for (Json* tensors : {&d.model["tensors"], &d.program(0)["tensors"]}) {
    for (auto& [name, tensor] : tensors->items()) {
      if (name == "x") tensor["shape"] = {4, width};
      if (name == "w") tensor["shape"][1] = width;
    }
  }
  d.entry(0)["shards"][0]["box"][1][1] = d.entry(1)["shards"][0]["box"][1][1] = width;
  return d;
}
// The plan's sum has another factor than the model's.
inline Draft wrongDraft() {
  Draft d = smallDraft();
  d.node(0, 2)["attrs"]["alpha"] = 3;
  return d;
}

inline std::string formOf(const Cut& c) { return canonicalForm(c.stage); }

}  // namespace shardproof::test
