// SPDX-License-Identifier: Apache-2.0
// A report with one of everything.
#pragma once

#include <limits>

#include "shardproof/report.h"

namespace shardproof {

inline Report exampleReport() {
  Report r;
  r.model = "mlp.model.json";
  r.plan = "mlp.plan.json";
  r.verdict = Verdict::kNotEquivalent;
  r.outputs = 3;
  r.outputsProved = 2;
  r.compared = {{"outputs", {"loss", "w.grad", "s"}}};

  StageReport proved;
  proved.tensor = "h";
  proved.entry = 2;
  proved.verdict = StageVerdict::kProved;
  proved.method = Method::kNormalForm;
  proved.classId = 0;
  proved.logicalNodes = 1;
  proved.parallelNodes = 8;
  proved.seconds = 0.25;
  proved.reducedShapes = {{"x", {512, 64}, {4, 2}}};
  proved.assumptions = {0, 1};
  StageReport same = proved;
  same.tensor = "h2";
  same.seconds = 0;
  StageReport wrong = proved;
  wrong.tensor = "a";
  wrong.entry = 5;
  wrong.verdict = StageVerdict::kWrongLineage;
  wrong.classId = 1;
  StageReport undecided;
  undecided.tensor = "s";
  undecided.classId = 2;
  undecided.reason = "no answer within 60 s";
  StageReport refuted;
  refuted.tensor = "w.grad";
  refuted.role = Role::kOutput;
  refuted.entry = 7;
  refuted.verdict = StageVerdict::kRefuted;
  refuted.method = Method::kNumeric;
  refuted.classId = 3;
  r.stages = {proved, same, wrong, undecided, refuted};

  Defect lineage;
  lineage.message = "the gradient of w is not what the model computes";
  lineage.tensor = "w.grad";
  lineage.lineage = "w.grad[0:8, 0:4] == gw.2 on tp 0";
  lineage.ranks = {0, 1, 2, 3};
  lineage.microbatch = 1;
  lineage.nodes = {{true, "/programs/0/nodes/17", "linear_backward", "mlp.py:12"},
                   {false, "/nodes/4", "linear_backward", ""}};
  Counterexample example;
  example.assignment = {{"x[0, 0]", 1}, {"local gh.1@rank 3[0, 1]", -0.5}};
  example.omitted = 7;
  example.element = "w.grad[0, 0]";
  example.logical = 1.5;
  example.parallel = -std::numeric_limits<double>::infinity();
  lineage.counterexample = example;
  Defect deadlock;
  deadlock.kind = DefectKind::kDeadlock;
  deadlock.message = "ranks 0 and 2 wait for each other";
  deadlock.ranks = {2, 0};
  r.defects = {lineage, deadlock};

  r.statistics.programNodes = 40;
  r.statistics.lineageEntries = 12;
  r.statistics.ranks = 4;
  r.statistics.microbatches = 2;
  r.statistics.operatorInstances = 320;
  r.statistics.stages = 5;
  r.statistics.classes = 4;
  r.statistics.secondsTotal = 1.5;
  r.statistics.secondsByPhase = {{"read", 0.25}, {"check", 1.25}};
  r.statistics.peakMemoryBytes = 100u << 20;
  r.statistics.workersLost = 1;
  return r;
}

}  // namespace shardproof
