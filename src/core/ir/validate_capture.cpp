// SPDX-License-Identifier: Apache-2.0
// A report that lists as compared what is no output would claim a proof that nobody made.
#include <algorithm>
#include <string>
#include <vector>

#include "ir/error_list.h"
#include "ir/suggestions.h"
#include "ir/validate.h"
#include "shardproof/error.h"
#include "util/json_pointer.h"

namespace shardproof::ir {

void validateCapture(const Problem& problem) {
  const Plan& plan = problem.plan;
  if (plan.capture.compared.empty()) return;
  std::vector<std::string> outputs;
  for (const TensorId t : problem.model.outputs)
    outputs.push_back(problem.names.text(problem.model.graph.tensors[t].name));
  std::sort(outputs.begin(), outputs.end());
  ErrorList errors;
  for (const ComparedOutputs& kind : plan.capture.compared) {
    for (std::size_t i = 0; i < kind.outputs.size(); ++i) {
      const std::string& name = kind.outputs[i];
      if (std::binary_search(outputs.begin(), outputs.end(), name)) continue;
      errors.add(InputError(
          plan.file, "/capture/compared/" + escapePointer(kind.kind) + "/" + std::to_string(i),
          "found \"" + name + "\", expected an output of the model" + suggestWord(name, outputs)));
    }
  }
  errors.throwIfAny();
}

}  // namespace shardproof::ir
