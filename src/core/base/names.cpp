// SPDX-License-Identifier: Apache-2.0
// The names that the JSON report uses, and the text report wherever it needs a keyword.
#include "shardproof/report.h"

namespace shardproof {

void PlanResult::takeError(const InputError& thrown) {
  error = thrown.what();
  inputError = true;
  errors = allOf(thrown);
  const auto* several = dynamic_cast<const InputErrors*>(&thrown);
  moreErrors = several && several->more();
}

const char* toString(Verdict verdict) {
  switch (verdict) {
    case Verdict::kEquivalent:
      return "equivalent";
    case Verdict::kNotEquivalent:
      return "not-equivalent";
    case Verdict::kUndecided:
      return "undecided";
    case Verdict::kConditional:
      return "conditional";
  }
  return "undecided";
}

const char* toString(StageVerdict verdict) {
  switch (verdict) {
    case StageVerdict::kProved:
      return "proved";
    case StageVerdict::kRefuted:
      return "refuted";
    case StageVerdict::kUndecided:
      return "undecided";
    case StageVerdict::kWrongLineage:
      return "wrong-lineage";
  }
  return "undecided";
}

const char* toString(Method method) {
  switch (method) {
    case Method::kNone:
      return "none";
    case Method::kNormalForm:
      return "normal-form";
    case Method::kPolynomial:
      return "polynomial";
    case Method::kSolver:
      return "z3";
    case Method::kNumeric:
      return "numeric";
  }
  return "none";
}

const char* toString(DefectKind kind) {
  switch (kind) {
    case DefectKind::kLineage:
      return "lineage";
    case DefectKind::kShape:
      return "shape";
    case DefectKind::kDoubleAssignment:
      return "double-assignment";
    case DefectKind::kUnproduced:
      return "unproduced";
    case DefectKind::kCollective:
      return "collective";
    case DefectKind::kSendReceive:
      return "send-receive";
    case DefectKind::kDeadlock:
      return "deadlock";
    case DefectKind::kAsync:
      return "async";
  }
  return "lineage";
}

const char* toString(ParameterTable::State state) {
  switch (state) {
    case ParameterTable::State::kSharded:
      return "sharded";
    case ParameterTable::State::kRedundant:
      return "redundant";
    case ParameterTable::State::kReduced:
      return "already-reduced";
    case ParameterTable::State::kPartial:
      return "partial";
    case ParameterTable::State::kOnSome:
      return "on-some";
    case ParameterTable::State::kUnknown:
      return "unknown";
  }
  return "?";
}

const char* toString(Confirmation::Outcome outcome) {
  switch (outcome) {
    case Confirmation::Outcome::kNotExecuted:
      return "not-executed";
    case Confirmation::Outcome::kAgrees:
      return "agrees";
    case Confirmation::Outcome::kDiffers:
      return "differs";
    case Confirmation::Outcome::kDisagrees:
      return "disagrees";
    case Confirmation::Outcome::kNoValue:
      return "no-value";
  }
  return "not-executed";
}

const char* toString(Role role) {
  switch (role) {
    case Role::kInput:
      return "input";
    case Role::kOutput:
      return "output";
    case Role::kCutPoint:
      return "cut_point";
    case Role::kAssumed:
      return "assumed";
  }
  return "cut_point";
}

}  // namespace shardproof
