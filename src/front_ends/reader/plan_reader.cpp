// SPDX-License-Identifier: Apache-2.0
#include "reader/plan_reader.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "ir/suggestions.h"
#include "reader/capture_reader.h"
#include "reader/communication_reader.h"
#include "reader/file_header.h"
#include "reader/graph_reader.h"
#include "reader/json_stream.h"
#include "shardproof/error.h"

namespace shardproof::reader {

namespace {

std::vector<MeshAxis> readMesh(const Value& value) {
  std::vector<MeshAxis> mesh;
  if (value.kind() == ValueKind::kObject)
    value.expectedAs("a list",
                     "axes have an order: write [[\"NAME\", SIZE], ...], the slowest first");
  for (const Value axis : value.expectArray()) {
    if (axis.expectArray().size() != 2) axis.expected("a pair of an axis' name and its size");
    const Value name = *axis.begin();
    const Value size = *++axis.begin();
    mesh.push_back({std::string(name.name()), static_cast<std::int32_t>(size.integer(
                                                  1, std::numeric_limits<std::int32_t>::max()))});
  }
  return mesh;
}

Role readRole(const Value& value) {
  const std::string_view text = value.string();
  if (text == "input") return Role::kInput;
  if (text == "output") return Role::kOutput;
  if (text == "cut_point") return Role::kCutPoint;
  if (text == "checkpoint") return Role::kCutPoint;  // its older name
  if (text == "assumed") return Role::kAssumed;
  value.expectedOneOf("\"input\", \"output\", \"cut_point\" or \"assumed\"",
                      {"input", "output", "cut_point", "assumed"});
}

// Told of each field that version 1 does not have.
using VersionTwo = std::function<void(const Value&)>;

// `negative`: of what may lie outside at coordinate 0, where that is in no stretch (ir/validate.h).
std::vector<std::pair<std::int64_t, std::int64_t>> readRanges(const Value& value, bool negative) {
  const std::int64_t least = negative ? std::numeric_limits<std::int64_t>::min() : 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> box;
  for (const Value range : value.expectArray()) {
    if (range.expectArray().size() != 2)
      range.expected("a pair: the first index, and the one after the last");
    box.emplace_back((*range.begin()).integer(least), (*++range.begin()).integer(least));
  }
  return box;
}

std::vector<std::int64_t> readIntegers(const Value& value) {
  std::vector<std::int64_t> list;
  for (const Value number : value.expectArray()) list.push_back(number.integer());
  return list;
}

// A number, or [numerator, denominator].
Rational readScale(const Value& value) {
  if (value.kind() != ValueKind::kArray) return value.number();
  if (value.size() != 2) value.expected("a number, or a pair of a numerator and a denominator");
  const std::int64_t numerator = (*value.begin()).integer();
  const std::int64_t denominator =
      (*++value.begin()).integer(1, std::numeric_limits<std::int64_t>::max());
  return {numerator, denominator};
}

// What version 2 has, and which place that is.
LocalPart readLocalPart(const Value& value, const VersionTwo& versionTwo) {
  LocalPart part;
  const auto find = [&](std::string_view field) {
    auto found = value.find(field);
    if (found) versionTwo(*found);
    return found;
  };
  if (const auto box = find("local_box")) part.box = readRanges(*box, false);
  if (const auto view = find("view")) part.view = readIntegers(*view);
  if (const auto permute = find("permute")) part.permute = readIntegers(*permute);
  if (const auto scale = find("scale")) {
    part.scale = readScale(*scale);
    if (part.scale.isZero()) scale->expected("a number other than 0");
  }
  if (const auto padding = find("padding")) {
    if (!padding->number().isZero()) padding->expected("0, the only padding there is");
    part.padded = true;
  }
  return part;
}

ir::PartDraft readPart(const Value& value, Names& names, const VersionTwo& versionTwo) {
  static const std::vector<std::string_view> kFields{"local",   "at",    "mb",      "local_box",
                                                     "permute", "scale", "padding", "view"};
  value.expectFields(kFields);
  ir::PartDraft part;
  part.local = names.intern(value.require("local").name());
  if (const auto at = value.find("at")) {
    part.at = readCoordinates(*at, names, &part.within);
    if (!part.within.empty()) versionTwo(*at);
  }
  if (const auto microbatch = value.find("mb")) {
    part.microbatch = Microbatch::of(static_cast<std::int32_t>(
        microbatch->integer(0, std::numeric_limits<std::int32_t>::max())));
  }
  part.where = readLocalPart(value, versionTwo);
  return part;
}

void readSteps(const Value& value, ir::ShardDraft& shard, Names& names) {
  for (const Value step : value.expectObject()) {
    Shape offsets;
    if (step.kind() == ValueKind::kInteger)
      step.expectedAs("a list", "`step` has one number for each dimension of the box");
    for (const Value offset : step.expectArray()) offsets.push_back(offset.integer());
    shard.step.emplace_back(names.intern(step.key()), std::move(offsets));
  }
}

void readSum(const Value& value, ir::ShardDraft& shard, Names& names) {
  if (value.kind() == ValueKind::kString)
    value.expectedAs("a list",
                     "`sum` is a list of axes: write [\"" + std::string(value.string()) + "\"]");
  for (const Value axis : value.expectArray()) shard.sum.push_back(names.intern(axis.name()));
}

ir::ShardDraft readShard(const Value& value, Names& names, const VersionTwo& versionTwo) {
  static const std::vector<std::string_view> kFields{"box", "step", "parts", "sum"};
  value.expectFields(kFields);
  ir::ShardDraft shard;
  shard.box = readRanges(value.require("box"), true);
  if (const auto step = value.find("step")) readSteps(*step, shard, names);
  if (const auto sum = value.find("sum")) readSum(*sum, shard, names);
  const Value parts = value.require("parts").expectArray();
  shard.parts.reserve(parts.size());
  for (const Value part : parts) shard.parts.push_back(readPart(part, names, versionTwo));
  return shard;
}

class PlanClient : public StreamClient {
 public:
  explicit PlanClient(ir::ProblemDraft& problem)
      : plan_(problem.plan),
        names_(problem.names),
        graph_(GraphReader::Source::kProgram, problem.names, problem.attributes),
        header_("shardproof-plan", 2) {}

  int open(int state, std::string_view key, bool object, const Place&) override {
    switch (state) {
      case kOutside:
        return object ? kPlan : kWhole;
      case kPlan:
        if (key == "programs" && !object) return programsSeen_ = true, kPrograms;
        if (key == "lineage" && !object) return lineageSeen_ = true, kLineage;
        return kWhole;
      case kPrograms:
        return object ? beginProgram() : kWhole;
      case kProgram:
        if (key == "tensors" && object) return tensorsSeen_ = true, kTensors;
        if (key == "nodes" && !object) return nodesSeen_ = true, kNodes;
        return kWhole;
      case kLineage:
        return object ? beginEntry() : kWhole;
      case kEntry:
        return key == "shards" && !object ? kShards : kWhole;
      default:
        return kWhole;
    }
  }

  void value(int state, std::string_view key, const Value& v) override {
    switch (state) {
      case kPlan:
        planField(key, v);
        break;
      case kPrograms:
        v.expected("an object (a program)");
      case kProgram:
        programField(key, v);
        break;
      case kTensors:
        graph_.readTensor(key, v);
        break;
      case kNodes:
        graph_.readNode(v);
        break;
      case kLineage:
        v.expected("an object (a lineage entry)");
      case kEntry:
        entryField(key, v);
        break;
      case kShards:
        plan_.lineage.back().shards.push_back(
            readShard(v, names_, [&](const Value& field) { noteVersionTwo(field); }));
        break;
      default:
        v.expected("an object (a plan)");
    }
  }

  void close(int state, const Place& place) override {
    if (state == kPlan) endPlan(place);
    if (state == kProgram) endProgram(place);
    if (state == kEntry) endEntry(place);
  }

 private:
  enum State { kPlan = 1, kPrograms, kProgram, kTensors, kNodes, kLineage, kEntry, kShards };

  int beginProgram() {
    plan_.programs.emplace_back();
    graph_.begin(&plan_.programs.back().graph, &plan_.programs.back().communications,
                 &plan_.programs.back().asynchrony);
    tensorsSeen_ = nodesSeen_ = false;
    return kProgram;
  }

  void endProgram(const Place& place) {
    if (!tensorsSeen_) place.fail("the field \"tensors\" is missing");
    if (!nodesSeen_) place.fail("the field \"nodes\" is missing");
    ir::ProgramDraft& p = plan_.programs.back();
    p.graph.tensors.shrink_to_fit();
    p.graph.nodes.shrink_to_fit();
    p.graph.operands.shrink_to_fit();
    p.graph.results.shrink_to_fit();
  }

  int beginEntry() {
    plan_.lineage.emplace_back();
    tensorSeen_ = roleSeen_ = false;
    return kEntry;
  }

  void endEntry(const Place& place) const {
    if (!tensorSeen_) place.fail("the field \"tensor\" is missing");
    if (!roleSeen_) place.fail("the field \"role\" is missing");
    const ir::EntryDraft& entry = plan_.lineage.back();
    if (!entry.approved.empty() && entry.role != Role::kAssumed)
      place.fail("found \"approved\", expected \"role\": \"assumed\" with it");
    if (!entry.guess.empty() && entry.role != Role::kCutPoint)
      place.fail("found \"guess\", expected \"role\": \"cut_point\" with it");
  }

  void endPlan(const Place& place) const {
    header_.checkComplete(place);
    if (!meshSeen_) place.fail("the field \"mesh\" is missing");
    if (!programsSeen_) place.fail("the field \"programs\" is missing");
    if (!lineageSeen_) place.fail("the field \"lineage\" is missing");
    if (header_.version() == 1 && !firstOfVersionTwo_.empty())
      throw InputError(
          plan_.file, firstOfVersionTwo_,
          "found a field of version 2 in a plan of version 1, expected \"version\": 2");
  }

  void noteVersionTwo(const Value& field) {
    if (firstOfVersionTwo_.empty()) firstOfVersionTwo_ = field.pointer();
  }

  void planField(std::string_view key, const Value& v) {
    if (header_.read(key, v)) return;
    if (key == "name") {
      plan_.name = v.string();
    } else if (key == "source") {
      v.string();  // where the file came from: for people only
    } else if (key == "model") {
      plan_.modelFile = v.name();
    } else if (key == "mesh") {
      meshSeen_ = true;
      plan_.mesh = readMesh(v);
    } else if (key == "microbatches") {
      plan_.microbatches = static_cast<std::int32_t>(v.integer(1, kMaxMicrobatches));
    } else if (key == "capture") {
      plan_.capture = readCapture(v);
    } else if (key == "programs" || key == "lineage") {
      (key == "programs" ? programsSeen_ : lineageSeen_) = true;
      v.expectArray();
    } else {
      v.fail("unknown field \"" + std::string(key) +
             "\", expected only \"format\", \"version\", \"name\", \"source\", \"model\", "
             "\"mesh\", \"microbatches\", \"programs\", \"lineage\" and \"capture\"" +
             ir::suggestField(key, {"format", "version", "name", "source", "model", "mesh",
                                    "microbatches", "programs", "lineage", "capture"}));
    }
  }

  void programField(std::string_view key, const Value& v) {
    ir::ProgramDraft& program = plan_.programs.back();
    if (key == "at") {
      program.at = readCoordinates(v, names_, &program.within);
      if (!program.within.empty()) noteVersionTwo(v);
    } else if (key == "order") {
      if (v.string() != "issue") v.expected("\"issue\" (or no \"order\")");
      program.issueOrder = true;
    } else if (key == "waits") {
      program.asynchrony.waitsAtEnd = graph_.readHandles(v);
    } else if (key == "tensors") {
      tensorsSeen_ = true;
      v.expectObject();
    } else if (key == "nodes") {
      nodesSeen_ = true;
      v.expectArray();
    } else {
      v.fail("unknown field \"" + std::string(key) +
             "\", expected only \"at\", \"order\", \"tensors\", \"nodes\" and \"waits\"" +
             ir::suggestField(key, {"at", "order", "tensors", "nodes", "waits"}));
    }
  }

  void entryField(std::string_view key, const Value& v) {
    ir::EntryDraft& entry = plan_.lineage.back();
    if (key == "tensor") {
      tensorSeen_ = true;
      entry.tensor = names_.intern(v.name());
    } else if (key == "role") {
      roleSeen_ = true;
      entry.role = readRole(v);
    } else if (key == "approved") {
      entry.approved = v.name();
    } else if (key == "guess") {
      entry.guess = v.name();
    } else if (key == "shards") {
      v.expectArray();
    } else {
      v.fail("unknown field \"" + std::string(key) +
             "\", expected only \"tensor\", \"role\", \"approved\", \"guess\" and \"shards\"" +
             ir::suggestField(key, {"tensor", "role", "approved", "guess", "shards"}));
    }
  }

  ir::PlanDraft& plan_;
  Names& names_;
  GraphReader graph_;
  FileHeader header_;
  bool meshSeen_ = false, programsSeen_ = false, lineageSeen_ = false;
  bool tensorsSeen_ = false, nodesSeen_ = false;  // of the current program
  bool tensorSeen_ = false, roleSeen_ = false;    // of the current entry
  std::string firstOfVersionTwo_;                 // its place; empty: no such field was seen
};

}  // namespace

void readPlan(const Input& input, ir::ProblemDraft& problem) {
  problem.plan.file = input.name;
  PlanClient client(problem);
  problem.plan.sha256 = readJson(input, client);
}

}  // namespace shardproof::reader
