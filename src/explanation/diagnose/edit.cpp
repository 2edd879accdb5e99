// SPDX-License-Identifier: Apache-2.0
#include "diagnose/edit.h"

#include <algorithm>
#include <set>

#include "ir/infer_node.h"
#include "ops/registry.h"
#include "util/index.h"
#include "util/shapes.h"

namespace shardproof::diagnose {

namespace {

Graph& graphOf(Problem& plan, ProgramId p) { return plan.plan.programs[p].graph; }
const Graph& graphOf(const Problem& plan, ProgramId p) { return plan.plan.programs[p].graph; }

// Whether two operators work on tensors of the same names, and make such.
bool sameNames(const Program& a, const Node& x, const Program& b, const Node& y) {
  if (x.communication >= 0 || y.communication >= 0 || x.op != y.op || x.inCount != y.inCount ||
      x.outCount != y.outCount || x.outCount == 0)
    return false;
  const auto same = [&](std::int32_t s, TensorId t) {
    return (s < 0) == (t < 0) && (s < 0 || a.graph.tensors[s].name == b.graph.tensors[t].name);
  };
  for (std::size_t i = 0; i < x.inCount; ++i)
    if (!same(a.graph.in(x)[i].tensor, b.graph.in(y)[i].tensor)) return false;
  for (std::size_t r = 0; r < x.outCount; ++r)
    if (!same(a.graph.out(x)[r], b.graph.out(y)[r])) return false;
  return true;
}

void setOperands(Graph& g, Node& node, const std::vector<Operand>& in) {
  node.firstIn = static_cast<std::uint32_t>(g.operands.size());
  node.inCount = static_cast<std::uint32_t>(in.size());
  g.operands.insert(g.operands.end(), in.begin(), in.end());
}

void setResults(Graph& g, Node& node, const std::vector<TensorId>& out) {
  node.firstOut = static_cast<std::uint32_t>(g.results.size());
  node.outCount = static_cast<std::uint32_t>(out.size());
  g.results.insert(g.results.end(), out.begin(), out.end());
}

Rational fraction(std::int64_t num, std::int64_t den) { return Rational(num) / Rational(den); }

class Application {
 public:
  Application(Problem& plan, const Correspondence& correspondence, const Edit& edit)
      : plan_(plan), correspondence_(correspondence), edit_(edit) {}

  bool run(std::vector<NodeRef>* touched) {
    std::vector<NodeRef> refs = edit_.nodes;
    if (refs.empty()) return false;
    first_ = refs.front();
    std::sort(refs.begin(), refs.end(), std::greater<>());
    refs.erase(std::unique(refs.begin(), refs.end()), refs.end());
    std::vector<NodeRef> made;
    for (const NodeRef ref : refs) {
      if (at(ref.program) >= plan_.plan.programs.size() ||
          at(ref.node) >= graphOf(plan_, ref.program).nodes.size())
        return false;
      std::optional<NodeRef> inserted;
      if (!one(ref, inserted) || !sound(ref) || (inserted && !sound(*inserted))) return false;
      if (inserted) {  // nodes behind it have moved
        for (NodeRef& m : made)
          if (m.program == ref.program && m.node >= inserted->node) ++m.node;
        made.push_back(*inserted);
      }
      made.push_back(ref);
    }
    if (touched) *touched = std::move(made);
    return true;
  }

 private:
  // Whether the reader would take the node as it is now: no operand without its microbatch,
  // attributes that the operator has, shapes that fit.
  bool sound(NodeRef ref) const {
    const Graph& g = graphOf(plan_, ref.program);
    const Node& node = g.nodes[ref.node];
    for (const Operand& o : g.in(node))
      if (o.present() && g.tensors[o.tensor].perMicrobatch != o.microbatch.isOne() &&
          (o.microbatch.isOne() || node.microbatch.isNone()))
        return false;
    for (const TensorId t : g.out(node))
      if (t >= 0 && g.tensors[t].perMicrobatch && node.microbatch.isNone()) return false;
    if (node.communication >= 0) return true;
    const ops::OperatorInfo& op = ops::Registry::instance().at(node.op);
    try {
      op.validate(plan_.attributes.at(node.attributes), node.inCount, node.outCount);
      const auto results = ir::inferNode(plan_.attributes, g, node);
      for (std::size_t r = 0; r < node.outCount; ++r) {
        const TensorId t = g.out(node)[r];
        if (t >= 0 && !fitsDeclared(results[r].shape, g.tensors[t].shape, op.scalarMayBeOne))
          return false;
      }
    } catch (const std::exception&) {
      return false;
    }
    return true;
  }

  bool one(NodeRef ref, std::optional<NodeRef>& inserted) {
    Program& program = plan_.plan.programs[ref.program];
    Graph& g = program.graph;
    Node& node = g.nodes[ref.node];
    std::vector<Operand> in(g.in(node).begin(), g.in(node).end());
    std::vector<TensorId> out(g.out(node).begin(), g.out(node).end());
    switch (edit_.kind) {
      case Edit::Kind::kOperand: {
        if (edit_.index >= in.size()) return false;
        Operand& o = in[edit_.index];
        if (edit_.tensor >= 0) {
          o.tensor = tensorIn(ref.program);
          if (o.tensor < 0) return false;
          const Tensor& t = g.tensors[o.tensor];
          if (!t.perMicrobatch) o.microbatch = Microbatch::none();
          else if (edit_.microbatch) o.microbatch = Microbatch::of(*edit_.microbatch);
          else if (o.microbatch.isNone() && node.microbatch.isNone()) return false;
        } else if (edit_.ownMicrobatch) {
          if (node.microbatch.isNone()) return false;
          o.microbatch = Microbatch::none();
        } else if (edit_.microbatch) {
          o.microbatch = Microbatch::of(*edit_.microbatch);
        }
        setOperands(g, node, in);
        return true;
      }
      case Edit::Kind::kExchangeOperands:
        if (std::max(edit_.index, edit_.other) >= in.size()) return false;
        std::swap(in[edit_.index], in[edit_.other]);
        setOperands(g, node, in);
        return true;
      case Edit::Kind::kExchangeResults:
        if (std::max(edit_.index, edit_.other) >= out.size()) return false;
        std::swap(out[edit_.index], out[edit_.other]);
        setResults(g, node, out);
        return true;
      case Edit::Kind::kAttribute:
        return attribute(node);
      case Edit::Kind::kSpec: {
        if (node.communication < 0) return false;
        CommunicationSpec& spec = program.communications[node.communication];
        spec.kind = edit_.communication;
        spec.groupAxes = edit_.axes;
        spec.groupAt.clear();
        spec.reduction = edit_.reduction;
        spec.dim = edit_.dim;
        node.attributes = attributesOf(spec);
        return true;
      }
      case Edit::Kind::kPeer: {
        if (node.communication < 0) return false;
        Coordinates& peer = program.communications[node.communication].peer;
        std::erase_if(peer, [&](const auto& c) {
          return std::find(edit_.axes.begin(), edit_.axes.end(), c.first) != edit_.axes.end() ||
                 std::any_of(edit_.peer.begin(), edit_.peer.end(),
                             [&](const auto& other) { return other.first == c.first; });
        });
        peer.insert(peer.end(), edit_.peer.begin(), edit_.peer.end());
        std::sort(peer.begin(), peer.end());
        return true;
      }
      case Edit::Kind::kTag:
        if (node.communication < 0) return false;
        program.communications[node.communication].tag.reset();
        return true;
      case Edit::Kind::kSwap: {
        // Two operators of one operand and one result each; the places in the program as well.
        if (!plan_.plan.programs[ref.program].asynchrony.handles.empty()) return false;
        for (std::int32_t m = ref.node - 1; m >= 0 && !in.empty(); --m) {
          Node& other = g.nodes[m];
          if (other.inCount != 1 || other.outCount != 1 || out.size() != 1 || in.size() != 1 ||
              g.out(other)[0] != in[0].tensor)
            continue;
          const Operand source = g.in(other)[0];
          const Tensor& between = g.tensors[in[0].tensor];
          if (between.shape != g.tensors[out[0]].shape ||
              between.shape != g.tensors[source.tensor].shape)
            return false;
          setOperands(g, node, {source});
          setResults(g, node, {in[0].tensor});
          setOperands(g, other, in);
          setResults(g, other, out);
          std::swap(node, other);
          return sound({ref.program, NodeId(m)});
        }
        return false;
      }
      case Edit::Kind::kRedefine:
        return redefine(ref, in, out, inserted);
    }
    return false;
  }

  // As the file has them.
  AttributesId attributesOf(const CommunicationSpec& spec) {
    Attributes attributes;
    if (spec.kind != Communication::kAllReduce) attributes["dim"] = Rational(spec.dim);
    if (spec.kind != Communication::kAllGather && spec.reduction != Reduction::kSum)
      attributes["reduce"] = std::string(spec.reduction == Reduction::kMean ? "mean" : "max");
    return plan_.attributes.intern(std::move(attributes));
  }

  // The tensor that is read in the place of another: by name in programs that run something else.
  TensorId tensorIn(ProgramId program) const {
    if (correspondence_.alike(first_.program, program))
      return correspondence_.tensor(first_.program, edit_.tensor, program);
    const auto& tensors = graphOf(plan_, program).tensors;
    const NameId name = graphOf(plan_, first_.program).tensors[edit_.tensor].name;
    const auto it = std::find_if(tensors.begin(), tensors.end(),
                                 [&](const Tensor& t) { return t.name == name; });
    return it == tensors.end() ? TensorId::none() : TensorId(it - tensors.begin());
  }

  bool attribute(Node& node) {
    Attributes attributes = plan_.attributes.at(node.attributes);
    const Attributes* source = &attributes;
    if (edit_.from) {
      const Graph& g =
          edit_.from->program < 0 ? plan_.model.graph : graphOf(plan_, edit_.from->program);
      source = &plan_.attributes.at(g.nodes[edit_.from->node].attributes);
    }
    const auto it = source->find(edit_.attribute);
    if (it == source->end()) return false;
    AttributeValue value = it->second;
    if (auto* number = std::get_if<Rational>(&value)) {
      *number = *number * fraction(edit_.num, edit_.den) + Rational(edit_.plus);
    } else if (auto* list = std::get_if<std::vector<std::int64_t>>(&value)) {
      if (edit_.num != 1 || edit_.den != 1 || list->size() != 1) {
        if (!edit_.from) return false;
      } else {
        list->front() += edit_.plus;
      }
    } else if (!edit_.from) {
      return false;
    }
    if (!edit_.andAttribute.empty()) {
      auto* other = std::get_if<Rational>(&attributes[edit_.andAttribute]);
      if (other == nullptr) return false;
      *other = *other + Rational(edit_.plus);
    }
    if (attributes[edit_.attribute] == value) return true;
    attributes[edit_.attribute] = std::move(value);
    node.attributes = plan_.attributes.intern(std::move(attributes));
    return true;
  }

  bool redefine(NodeRef ref, std::vector<Operand> in, std::vector<TensorId> out,
                std::optional<NodeRef>& inserted) {
    Program& program = plan_.plan.programs[ref.program];
    Graph& g = program.graph;
    if (edit_.index >= out.size() || out[edit_.index] < 0) return false;
    const TensorId result = out[edit_.index];
    Operand source;
    const bool own = edit_.tensor < 0;
    const bool inPlace = !own && out.size() == 1;
    if (own) {
      Tensor before = g.tensors[result];
      std::string name = plan_.names.text(before.name) + ".before";
      while (plan_.names.find(name).valid() && has(g, plan_.names.find(name))) name += "_";
      before.name = plan_.names.intern(name);
      const auto known = std::find_if(g.tensors.begin(), g.tensors.end(),
                                      [&](const Tensor& t) { return t.name == before.name; });
      source.tensor =
          known == g.tensors.end() ? addTensor(g, before) : TensorId(known - g.tensors.begin());
      out[edit_.index] = source.tensor;
      setResults(g, g.nodes[ref.node], out);
    } else {
      source.tensor = tensorIn(ref.program);
      if (source.tensor < 0 || source.tensor == result) return false;
      for (const Operand& o : in)
        if (o.tensor == source.tensor) source.microbatch = o.microbatch;
      if (!inPlace) {
        out[edit_.index] = TensorId();
        setResults(g, g.nodes[ref.node], out);
      }
    }
    Node made;
    made.location = g.nodes[ref.node].location;
    made.microbatch = g.nodes[ref.node].microbatch;
    made.attributes = plan_.attributes.intern({});
    setOperands(g, made, {source});
    setResults(g, made, {result});
    if (edit_.make == Edit::Make::kAdd) {
      if (in.size() != 1) return false;
      setOperands(g, made, {in[0], source});
    }
    if (edit_.make == Edit::Make::kCollective) {
      CommunicationSpec spec;
      spec.kind = edit_.communication;
      spec.comm = plan_.names.intern("fixed." + std::to_string(first_.node) + "." +
                                     plan_.names.text(g.tensors[result].name));
      spec.groupAxes = edit_.axes;
      spec.reduction = edit_.reduction;
      spec.dim = edit_.dim;
      made.attributes = attributesOf(spec);
      made.communication = static_cast<std::int32_t>(program.communications.size());
      program.communications.push_back(std::move(spec));
    } else if (edit_.make == Edit::Make::kScale) {
      made.op = ops::Registry::instance().find(edit_.num == 1 ? "div" : "mul");
      made.attributes = plan_.attributes.intern(
          {{"scalar", edit_.num == 1 ? Rational(edit_.den) : fraction(edit_.num, edit_.den)}});
    } else {
      made.op = ops::Registry::instance().find(edit_.make == Edit::Make::kAdd ? "add" : "identity");
    }
    if (inPlace) {
      g.nodes[ref.node] = made;
      if (made.communication < 0) dropHandle(program, ref.node);
      std::erase_if(g.drawnMasks, [&](const DrawnMask& m) { return m.node == ref.node; });
    } else {
      const NodeId place = placeBehind(program, ref.node);
      g.nodes.insert(g.nodes.begin() + place, made);
      for (DrawnMask& m : g.drawnMasks) {
        if (m.node >= place) ++m.node;
      }
      for (auto* places : {&program.asynchrony.handles, &program.asynchrony.waits})
        for (auto& [node, handle] : *places)
          if (node >= place) ++node;
      waitFor(program, ref.node, place);
      inserted = NodeRef{ref.program, place};
    }
    return true;
  }

  // Where what a node makes can be read first: of a communication that is begun behind the wait.
  static NodeId placeBehind(const Program& program, NodeId node) {
    const Asynchrony& all = program.asynchrony;
    for (const auto& [begun, handle] : all.handles) {
      if (begun != node) continue;
      for (const auto& [waiting, waited] : all.waits)
        if (waited == handle) return waiting;
      return NodeId(static_cast<std::int32_t>(program.graph.nodes.size()));
    }
    return NodeId(node + 1);
  }
  static void waitFor(Program& program, NodeId begun, NodeId reader) {
    Asynchrony& all = program.asynchrony;
    for (const auto& [node, handle] : all.handles) {
      if (node != begun) continue;
      const auto later = std::find_if(all.waits.begin(), all.waits.end(),
                                      [&](const auto& wait) { return wait.first > reader; });
      all.waits.insert(later, {reader, handle});
    }
  }

  // What is no communication is not under way.
  static void dropHandle(Program& program, NodeId node) {
    Asynchrony& all = program.asynchrony;
    const auto own = std::find_if(all.handles.begin(), all.handles.end(),
                                  [&](const auto& h) { return h.first == node; });
    if (own == all.handles.end()) return;
    const NameId handle = own->second;
    all.handles.erase(own);
    std::erase_if(all.waits, [&](const auto& wait) { return wait.second == handle; });
    std::erase(all.waitsAtEnd, handle);
  }

  static bool has(const Graph& g, NameId name) {
    return std::any_of(g.tensors.begin(), g.tensors.end(),
                       [&](const Tensor& t) { return t.name == name; }) &&
           !std::any_of(g.tensors.begin(), g.tensors.end(), [&](const Tensor& t) {
             return t.name == name && t.perMicrobatch && t.kind == TensorKind::kProduced;
           });
  }
  // What no file has stays at the end.
  static TensorId addTensor(Graph& g, const Tensor& tensor) {
    const TensorId place(g.tensors.size() - g.tensorsAdded);
    g.tensors.insert(g.tensors.begin() + place, tensor);
    for (Operand& o : g.operands) {
      if (o.tensor >= place) ++o.tensor;
    }
    for (TensorId& t : g.results) {
      if (t >= place) ++t;
    }
    return place;
  }

  Problem& plan_;
  const Correspondence& correspondence_;  // of the plan before the edit
  const Edit& edit_;
  NodeRef first_;
};

// The place in the full plan of an operand: of a running sum the image may have dropped the summand
// of a microbatch that went.
std::size_t fullOperand(const Image& image, NodeRef here, NodeRef there, std::size_t index) {
  const Graph &g = graphOf(image.problem(), here.program),
              &full = graphOf(image.full(), there.program);
  const auto in = full.in(full.nodes[there.node]);
  if (g.nodes[here.node].inCount == in.size()) return index;
  const auto nameIn = [](const Problem& problem, const Graph& graph, const Operand& operand) {
    return operand.present() ? problem.names.text(graph.tensors[operand.tensor].name)
                             : std::string();
  };
  const Operand& own = g.in(g.nodes[here.node])[index];
  for (std::size_t i = 0; i < in.size(); ++i)
    if (nameIn(image.full(), full, in[i]) == nameIn(image.problem(), g, own) &&
        in[i].microbatch == own.microbatch)
      return i;
  return index;
}

}  // namespace

std::vector<NodeRef> siteOf(const Problem& plan, const Correspondence& correspondence,
                            NodeRef node) {
  std::vector<NodeRef> site = correspondence.line(node);
  const Program& mine = plan.plan.programs[node.program];
  for (const ProgramId p : firstIds<ProgramId>(plan.plan.programs.size())) {
    if (correspondence.alike(node.program, p)) continue;
    const Program& other = plan.plan.programs[p];
    for (const NodeId n : firstIds<NodeId>(other.graph.nodes.size())) {
      if (!sameNames(mine, mine.graph.nodes[node.node], other, other.graph.nodes[n])) continue;
      const std::vector<NodeRef> there = correspondence.microbatchesOf({p, n});
      site.insert(site.end(), there.begin(), there.end());
      break;
    }
  }
  // The node's own program, then all others as the plan has them.
  const auto key = [&](NodeRef ref) { return std::pair(ref.program != node.program, ref.program); };
  std::stable_sort(site.begin(), site.end(), [&](NodeRef a, NodeRef b) { return key(a) < key(b); });
  return site;
}

bool apply(Problem& plan, const Correspondence& correspondence, const Edit& edit,
           std::vector<NodeRef>* touched) {
  return Application(plan, correspondence, edit).run(touched);
}

Edit inFull(const Image& image, const Edit& edit) {
  Edit full = edit;
  if (image.isFull()) return full;
  for (NodeRef& ref : full.nodes) ref = image.fullNode(ref);
  if (edit.microbatch)
    full.microbatch = static_cast<std::int32_t>(image.fullMicrobatch(*edit.microbatch));
  if (edit.kind == Edit::Kind::kOperand)
    full.index = fullOperand(image, edit.nodes.front(), full.nodes.front(), edit.index);
  if (full.from) full.from = image.fullNode(*full.from);
  if (full.wholeSite)
    full.nodes = siteOf(image.full(), Correspondence(image.full()), full.nodes.front());
  // Tensors keep their names, and not their numbers: readers number them as they come.
  if (edit.tensor >= 0 && !edit.nodes.empty()) {
    const std::string name = image.problem().names.text(
        graphOf(image.problem(), edit.nodes.front().program).tensors[edit.tensor].name);
    const auto& tensors = graphOf(image.full(), full.nodes.front().program).tensors;
    const auto it = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) {
      return image.full().names.text(t.name) == name;
    });
    full.tensor =
        TensorId(it == tensors.end() ? -1 : static_cast<std::int32_t>(it - tensors.begin()));
  }
  return full;
}

}  // namespace shardproof::diagnose
