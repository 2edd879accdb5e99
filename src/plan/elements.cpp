#include "plan/elements.h"

#include <unordered_map>

#include "ops/registry.h"
#include "shardproof/error.h"

namespace shardproof {

void inferLocalElements(Problem& problem) {
  // What a communication carries: all members of one id agree (the join checks it), so what one member knows the others get.
  std::unordered_map<NameId, ElementKind> carried;
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
          const NameId comm = program.communications[static_cast<std::size_t>(node.communication)].comm;
          if (!in.empty() && in[0].present()) {
            const ElementKind element = graph.tensors[static_cast<std::size_t>(in[0].tensor)].element;
            if (element != ElementKind::kReal && carried.emplace(comm, element).second) changed = true;
          }
          if (const auto it = carried.find(comm); it != carried.end() && !out.empty() && out[0] >= 0) set(graph, out[0], it->second);
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
