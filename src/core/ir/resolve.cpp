// SPDX-License-Identifier: Apache-2.0
#include "ir/resolve.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "ir/attribute_steps.h"
#include "ir/error_list.h"
#include "ir/node_error.h"
#include "ir/part_nodes.h"
#include "ir/pieces.h"
#include "ir/tensor_index.h"
#include "ops/collectives.h"
#include "shardproof/error.h"
#include "util/json_pointer.h"
#include "util/similar.h"

namespace shardproof::ir {

namespace {

// The mesh axes by name.
class AxisIndex {
 public:
  AxisIndex(const Plan& plan, const Names& names) : plan_(plan), names_(names) {
    for (std::size_t i = 0; i < plan.mesh.size(); ++i) {
      // An axis whose name was never used anywhere else has no id, and nothing can refer to it.
      if (const NameId id = names.find(plan.mesh[i].name); id.valid())
        axes_.emplace_back(id, static_cast<std::int32_t>(i));
    }
    microbatch_ = names.find("mb");
  }

  // `pointer()` is called only for a message: groups have many thousands of members.
  template <class Pointer>
  std::int32_t find(NameId name, Pointer pointer) const {
    const std::int32_t axis = lookUp(name);
    if (axis < 0) unknown(name, pointer());
    return axis;
  }

  // An axis, or kMicrobatchAxis for "mb".
  template <class Pointer>
  std::int32_t findOrMicrobatch(NameId name, Pointer pointer) const {
    return name.valid() && name == microbatch_ ? kMicrobatchAxis : find(name, pointer);
  }

  template <class Pointer>
  Coordinates resolve(const NamedCoordinates& named, Pointer pointer) const {
    Coordinates out;
    out.reserve(named.size());
    for (const auto& [name, coordinate] : named) {
      const auto place = [&, name = name] {
        return pointer() + "/" + escapePointer(names_.text(name));
      };
      const std::int32_t axis = find(name, place);
      const std::int32_t size = plan_.mesh[axis].size;
      if (coordinate < 0 || coordinate >= size) {
        throw InputError(plan_.file, place(),
                         "found the coordinate " + std::to_string(coordinate) +
                             ", expected one from 0 to " + std::to_string(size - 1));
      }
      out.emplace_back(axis, coordinate);
    }
    std::sort(out.begin(), out.end());
    const auto twice = std::adjacent_find(
        out.begin(), out.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
    if (twice != out.end()) {
      throw InputError(plan_.file, pointer(),
                       "found the axis \"" + plan_.mesh[twice->first].name + "\" twice");
    }
    return out;
  }

  // Of the axes that `at`, which is resolved, does not name.
  template <class Pointer>
  Stretches resolve(const std::vector<NamedStretch>& named, const Coordinates& at,
                    Pointer pointer) const {
    Stretches out;
    for (const NamedStretch& s : named) {
      const auto place = [&] { return pointer() + "/" + escapePointer(names_.text(s.axis)); };
      const std::int32_t axis = find(s.axis, place);
      const std::int32_t size = plan_.mesh[axis].size;
      const std::string found =
          "found the stretch [" + std::to_string(s.low) + ", " + std::to_string(s.high) + ")";
      if (s.low < 0 || s.high > size)
        throw InputError(plan_.file, place(),
                         found + ", expected one inside [0, " + std::to_string(size) + ") of \"" +
                             plan_.mesh[axis].name + "\"");
      if (s.low >= s.high)
        throw InputError(plan_.file, place(),
                         found + ", which is empty, expected at least one coordinate");
      out.push_back({axis, s.low, s.high});
    }
    std::sort(out.begin(), out.end());
    for (std::size_t i = 0; i < out.size(); ++i)
      if ((i > 0 && out[i - 1].axis == out[i].axis) ||
          std::any_of(at.begin(), at.end(), [&](const auto& c) { return c.first == out[i].axis; }))
        throw InputError(plan_.file, pointer(),
                         "found the axis \"" + plan_.mesh[out[i].axis].name + "\" twice");
    return out;
  }

 private:
  std::int32_t lookUp(NameId name) const {
    for (const auto& [n, axis] : axes_) {
      if (n == name) return axis;
    }
    return -1;
  }
  [[noreturn]] void unknown(NameId name, const std::string& pointer) const {
    std::string message = "found \"" + names_.text(name) + "\", expected an axis of the mesh (";
    for (std::size_t i = 0; i < plan_.mesh.size(); ++i)
      message += (i > 0 ? ", \"" : "\"") + plan_.mesh[i].name + "\"";
    throw InputError(plan_.file, pointer, message + ")");
  }

  const Plan& plan_;
  const Names& names_;
  std::vector<std::pair<NameId, std::int32_t>> axes_;  // a handful
  NameId microbatch_;                                  // the name "mb", if it occurs
};

// A graph's operands and results. `read` and `written` turn a name at a place into what is meant.
template <class Read, class Written>
Graph resolveGraph(GraphDraft&& draft, ErrorList& errors, Read read, Written written) {
  Graph out;
  out.tensors = std::move(draft.tensors);
  out.nodes = std::move(draft.nodes);
  out.constants = std::move(draft.constants);
  out.operands.resize(draft.operands.size());
  out.results.assign(draft.results.size(), TensorId());
  for (const NodeId n : firstIds<NodeId>(out.nodes.size())) {
    const Node& node = out.nodes[n];
    for (std::uint32_t i = 0; i < node.inCount; ++i) {
      if (const NameId name = draft.operands[node.firstIn + i]; name.valid())
        errors.attempt([&] { out.operands[node.firstIn + i] = read(n, i, name); });
    }
    for (std::uint32_t i = 0; i < node.outCount; ++i) {
      if (const NameId name = draft.results[node.firstOut + i]; name.valid())
        errors.attempt([&] { out.results[node.firstOut + i] = written(n, i, name); });
    }
  }
  draft = {};
  return out;
}

class Resolver {
 public:
  explicit Resolver(ProblemDraft&& draft)
      : problem_(std::make_unique<Problem>()),
        model_(std::move(draft.model)),
        plan_(std::move(draft.plan)) {
    problem_->names = std::move(draft.names);
    problem_->attributes = std::move(draft.attributes);
  }

  std::unique_ptr<Problem> run() {
    resolveModel();
    resolvePlan();
    errors_.throwIfAny();
    return std::move(problem_);
  }

 private:
  [[noreturn]] static void fail(const std::string& file, const std::string& pointer,
                                const std::string& message) {
    throw InputError(file, pointer, message);
  }
  const std::string& text(NameId name) const { return problem_->names.text(name); }
  // The tensors that may have been meant by a name that is none of them.
  std::string meant(NameId name, const TensorIndex& tensors) const {
    std::vector<std::string> known;
    tensors.forEachName([&](NameId tensor) { known.push_back(text(tensor)); });
    return didYouMean(text(name), known);
  }

  TensorIndex indexOf(const GraphDraft& graph, const std::string& file,
                      const std::string& owner) const {
    TensorIndex index(graph.tensors);
    if (const auto [first, second] = index.duplicate(); second >= 0) {
      fail(file, owner + "/tensors",
           "found two tensors with the name \"" + text(graph.tensors[second].name) +
               "\", expected one");
    }
    return index;
  }

  // --- the model ---

  void resolveModel() {
    Model& out = problem_->model;
    out.file = std::move(model_.file);
    out.name = std::move(model_.name);
    out.sha256 = std::move(model_.sha256);
    logical_ = indexOf(model_.graph, out.file, "");
    const auto find = [&](NameId name, auto pointer) {
      const TensorId t = logical_.find(name);
      if (t < 0)
        fail(out.file, pointer(),
             "found \"" + text(name) + "\", expected the name of a tensor in \"tensors\"" +
                 meant(name, logical_));
      return t;
    };
    const auto place = [](std::size_t n, const char* side, std::uint32_t i) {
      return Model::nodePointer(NodeId(n)) + side + std::to_string(i);
    };
    const std::vector<std::pair<std::int32_t, NameId>> numbersOf =
        std::move(model_.graph.numbersOf);
    out.graph = resolveGraph(
        std::move(model_.graph), errors_,
        [&](std::size_t n, std::uint32_t i, NameId name) {
          return Operand{find(name, [&] { return place(n, "/in/", i); }), Microbatch::none()};
        },
        [&](std::size_t n, std::uint32_t i, NameId name) {
          return find(name, [&] { return place(n, "/out/", i); });
        });
    for (const auto& [t, name] : numbersOf) {
      Tensor& numbers = out.graph.tensors[t];
      KnownInput known = *numbers.known;
      known.tensor = find(name, [&, t = t] {
        return out.tensorPointer(TensorId(t), problem_->names) + "/known/number_of";
      });
      const Tensor& of = out.graph.tensors[known.tensor];
      if (of.known) known.within = of.known->within;
      numbers.known = std::make_shared<const KnownInput>(std::move(known));
    }
    for (std::size_t i = 0; i < model_.outputs.size(); ++i)
      errors_.attempt([&] {
        out.outputs.push_back(
            find(model_.outputs[i], [&] { return "/outputs/" + std::to_string(i); }));
      });
    for (std::size_t i = 0; i < model_.arguments.size(); ++i)
      errors_.attempt([&] {
        out.arguments.push_back(
            find(model_.arguments[i], [&] { return "/arguments/" + std::to_string(i); }));
      });
    for (const TensorId t : firstIds<TensorId>(out.graph.tensors.size())) {
      const NameId parameter = out.graph.tensors[t].gradientOf;
      if (!parameter.valid()) continue;
      errors_.attempt([&] {
        find(parameter, [&] { return out.tensorPointer(t, problem_->names) + "/grad_of"; });
      });
    }
  }

  // --- the plan ---

  void resolvePlan() {
    Plan& out = problem_->plan;
    out.file = std::move(plan_.file);
    out.name = std::move(plan_.name);
    out.modelFile = std::move(plan_.modelFile);
    out.sha256 = std::move(plan_.sha256);
    out.mesh = std::move(plan_.mesh);
    out.microbatches = plan_.microbatches;
    out.capture = std::move(plan_.capture);
    const AxisIndex axes(out, problem_->names);
    out.programs.resize(plan_.programs.size());
    for (const ProgramId p : firstIds<ProgramId>(out.programs.size()))
      errors_.attempt([&] { resolveProgram(axes, p); });
    out.lineage.resize(plan_.lineage.size());
    for (const EntryId e : firstIds<EntryId>(out.lineage.size()))
      errors_.attempt(
          [&] { out.lineage[e] = resolveEntry(axes, std::exchange(plan_.lineage[e], {}), e); });
  }

  void resolveProgram(const AxisIndex& axes, std::size_t p) {
    ProgramDraft draft = std::exchange(plan_.programs[p], {});
    Program& out = problem_->plan.programs[p];
    const std::string& file = problem_->plan.file;
    const std::string owner = "/programs/" + std::to_string(p);
    const auto nodePlace = [&](std::size_t n) {
      return problem_->plan.nodePointer(ProgramId(p), NodeId(n));
    };
    out.issueOrder = draft.issueOrder;
    out.asynchrony = std::move(draft.asynchrony);
    out.at = axes.resolve(draft.at, [&] { return owner + "/at"; });
    out.within = axes.resolve(draft.within, out.at, [&] { return owner + "/at"; });
    for (const Stretch& s : out.within)
      if (s.high == s.low + 1) out.at.emplace_back(s.axis, s.low);
    std::sort(out.at.begin(), out.at.end());
    std::erase_if(out.within, [&](const Stretch& s) {
      return s.high == s.low + 1 || s.high - s.low == problem_->plan.mesh[s.axis].size;
    });
    const TensorIndex index = indexOf(draft.graph, file, owner);
    auto steps = std::move(draft.graph.steps);
    out.graph = resolveGraph(
        std::move(draft.graph), errors_,
        [&](std::size_t n, std::uint32_t i, NameId name) {
          Operand operand;
          operand.tensor = index.find(name);
          if (!operand.present() && !splitMicrobatch(index, text(name), operand)) {
            fail(file, nodePlace(n) + "/in/" + std::to_string(i),
                 "found \"" + text(name) + "\", expected the name of a tensor of this program" +
                     meant(name, index));
          }
          return operand;
        },
        [&](std::size_t n, std::uint32_t i, NameId name) {
          const TensorId t = index.find(name);
          Operand operand;
          if (t >= 0) return t;
          const std::string place = nodePlace(n) + "/out/" + std::to_string(i);
          if (splitMicrobatch(index, text(name), operand))
            fail(file, place,
                 "found \"" + text(name) +
                     "\", expected a result without \"#\": a node writes its own microbatch");
          fail(file, place,
               "found \"" + text(name) + "\", expected the name of a tensor of this program" +
                   meant(name, index));
        });
    out.communications.resize(draft.communications.size());
    for (const NodeId n : firstIds<NodeId>(out.graph.nodes.size())) {
      const Node& node = out.graph.nodes[n];
      if (node.communication < 0) continue;
      const auto c = static_cast<std::size_t>(node.communication);
      errors_.attempt([&] {
        out.communications[c] = resolveCommunication(
            axes, std::exchange(draft.communications[c], {}), [&] { return nodePlace(n); });
        countFromTheFront(out.graph, node, out.communications[c]);
        settlePieces(problem_->plan, out.communications[c],
                     [&](const std::string& field, const std::string& message) {
                       failAtNode(file, nodePlace(n) + field, problem_->names, node, message);
                     });
      });
    }
    for (auto& [n, step] : steps)
      errors_.attempt(
          [&, n = n, &named = step] { resolveSteps(axes, out, n, named, nodePlace(n)); });
  }

  void resolveSteps(const AxisIndex& axes, Program& program, NodeId n,
                    std::vector<std::pair<NameId, Attributes>>& named, const std::string& pointer) {
    if (attributeSets_ > kMostAttributeSets) return;  // which is said once, and takes long
    Node& node = program.graph.nodes[n];
    const auto fail = [&](const std::string& field, const std::string& message) {
      failAtNode(problem_->plan.file, pointer + "/step" + field, problem_->names, node, message);
    };
    std::vector<std::pair<std::int32_t, Attributes>> step;
    for (auto& [name, by] : named) {
      const std::string field = "/" + escapePointer(text(name));
      const std::int32_t axis = axes.find(name, [&] { return pointer + "/step" + field; });
      if (std::any_of(step.begin(), step.end(), [&](const auto& s) { return s.first == axis; }))
        fail(field, "found the axis twice, expected it once");
      try {
        Attributes first = problem_->attributes.at(node.attributes);
        addSteps(first, by, 0);
      } catch (const std::invalid_argument& error) {
        fail(field, error.what());
      }
      step.emplace_back(axis, std::move(by));
    }
    try {
      AttributeSteps made =
          takeSteps(problem_->plan, program, node, std::move(step), problem_->attributes);
      if (made.step.empty()) return;
      attributeSets_ += made.sets.size();
      if (attributeSets_ > kMostAttributeSets)
        fail("", "the attributes of all nodes that move have more than " +
                     std::to_string(kMostAttributeSets) + " values, which is the limit");
      node.steps = static_cast<std::int32_t>(program.steps.size());
      program.steps.push_back(std::move(made));
    } catch (const std::invalid_argument& error) {
      fail("", error.what());
    }
  }

  // "x#3" is microbatch 3's instance of x, unless a tensor is really called that.
  bool splitMicrobatch(const TensorIndex& index, std::string_view name, Operand& operand) const {
    const std::size_t hash = name.rfind('#');
    if (hash == std::string_view::npos) return false;
    const std::string_view digits = name.substr(hash + 1);
    std::int32_t k = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), k);
    if (error != std::errc() || end != digits.data() + digits.size() || k < 0) return false;
    operand.tensor = index.find(problem_->names.find(name.substr(0, hash)));
    operand.microbatch = Microbatch::of(k);
    return operand.present();
  }

  template <class Pointer>
  static CommunicationSpec resolveCommunication(const AxisIndex& axes, CommunicationDraft&& draft,
                                                Pointer pointer) {
    CommunicationSpec out;
    out.kind = draft.kind;
    out.comm = draft.comm;
    out.tag = draft.tag;
    out.reduction = draft.reduction;
    out.dim = draft.dim;
    out.odim = draft.odim;
    out.sizes = std::move(draft.sizes);
    out.pairs = std::move(draft.pairs);
    for (std::size_t i = 0; i < draft.groupAxes.size(); ++i)
      out.groupAxes.push_back(
          axes.find(draft.groupAxes[i], [&] { return pointer() + "/group/" + std::to_string(i); }));
    // The group is in rank order, however its axes are listed.
    std::sort(out.groupAxes.begin(), out.groupAxes.end());
    out.groupAt.reserve(draft.groupAt.size());
    for (std::size_t i = 0; i < draft.groupAt.size(); ++i)
      out.groupAt.push_back(axes.resolve(
          draft.groupAt[i], [&] { return pointer() + "/group_at/" + std::to_string(i); }));
    out.peer = axes.resolve(draft.peer,
                            [&] { return pointer() + "/" + ops::collectiveOf(draft.kind).peer; });
    return out;
  }

  // Negative dimensions count from the end, as in PyTorch.
  static void countFromTheFront(const Graph& graph, const Node& node, CommunicationSpec& spec) {
    const auto in = graph.in(node);
    const auto out = graph.out(node);
    const TensorId t = TensorId(!in.empty() ? in[0].tensor : out.empty() ? -1 : out[0]);
    if (t < 0) return;
    const auto rank = static_cast<std::int32_t>(graph.tensors[t].shape.size());
    for (std::int32_t* dim : {&spec.dim, &spec.odim}) {
      if (*dim < 0 && *dim >= -rank) *dim += rank;
    }
  }

  // --- the lineage ---

  LineageEntry resolveEntry(const AxisIndex& axes, EntryDraft&& draft, EntryId e) {
    const std::string pointer = "/lineage/" + std::to_string(e);
    LineageEntry out;
    out.role = draft.role;
    out.approved = std::move(draft.approved);
    out.guess = std::move(draft.guess);
    out.tensor = logical_.find(draft.tensor);
    if (out.tensor < 0)
      fail(problem_->plan.file, pointer + "/tensor",
           "found \"" + text(draft.tensor) + "\", expected the name of a tensor of the model " +
               problem_->model.file + meant(draft.tensor, logical_));
    out.shards.reserve(draft.shards.size());
    for (std::size_t s = 0; s < draft.shards.size(); ++s) {
      std::vector<PartDraft>& parts = draft.shards[s].parts;
      const std::size_t rank = problem_->model.graph.tensors[out.tensor].shape.size();
      for (std::size_t p = 0; p < parts.size(); ++p)
        if (const std::size_t named = parts[p].where.permute.size(); named != 0 && named != rank)
          fail(
              problem_->plan.file,
              pointer + "/shards/" + std::to_string(s) + "/parts/" + std::to_string(p) + "/permute",
              "found " + std::to_string(named) + " dimensions, expected a permutation of the " +
                  std::to_string(rank) + " that the model's tensor has");
      for (std::size_t p = 0; p < parts.size(); ++p)
        if (!isWhole(parts[p].where) || parts[p].where.padded)
          problem_->plan.placed.push_back({e, static_cast<std::uint32_t>(s),
                                           static_cast<std::uint32_t>(p), parts[p].local,
                                           std::move(parts[p].where)});
      out.shards.push_back(resolveShard(axes, std::exchange(draft.shards[s], {}),
                                        pointer + "/shards/" + std::to_string(s)));
    }
    return out;
  }

  Shard resolveShard(const AxisIndex& axes, ShardDraft&& draft, const std::string& pointer) const {
    Shard out;
    out.box = std::move(draft.box);
    out.parts.reserve(draft.parts.size());
    for (std::size_t p = 0; p < draft.parts.size(); ++p) {
      const auto place = [&] { return pointer + "/parts/" + std::to_string(p) + "/at"; };
      Part& part = out.parts.emplace_back();
      part.local = draft.parts[p].local;
      part.at = axes.resolve(draft.parts[p].at, place);
      part.microbatch = draft.parts[p].microbatch;
      part.within = axes.resolve(draft.parts[p].within, part.at, place);
    }
    settleStretches(out.parts);
    for (std::size_t i = 0; i < draft.sum.size(); ++i)
      out.sum.push_back(axes.findOrMicrobatch(
          draft.sum[i], [&] { return pointer + "/sum/" + std::to_string(i); }));
    std::sort(out.sum.begin(), out.sum.end());
    for (auto& [name, offsets] : draft.step) {
      const auto place = [&, name = name] {
        return pointer + "/step/" + escapePointer(text(name));
      };
      out.step.emplace_back(axes.findOrMicrobatch(name, place), std::move(offsets));
    }
    // Absent and 0 mean the same.
    std::erase_if(out.step, [&](const auto& step) {
      return step.second.size() == out.box.size() &&
             std::all_of(step.second.begin(), step.second.end(),
                         [](std::int64_t o) { return o == 0; });
    });
    std::sort(out.step.begin(), out.step.end());
    return out;
  }

  // An axis of which one part of a shard names a stretch is a coordinate of the shard: where
  // another part names a single coordinate, that is a stretch, too.
  void settleStretches(std::vector<Part>& parts) const {
    std::set<std::int32_t> axes;
    for (const Part& part : parts)
      for (const Stretch& s : part.within) axes.insert(s.axis);
    for (Part& part : parts) {
      for (const auto& [axis, c] : part.at)
        if (axes.contains(axis)) part.within.push_back({axis, c, c + 1});
      std::erase_if(part.at, [&](const auto& c) { return axes.contains(c.first); });
      std::erase_if(part.within, [&](const Stretch& s) {
        return s.high - s.low == problem_->plan.mesh[s.axis].size;
      });
      std::sort(part.within.begin(), part.within.end());
    }
  }

  std::unique_ptr<Problem> problem_;
  ModelDraft model_;
  PlanDraft plan_;
  TensorIndex logical_;
  std::size_t attributeSets_ = 0;  // of nodes whose attributes move
  ErrorList errors_;
};

}  // namespace

std::unique_ptr<Problem> resolveNames(ProblemDraft&& draft) {
  return Resolver(std::move(draft)).run();
}

}  // namespace shardproof::ir
