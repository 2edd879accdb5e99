// SPDX-License-Identifier: Apache-2.0
// What a mutation needs to know of a plan, found from its structure alone: operators, groups,
// kinds, lineage. Names of tensors mean nothing here, so that generated plans and exported ones are
// alike.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "correspondence/correspondence.h"
#include "mutate/document.h"

namespace shardproof::mutate {

struct NodeRef {
  int program = -1, node = -1;
  auto operator<=>(const NodeRef&) const = default;
};

std::string pointerTo(NodeRef ref);

// Fields of nodes. Absent attributes are null.
const std::string& opOf(const Json& node);
const Json& attributeOf(const Json& node, const char* name);
std::vector<std::string> stepAxes(const Json& node);  // along which attributes move
bool isCommunication(const Json& node);
const std::string& commOf(const Json& node);  // of a communication
bool isCollective(const Json& node);          // all members take and give: no broadcast, send, recv
bool isBackward(const Json& node);            // NAME_backward
// all_reduce and reduce_scatter: adds up, the default.
bool isSum(const Json& node);
// The result is the operand: identity and what only changes precision or memory.
bool isIdentity(const std::string& op);
std::string_view stem(std::string_view operand);  // without "#k"
// Whether the result depends on the value of this operand. The gradient of a sum needs its
// operand's shape only, for example. An `amax` serves to keep exponentials in range: its value
// cancels out again.
bool valueMatters(const Json& node, std::size_t operand);

class PlanGraph {
 public:
  // Throws InputError when the document is no plan. The document must outlive this and not change.
  PlanGraph(const Json& plan, const std::string& file);

  const Json& plan() const { return plan_; }
  int programs() const { return static_cast<int>(programs_.size()); }
  int nodes(int program) const { return static_cast<int>(nodesOf(program).size()); }
  const Json& node(NodeRef ref) const {
    return nodesOf(ref.program)[static_cast<std::size_t>(ref.node)];
  }
  std::int64_t microbatches() const { return microbatches_; }
  const std::vector<std::pair<std::string, std::int64_t>>& axes() const { return axes_; }
  std::int64_t axisSize(const std::string& axis) const;
  std::vector<NodeRef> all(const std::function<bool(NodeRef)>& wanted) const;

  // Programs. `at`: the coordinate, or nothing where the axis is free.
  std::optional<std::int64_t> at(int program, const std::string& axis) const;
  std::vector<std::string> freeAxes(int program) const;  // of size greater than 1

  // Tensors of a program; `name` may have "#k".
  const Json& tensor(int program, std::string_view name) const;
  bool isGiven(int program, std::string_view name) const;  // input, parameter or constant
  bool alike(int program, std::string_view a,
             std::string_view b) const;  // shape, kind of element, microbatches
  std::vector<std::int64_t> shape(int program, std::string_view name) const;
  std::vector<NodeRef> producers(int program,
                                 std::string_view name) const;  // several: one for each microbatch
  std::optional<NodeRef> producer(int program, std::string_view name) const;  // the first
  std::vector<NodeRef> readers(int program, std::string_view name) const;

  // Groups of collectives.
  std::vector<std::string> groupAxes(
      NodeRef ref) const;  // with group_at: the axes that the members' coordinates name
  std::int64_t groupSize(NodeRef ref) const;
  // What one line of a training script stands for: the same node for other microbatches, in the
  // programs of other ranks of the stage, and, for communication, at all members. The node itself
  // comes first.
  std::vector<NodeRef> copies(NodeRef ref) const;
  bool isFirstCopy(NodeRef ref) const;
  // The other end of a send or a receive, for this node's microbatch.
  std::vector<NodeRef> partners(NodeRef ref) const;
  // The tensor of `to` that stands where `name` stands in `from`, for programs of the same stage;
  // empty if there is none.
  std::string corresponding(int from, std::string_view name, int to) const;

  // Data flow.
  bool afterBackward(NodeRef ref) const;  // works on a gradient
  bool oncePerStep(NodeRef ref) const { return !node(ref).contains("mb"); }
  bool isLive(NodeRef ref) const;  // an output depends on one of its results
  bool isLive(int program, std::string_view name) const;
  // Axes of size greater than 1 along which ranks hold different values, by data flow from the
  // input lineage; "mb" for microbatches.
  std::set<std::string> variesOver(int program, std::string_view name) const;
  // Axes over which the batch is cut.
  std::set<std::string> dataAxes() const { return dataAxes_; }
  // Equal for results that are computed alike from the same tensors.
  int valueNumber(int program, std::string_view name) const;
  // An earlier node of the program makes the same values: a recomputation.
  bool isRepeated(NodeRef ref) const;
  // Programs of ranks that run the same nodes: one pipeline stage.
  bool sameStage(int program, int other) const;
  // Nodes upstream of a tensor in its program.
  std::set<NodeRef> ancestors(int program, std::string_view name) const;

 private:
  using Mask = std::uint64_t;
  struct Tensor {
    const Json* declared = nullptr;
    TensorId id;  // its place in Program::order
    std::vector<int> producers = {}, readers = {};
    bool afterBackward = false, live = false;
    Mask varies = 0;
    int valueNumber = -1;
  };
  struct Program {
    const Json* json = nullptr;
    std::map<std::string, std::int64_t> at = {};
    std::unordered_map<std::string, Tensor> tensors = {};
    std::vector<std::string> order = {};  // of tensors, in the file
    std::set<int> repeated = {};
  };
  const Json& nodesOf(int program) const;
  const Program& in(int program) const { return programs_[static_cast<std::size_t>(program)]; }
  const Tensor& find(int program, std::string_view name) const;
  Tensor* find(int program, const Json& operand);
  void readPrograms();
  void findCorrespondence();
  void readLineage();
  void propagate();
  void numberValues();
  bool meets(NodeRef a, NodeRef b) const;
  Mask axisBit(const std::string& axis) const;
  Mask groupMask(NodeRef ref) const;

  const Json& plan_;
  std::vector<std::pair<std::string, std::int64_t>> axes_;
  std::int64_t microbatches_ = 1;
  std::vector<Program> programs_;
  std::optional<Correspondence> correspondence_;
  std::map<std::string, std::vector<NodeRef>> byComm_;
  std::set<std::string> dataAxes_;
};

}  // namespace shardproof::mutate
