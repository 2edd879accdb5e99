// SPDX-License-Identifier: Apache-2.0
// The plain executor: a second opinion on every verdict. Each rank runs its program on whole arrays
// at the sizes of the file, operator by operator and collective by collective, as docs/format.md
// and docs/operators.md tell a reader of those pages, with none of the index, the cut, the
// reduction, the terms or the classes that proofs are made with. What it says of a plan is about
// the inputs that were drawn (or given), and about nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::executor {

// A whole array, row-major. Complex tensors have two numbers an element, real part first; integers
// are stored as whole doubles.
struct Array {
  Shape shape;
  ElementKind element = ElementKind::kReal;
  std::vector<double> data;
};

enum class Arithmetic : std::uint8_t {
  kDoubles,  // the true functions; a difference is one only if it stays when computed in a longer
             // type
  kPrimeField,  // integers modulo 2^61 - 1, opaque functions as hashes of their arguments: exact
                // where a plan applies them to equal arguments
};

struct Options {
  std::uint64_t seed = 1;
  int trials = 1;  // draws of the inputs; each is compared
  Arithmetic arithmetic = Arithmetic::kDoubles;
  const std::map<std::string, Array>* inputs =
      nullptr;         // inputs and parameters of the model, by name; what is not in it is drawn
  double seconds = 0;  // stop after so many; 0: no limit
  std::int64_t maxBytes =
      std::int64_t{8}
      << 30;  // of all arrays that are alive at once; more is refused before anything runs
  bool cutPoints = true;  // compare entries of role cut point too
  // Local tensors of approved differences (Role::kAssumed) are what the model has, wherever they
  // are read: the plan that a proof is about. False: what the nodes compute.
  bool approved = true;
  bool keep =
      false;  // keep the arrays of the last trial for the caller (Result::model, Result::local)
  const std::atomic<bool>* cancel = nullptr;
};

enum class Agreement : std::uint8_t {
  kAgrees,   // every element at which the model has a value has it in the plan too
  kDiffers,  // some element has not
  kUnknown,  // could not be told: not run, rounding too large, or the model has a value nowhere
};

// The first element of a lineage entry at which the plan's value is not the model's.
struct Difference {
  std::int32_t shard = -1;
  Rank rank = Rank(0);                 // of the first part
  std::int32_t microbatch = -1;        // -1: none
  std::vector<std::int64_t> position;  // in the logical tensor
  double logical = 0, parallel = 0;    // parallel is not finite where the plan has no value
  int trial = 0;
};

struct EntryResult {
  EntryId entry;  // index into the plan's lineage
  Agreement agreement = Agreement::kUnknown;
  std::int64_t compared = 0;  // elements that were compared, over all trials
  std::int64_t undefined =
      0;                // elements at which the model has no value: nothing is asked of the plan
  double distance = 0;  // the largest relative one that was seen in the arithmetic that was asked
                        // for; infinite: no value in the plan
  std::optional<Difference> difference;
  std::string reason;  // for kUnknown
};

enum class Status : std::uint8_t {
  kRun,        // all trials were run
  kCannotRun,  // the plan itself cannot: a deadlock, a tensor read that nobody produces, shapes or
               // members that do not fit (`reason` says where)
  kRefused,    // too large for the limits, or something that the executor does not know
  kStopped,    // out of time or cancelled: what was compared until then counts
};

struct Result {
  Status status = Status::kRefused;
  std::string reason;
  int trials = 0;                    // that were completed
  std::vector<EntryResult> entries;  // one for each entry of role output, and of cut points where
                                     // asked; in the order of the plan
  std::int64_t saturated = 0;     // values of sigmoid and tanh so near to 1 in size that agreement
                                  // behind them says little of their arguments
  double seconds = 0, flops = 0;  // contractions count two for each product
  std::int64_t peakBytes = 0;
  std::map<std::string, Array> model;  // with Options::keep: every tensor of the model
  // With Options::keep: "NAME@RANK" or "NAME@RANK#MICROBATCH" to the local tensor.
  std::map<std::string, Array> local;

  // kDiffers if some output differs or the plan cannot run, kAgrees if all outputs were compared
  // and agree.
  Agreement outputs(const Plan& plan) const;
};

// Never throws for a wrong plan. Throws InputError for inputs that do not fit the model, and for
// input lineage that gives a local tensor two sources (as the index of the plan does, which need
// not have seen the problem).
Result execute(const Problem& problem, const Options& options);

// Bytes that `execute` would have alive at once, and operations; an estimate from above.
struct Cost {
  double bytes = 0, flops = 0;
};
Cost cost(const Problem& problem);
// Whether it is within both. Operations are counted first, for which instances need not be listed.
bool costsAtMost(const Problem& problem, const Cost& most);

}  // namespace shardproof::executor
