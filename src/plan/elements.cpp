#include "plan/elements.h"

#include <map>
#include <optional>

#include "ops/registry.h"
#include "shardproof/error.h"

namespace shardproof {

void inferLocalElements(Problem& problem) {
  // What a communication carries: all members of one meeting agree (the join checks it), so a member without an operand gets what another knows. Of one name, kind and
  // tag: communications of one name and different kinds do not meet, and may carry different things. Who has an operand has that one's kind of element.
  struct Meeting {
    NameId comm;
    Communication kind;
    std::optional<std::int64_t> tag;
    auto operator<=>(const Meeting&) const = default;
  };
  std::map<Meeting, ElementKind> carried;
  const auto pass = [&] {
    bool changed = false;
    const auto set = [&](Graph& graph, std::int32_t t, ElementKind element) {
      Tensor& tensor = graph.tensors[static_cast<std::size_t>(t)];
      if (tensor.elementDeclared || tensor.kind != TensorKind::kProduced || tensor.element == element) return;
      tensor.element = element;
      changed = true;
    };
    for (Program& program : problem.plan.programs) {
      Graph& graph = program.graph;
      std::vector<ops::TensorInfo> infos;
      std::vector<const ops::TensorInfo*> operands;
      for (const Node& node : graph.nodes) {
        const auto in = graph.in(node);
        const auto out = graph.out(node);
        if (node.communication >= 0) {
          const CommunicationSpec& spec = program.communications[static_cast<std::size_t>(node.communication)];
          const Meeting meeting{spec.comm, spec.kind == Communication::kReceive ? Communication::kSend : spec.kind, spec.tag};
          if (!in.empty() && in[0].present()) {
            const ElementKind element = graph.tensors[static_cast<std::size_t>(in[0].tensor)].element;
            if (element != ElementKind::kReal && carried.emplace(meeting, element).second) changed = true;
            if (!out.empty() && out[0] >= 0) set(graph, out[0], element);
          } else if (const auto it = carried.find(meeting); it != carried.end() && !out.empty() && out[0] >= 0) {
            set(graph, out[0], it->second);
          }
          continue;
        }
        infos.assign(in.size(), {});
        operands.assign(in.size(), nullptr);
        for (std::size_t i = 0; i < in.size(); ++i) {
          if (!in[i].present()) continue;
          const Tensor& t = graph.tensors[static_cast<std::size_t>(in[i].tensor)];
          infos[i] = {t.shape, t.element};
          operands[i] = &infos[i];
        }
        try {
          const auto results = ops::Registry::instance().at(node.op).infer({problem.attributes.at(node.attributes), operands, out.size()});
          for (std::size_t i = 0; i < out.size() && i < results.size(); ++i) {
            if (out[i] >= 0) set(graph, out[i], results[i].element);
          }
        } catch (const ShapeError&) {   // the join reports it with its place
        } catch (const Unsupported&) {
        }
      }
    }
    return changed;
  };
  // Reals need no pass of their own; every other kind travels at most once through each communication between programs.
  for (std::size_t i = 0; i <= problem.plan.programs.size() && pass(); ++i) {
  }
}

}  // namespace shardproof
