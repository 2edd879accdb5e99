// SPDX-License-Identifier: Apache-2.0
#include "support/columns.h"

namespace shardproof::test {

Draft columns(const std::string& op, bool cutPoint) {
  Draft d = test::draft(
      R"({"tensors": {"x": {"shape": [4, 6], "kind": "input"},
          "w": {"shape": [8, 6], "kind": "parameter"},
                      "h": {"shape": [4, 8]}, "y": {"shape": [4, 8]}},
          "nodes": [{"op": "linear", "in": ["x", "w"], "out": ["h"]},
           {"op": "relu", "in": ["h"], "out": ["y"]}],
          "outputs": ["y"]})",
      R"({"mesh": [["tp", 2]], "programs": [{
            "tensors": {"lx": {"shape": [4, 6], "kind": "input"},
             "lw": {"shape": [4, 6], "kind": "parameter"},
                        "lh": {"shape": [4, 4]}, "ly": {"shape": [4, 4]}},
            "nodes": [{"op": "linear", "in": ["lx", "lw"], "out": ["lh"]},
             {"op": "relu", "in": ["lh"], "out": ["ly"]}]}],
          "lineage": [{"tensor": "x", "role": "input", "shards": [{"box": [[0, 4], [0, 6]],
           "parts": [{"local": "lx"}]}]},
                      {"tensor": "w", "role": "input", "shards": [{"box": [[0, 4], [0, 6]],
                       "step": {"tp": [4, 0]}, "parts": [{"local": "lw"}]}]},
                      {"tensor": "y", "role": "output", "shards": [{"box": [[0, 4], [0, 4]],
                       "step": {"tp": [0, 4]}, "parts": [{"local": "ly"}]}]}]})");
  d.plan["programs"][0]["nodes"][1]["op"] = op;
  if (cutPoint)
    d.plan["lineage"].push_back(Json::parse(
        R"({"tensor": "h", "role": "cut_point", "shards": [{"box": [[0, 4], [0, 4]],
            "step": {"tp": [0, 4]}, "parts": [{"local": "lh"}]}]})"));
  return d;
}

}  // namespace shardproof::test
