// SPDX-License-Identifier: Apache-2.0
#include "ir/elements.h"

#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>

#include "ir/infer_node.h"
#include "shardproof/error.h"

namespace shardproof {

void inferModelElements(Problem& problem) {
  Graph& graph = problem.model.graph;
  for (const Node& node : graph.nodes) {
    const auto out = graph.out(node);
    try {
      const auto results = ir::inferNode(problem.attributes, graph, node);
      for (std::size_t i = 0; i < out.size() && i < results.size(); ++i) {
        if (out[i] < 0) continue;
        Tensor& t = graph.tensors[out[i]];
        if (!t.elementDeclared) t.element = results[i].element;
      }
    } catch (const ShapeError&) {  // validateModel says it, with its place
    } catch (const Unsupported&) {
    } catch (const std::invalid_argument&) {
    }
  }
}

void inferLocalElements(Problem& problem) {
  // What a communication carries: all members of one rendezvous agree (src/core/plan checks it), so
  // a member without an operand gets what another knows. Of one name, kind and tag: communications
  // of one name and different kinds do not meet, and may carry different things. Who has an operand
  // has that one's kind of element.
  struct Rendezvous {
    NameId comm;
    Communication kind;
    std::optional<std::int64_t> tag;
    auto operator<=>(const Rendezvous&) const = default;
  };
  const auto rendezvousOf = [](const CommunicationSpec& spec) {
    return Rendezvous{spec.comm,
                      spec.kind == Communication::kReceive ? Communication::kSend : spec.kind,
                      spec.tag};
  };
  std::map<Rendezvous, ElementKind> carried;
  const auto pass = [&] {
    bool changed = false;
    const auto set = [&](Graph& graph, TensorId t, ElementKind element) {
      Tensor& tensor = graph.tensors[t];
      if (tensor.elementDeclared || tensor.kind != TensorKind::kProduced ||
          tensor.element != ElementKind::kReal || element == ElementKind::kReal)
        return;
      tensor.element = element;
      changed = true;
    };
    for (Program& program : problem.plan.programs) {
      Graph& graph = program.graph;
      for (const Node& node : graph.nodes) {
        const auto in = graph.in(node);
        const auto out = graph.out(node);
        if (node.communication >= 0) {
          const CommunicationSpec& spec = program.communications[node.communication];
          const Rendezvous rendezvous = rendezvousOf(spec);
          if (!in.empty() && in[0].present()) {
            const ElementKind element = graph.tensors[in[0].tensor].element;
            if (element != ElementKind::kReal && carried.emplace(rendezvous, element).second)
              changed = true;
            if (!out.empty() && out[0] >= 0) set(graph, out[0], element);
          } else if (const auto it = carried.find(rendezvous);
                     it != carried.end() && !out.empty() && out[0] >= 0) {
            set(graph, out[0], it->second);
          }
          continue;
        }
        try {
          const auto results = ir::inferNode(problem.attributes, graph, node);
          for (std::size_t i = 0; i < out.size() && i < results.size(); ++i) {
            if (out[i] >= 0) set(graph, out[i], results[i].element);
          }
        } catch (const ShapeError&) {  // src/core/plan reports it with its place
        } catch (const Unsupported&) {
        }
      }
    }
    return changed;
  };
  // What is not known yet counts as real, and each tensor becomes something else once at most, so
  // this ends.
  while (pass()) {
  }

  // Several groups may use one name. Where one sends this and another that, who only receives has
  // to say what it is.
  std::map<Rendezvous, std::set<ElementKind>> sent;
  for (const Program& program : problem.plan.programs) {
    for (const Node& node : program.graph.nodes) {
      const auto in = program.graph.in(node);
      if (node.communication < 0 || in.empty() || !in[0].present()) continue;
      sent[rendezvousOf(program.communications[node.communication])].insert(
          program.graph.tensors[in[0].tensor].element);
    }
  }
  for (const ProgramId p : firstIds<ProgramId>(problem.plan.programs.size())) {
    const Program& program = problem.plan.programs[p];
    for (const NodeId n : firstIds<NodeId>(program.graph.nodes.size())) {
      const Node& node = program.graph.nodes[n];
      const auto in = program.graph.in(node);
      const auto out = program.graph.out(node);
      if (node.communication < 0 || (!in.empty() && in[0].present()) || out.empty() || out[0] < 0)
        continue;
      const Tensor& received = program.graph.tensors[out[0]];
      const CommunicationSpec& spec = program.communications[node.communication];
      if (received.elementDeclared || sent[rendezvousOf(spec)].size() <= 1) continue;
      throw InputError(problem.plan.file, problem.plan.nodePointer(p, n) + "/out/0",
                       "'" + problem.names.text(received.name) +
                           "' has no dtype, and different kinds of element (real, integer or "
                           "complex) are sent under the name '" +
                           problem.names.text(spec.comm) +
                           "'; expected the dtype of what is received");
    }
  }
}

}  // namespace shardproof
