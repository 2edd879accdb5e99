// SPDX-License-Identifier: Apache-2.0
// The proof log of `shardproof verify --certify`: what an "equivalent" verdict rests on, step by
// step, in a file that `shardproof check-log` replays. docs/certificate.md has the format.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "certificate/proof_record.h"
#include "shardproof/graph.h"
#include "shardproof/report.h"
#include "shardproof/verify.h"

namespace shardproof {

struct ProofLog {
  struct File {
    std::string path;    // relative to the log's directory, or absolute
    std::string sha256;  // of its text, gunzipped
  };
  struct Class {
    Method method = Method::kNone;
    std::string sha256;  // of `form`, as the log states it
    std::string form;    // canonical (stages/canonical.cpp)
  };
  struct Entry {
    std::string tensor;
    Role role = Role::kCutPoint;
    ProofRecord::Entry proof;  // nothing for role input
  };
  struct Output {
    std::string tensor;
    std::vector<EntryId> entries;  // of role output, that cover it
  };
  std::string file;              // where it was read from
  std::string program, version;  // shardproof's version; proofVersion()
  Checker checker = Checker::kAuto;
  File model, plan;
  std::vector<Class> classes;
  std::vector<std::vector<EntryId>> forbidden;  // ProofRecord::forbidden
  std::vector<Entry>
      lineage;  // as in the plan, then what was added to it (src/core/ir/dropout_masks.h)
  std::vector<EntryId> positioning;  // Plan::positioning
  std::vector<Output> outputs;       // as in the model
};

// `record` is of an equivalent plan. `program` is shardproof's version, `file` where the log will
// be: paths of model and plan are relative to its directory.
ProofLog makeProofLog(const Problem& problem, const ProofRecord& record, Checker checker,
                      const std::string& program, const std::string& file);

// The log as JSON, with a line for each class and each entry; compressed where `file` ends in
// ".gz".
std::string proofLogText(const ProofLog& log);

// Throws InputError where the file is no proof log: only the log itself is looked at. Every id in
// the result is one of the log.
ProofLog readProofLog(const std::string& file);

}  // namespace shardproof
