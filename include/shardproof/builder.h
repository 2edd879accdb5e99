// SPDX-License-Identifier: Apache-2.0
// A verification problem made in memory, without a file: names in, ids out. What may be said is
// what docs/format.md describes, in any order; build() checks all of it.
//
//   ProblemBuilder b;
//   b.model().input("x", {4, 8});
//   b.model().parameter("w", {8, 6});
//   b.model().produced("y", {4, 6});
//   b.model().node("matmul", {"x", "w"}, {"y"});
//   b.output("y");
//   b.axis("tp", 2);
//   ProgramBuilder& p = b.program();
//   ...
//   p.allReduce("part", "y", {.comm = "c0", .group = {"tp"}});
//   b.lineage("x", Role::kInput).shard({{0, 4}, {0, 4}}).step("tp", {0, 4}).part("x");
//   std::unique_ptr<Problem> problem = std::move(b).build();
//   Report report = verifyProblem(*problem);
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardproof/graph.h"

namespace shardproof {

namespace ir {
struct CommunicationDraft;
struct GraphDraft;
struct ProblemDraft;
struct ShardDraft;
}  // namespace ir

// e.g. {{"pp", 1}, {"tp", 0}}
using AxisCoordinates = std::vector<std::pair<std::string, std::int32_t>>;

struct TensorOptions {
  std::optional<ElementKind> element = {};  // absent: a real number, or what the producer makes
  bool perMicrobatch = false;               // plan only
};

struct NodeOptions {
  Attributes attributes = {};
  // Plan only: what each coordinate of an axis adds to numbers of `attributes`.
  std::vector<std::pair<std::string, Attributes>> step = {};
  Microbatch microbatch = {};  // plan only
  std::string location = {};   // where people wrote it, e.g. "model.py:12"; for messages
};

// Operands and results are names; an empty one is absent. In a plan "x#3" reads microbatch 3's.
using TensorNames = std::vector<std::string>;

// Tensors and nodes of the model or of one program.
class GraphBuilder {
 public:
  TensorId input(std::string_view name, Shape shape, const TensorOptions& options = {});
  TensorId parameter(std::string_view name, Shape shape, const TensorOptions& options = {});
  TensorId constant(std::string_view name, Shape shape, ConstantValue value,
                    const TensorOptions& options = {});
  TensorId produced(std::string_view name, Shape shape, const TensorOptions& options = {});
  // An operator of docs/operators.md. Throws std::invalid_argument for one that there is not.
  NodeId node(std::string_view op, const TensorNames& in, const TensorNames& out,
              const NodeOptions& options = {});

 protected:
  friend class ProblemBuilder;
  // `program`: -1 for the model.
  GraphBuilder(ir::ProblemDraft& problem, ProgramId program)
      : problem_(&problem), program_(program) {}
  ir::GraphDraft& graph() const;
  TensorId add(std::string_view name, Shape shape, TensorKind kind, const TensorOptions& options);
  NodeId add(Node node, const TensorNames& in, const TensorNames& out, const NodeOptions& options);

  ir::ProblemDraft* problem_;
  ProgramId program_;
};

class ModelBuilder : public GraphBuilder {
 public:
  explicit ModelBuilder(ir::ProblemDraft& problem) : GraphBuilder(problem, ProgramId()) {}
  // That `tensor` is the gradient of a parameter, for messages.
  void gradient(std::string_view tensor, std::string_view parameter);
};

// The members of a communication and how they find each other.
struct Group {
  std::string comm = {};                      // the same on all members
  std::vector<std::string> axes = {};         // all ranks that differ in these only
  std::vector<AxisCoordinates> members = {};  // or the members one by one, in group order
  std::optional<std::int64_t> tag = {};       // in the place of the microbatch
  // Of all_gather, reduce_scatter, all_to_all: pieces that are not equal
  // (CommunicationSpec::sizes).
  std::vector<std::int64_t> sizes = {};
};

class ProgramBuilder : public GraphBuilder {
 public:
  void issueOrder();  // the nodes run in the order in which they are declared
  NodeId allReduce(std::string_view in, std::string_view out, const Group& group,
                   Reduction reduction = Reduction::kSum, const NodeOptions& options = {});
  NodeId allGather(std::string_view in, std::string_view out, const Group& group, std::int32_t dim,
                   const NodeOptions& options = {});
  NodeId reduceScatter(std::string_view in, std::string_view out, const Group& group,
                       std::int32_t dim, Reduction reduction = Reduction::kSum,
                       const NodeOptions& options = {});
  // With uneven pieces `in` and `out` are empty where a member gives or gets nothing.
  // Splits along `splitDim`, concatenates along `concatenateDim`.
  NodeId allToAll(std::string_view in, std::string_view out, const Group& group,
                  std::int32_t splitDim, std::int32_t concatenateDim,
                  const NodeOptions& options = {});
  // The root gives `tensor`, the others receive it.
  NodeId broadcastFromHere(std::string_view tensor, const Group& group, const AxisCoordinates& root,
                           const NodeOptions& options = {});
  NodeId broadcastToHere(std::string_view tensor, const Group& group, const AxisCoordinates& root,
                         const NodeOptions& options = {});
  // The root's node has a result (`out` empty on the others), a scatter's root the only operand.
  NodeId reduce(std::string_view in, std::string_view out, const Group& group,
                const AxisCoordinates& root, Reduction reduction = Reduction::kSum,
                const NodeOptions& options = {});
  NodeId gather(std::string_view in, std::string_view out, const Group& group,
                const AxisCoordinates& root, std::int32_t dim, const NodeOptions& options = {});
  NodeId scatter(std::string_view in, std::string_view out, const Group& group,
                 const AxisCoordinates& root, std::int32_t dim, const NodeOptions& options = {});
  // `pairs`: source and target, places in the group. Who is no target gets zeros.
  NodeId collectivePermute(std::string_view in, std::string_view out, const Group& group,
                           std::vector<std::pair<std::int32_t, std::int32_t>> pairs,
                           const NodeOptions& options = {});
  NodeId barrier(const Group& group, const NodeOptions& options = {});
  NodeId send(std::string_view tensor, std::string_view comm, const AxisCoordinates& to,
              const NodeOptions& options = {});
  NodeId receive(std::string_view tensor, std::string_view comm, const AxisCoordinates& from,
                 const NodeOptions& options = {});

 private:
  friend class ProblemBuilder;
  ProgramBuilder(ir::ProblemDraft& problem, ProgramId program) : GraphBuilder(problem, program) {}
  ir::CommunicationDraft draftOf(Communication kind, const Group& group,
                                 const AxisCoordinates& peer = {}) const;
  NodeId communicate(ir::CommunicationDraft draft, const TensorNames& in, const TensorNames& out,
                     const NodeOptions& options);
};

// One equation of the lineage: a box of the logical tensor is the sum of these local tensors.
class ShardBuilder {
 public:
  ShardBuilder& step(std::string_view axis, Shape offsets);  // "mb": the microbatches
  // `where`: which part of the local tensor.
  ShardBuilder& part(std::string_view local, const AxisCoordinates& at = {},
                     Microbatch microbatch = Microbatch::none(), LocalPart where = {});
  ShardBuilder& sum(std::string_view axis);

 private:
  friend class EntryBuilder;
  ShardBuilder(ir::ProblemDraft& problem, std::size_t entry, std::size_t shard)
      : problem_(&problem), entry_(entry), shard_(shard) {}
  ir::ShardDraft& draft() const;

  ir::ProblemDraft* problem_;
  std::size_t entry_, shard_;
};

class EntryBuilder {
 public:
  // `box`: half-open, one range per dimension of the logical tensor.
  ShardBuilder shard(std::vector<std::pair<std::int64_t, std::int64_t>> box);

 private:
  friend class ProblemBuilder;
  EntryBuilder(ir::ProblemDraft& problem, std::size_t entry) : problem_(&problem), entry_(entry) {}

  ir::ProblemDraft* problem_;
  std::size_t entry_;
};

class ProblemBuilder {
 public:
  ProblemBuilder();
  ~ProblemBuilder();
  ProblemBuilder(ProblemBuilder&&) noexcept;
  ProblemBuilder& operator=(ProblemBuilder&&) noexcept;

  ModelBuilder& model() { return *model_; }
  void output(std::string_view tensor);                 // of the model
  void axis(std::string_view name, std::int32_t size);  // of the mesh, slowest first
  void microbatches(std::int32_t number);
  // The program of all ranks that agree with `at`. The reference stays valid.
  ProgramBuilder& program(const AxisCoordinates& at = {});
  EntryBuilder lineage(std::string_view tensor, Role role);

  // Uses up the builder. Throws InputError, which names places as docs/format.md does
  // ("/programs/0/nodes/3").
  std::unique_ptr<Problem> build() &&;

 private:
  std::unique_ptr<ir::ProblemDraft> draft_;
  std::unique_ptr<ModelBuilder> model_;
  std::deque<ProgramBuilder> programs_;
};

}  // namespace shardproof
