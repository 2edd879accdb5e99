// SPDX-License-Identifier: Apache-2.0
// The trace of one step: what each rank held, and where in the whole tensors it is
// (docs/numbers.md, "The format of a trace"). A directory has files of every rank; what they hold
// is grouped by the name that a tensor has in the whole model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compare/tensor_file.h"

namespace shardproof::compare {

// What a tensor is for the step, in the order in which a report has them.
enum class Kind : std::uint8_t {
  kBatch,           // what the model is called with
  kInitial,         // parameters, buffers and states of optimizers before the step
  kInput,           // of modules
  kOutput,          // of modules
  kOutputGradient,  // of modules
  kInputGradient,   // of modules
  kResult,          // loss and metrics
  kUnclipped,       // gradients of parameters before they are clipped
  kGradient,        // of parameters, as the optimizer has them
  kState,           // of optimizers after the step
  kOptimizer,       // numbers that optimizers go by in the next step
  kParameter,       // after the step
  kBuffer,          // after the step
  kMainGradient,    // of the optimizer's own copies of parameters
  kMainCopy,        // these copies, before and after the step
};
constexpr std::size_t kKindCount = 15;
const char* toString(Kind kind);
// Whether a tensor exists only during the step: the layout of such is often not known.
constexpr bool isActivation(Kind kind) {
  return kind == Kind::kBatch || kind == Kind::kInput || kind == Kind::kOutput ||
         kind == Kind::kOutputGradient || kind == Kind::kInputGradient;
}
// Optimizers of another kind have no such copies.
constexpr bool isOfMainCopy(Kind kind) {
  return kind == Kind::kMainGradient || kind == Kind::kMainCopy;
}
// A rank's gradients of activations are of its own loss, so they may have another factor.
constexpr bool isGradientOfActivation(Kind kind) {
  return kind == Kind::kOutputGradient || kind == Kind::kInputGradient;
}

// How a rank of an isolated run knew its part of the reference's numbers, with which it continued.
enum class Replaced : std::uint8_t { kNot, kDeclared, kByNumbers, kByShape };

struct Axis {
  std::string name;
  std::int64_t size = 1;
};

// Elements at, at + 1, ... of the local tensor, in row-major order, are the box [low, low + size)
// of the whole one.
struct Part {
  std::size_t at = 0;
  std::vector<std::int64_t> low, size;
};

// One tensor of one rank, in one call of its module. Axes are indices into Trace::mesh.
struct Piece {
  const TensorFile* file = nullptr;
  std::string key;  // in the file
  const Stored* stored = nullptr;
  Dtype dtype = Dtype::kF32;  // of the local tensor
  bool isSketch = false;      // the file has a sketch of it (sketch.h)
  std::int64_t rank = 0, call = 0, order = 0;
  std::vector<std::int64_t> shape;  // of the whole tensor, but for axes of unknown layout
  std::vector<Part> parts;
  std::vector<std::size_t> sum, mean;  // ranks along these have summands
  std::vector<std::size_t> unknown;    // how ranks differ along these is not known
  Replaced replaced = Replaced::kNot;
};

struct Tensor {
  Kind kind = Kind::kResult;
  std::string like;    // the tensor whose layout it has along axes of unknown layout, or nothing
  std::string module;  // at whose boundary it is, or nothing
  std::vector<Piece> pieces;  // of all ranks and calls
  bool changed = false;       // of a buffer: a rank's step changed it
  std::int64_t order = 0;     // the first of its pieces in data flow
  std::size_t calls() const;  // 1 + the last call; at least 1
  const std::vector<std::size_t>& unknown() const { return pieces.front().unknown; }
};

struct Trace {
  std::string directory;
  std::vector<Axis> mesh;  // slowest first
  std::int64_t world = 1;
  std::vector<std::unique_ptr<TensorFile>> files;
  std::map<std::string, Tensor> tensors;
  std::vector<std::string> notes;  // what was not recorded, of all ranks
  bool partial = false;            // only names of some pattern were recorded
  bool isolated = false;           // modules continued with the numbers of a reference

  // The coordinate of a rank along an axis.
  std::int64_t coordinate(std::int64_t rank, std::size_t axis) const;
};

// Reads what *.safetensors in the directory have, or what *.trace.json describe, but no elements.
// Throws InputError where a file is broken, a rank has none, or files do not belong together.
Trace readTrace(const std::string& directory);

// The directories of the perturbed traces of a reference: draw1, draw2, ...
std::vector<std::string> perturbedOf(const std::string& directory);

}  // namespace shardproof::compare
