// SPDX-License-Identifier: Apache-2.0
#include "html/data.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "ops/collectives.h"
#include "ops/registry.h"
#include "report/json.h"
#include "util/index.h"

namespace shardproof::html {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostShards = 3, kMostParts = 4;  // of a claim's text
constexpr std::size_t kMostLocals = 64;                 // of an entry

class PageData {
 public:
  explicit PageData(const Problem& problem) : problem_(problem) {}

  Json mesh() const {
    Json axes = Json::array();
    for (const MeshAxis& axis : problem_.plan.mesh) axes.push_back({axis.name, axis.size});
    return axes;
  }

  Json model() {
    return {{"tensors", tensors(problem_.model.graph)},
            {"nodes", nodes(problem_.model.graph, nullptr)}};
  }

  Json programs() {
    Json list = Json::array();
    for (const ProgramId p : firstIds<ProgramId>(problem_.plan.programs.size())) {
      const Program& program = problem_.plan.programs[p];
      list.push_back({{"at", coordinates(program)},
                      {"tensors", tensors(program.graph)},
                      {"nodes", nodes(program.graph, &program)}});
      if (!program.added.empty() || program.inFile.valid()) list.back()["places"] = places(p);
    }
    return list;
  }

  // After model() and programs(), whose nodes have places in this list.
  const Json& attributes() const { return attributes_; }

  // Of each entry: tensor, role, text, and local tensors by program and place.
  Json lineage() {
    indexPrograms();
    Json list = Json::array();
    for (const LineageEntry& entry : problem_.plan.lineage) {
      Json locals = Json::array();
      for (const Shard& shard : entry.shards)
        for (const Part& part : shard.parts) addLocals(part, locals);
      list.push_back({entry.tensor, toString(entry.role), claimText(entry), std::move(locals)});
    }
    return list;
  }

 private:
  const std::string& nameOf(NameId name) const {
    static const std::string none;
    return name.valid() ? problem_.names.text(name) : none;
  }
  std::string axisName(std::int32_t axis) const {
    return axis == kMicrobatchAxis ? "mb" : problem_.plan.mesh[at(axis)].name;
  }

  Json coordinates(const Coordinates& named) const {
    Json object = Json::object();
    for (const auto& [axis, coordinate] : named) object[axisName(axis)] = coordinate;
    return object;
  }

  Json coordinates(const Program& program) const {
    Json object = coordinates(program.at);
    for (const Stretch& s : program.within) object[axisName(s.axis)] = {s.low, s.high};
    return object;
  }

  Json tensors(const Graph& graph) const {
    static constexpr const char* kKinds[] = {"", "input", "parameter", "constant"};
    Json list = Json::array();
    for (const Tensor& tensor : graph.tensors) {
      const char* kind = tensor.kind == TensorKind::kInput       ? kKinds[1]
                         : tensor.kind == TensorKind::kParameter ? kKinds[2]
                         : tensor.kind == TensorKind::kConstant  ? kKinds[3]
                                                                 : kKinds[0];
      list.push_back({nameOf(tensor.name), tensor.shape, kind, tensor.perMicrobatch ? 1 : 0});
    }
    return list;
  }

  std::string microbatchText(Microbatch microbatch) const {
    if (microbatch.isEach()) return "*";
    return microbatch.isOne() ? std::to_string(microbatch.number()) : "";
  }

  // Operator, operands, results, loc, attributes, microbatch, and of communication: comm, members.
  // Of nodes that have other places in the file than here, or none (Plan::nodePointer).
  Json places(ProgramId p) const {
    const Program& program = problem_.plan.programs[p];
    const std::string own =
        "/programs/" + std::to_string(program.inFile.valid() ? program.inFile : p) + "/nodes/";
    Json list = Json::array();
    std::int64_t place = 0;
    for (const Node& node : program.graph.nodes)
      list.push_back(node.added >= 0 ? program.added.at(at(node.added))
                                     : own + std::to_string(place++));
    return list;
  }

  Json nodes(const Graph& graph, const Program* program) {
    Json list = Json::array();
    for (const Node& node : graph.nodes) {
      Json in = Json::array(), out = Json::array();
      for (const Operand& operand : graph.in(node))
        if (operand.present()) in.push_back(operand.tensor);
      for (const std::int32_t result : graph.out(node))
        if (result >= 0) out.push_back(result);
      Json row = {"",
                  std::move(in),
                  std::move(out),
                  nameOf(node.location),
                  attributesOf(program, node),
                  microbatchText(node.microbatch)};
      if (program && node.communication >= 0) {
        const CommunicationSpec& spec = program->communications[at(node.communication)];
        row[0] = ops::collectiveOf(spec.kind).name;
        row.push_back(nameOf(spec.comm));
        row.push_back(membersOf(spec));
        row.push_back(spec.peer.empty() ? Json(nullptr) : coordinates(spec.peer));
      } else {
        row[0] = ops::Registry::instance().at(node.op).name;
      }
      list.push_back(std::move(row));
    }
    return list;
  }

  std::string membersOf(const CommunicationSpec& spec) const {
    std::string text;
    for (const std::int32_t axis : spec.groupAxes)
      text += (text.empty() ? "over " : ", ") + axisName(axis);
    if (!spec.groupAt.empty()) text = std::to_string(spec.groupAt.size()) + " members";
    return text;
  }

  void indexPrograms() {
    for (const Program& program : problem_.plan.programs) {
      auto& index = index_.emplace_back();
      for (std::size_t t = 0; t < program.graph.tensors.size(); ++t)
        index.emplace(program.graph.tensors[t].name.value, t);
    }
  }

  static bool meet(const Coordinates& at, const Stretches& within, const Program& program) {
    Stretches theirs = program.within;
    for (const auto& [axis, c] : program.at) theirs.push_back({axis, c, c + 1});
    Stretches ours = within;
    for (const auto& [axis, c] : at) ours.push_back({axis, c, c + 1});
    return std::all_of(ours.begin(), ours.end(), [&](const Stretch& a) {
      return std::none_of(theirs.begin(), theirs.end(), [&](const Stretch& b) {
        return a.axis == b.axis && (a.low >= b.high || b.low >= a.high);
      });
    });
  }

  // Of every program that has ranks which the part means.
  void addLocals(const Part& part, Json& locals) const {
    for (std::size_t p = 0; p < index_.size() && locals.size() < kMostLocals; ++p) {
      if (!meet(part.at, part.within, problem_.plan.programs[p])) continue;
      if (const auto it = index_[p].find(part.local.value); it != index_[p].end())
        locals.push_back({p, it->second});
    }
  }

  std::string claimText(const LineageEntry& entry) const {
    const std::string tensor = nameOf(problem_.model.graph.tensors[at(entry.tensor)].name);
    std::string text;
    for (std::size_t s = 0; s < std::min(entry.shards.size(), kMostShards); ++s) {
      const Shard& shard = entry.shards[s];
      text += (s > 0 ? "; " : "") + tensor + "[";
      for (std::size_t d = 0; d < shard.box.size(); ++d)
        text += (d > 0 ? ", " : "") + std::to_string(shard.box[d].first) + ":" +
                std::to_string(shard.box[d].second);
      text += "]";
      for (const auto& [axis, offsets] : shard.step) {
        text += " + " + axisName(axis) + "·[";
        for (std::size_t d = 0; d < offsets.size(); ++d)
          text += (d > 0 ? ", " : "") + std::to_string(offsets[d]);
        text += "]";
      }
      text += " = ";
      for (std::size_t i = 0; i < shard.sum.size(); ++i)
        text += (i > 0 ? ", " : "sum over ") + axisName(shard.sum[i]);
      if (!shard.sum.empty()) text += " of ";
      for (std::size_t p = 0; p < std::min(shard.parts.size(), kMostParts); ++p)
        text += (p > 0 ? " + " : "") + nameOf(shard.parts[p].local);
      if (shard.parts.size() > kMostParts)
        text += " + " + std::to_string(shard.parts.size() - kMostParts) + " more";
    }
    if (entry.shards.size() > kMostShards)
      text += "; and " + std::to_string(entry.shards.size() - kMostShards) + " more shards";
    return text;
  }

  // How far a rank of the program is from the first one that it has along the axis.
  std::string fromFirst(const Program& program, std::int32_t axis) const {
    for (const Stretch& s : program.within)
      if (s.axis == axis && s.low > 0)
        return "(" + problem_.plan.mesh[axis].name + " - " + std::to_string(s.low) + ")";
    return problem_.plan.mesh[axis].name;
  }

  // The place of the text in the list of attributes; -1: there are none.
  Json attributesOf(const Program* program, const Node& node) {
    if (!node.attributes.valid()) return -1;
    std::string text = problem_.attributes.canonicalText(node.attributes);
    if (node.steps >= 0) {
      for (const auto& [axis, added] : program->steps.at(node.steps).step) {
        AttributeTable one;
        text += " + " + fromFirst(*program, axis) + " x " + one.canonicalText(one.intern(added));
      }
    }
    const auto [it, added] = placeOfAttributes_.emplace(std::move(text), attributes_.size());
    if (added) attributes_.push_back(it->first);
    return it->second;
  }

  const Problem& problem_;
  Json attributes_ = Json::array();
  std::map<std::string, std::size_t> placeOfAttributes_;
  std::vector<std::unordered_map<std::int32_t, std::size_t>> index_;  // by program and name
};

// One row for each stage, and the reasons, which many share.
void addStages(const Report& report, Json& data) {
  Json stages = Json::array(), reasons = Json::array();
  std::map<std::string, std::size_t> reasonIndex;
  for (const StageReport& stage : report.stages) {
    const auto [reason, added] = reasonIndex.emplace(stage.reason, reasonIndex.size());
    if (added) reasons.push_back(stage.reason);
    stages.push_back({stage.tensor, toString(stage.role), stage.entry, toString(stage.verdict),
                      toString(stage.method), reason->second, stage.classId, stage.assumptions});
  }
  data["stages"] = std::move(stages);
  data["reasons"] = std::move(reasons);
}

}  // namespace

Json pageData(const Report& report, const Problem& problem, int exitCode) {
  Report rest = report;  // all but the stages, which have a table of their own
  rest.stages.clear();
  Json data = {{"report", toJson(rest, exitCode)}};
  addStages(report, data);
  PageData page(problem);
  data["mesh"] = page.mesh();
  data["microbatches"] = problem.plan.microbatches;
  data["model"] = page.model();
  data["programs"] = page.programs();
  data["attributes"] = page.attributes();
  data["lineage"] = page.lineage();
  return data;
}

}  // namespace shardproof::html
