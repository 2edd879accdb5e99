// SPDX-License-Identifier: Apache-2.0
// An operator: its meaning, shape rule, reduction rule and attributes in one place. Families of
// operators live in ops/*.cpp, one file each; `registry.h` finds them by name. Sources of the
// definitions: docs/operators.md.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ops/algebra.h"
#include "ops/attributes.h"
#include "ops/number_algebra.h"
#include "ops/relations.h"
#include "ops/traits.h"
#include "shardproof/error.h"
#include "shardproof/graph.h"

namespace shardproof {
class TermAlgebra;
}  // namespace shardproof

namespace shardproof::ops {

// What is known of an operand or a result without its elements.
struct TensorInfo {
  Shape shape;
  ElementKind element = ElementKind::kReal;
  // Set by infer() on a result that does not exist: the gradient of an integer, of an absent
  // operand or of a mask. The node must list null in its place; relate() throws Unsupported if it
  // does not.
  bool absent = false;
};

// An operator applied to operands of known shapes. `in[i]` is nullptr for an absent operand.
struct Signature {
  const Attributes& attributes;
  std::span<const TensorInfo* const> in;
  std::size_t results = 1;  // how many results the node lists (multiref has as many as it likes)
};

struct OperatorInfo {
  std::string name;

  // infer() may say [] where files declare [1] (a full reduction: both are one number). The two are
  // the same shape for the results of this operator; its evaluation accepts either.
  bool scalarMayBeOne = false;

  Traits traits;

  // Attributes, and how many operands and results there may be: what users read of it
  // (`shardproof operators`). validate() has the rules that these do not express.
  std::vector<AttributeRule> attributes;
  std::size_t minOperands = 1, maxOperands = 1, minResults = 1, maxResults = 1;
  bool differentiable = false;  // NAME_backward exists

  // Where relate() says `absolute`, the position meant is the logical tensor's, also on a rank that
  // holds a piece of it (dropout's mask).
  bool followsLogicalPosition = false;

  // Checks attribute names, types and ranges, and the numbers of operands and results. Throws
  // std::invalid_argument with a sentence that says what was found and what was expected. An
  // unknown attribute is always an error.
  std::function<void(const Attributes&, std::size_t operands, std::size_t results)> validate;

  // Shapes and element kinds of all results. Throws ShapeError.
  std::function<std::vector<TensorInfo>(const Signature&)> infer;

  // Reduction rule; `out` are the inferred results (nullptr where the node's result is absent).
  // Throws Unsupported.
  std::function<void(const Signature&, std::span<const TensorInfo* const> out, Relations&)> relate;

  // The meaning, over each algebra.
  std::function<void(Evaluation<TermAlgebra>&)> terms;
  std::function<void(Evaluation<RealNumbers>&)> doubles;
  std::function<void(Evaluation<Residues>&)> modular;
};

}  // namespace shardproof::ops
