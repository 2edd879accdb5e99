// SPDX-License-Identifier: Apache-2.0
// A change of a plan that may fix it: of one line of a training script, that is of the same node
// in all programs and for all microbatches, or of fewer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnose/image.h"

namespace shardproof::diagnose {

// The nodes of one line, the node itself first: those that correspond, and in programs that run
// something else the first one that does the same with tensors of the same names.
std::vector<NodeRef> siteOf(const Problem& plan, const Correspondence& correspondence,
                            NodeRef node);

struct Edit {
  enum class Kind : std::uint8_t {
    kRedefine,  // result `index` becomes `make` of `tensor`; without a tensor, of what it was
    kOperand,   // operand `index` becomes `tensor`, or microbatch `microbatch` of what it is
    kExchangeOperands,  // operands `index` and `other`
    kExchangeResults,   // results `index` and `other`
    kAttribute,         // becomes the value that `from` has, or that times `ratio`, plus `plus`
    kSpec,              // of a communication: kind, axes, reduction, dimension
    kPeer,              // of messages: the coordinates `axes` are not named, `peer` are
    kTag,               // of messages: none
    kSwap,              // with the operator that makes its operand: the two work in the other order
  };
  enum class Make : std::uint8_t {
    kIdentity,
    kCollective,
    kScale,
    kAdd  // what it was and `tensor`
  };

  Kind kind = Kind::kRedefine;
  std::vector<NodeRef> nodes;  // in the image
  bool wholeSite = false;      // in the full plan: all of siteOf()
  std::size_t index = 0, other = 0;
  Make make = Make::kIdentity;
  TensorId tensor;  // of the first node's program
  bool ownMicrobatch = false;
  std::optional<std::int32_t> microbatch;
  std::string attribute;
  std::string andAttribute;     // one more that moves by `plus`; empty: none
  std::optional<NodeRef> from;  // program -1: of the model. Absent: its own
  std::int64_t num = 1, den = 1, plus = 0;
  Communication communication = Communication::kAllReduce;
  std::vector<std::int32_t> axes;
  Reduction reduction = Reduction::kSum;
  std::int32_t dim = 0;
  Coordinates peer;
};

// Changes the nodes of `edit`, as far as they are nodes of `plan`. False: it cannot be done there.
// `correspondence`: of the plan as it is before. `touched`: the nodes that were changed or made, as
// they are then.
bool apply(Problem& plan, const Correspondence& correspondence, const Edit& edit,
           std::vector<NodeRef>* touched = nullptr);
// The same edit in the full plan.
Edit inFull(const Image& image, const Edit& edit);

}  // namespace shardproof::diagnose
