// SPDX-License-Identifier: Apache-2.0
// Why it is right: it is the reader's inverse, field by field, and tests/writer compares what is
// read again with what was written, for generated plans and for the real ones. Only what the reader
// forgets is lost: the exact dtype (its kind is kept), "source", and fields that say what is the
// default.
#include "writer/write_problem.h"

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "ir/attribute_steps.h"
#include "ops/collectives.h"
#include "ops/registry.h"
#include "plan/plan_index.h"
#include "shardproof/error.h"
#include "writer/json_writer.h"
#include "writer/write_capture.h"

namespace shardproof {
namespace {

const char* dtypeOf(ElementKind kind) {
  switch (kind) {
    case ElementKind::kInteger:
      return "int64";
    case ElementKind::kComplex:
      return "complex64";
    case ElementKind::kReal:
      break;
  }
  return "float32";
}

const char* kindOf(TensorKind kind) {
  switch (kind) {
    case TensorKind::kInput:
      return "input";
    case TensorKind::kParameter:
      return "parameter";
    case TensorKind::kConstant:
      return "constant";
    case TensorKind::kProduced:
      break;
  }
  return "";
}

const char* roleOf(Role role) {
  switch (role) {
    case Role::kInput:
      return "input";
    case Role::kOutput:
      return "output";
    case Role::kAssumed:
      return "assumed";
    case Role::kCutPoint:
      break;
  }
  return "cut_point";
}

class ProblemWriter {
 public:
  explicit ProblemWriter(const Problem& problem) : problem_(problem) {
    const auto note = [&](ProgramId program, const Graph& graph) {
      for (const DrawnMask& d : graph.drawnMasks) drawn_[{program, d.node}] = d.attributes;
    };
    note(ProgramId(), problem.model.graph);
    for (const ProgramId p : firstIds<ProgramId>(problem.plan.programs.size()))
      note(p, problem.plan.programs[p].graph);
    for (const PlacedPart& p : problem.plan.placed)
      placed_.emplace(std::tuple(p.entry, p.shard, p.part), &p);
  }

  std::string model() {
    const Model& m = problem_.model;
    header("shardproof-model", 1, m.name);
    tensors(m.graph, {});
    nodes(ProgramId(), m.graph, {}, {}, {}, {});
    json_.key("outputs").beginList();
    for (const TensorId t : m.outputs) json_.text(name(m.graph, t));
    json_.endList();
    if (!m.arguments.empty()) {
      json_.key("arguments").beginList();
      for (const TensorId t : m.arguments) json_.text(name(m.graph, t));
      json_.endList();
    }
    return json_.endObject().take();
  }

  std::string plan(const std::string& modelFile, bool withInferred,
                   const std::set<EntryId>& without) {
    const Plan& p = problem_.plan;
    const bool parts = std::any_of(p.placed.begin(), p.placed.end(), [&](const PlacedPart& placed) {
      return (withInferred || !p.lineage[placed.entry].inferred) && !without.contains(placed.entry);
    });
    header("shardproof-plan", parts || p.hasStretches() ? 2 : 1, p.name);
    if (!modelFile.empty()) json_.key("model").text(modelFile);
    json_.key("mesh").beginList();
    for (const MeshAxis& axis : p.mesh)
      json_.beginList().text(axis.name).number(axis.size).endList();
    json_.endList()
        .key("microbatches")
        .number(p.microbatches)
        .key("programs")
        .beginList(JsonWriter::kLines);
    for (const ProgramId i : firstIds<ProgramId>(p.programs.size())) {
      const Program& program = p.programs[i];
      json_.beginObject();
      coordinates("at", program.at, program.within);
      if (program.issueOrder) json_.key("order").text("issue");
      tensors(program.graph, program.asynchrony);
      nodes(ProgramId(i), program.graph, program.communications, program.steps, program.asynchrony,
            program.within);
      if (!program.asynchrony.waitsAtEnd.empty()) handles(program.asynchrony.waitsAtEnd);
      json_.endObject();
    }
    json_.endList().key("lineage").beginList(JsonWriter::kLines);
    for (std::size_t e = 0; e + problem_.lineageAdded < p.lineage.size(); ++e)
      if ((withInferred || !p.lineage[e].inferred) && !without.contains(EntryId(e)))
        entry(EntryId(e), p.lineage[e]);
    json_.endList();
    if (!p.capture.empty()) writeCapture(json_.key("capture"), p.capture);
    return json_.endObject().take();
  }

 private:
  const std::string& text(NameId id) const { return problem_.names.text(id); }
  // What is put together of a tensor's parts is that tensor.
  const std::string& name(const Graph& graph, TensorId tensor) const {
    const TensorId stands = graph.tensors[tensor].standsFor;
    return text(graph.tensors[stands.valid() ? stands : tensor].name);
  }
  const std::string& axisName(std::int32_t axis) const {
    static const std::string kMicrobatch = "mb";
    return axis == kMicrobatchAxis ? kMicrobatch : problem_.plan.mesh[axis].name;
  }

  void header(const char* format, std::int64_t version, const std::string& title) {
    json_.beginObject(JsonWriter::kLines).key("format").text(format).key("version").number(version);
    if (!title.empty()) json_.key("name").text(title);
  }

  // Entries of a list by id: of those that are asked for in file order the next ones.
  template <class Key, class Value, class Use>
  static void eachOf(const std::vector<std::pair<Key, Value>>& list, std::size_t& next, Key key,
                     Use use) {
    for (; next < list.size() && list[next].first == key; ++next) use(list[next].second);
  }

  void handles(const std::vector<NameId>& list) {
    if (list.empty()) return;
    json_.key("waits").beginList();
    for (const NameId handle : list) json_.text(text(handle));
    json_.endList();
  }

  void buffer(const BufferPlace& place) {
    json_.key("buffer");
    if (!place.high) {
      json_.text(text(place.buffer));
      return;
    }
    json_.beginList().text(text(place.buffer)).number(place.low).number(*place.high).endList();
  }

  void tensors(const Graph& graph, const Asynchrony& asynchrony) {
    std::size_t nextBuffer = 0;
    json_.key("tensors").beginObject(JsonWriter::kLines);
    for (std::size_t i = 0; i + graph.tensorsAdded < graph.tensors.size(); ++i) {
      const Tensor& t = graph.tensors[i];
      if (t.added) continue;
      json_.key(text(t.name)).beginObject().key("shape").integers(t.shape);
      const TensorKind kind = t.kindInFile == TensorKind::kProduced ? t.kind : t.kindInFile;
      if (kind != TensorKind::kProduced) json_.key("kind").text(kindOf(kind));
      if (t.elementDeclared) json_.key("dtype").text(dtypeOf(t.element));
      if (t.constant >= 0) {
        const ConstantValue& value = *graph.constants[t.constant];
        json_.key("value");
        std::size_t next = 0;
        if (value.fill) json_.raw(decimalText(value.elements.front()));
        else nested(value, t.shape, 0, next);
      }
      if (t.gradientOf.valid()) json_.key("grad_of").text(text(t.gradientOf));
      if (t.perMicrobatch) json_.key("per_mb").flag(true);
      if (t.known) known(graph, *t.known);
      eachOf(asynchrony.buffers, nextBuffer, TensorId(i),
             [&](const BufferPlace& place) { buffer(place); });
      json_.endObject();
    }
    json_.endObject();
  }

  void known(const Graph& graph, const KnownInput& known) {
    json_.key("known").beginObject();
    switch (known.kind) {
      case KnownInput::Kind::kNumbers:
        json_.key("numbers");
        if (known.numbers.empty()) {
          json_.raw("null");
        } else {
          json_.beginList();
          for (const double number : known.numbers) json_.real(number);
          json_.endList();
        }
        break;
      case KnownInput::Kind::kNumberOf:
        json_.key("number_of").text(name(graph, known.tensor)).key("plus").number(known.plus);
        break;
      case KnownInput::Kind::kWithin:
        json_.key("within").beginList();
        for (const auto& [low, high] : known.within) json_.integers({low, high});
        json_.endList();
        break;
    }
    json_.endObject();
  }

  void nested(const ConstantValue& value, const Shape& shape, std::size_t dim, std::size_t& next) {
    if (dim == shape.size()) {
      json_.raw(decimalText(value.elements.at(next++)));
      return;
    }
    json_.beginList();
    for (std::int64_t i = 0; i < shape[dim]; ++i) nested(value, shape, dim + 1, next);
    json_.endList();
  }

  void nodes(ProgramId program, const Graph& graph,
             const std::vector<CommunicationSpec>& communications,
             const std::vector<AttributeSteps>& steps, const Asynchrony& asynchrony,
             const Stretches& within) {
    std::size_t nextHandle = 0, nextWait = 0;
    json_.key("nodes").beginList(JsonWriter::kLines);
    for (const NodeId n : firstIds<NodeId>(graph.nodes.size())) {
      Node node = graph.nodes[n];
      if (node.added >= 0) continue;
      if (const auto it = drawn_.find({program, n}); it != drawn_.end()) {
        // The mask is the last operand, and backward it has a (null) result of its own.
        node.attributes = it->second;
        if (node.outCount == node.inCount - 1 && node.inCount > 2) --node.outCount;
        --node.inCount;
      }
      write(graph, node, node.communication < 0 ? nullptr : &communications[node.communication],
            node.steps < 0 ? nullptr : &steps.at(node.steps), within);
      eachOf(asynchrony.handles, nextHandle, n,
             [&](NameId handle) { json_.key("handle").text(text(handle)); });
      std::vector<NameId> waits;
      eachOf(asynchrony.waits, nextWait, n, [&](NameId handle) { waits.push_back(handle); });
      handles(waits);
      json_.endObject();
    }
    json_.endList();
  }

  // All but what Asynchrony has of it, and the end of the object.
  void write(const Graph& graph, const Node& node, const CommunicationSpec* spec,
             const AttributeSteps* steps, const Stretches& within) {
    json_.beginObject()
        .key("op")
        .text(spec == nullptr ? ops::Registry::instance().at(node.op).name
                              : ops::communicationName(spec->kind))
        .key("in")
        .beginList();
    for (const Operand& o : graph.in(node)) {
      if (!o.present()) json_.raw("null");
      else
        json_.text(o.microbatch.isOne()
                       ? name(graph, o.tensor) + "#" + std::to_string(o.microbatch.number())
                       : name(graph, o.tensor));
    }
    json_.endList().key("out").beginList();
    for (const TensorId t : graph.out(node)) {
      if (t < 0) json_.raw("null");
      else json_.text(name(graph, t));
    }
    json_.endList();
    Attributes first = problem_.attributes.at(node.attributes);
    if (steps != nullptr)
      for (const auto& [axis, added] : steps->step)  // files have those at coordinate 0
        ir::addSteps(first, added, -ir::rangeOf(problem_.plan, within, axis).low);
    attributes("attrs", first);
    if (steps != nullptr) {
      json_.key("step").beginObject();
      for (const auto& [axis, added] : steps->step)
        attributes(problem_.plan.mesh[axis].name, added);
      json_.endObject();
    }
    if (spec != nullptr) communication(*spec);
    if (node.microbatch.isEach()) json_.key("mb").text("*");
    if (node.microbatch.isOne()) json_.key("mb").number(node.microbatch.number());
    if (node.location.valid()) json_.key("loc").text(text(node.location));
  }

  void attributes(const std::string& field, const Attributes& all) {
    if (all.empty()) return;
    json_.key(field).beginObject();
    for (const auto& [key, value] : all) {
      json_.key(key);
      if (const auto* flag = std::get_if<bool>(&value)) json_.flag(*flag);
      else if (const auto* number = std::get_if<Rational>(&value)) json_.raw(decimalText(*number));
      else if (const auto* words = std::get_if<std::string>(&value)) json_.text(*words);
      else json_.integers(std::get<std::vector<std::int64_t>>(value));
    }
    json_.endObject();
  }

  // Its attributes are with those of all nodes.
  void communication(const CommunicationSpec& spec) {
    json_.key("comm").text(text(spec.comm));
    if (spec.tag) json_.key("tag").number(*spec.tag);
    const ops::Collective& collective = ops::collectiveOf(spec.kind);
    if (*collective.peer != 0) coordinates(collective.peer, spec.peer);
    if (collective.message()) return;
    if (spec.groupAt.empty()) {
      json_.key("group").beginList();
      for (const std::int32_t axis : spec.groupAxes) json_.text(axisName(axis));
      json_.endList();
    } else {
      json_.key("group_at").beginList();
      for (const Coordinates& at : spec.groupAt) coordinates(nullptr, at);
      json_.endList();
    }
    if (!spec.sizes.empty()) sizes(spec);
    if (!collective.permutes) return;
    json_.key("pairs").beginList();
    for (const auto& [source, target] : spec.pairs) json_.integers({source, target});
    json_.endList();
  }

  void sizes(const CommunicationSpec& spec) {
    json_.key("sizes");
    if (spec.kind != Communication::kAllToAll) {
      json_.integers(spec.sizes);
      return;
    }
    const std::int64_t members = ops::membersOf(spec);
    json_.beginList();
    for (auto row = spec.sizes.begin(); row != spec.sizes.end(); row += members)
      json_.integers({row, row + members});
    json_.endList();
  }

  void coordinates(const char* key, const Coordinates& at) {
    if (key != nullptr) json_.key(key);
    json_.beginObject();
    for (const auto& [axis, c] : at) json_.key(axisName(axis)).number(c);
    json_.endObject();
  }

  // Nothing where there are none.
  void coordinates(const char* key, const Coordinates& at, const Stretches& within) {
    if (at.empty() && within.empty()) return;
    json_.key(key).beginObject();
    for (const auto& [axis, c] : at) json_.key(axisName(axis)).number(c);
    for (const Stretch& s : within)
      json_.key(axisName(s.axis)).integers(std::vector<std::int64_t>{s.low, s.high});
    json_.endObject();
  }

  void entry(EntryId number, const LineageEntry& e) {
    json_.beginObject()
        .key("tensor")
        .text(name(problem_.model.graph, e.tensor))
        .key("role")
        .text(roleOf(e.role));
    if (!e.approved.empty()) json_.key("approved").text(e.approved);
    if (!e.guess.empty()) json_.key("guess").text(e.guess);
    json_.key("shards").beginList();
    for (std::uint32_t s = 0; s < e.shards.size(); ++s) {
      const Shard& shard = e.shards[s];
      json_.beginObject().key("box");
      ranges(shard.box);
      if (!shard.step.empty()) {
        json_.key("step").beginObject();
        for (const auto& [axis, offsets] : shard.step) json_.key(axisName(axis)).integers(offsets);
        json_.endObject();
      }
      json_.key("parts").beginList();
      for (std::uint32_t p = 0; p < shard.parts.size(); ++p) {
        const Part& part = shard.parts[p];
        const auto placed = placed_.find({number, s, p});
        json_.beginObject().key("local").text(
            text(placed == placed_.end() ? part.local : placed->second->local));
        coordinates("at", part.at, part.within);
        if (part.microbatch.isOne()) json_.key("mb").number(part.microbatch.number());
        if (placed != placed_.end()) where(placed->second->where);
        json_.endObject();
      }
      json_.endList();
      if (!shard.sum.empty()) {
        json_.key("sum").beginList();
        for (const std::int32_t axis : shard.sum) json_.text(axisName(axis));
        json_.endList();
      }
      json_.endObject();
    }
    json_.endList().endObject();
  }

  void ranges(const std::vector<std::pair<std::int64_t, std::int64_t>>& box) {
    json_.beginList();
    for (const auto& [low, high] : box) json_.integers({low, high});
    json_.endList();
  }

  void where(const LocalPart& part) {
    if (!part.box.empty()) {
      json_.key("local_box");
      ranges(part.box);
    }
    if (part.view) json_.key("view").integers(*part.view);
    if (!part.permute.empty()) json_.key("permute").integers(part.permute);
    if (!part.scale.isOne()) {
      json_.key("scale");
      if (hasDecimal(part.scale)) json_.raw(decimalText(part.scale));
      else
        json_.beginList()
            .raw(part.scale.numeratorString())
            .raw(part.scale.denominatorString())
            .endList();
    }
    if (part.padded) json_.key("padding").number(0);
  }

  const Problem& problem_;
  std::map<std::pair<std::int32_t, std::int32_t>, AttributesId>
      drawn_;  // (program, node) -> as the file has them
  std::map<std::tuple<EntryId, std::uint32_t, std::uint32_t>, const PlacedPart*>
      placed_;  // (entry, shard, part) -> as the file has it
  JsonWriter json_;
};

}  // namespace

std::string modelText(const Problem& problem) { return ProblemWriter(problem).model(); }
std::string planText(const Problem& problem, const std::string& modelFile, bool withInferred,
                     const std::set<EntryId>& without) {
  return ProblemWriter(problem).plan(modelFile, withInferred, without);
}

}  // namespace shardproof
