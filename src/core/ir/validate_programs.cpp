// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ir/buffers.h"
#include "ir/coordinates.h"
#include "ir/error_list.h"
#include "ir/infer_node.h"
#include "ir/node_error.h"
#include "ir/program_grid.h"
#include "ir/validate.h"
#include "ops/attributes.h"
#include "ops/collectives.h"
#include "shardproof/error.h"
#include "util/json_pointer.h"

namespace shardproof::ir {

namespace {

// What a member means on the program's ranks: axes that it does not name are the rank's own, and
// the program fixes some of those.
Coordinates completed(const Coordinates& member, const Coordinates& program) {
  Coordinates out = member;
  for (const auto& c : program) {
    const auto named = std::find_if(member.begin(), member.end(),
                                    [&](const auto& m) { return m.first == c.first; });
    if (named == member.end()) out.push_back(c);
  }
  std::sort(out.begin(), out.end());
  return out;
}

class ProgramValidator {
 public:
  ProgramValidator(const Problem& problem, ProgramId program)
      : plan_(problem.plan),
        names_(problem.names),
        attributes_(problem.attributes),
        number_(program),
        program_(problem.plan.programs[program]) {}

  void run(ErrorList& errors) const {
    for (const NodeId n : firstIds<NodeId>(program_.graph.nodes.size()))
      errors.attempt([&] { checkNode(n); });
    if (!program_.asynchrony.empty()) errors.attempt([&] { checkAsynchrony(); });
  }

 private:
  [[noreturn]] void fail(NodeId n, const std::string& field, const std::string& message) const {
    failAtNode(plan_.file, plan_.nodePointer(ProgramId(number_), n) + field, names_,
               program_.graph.nodes[n], message);
  }
  const Tensor& tensor(TensorId t) const { return program_.graph.tensors[t]; }
  std::string nameOf(const Operand& operand) const {
    const std::string& name = names_.text(tensor(operand.tensor).name);
    return operand.microbatch.isOne() ? name + "#" + std::to_string(operand.microbatch.number())
                                      : name;
  }
  std::string microbatchRange() const {
    return "one from 0 to " + std::to_string(plan_.microbatches - 1);
  }

  void checkNode(NodeId n) const {
    const Node& node = program_.graph.nodes[n];
    if (node.microbatch.isOne() && node.microbatch.number() >= plan_.microbatches) {
      fail(n, "/mb",
           "found microbatch " + std::to_string(node.microbatch.number()) + ", expected " +
               microbatchRange());
    }
    bool perMicrobatch = false;
    const auto in = program_.graph.in(node);
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (!in[i].present()) continue;
      checkOperand(n, i, node, in[i]);
      perMicrobatch = perMicrobatch || tensor(in[i].tensor).perMicrobatch;
    }
    const auto out = program_.graph.out(node);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i] < 0 || !tensor(out[i]).perMicrobatch) continue;
      perMicrobatch = true;
      if (!node.microbatch.isNone()) continue;
      fail(n, "/out/" + std::to_string(i),
           "found the \"per_mb\" tensor \"" + names_.text(tensor(out[i]).name) +
               "\" as a result of a node without \"mb\", expected \"mb\" on the node");
    }
    if (program_.issueOrder && perMicrobatch && node.microbatch.isEach()) {
      fail(n, "/mb",
           "found \"*\" in a program with \"order\": \"issue\", expected the number of one "
           "microbatch");
    }
    if (node.communication >= 0) checkCommunication(n, node);
    else checkDimensions(n, node);
  }

  // Sizes that do not fit are a plan's mistake, which src/core/plan reports; a dimension that the
  // operand does not have is nobody's plan. Only the operator knows which operand is meant, and it
  // is asked only where a number is too large for one of them.
  void checkDimensions(NodeId n, const Node& node) const {
    checkDimensions(n, node, node.attributes);
    if (node.steps < 0) return;
    for (const AttributesId set : program_.steps.at(node.steps).sets) checkDimensions(n, node, set);
  }

  void checkDimensions(NodeId n, const Node& node, AttributesId set) const {
    const Attributes& attributes = attributes_.at(set);
    std::size_t least = SIZE_MAX;
    for (const Operand& operand : program_.graph.in(node))
      if (operand.present()) least = std::min(least, tensor(operand.tensor).shape.size());
    for (const char* key : {"dim", "dims", "dim0", "dim1"}) {
      if (!ops::has(attributes, key)) continue;
      const std::vector<std::int64_t> dims = ops::integers(attributes, key);
      const auto rank = static_cast<std::int64_t>(least);
      const bool suspicious =
          dims.size() > 1 || std::any_of(dims.begin(), dims.end(),
                                         [&](std::int64_t d) { return d >= rank || d < -rank; });
      if (!suspicious) continue;
      try {
        static_cast<void>(inferNode(attributes_, program_.graph, node, set));
      } catch (const DimensionError& error) {
        fail(n, std::string("/attrs/") + key, error.what());
      } catch (const ShapeError&) {
      } catch (const Unsupported&) {
      }
    }
  }

  // What plan/async.cpp relies on: nodes run in file order, and each handle is that of one earlier
  // communication.
  void checkAsynchrony() const {
    const Asynchrony& all = program_.asynchrony;
    for (const NodeId n : firstIds<NodeId>(program_.graph.nodes.size())) {
      const Microbatch microbatch = program_.graph.nodes[n].microbatch;
      if (microbatch.isEach() || (microbatch.isOne() && !program_.issueOrder))
        fail(n, "/mb",
             "found a microbatch in a program with \"handle\", \"waits\" or \"buffer\", expected "
             "\"order\": \"issue\" and the number of one microbatch: what is under way follows "
             "from the order of nodes");
    }
    std::map<NameId, NodeId> issued;
    for (const auto& [n, handle] : all.handles) {
      if (!issued.emplace(handle, n).second)
        fail(n, "/handle",
             "found the handle \"" + names_.text(handle) +
                 "\", which another node has, expected each only once");
    }
    for (const auto& [n, handle] : all.waits) {
      const auto it = issued.find(handle);
      if (it == issued.end() || it->second >= n)
        fail(n, "/waits",
             "found \"" + names_.text(handle) + "\", expected the handle of an earlier node");
    }
    const std::string owner = "/programs/" + std::to_string(number_);
    for (const NameId handle : all.waitsAtEnd)
      if (!issued.contains(handle))
        throw InputError(
            plan_.file, owner + "/waits",
            "found \"" + names_.text(handle) + "\", expected the handle of a node of this program");
    checkGivenBuffers(owner);
  }

  // What is given lies in its buffer from the start: two of them in one place are none.
  void checkGivenBuffers(const std::string& owner) const {
    std::map<NameId, std::vector<std::pair<TensorId, BufferPlace>>> given;
    for (const auto& [buffered, place] : program_.asynchrony.buffers) {
      const TensorId t = buffered;  // to be captured
      if (tensor(t).kind == TensorKind::kProduced) continue;
      const auto refuse = [&](const std::string& message) {
        throw InputError(
            plan_.file,
            owner + "/tensors/" + escapePointer(names_.text(tensor(t).name)) + "/buffer", message);
      };
      if (tensor(t).perMicrobatch && plan_.microbatches > 1)
        refuse(
            "found a buffer of a \"per_mb\" tensor that is given, expected none: its instances "
            "would all be in one place");
      for (const auto& [other, theirs] : given[place.buffer]) {
        if (overlap(place, theirs))
          refuse("found the place of \"" + names_.text(tensor(other).name) +
                 "\", which is given, too, expected another one");
      }
      given[place.buffer].emplace_back(t, place);
    }
  }

  void checkOperand(NodeId n, std::size_t i, const Node& node, const Operand& operand) const {
    const auto place = [&] { return "/in/" + std::to_string(i); };
    const bool perMicrobatch = tensor(operand.tensor).perMicrobatch;
    if (operand.microbatch.isOne() && !perMicrobatch)
      fail(n, place(), "found \"" + nameOf(operand) + "\", but that tensor is not \"per_mb\"");
    if (operand.microbatch.isOne() && operand.microbatch.number() >= plan_.microbatches)
      fail(n, place(),
           "found \"" + nameOf(operand) + "\", expected a microbatch, " + microbatchRange());
    if (operand.microbatch.isNone() && perMicrobatch && node.microbatch.isNone()) {
      fail(n, place(),
           "found the \"per_mb\" tensor \"" + nameOf(operand) +
               "\" in a node without \"mb\", expected \"" + nameOf(operand) +
               "#k\" (or \"mb\" on the node)");
    }
  }

  void checkCommunication(NodeId n, const Node& node) const {
    const CommunicationSpec& spec = program_.communications[node.communication];
    checkMembers(n, spec);
    const ops::Collective& collective = ops::collectiveOf(spec.kind);
    if (!collective.movesPieces()) return;
    const bool two = collective.gathers == ops::Along::kOtherDim;
    checkDimension(n, two ? "/attrs/idim" : "/attrs/dim", node, spec.dim);
    if (two) checkDimension(n, "/attrs/odim", node, spec.odim);
  }

  void checkMembers(NodeId n, const CommunicationSpec& spec) const {
    std::vector<std::pair<Coordinates, std::size_t>> members;
    for (std::size_t i = 0; i < spec.groupAt.size(); ++i)
      members.emplace_back(completed(spec.groupAt[i], program_.at), i);
    std::sort(members.begin(), members.end());
    const bool uniform = std::all_of(members.begin(), members.end(), [&](const auto& m) {
      return sameAxes(m.first, members.front().first);
    });
    for (std::size_t i = 0; i + 1 < members.size(); ++i) {
      // Members that name the same axes meet only when they are equal, hence neighbours; others
      // need all pairs.
      const std::size_t last = uniform ? i + 1 : members.size() - 1;
      for (std::size_t j = i + 1; j <= last; ++j) {
        if (!mayMeet(members[i].first, members[j].first)) continue;
        const auto [first, second] = std::minmax(members[i].second, members[j].second);
        fail(n, "/group_at/" + std::to_string(second),
             "names the same rank as member " + std::to_string(first) +
                 ", expected every member once");
      }
    }
  }

  void checkDimension(NodeId n, const std::string& field, const Node& node,
                      std::int32_t dim) const {
    const auto in = program_.graph.in(node);  // empty where a root scatters: as the result
    const auto out = program_.graph.out(node);
    if (in.empty() && out.empty()) {  // only empty pieces
      if (dim < 0)
        fail(n, field,
             "found dimension " + std::to_string(dim) +
                 ", expected one that counts from 0, as this member has no tensor to count in");
      return;
    }
    const TensorId t = in.empty() ? out[0] : in[0].tensor;
    const auto rank = static_cast<std::int32_t>(tensor(t).shape.size());
    if (dim >= 0 && dim < rank) return;
    fail(n, field,
         "found dimension " + std::to_string(dim) + ", but the operand has " +
             std::to_string(rank) + " dimensions");
  }

  const Plan& plan_;
  const Names& names_;
  const AttributeTable& attributes_;
  std::int32_t number_;
  const Program& program_;
};

}  // namespace

void validateMesh(const std::string& file, const std::vector<MeshAxis>& mesh,
                  std::int32_t microbatches) {
  const auto fail = [&](const std::string& pointer, const std::string& message) {
    throw InputError(file, pointer, message);
  };
  std::int64_t ranks = 1;
  for (std::size_t a = 0; a < mesh.size(); ++a) {
    const MeshAxis& axis = mesh[a];
    const std::string pointer = "/mesh/" + std::to_string(a);
    if (axis.name.empty()) fail(pointer + "/0", "found an axis without a name");
    if (axis.name == "mb")
      fail(pointer + "/0",
           "found an axis named \"mb\", which stands for the microbatches, expected another name");
    const auto same = [&](const MeshAxis& other) { return other.name == axis.name; };
    if (std::any_of(mesh.begin(), mesh.begin() + static_cast<std::ptrdiff_t>(a), same))
      fail(pointer + "/0", "found the axis \"" + axis.name + "\" twice");
    if (axis.size < 1)
      fail(pointer + "/1", "found the size " + std::to_string(axis.size) + ", expected one from 1");
    ranks *= axis.size;  // cannot overflow: at most kMaxRanks before, and a size is below 2^31
    if (ranks > kMaxRanks)
      fail(pointer + "/1",
           "the mesh has more than " + std::to_string(kMaxRanks) + " ranks, which is the limit");
  }
  if (microbatches < 1 || microbatches > kMaxMicrobatches)
    fail("/microbatches", "found " + std::to_string(microbatches) +
                              ", expected a number from 1 to " + std::to_string(kMaxMicrobatches));
}

void validatePrograms(const Problem& problem) {
  static_cast<void>(ProgramGrid(problem.plan));  // each rank has one program
  ErrorList errors;
  for (const ProgramId p : firstIds<ProgramId>(problem.plan.programs.size()))
    ProgramValidator(problem, p).run(errors);
  errors.throwIfAny();
}

}  // namespace shardproof::ir
