// SPDX-License-Identifier: Apache-2.0
// A verification problem as its author states it: everything refers to everything else by name, in
// any order. ir/resolve.h turns the names into ids. Tensors and nodes are the problem's own
// structures already, except for what refers to something: operands, results, axes, logical
// tensors.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof::ir {

// A coordinate for each named axis, e.g. {"pp": 1, "tp": 0}.
using NamedCoordinates = std::vector<std::pair<NameId, std::int32_t>>;
// The coordinates [low, high) of an axis. `low` and `high` are as they were written.
struct NamedStretch {
  NameId axis;
  std::int32_t low = 0, high = 0;
};

struct GraphDraft {
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;                // ranges into `operands` and `results`
  std::vector<NameId> operands, results;  // invalid: absent (null). A plan's operand may be "x#3"
  std::vector<std::shared_ptr<const ConstantValue>> constants;
  // Tensors that are the numbers of another (KnownInput::kNumberOf), and which.
  std::vector<std::pair<std::int32_t, NameId>> numbersOf;
  // Of nodes whose attributes move with coordinates: what each axis adds.
  std::vector<std::pair<NodeId, std::vector<std::pair<NameId, Attributes>>>> steps;
};

struct ModelDraft {
  std::string file, name, sha256;
  GraphDraft graph;
  std::vector<NameId> outputs, arguments;
};

struct CommunicationDraft {
  Communication kind = Communication::kNone;
  NameId comm;
  std::optional<std::int64_t> tag;
  std::vector<NameId> groupAxes;
  std::vector<NamedCoordinates> groupAt;
  NamedCoordinates peer;
  Reduction reduction = Reduction::kSum;
  std::int32_t dim = 0, odim = 0;  // negative: from the end
  std::vector<std::int64_t> sizes;
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
};

struct ProgramDraft {
  NamedCoordinates at;
  GraphDraft graph;
  std::vector<CommunicationDraft> communications;
  bool issueOrder = false;
  Asynchrony asynchrony;  // by place in `graph`, which resolving keeps
  std::vector<NamedStretch> within = {};
};

struct PartDraft {
  NameId local;
  NamedCoordinates at;
  Microbatch microbatch;
  LocalPart where = {};  // of the local tensor
  std::vector<NamedStretch> within = {};
};

struct ShardDraft {
  std::vector<std::pair<std::int64_t, std::int64_t>> box;
  std::vector<std::pair<NameId, Shape>> step;
  std::vector<PartDraft> parts;
  std::vector<NameId> sum;
};

struct EntryDraft {
  NameId tensor;
  Role role = Role::kCutPoint;
  std::vector<ShardDraft> shards;
  std::string approved = {};
  std::string guess = {};
};

struct PlanDraft {
  std::string file, name, modelFile, sha256;
  std::vector<MeshAxis> mesh;
  std::int32_t microbatches = 1;
  std::vector<ProgramDraft> programs;
  std::vector<EntryDraft> lineage;
  Capture capture;
};

struct ProblemDraft {
  Names names;
  AttributeTable attributes;
  ModelDraft model;
  PlanDraft plan;
};

}  // namespace shardproof::ir
