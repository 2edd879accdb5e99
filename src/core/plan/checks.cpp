// SPDX-License-Identifier: Apache-2.0
#include "plan/checks.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_set>

#include "ir/infer_node.h"
#include "ops/attributes.h"
#include "ops/collectives.h"
#include "ops/registry.h"
#include "plan/plan_index.h"
#include "plan/uneven_pieces.h"
#include "shardproof/error.h"
#include "util/shapes.h"

namespace shardproof {

namespace {

constexpr const char* kOtherElement =
    "' is declared with another kind of element (integer, real or complex) than the operator "
    "produces";

const CommunicationSpec& specOf(const Program& program, const Node& node) {
  return program.communications[node.communication];
}

Defect defectAt(const PlanIndex& planIndex, DefectKind kind, ProgramId program, NodeId node,
                std::string message) {
  Defect defect;
  defect.kind = kind;
  defect.nodes.push_back(planIndex.place(program, node));
  defect.message =
      defect.nodes.front().pointer + " (" + defect.nodes.front().op + "): " + std::move(message);
  planIndex.forEachRank(program, [&](Rank r) { defect.ranks.push_back(r); });
  return defect;
}

// What the operator makes with these attributes and the graph does not declare; empty: nothing.
std::string wrongResult(const Problem& problem, const Graph& graph, const Node& node,
                        AttributesId attributes) {
  const ops::OperatorInfo& op = ops::Registry::instance().at(node.op);
  const auto results = ir::inferNode(problem.attributes, graph, node, attributes);
  const auto out = graph.out(node);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (out[i] < 0) continue;
    const Tensor& t = graph.tensors[out[i]];
    if (!fitsDeclared(results[i].shape, t.shape, op.scalarMayBeOne))
      return "result '" + problem.names.text(t.name) + "' is declared with shape " +
             ops::toText(t.shape) + ", but the operator produces " + ops::toText(results[i].shape);
    if (t.element != results[i].element)
      return "result '" + problem.names.text(t.name) + kOtherElement;
  }
  return "";
}

}  // namespace

void checkPlanShapes(const PlanIndex& planIndex, std::vector<Defect>& defects) {
  const Problem& problem = planIndex.problem();
  for (const ProgramId p : firstIds<ProgramId>(problem.plan.programs.size())) {
    const Program& program = problem.plan.programs[p];
    const Graph& graph = program.graph;
    const Rank someRank = planIndex.mesh().firstOf(program.at, program.within);
    for (std::size_t n = 0; n < graph.nodes.size() && defects.size() < kMostDefects; ++n) {
      const Node& node = graph.nodes[n];
      const auto in = graph.in(node);
      const auto out = graph.out(node);
      const auto report = [&](const std::string& message) {
        defects.push_back(defectAt(planIndex, DefectKind::kShape, p, NodeId(n), message));
      };
      try {
        if (node.communication >= 0) {
          const CommunicationSpec& spec = specOf(program, node);
          if (!spec.sizes.empty()) continue;  // wrongPieces(): each member has a shape of its own
          if (in.empty() || out.empty() || in[0].tensor < 0 || out[0] < 0)
            continue;  // the partners are compared
          const std::int64_t size =
              static_cast<std::int64_t>(planIndex.groupOf(spec, someRank).size());
          const Shape shape =
              ops::communicationShape(spec, graph.tensors[in[0].tensor].shape, size);
          const Tensor& result = graph.tensors[out[0]];
          if (shape != result.shape) {
            report("result '" + problem.names.text(result.name) + "' is declared with shape " +
                   ops::toText(result.shape) + ", but the operator produces " + ops::toText(shape));
          } else if (result.element != graph.tensors[in[0].tensor].element) {
            report("result '" + problem.names.text(result.name) + kOtherElement);
          }
          continue;
        }
        std::string wrong = wrongResult(problem, graph, node, node.attributes);
        if (node.steps >= 0) {
          for (const AttributesId set : program.steps.at(node.steps).sets)
            if (wrong.empty()) wrong = wrongResult(problem, graph, node, set);
        }
        if (!wrong.empty()) report(wrong);
      } catch (const ShapeError& error) {
        report(error.what());
      } catch (const Unsupported&) {  // not a defect: the stages that need this operator are
                                      // undecided and say why
      }
    }
  }
}

void checkAssignments(const PlanIndex& planIndex, std::vector<Defect>& defects) {
  const Problem& problem = planIndex.problem();
  const std::int32_t microbatches = problem.plan.microbatches;
  for (const ProgramId p : firstIds<ProgramId>(problem.plan.programs.size())) {
    const Program& program = problem.plan.programs[p];
    const Graph& graph = program.graph;
    const auto pi = p;
    for (std::size_t t = 0; t < graph.tensors.size() && defects.size() < kMostDefects; ++t) {
      const Tensor& tensor = graph.tensors[t];
      const auto producers = planIndex.producers(pi, TensorId(t));
      const auto twice = [&](const Producer& a, const Producer& b, const std::string& when) {
        Defect defect =
            defectAt(planIndex, DefectKind::kDoubleAssignment, pi, b.node,
                     "local tensor '" + problem.names.text(tensor.name) + "' is produced twice" +
                         when + "; the first producer is " + problem.plan.nodePointer(pi, a.node));
        defect.nodes.push_back(planIndex.place(pi, a.node));
        defect.tensor = problem.names.text(tensor.name);
        defects.push_back(std::move(defect));
      };
      if (!producers.empty() && tensor.kind != TensorKind::kProduced) {
        twice(producers[0], producers[0], " (it is an input, parameter or constant)");
        continue;
      }
      for (std::size_t i = 0; i < producers.size(); ++i) {
        const Producer& a = producers[i];
        if (!tensor.perMicrobatch && a.microbatch.isEach())
          twice(a, a, ", once in each microbatch, but exists once per rank");
        if (tensor.perMicrobatch && a.microbatch.isNone()) {
          Defect defect = defectAt(
              planIndex, DefectKind::kUnproduced, pi, a.node,
              "writes '" + problem.names.text(tensor.name) +
                  "', which exists once per microbatch, without saying for which microbatch");
          defect.tensor = problem.names.text(tensor.name);
          defects.push_back(std::move(defect));
        }
        for (std::size_t j = i + 1; j < producers.size(); ++j) {
          const Producer& b = producers[j];
          const bool overlap = !tensor.perMicrobatch || a.microbatch == b.microbatch ||
                               a.microbatch.isEach() || b.microbatch.isEach();
          if (overlap) {
            twice(a, b, "");
            i = producers.size();
            break;
          }
        }
      }
    }
    // Lineage reads the local tensors that it names.
    for (std::size_t t = 0; t < graph.tensors.size() && defects.size() < kMostDefects; ++t) {
      const Tensor& tensor = graph.tensors[t];
      const auto mentions = planIndex.mentions(pi, TensorId(t));
      if (mentions.empty() || tensor.kind != TensorKind::kProduced) continue;
      const auto producers = planIndex.producers(pi, TensorId(t));
      const auto producedFor = [&](Microbatch m) {
        return std::any_of(producers.begin(), producers.end(), [&](const Producer& q) {
          return m.isNone() || q.microbatch.isEach() || q.microbatch == m;
        });
      };
      for (const Mention& mention : mentions) {
        const Part& part =
            problem.plan.lineage[mention.entry].shards[mention.shard].parts[mention.part];
        std::optional<Microbatch> missing;
        if (!tensor.perMicrobatch || part.microbatch.isOne()) {
          if (!producedFor(part.microbatch)) missing = part.microbatch;
        } else {
          for (std::int32_t m = 0; m < microbatches && !missing; ++m) {
            if (!producedFor(Microbatch::of(m))) missing = Microbatch::of(m);
          }
        }
        if (!missing) continue;
        Defect defect;
        defect.kind = DefectKind::kUnproduced;
        defect.tensor = problem.names.text(tensor.name);
        defect.message =
            "lineage entry /lineage/" + std::to_string(mention.entry) + "/shards/" +
            std::to_string(mention.shard) + " names local tensor '" + defect.tensor +
            "', which no node of /programs/" + std::to_string(p) + " produces" +
            (missing->isOne() ? " for microbatch " + std::to_string(missing->number()) : "");
        if (missing->isOne()) defect.microbatch = missing->number();
        planIndex.forEachRank(p, [&](Rank r) { defect.ranks.push_back(r); });
        defects.push_back(std::move(defect));
        break;
      }
    }
    for (std::size_t n = 0; n < graph.nodes.size() && defects.size() < kMostDefects; ++n) {
      const Node& node = graph.nodes[n];
      for (const Operand& operand : graph.in(node)) {
        if (!operand.present()) continue;
        const Tensor& tensor = graph.tensors[operand.tensor];
        if (tensor.kind != TensorKind::kProduced) continue;
        const auto unproduced = [&](const std::string& what, const Producer* late) {
          Defect defect =
              defectAt(planIndex, DefectKind::kUnproduced, pi, NodeId(n),
                       "reads local tensor '" + problem.names.text(tensor.name) + "', " + what);
          if (late) defect.nodes.push_back(planIndex.place(pi, late->node));
          defect.tensor = problem.names.text(tensor.name);
          defects.push_back(std::move(defect));
        };
        const auto producers = planIndex.producers(pi, operand.tensor);
        std::vector<Microbatch> wanted;
        if (!tensor.perMicrobatch) {
          wanted = {Microbatch::none()};
        } else if (operand.microbatch.isOne()) {
          wanted = {operand.microbatch};
        } else if (node.microbatch.isEach()) {
          for (std::int32_t m = 0; m < microbatches; ++m) wanted.push_back(Microbatch::of(m));
        } else {
          wanted = {node.microbatch};
        }
        for (const Microbatch m : wanted) {
          const Producer* producer = nullptr;
          for (const Producer& candidate : producers) {
            if (!tensor.perMicrobatch || candidate.microbatch.isEach() || candidate.microbatch == m)
              producer = &candidate;
          }
          if (!producer) {
            unproduced(m.isOne() ? "which is never produced on this rank for microbatch " +
                                       std::to_string(m.number())
                                 : "which is never produced on this rank",
                       nullptr);
            break;
          }
          // Within one microbatch (or in an issue-ordered program) node order is the order of
          // execution. Across microbatches it says nothing. A node that runs for each microbatch
          // runs for the producer's, too.
          const bool ordered = program.issueOrder || producer->microbatch == node.microbatch ||
                               producer->microbatch.isNone() || !node.microbatch.isOne() ||
                               (producer->microbatch.isEach() && m == node.microbatch);
          if (ordered && producer->node >= static_cast<std::int32_t>(n)) {
            unproduced(
                "which is produced only later, by " + problem.plan.nodePointer(pi, producer->node),
                producer);
            break;
          }
        }
      }
    }
  }
}

void checkCommunication(const PlanIndex& planIndex, std::vector<Defect>& defects) {
  const Problem& problem = planIndex.problem();
  const MeshView& mesh = planIndex.mesh();
  std::unordered_set<NameId> named;  // communications of which some node names its microbatch
  for (const Program& program : problem.plan.programs) {
    for (const Node& node : program.graph.nodes) {
      if (node.communication >= 0 && node.microbatch.isOne())
        named.insert(specOf(program, node).comm);
    }
  }
  for (const Rank rank : planIndex.representativeRanks()) {
    const ProgramId p = planIndex.programOf(rank);
    const Program& program = problem.plan.programs[p];
    const Graph& graph = program.graph;
    for (std::size_t n = 0; n < graph.nodes.size() && defects.size() < kMostDefects; ++n) {
      const Node& node = graph.nodes[n];
      if (node.communication < 0) continue;
      const CommunicationSpec& spec = specOf(program, node);
      const ops::Collective& collective = ops::collectiveOf(spec.kind);
      const bool pointToPoint = collective.message();
      const DefectKind kind = pointToPoint ? DefectKind::kSendReceive : DefectKind::kCollective;
      const auto report = [&](Microbatch microbatch, const std::string& message) -> Defect& {
        Defect defect = defectAt(planIndex, kind, p, NodeId(n), message);
        defect.ranks = {rank};
        if (microbatch.isOne()) defect.microbatch = microbatch.number();
        defects.push_back(std::move(defect));
        return defects.back();
      };
      if (spec.tag && node.microbatch.isEach()) {
        report(Microbatch::none(),
               "joins communication '" + problem.names.text(spec.comm) +
                   "' once per microbatch, but its tag makes them all the same one");
        continue;
      }
      const auto group = planIndex.groupOf(spec, rank);
      const std::string comm = "'" + problem.names.text(spec.comm) + "'";
      if (pointToPoint && mesh.with(rank, spec.peer) == rank) {
        report(Microbatch::none(), "communicates with its own rank");
        continue;
      }
      if (std::find(group.begin(), group.end(), rank) == group.end()) {
        report(Microbatch::none(), "rank " + std::to_string(rank) +
                                       " is not in the group that it lists for communication " +
                                       comm);
        continue;
      }
      const std::int64_t root = mesh.with(rank, spec.peer);
      if (collective.rooted()) {
        const std::string name = collective.name;
        if (std::find(group.begin(), group.end(), root) == group.end()) {
          report(Microbatch::none(), "the root of " + name + " " + comm + ", rank " +
                                         std::to_string(root) + ", is not in its group");
          continue;
        }
        const bool isRoot = root == rank;
        if (node.inCount != collective.operands(isRoot) ||
            node.outCount != collective.results(isRoot)) {
          report(Microbatch::none(),
                 (isRoot ? "the root of a " + name : "who is not the root of a " + name) + " has " +
                     (collective.operands(isRoot) ? "one" : "no") + " operand and " +
                     (collective.results(isRoot) ? "one" : "no") + " result");
          continue;
        }
      }
      // One microbatch stands for all unless some node of this communication names its microbatch.
      std::vector<Microbatch> microbatches{node.microbatch.at(Microbatch::of(0))};
      if (node.microbatch.isEach() && named.contains(spec.comm)) {
        for (std::int32_t m = 1; m < problem.plan.microbatches; ++m)
          microbatches.push_back(Microbatch::of(m));
      }
      // What all members have of one shape: the operands where all have one, else what a member has
      // of what is given to it; nothing of a barrier.
      const auto common = [&](const Program& q, const Node& c) -> const Tensor* {
        const auto in = q.graph.in(c);
        const auto out = q.graph.out(c);
        const bool given = collective.operand != ops::Who::kAll && !out.empty();
        const TensorId t = TensorId(!in.empty() && !given ? in[0].tensor
                                    : out.empty()         ? -1
                                                          : out[0]);
        return t < 0 ? nullptr : &q.graph.tensors[t];
      };
      const Tensor* const own = common(program, node);
      for (const Microbatch m : microbatches) {
        bool stop = false;
        for (const Rank member : group) {
          // What meets a member of its symmetry class meets this one: both run the same, and no
          // group names either. But a root is partly a member's own coordinates, so members of one
          // class may mean several.
          if (!collective.rooted() && !planIndex.representative(member)) continue;
          if (pointToPoint && member == rank) continue;
          const auto found = planIndex.partners(member, spec, m, rank);
          if (found.size() != 1) {
            const std::string what = pointToPoint
                                         ? (spec.kind == Communication::kSend ? "receive" : "send")
                                         : ops::communicationName(spec.kind);
            const NodeId instead = found.empty() && !pointToPoint
                                       ? planIndex.inPlaceOf(spec, member, rank)
                                       : NodeId::none();
            Defect& defect =
                report(m, found.empty()
                              ? "rank " + std::to_string(member) + " never issues the matching " +
                                    what + " of communication " + comm
                              : "rank " + std::to_string(member) + " issues the matching " + what +
                                    " of communication " + comm + " " +
                                    std::to_string(found.size()) + " times");
            if (instead.valid()) {
              const ProgramId q = planIndex.programOf(member);
              const Program& other = problem.plan.programs[q];
              defect.message +=
                  std::string(", but ") +
                  ops::communicationName(specOf(other, other.graph.nodes[instead]).kind);
              defect.nodes.push_back(planIndex.place(q, instead));
              defect.ranks.push_back(member);
            }
            stop = true;
            break;
          }
          const std::int32_t q = planIndex.programOf(member);
          const Program& other = problem.plan.programs[q];
          const Node& partner = other.graph.nodes[found[0]];
          const CommunicationSpec& otherSpec = specOf(other, partner);
          std::string mismatch;
          // By one statement, along axes, all members have one group: not listed for each pair.
          const bool sameStatement = &otherSpec == &spec && spec.groupAt.empty();
          if (!pointToPoint && !sameStatement && planIndex.groupOf(otherSpec, member) != group)
            mismatch = "lists another group, or the same in another order";
          else if (otherSpec.reduction != spec.reduction)
            mismatch = "reduces with another operation";
          else if (otherSpec.dim != spec.dim || otherSpec.odim != spec.odim)
            mismatch = "works along another dimension";
          else if (!sameStatement && otherSpec.sizes != spec.sizes)
            mismatch = "gives other sizes of the pieces";
          else if (!sameStatement && otherSpec.pairs != spec.pairs) mismatch = "names other pairs";
          else if (collective.rooted() && mesh.with(member, otherSpec.peer) != root)
            mismatch = "names another root";
          else if (const Tensor* its = common(other, partner); own != nullptr && its != nullptr) {
            if (its->shape != own->shape && !lengthsDiffer(spec))
              mismatch = "has shape " + ops::toText(its->shape) + " where rank " +
                         std::to_string(rank) + " has " + ops::toText(own->shape);
            else if (its->element != own->element) mismatch = "has another kind of element";
          }
          if (!mismatch.empty()) {
            Defect& defect = report(m, "rank " + std::to_string(member) + " joins communication " +
                                           comm + " but " + mismatch);
            defect.nodes.push_back(planIndex.place(ProgramId(q), found[0]));
            defect.ranks.push_back(member);
            stop = true;
            break;
          }
        }
        if (stop) break;
        if (spec.sizes.empty()) continue;
        const std::string wrong = wrongPieces(planIndex, rank, node, m);
        if (wrong.empty()) continue;
        report(m, wrong).kind = DefectKind::kShape;
        break;
      }
    }
  }
}

}  // namespace shardproof
