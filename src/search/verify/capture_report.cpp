// SPDX-License-Identifier: Apache-2.0
#include "verify/capture_report.h"

#include <algorithm>
#include <set>

#include "chain/conditions.h"
#include "report/format.h"
#include "shardproof/infer.h"

namespace shardproof {

namespace {

constexpr char kOtherOutputs[] = "outputs";  // the kind of those that the capture does not name

}  // namespace

void describeCapture(Report& report, const Problem& problem, const VerifyOptions& options) {
  const Capture& capture = problem.plan.capture;
  report.source = capture.source;
  report.compared.clear();
  std::set<std::string> named;
  for (const ComparedOutputs& kind : capture.compared) {
    named.insert(kind.outputs.begin(), kind.outputs.end());
    if (!kind.outputs.empty()) report.compared.push_back(kind);
  }
  for (const std::string& output : report.outputTensors) {
    if (named.contains(output)) continue;
    const auto others = std::find_if(report.compared.begin(), report.compared.end(),
                                     [](const auto& kind) { return kind.kind == kOtherOutputs; });
    if (others != report.compared.end()) others->outputs.push_back(output);
    else report.compared.push_back({kOtherOutputs, {output}});
  }
  report.approved.clear();
  for (const EntryId e : firstIds<EntryId>(problem.plan.lineage.size())) {
    const LineageEntry& entry = problem.plan.lineage[e];
    if (entry.role != Role::kAssumed) continue;
    const std::string& tensor = problem.names.text(problem.model.graph.tensors[entry.tensor].name);
    std::string claim = describeFound(problem, e);
    if (entry.shards.size() > 1)
      claim += ", and " + counted(entry.shards.size() - 1, "more shard", "more shards");
    report.approved.push_back(
        {entry.approved.empty() ? tensor : entry.approved, tensor, std::move(claim), e.value});
  }
  report.notCompared = judgedNotCompared(capture, options.allowUncompared);
  report.assumptions = judgedAssumptions(capture, options.accept);
}

}  // namespace shardproof
