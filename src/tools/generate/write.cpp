// SPDX-License-Identifier: Apache-2.0
#include "generate/write.h"

#include <algorithm>
#include <set>

#include "generate/schedule.h"
#include "writer/json_writer.h"

namespace shardproof::generate {
namespace {

void writeTensor(JsonWriter& json, const Tensor& t) {
  json.key(t.name).beginObject().key("shape").integers(t.shape);
  if (!t.kind.empty()) json.key("kind").text(t.kind);
  if (!t.dtype.empty()) json.key("dtype").text(t.dtype);
  if (!t.value.empty()) json.key("value").raw(t.value);
  if (!t.gradOf.empty()) json.key("grad_of").text(t.gradOf);
  if (t.perMicrobatch) json.key("per_mb").flag(true);
  json.endObject();
}

void writeNames(JsonWriter& json, const std::vector<std::string>& names) {
  json.beginList();
  for (const std::string& name : names) {
    if (name.empty()) json.raw("null");
    else json.text(name);
  }
  json.endList();
}

constexpr int kNoMicrobatch = -1, kEveryMicrobatch = -2;

// What the coordinates of a rank add to attributes; no axis that the mesh lacks or has once.
using Steps = std::vector<std::pair<const char*, std::int64_t Attribute::*>>;

void writeStep(JsonWriter& json, const Node& node, const Steps& steps) {
  bool any = false;
  for (const auto& [axis, by] : steps) {
    const auto moves = [by = by](const Attribute& a) { return a.*by != 0; };
    if (std::none_of(node.attributes.begin(), node.attributes.end(), moves)) continue;
    if (!any) json.key("step").beginObject();
    any = true;
    json.key(axis).beginObject();
    for (const Attribute& a : node.attributes)
      if (moves(a)) json.key(a.key).number(a.*by);
    json.endObject();
  }
  if (any) json.endObject();
}

void writeNode(JsonWriter& json, const Node& node, int microbatch, std::int64_t tpRank,
               const Steps& steps) {
  json.beginObject().key("op").text(node.op).key("in");
  writeNames(json, node.in);
  json.key("out");
  writeNames(json, node.out);
  if (!node.attributes.empty()) {
    json.key("attrs").beginObject();
    for (const Attribute& a : node.attributes) json.key(a.key).raw(a.json);
    json.endObject();
    writeStep(json, node, steps);
  }
  if (!node.comm.empty()) json.key("comm").text(node.comm);
  if (!node.group.empty()) {
    json.key("group");
    writeNames(json, node.group);
  }
  if (!node.stages.empty() || node.neighbours > 0) {
    json.key("group_at").beginList();
    for (const int stage : node.stages) json.beginObject().key("pp").number(stage).endObject();
    for (int k = 0; k < node.neighbours; ++k)
      json.beginObject()
          .key("tp")
          .number(tpRank / node.neighbours * node.neighbours + k)
          .endObject();
    json.endList();
  }
  if (!node.pairs.empty()) json.key("pairs").raw(node.pairs);
  if (!node.peerField.empty())
    json.key(node.peerField).beginObject().key("pp").number(node.peer).endObject();
  if (microbatch == kEveryMicrobatch) json.key("mb").text("*");
  if (microbatch >= 0) json.key("mb").number(microbatch);
  if (!node.location.empty()) json.key("loc").text(node.location);
  json.endObject();
}

class PlanWriter {
 public:
  PlanWriter(const Generated& generated, const Options& options)
      : generated_(generated), options_(options) {
    if (options.schedule != "gpipe") timeline_ = timeline(options);
    if (options.epRanks() > 1) steps_.emplace_back("ep", &Attribute::perEp);
    if (options.cp > 1) steps_.emplace_back("cp", &Attribute::perCp);
    if (options.tp > 1) steps_.emplace_back("tp", &Attribute::perTp);
  }

  std::string write(const std::string& modelFile) {
    json_.beginObject(JsonWriter::kLines)
        .key("format")
        .text("shardproof-plan")
        .key("version")
        .number(options_.cpBalanced ? 2 : 1)  // 2: pieces of local tensors
        .key("name")
        .text(options_.architecture);
    json_.key("model").text(modelFile).key("mesh").beginList();
    const auto axis = [&](const char* name, std::int64_t size) {
      json_.beginList().text(name).number(size).endList();
    };
    axis("pp", options_.pp);
    if (options_.epRanks() == 1) {
      axis("dp", options_.dp);
    } else {
      axis("edp", options_.dp / options_.epRanks());
      axis("ep", options_.epRanks());
    }
    if (options_.cp > 1) axis("cp", options_.cp);
    axis("tp", options_.tp);
    json_.endList()
        .key("microbatches")
        .number(options_.microbatches)
        .key("programs")
        .beginList(JsonWriter::kLines);
    for (std::size_t rank = 0; rank < generated_.programs.size(); ++rank) {
      // Ranks of one stage differ at most by whom they share heads with, and by their turns in a
      // ring.
      const Program& program = generated_.programs[rank];
      const bool overTp = any(program, [](const Node&node) { return node.neighbours > 0; }),
                 overCp = any(program, [](const Node&node) { return node.cp.has_value(); });
      for (std::int64_t cp = 0; cp < (overCp ? options_.cp : 1); ++cp)
        for (std::int64_t tp = 0; tp < (overTp ? options_.tp : 1); ++tp)
          writeProgram(static_cast<int>(rank), overTp ? tp : -1, overCp ? cp : -1);
    }
    json_.endList().key("lineage").beginList(JsonWriter::kLines);
    for (const Lineage& entry : generated_.lineage) writeLineage(entry);
    return json_.endList().endObject().take();
  }

 private:
  template <class Predicate>
  static bool any(const Program& program, Predicate predicate) {
    for (const auto* chunks : {&program.forward, &program.backward})
      for (const auto& [chunk, nodes] : *chunks)
        if (std::any_of(nodes.begin(), nodes.end(), predicate)) return true;
    return std::any_of(program.step.begin(), program.step.end(), predicate);
  }

  bool runs(const Node& node) const { return !node.cp || *node.cp == cpRank_; }

  // What only ranks with another cp coordinate compute.
  std::set<std::string> elsewhere(const Program& program) const {
    std::set<std::string> here, there;
    any(program, [&](const Node& node) {
      std::set<std::string>& names = runs(node) ? here : there;
      names.insert(node.out.begin(), node.out.end());
      return false;
    });
    for (const std::string& name : here) there.erase(name);
    return there;
  }

  void write(const Node& node, int microbatch) {
    if (runs(node)) writeNode(json_, node, microbatch, tpRank_, steps_);
  }

  // tp, cp: the coordinate of the ranks that run it; -1: all.
  void writeProgram(int rank, std::int64_t tp, std::int64_t cp) {
    const Program& program = generated_.programs[static_cast<std::size_t>(rank)];
    tpRank_ = std::max<std::int64_t>(tp, 0);
    cpRank_ = cp;
    json_.beginObject().key("at").beginObject();
    if (options_.pp > 1) json_.key("pp").number(rank);
    if (tp >= 0) json_.key("tp").number(tp);
    if (cp >= 0) json_.key("cp").number(cp);
    json_.endObject();
    const bool issue = options_.schedule != "gpipe";
    if (issue) json_.key("order").text("issue");
    json_.key("tensors").beginObject(JsonWriter::kLines);
    const std::set<std::string> others = elsewhere(program);
    for (const Tensor& t : program.tensors.list())
      if (others.count(t.name) == 0) writeTensor(json_, t);
    for (const Accumulation& a : program.accumulations)
      for (int k = 1; k + 1 < static_cast<int>(options_.microbatches); ++k)
        writeTensor(json_, {.name = partial(a, k), .shape = program.tensors.at(a.to).shape});
    json_.endObject().key("nodes").beginList(JsonWriter::kLines);
    if (issue) {
      writeSchedule(program, rank);
    } else {
      for (const auto& [chunk, nodes] : program.forward) writeNodes(nodes, kEveryMicrobatch);
      for (const auto& [chunk, nodes] : program.backward) writeNodes(nodes, kEveryMicrobatch);
      for (const Accumulation& a : program.accumulations) writeAccumulations(a);
    }
    writeNodes(program.step, kNoMicrobatch);
    json_.endList().endObject();
  }

  void writeNodes(const std::vector<Node>& nodes, int microbatch) {
    for (const Node& node : nodes) write(node, microbatch);
  }

  void writeSchedule(const Program& program, int rank) {
    const auto actionOf = [](const Node& n) {
      return n.op == "recv" ? Action::kReceive : n.op == "send" ? Action::kSend : Action::kCompute;
    };
    for (const Event& event : timeline_[static_cast<std::size_t>(rank)]) {
      for (const Node& node :
           (event.block.forward ? program.forward : program.backward).at(event.block.chunk))
        if (actionOf(node) == event.action) write(node, event.block.microbatch);
      if (event.action != Action::kCompute || event.block.forward) continue;
      for (const Accumulation& a : program.accumulations)
        if (a.chunk == event.block.chunk) accumulateInOrder(a, event.block.microbatch);
    }
  }

  static std::string partial(const Accumulation& a, int k) {
    return a.to + "." + std::to_string(k);
  }

  std::string runningTotal(const Accumulation& a, int k) const {
    return k + 1 == static_cast<int>(options_.microbatches) ? a.to : partial(a, k);
  }

  void writeAccumulations(const Accumulation& a) {
    const int last = static_cast<int>(options_.microbatches) - 1;
    const auto instance = [&](int k) { return a.from + "#" + std::to_string(k); };
    if (last == 0)
      write({.op = "identity", .in = {instance(0)}, .out = {a.to}, .location = a.location},
            kNoMicrobatch);
    for (int k = 1; k <= last; ++k)
      write({.op = "add",
             .in = {k == 1 ? instance(0) : runningTotal(a, k - 1), instance(k)},
             .out = {runningTotal(a, k)},
             .location = a.location},
            kNoMicrobatch);
  }
  // After microbatch k's backward block; microbatches are finished in order.
  void accumulateInOrder(const Accumulation& a, int k) {
    const int last = static_cast<int>(options_.microbatches) - 1;
    if (last == 0)
      write({.op = "identity", .in = {a.from}, .out = {a.to}, .location = a.location}, 0);
    if (k == 0) return;
    write({.op = "add",
           .in = {k == 1 ? a.from + "#0" : runningTotal(a, k - 1), a.from},
           .out = {runningTotal(a, k)},
           .location = a.location},
          k);
  }

  void writeLineage(const Lineage& entry) {
    const Shape& full = generated_.tensors.at(entry.logical).shape;
    json_.beginObject()
        .key("tensor")
        .text(entry.logical)
        .key("role")
        .text(entry.role)
        .key("shards")
        .beginList();
    for (const Piece& piece : entry.pieces) {
      const Tensor& local =
          generated_.programs[static_cast<std::size_t>(piece.rank)].tensors.at(piece.local);
      const Layout& at = local.layout;
      const bool balanced = options_.cpBalanced && at.cp >= 0;
      if (balanced && at.cp == at.tp) {
        // Ranks of tp have pieces of the early chunk, then of the late one.
        for (std::int64_t tp = 0; tp < options_.tp; ++tp)
          writeShard(full, local, piece, {tp}, 2 * tp < options_.tp ? Half::kEarly : Half::kLate);
        continue;
      }
      const auto write = [&](const std::vector<std::int64_t>& ranks) {
        if (!balanced) return writeShard(full, local, piece, ranks, Half::kNone);
        writeShard(full, local, piece, ranks, Half::kEarly);
        writeShard(full, local, piece, ranks, Half::kLate);
      };
      if (at.copies == 1) {
        write({});
        continue;
      }
      // Steps along tp cannot state that neighbours hold the same: each rank is named.
      for (std::int64_t tp = 0; tp < options_.tp; tp += at.sumTp ? at.copies : 1) {
        std::vector<std::int64_t> ranks{tp};
        for (std::int64_t k = 1; at.sumTp && k < at.copies; ++k) ranks.push_back(tp + k);
        write(ranks);
      }
    }
    json_.endList().endObject();
  }

  // Of a rank's two chunks of the sequence (--cp-balanced), the one that a shard is about.
  enum class Half { kNone, kEarly, kLate };

  // `tpRanks`: the ranks whose tensors are added up, all with the same box; empty: all tp ranks,
  // told apart by step or sum.
  void writeShard(const Shape& full, const Tensor& local, const Piece& piece,
                  const std::vector<std::int64_t>& tpRanks, Half half) {
    const Layout& at = local.layout;
    const auto extent = [](const Shape& shape, int dim) {
      return dim < 0 ? 0 : shape[static_cast<std::size_t>(dim)];
    };
    // One dimension may have the tokens of all sequences, of which a microbatch has one.
    const bool tokens = at.cp >= 0 && at.cp == at.batch, sequence = at.cp >= 0 && at.cp == at.tp;
    const std::int64_t parts = at.cp >= 0 ? options_.cp : 1;
    const std::int64_t span = tokens ? extent(local.shape, at.cp) * parts : extent(full, at.cp);
    const std::int64_t chunk = half == Half::kNone ? span / parts : span / parts / 2;
    std::vector<std::int64_t> from(full.size(), 0), size = local.shape, localFrom(full.size(), 0);
    for (std::size_t d = 0; d < full.size(); ++d) {
      const int dim = static_cast<int>(d);
      if (!tpRanks.empty() && at.tp == dim && !sequence)
        from[d] = tpRanks[0] / at.copies * (full[d] * at.copies / options_.tp);
      if (!tpRanks.empty() && at.tpInner == dim) from[d] = tpRanks[0] % at.copies * local.shape[d];
      if (half == Half::kNone || at.cp != dim) continue;
      if (half == Half::kLate) from[d] = (2 * parts - 1) * chunk;
      if (sequence) {
        from[d] += tpRanks[0] % (options_.tp / 2) * local.shape[d];
      } else {
        size[d] = chunk;
        localFrom[d] = half == Half::kLate ? chunk : 0;
      }
    }
    const auto writeBox = [&](const std::vector<std::int64_t>& low) {
      json_.beginList();
      for (std::size_t d = 0; d < low.size(); ++d) json_.integers({low[d], low[d] + size[d]});
      json_.endList();
    };
    json_.beginObject().key("box");
    writeBox(from);
    bool any = false;
    const auto moves = [&](const char* axis, int dim, std::int64_t by, std::int64_t count) {
      if (dim < 0 || count == 1) return;
      if (!any) json_.key("step").beginObject();
      any = true;
      std::vector<std::int64_t> offset(full.size(), 0);
      offset[static_cast<std::size_t>(dim)] = by;
      json_.key(axis).integers(offset);
    };
    // Rows of the batch: dp, then microbatches; with ep groups edp, then microbatches, then ep, so
    // that the rows that a group gathers are neighbours.
    const std::int64_t groups = options_.epRanks(), rows = extent(local.shape, at.batch);
    const char* const data = groups == 1 ? "dp" : "edp";
    const std::int64_t groupRows = (at.gathered ? rows : rows * groups) * (tokens ? parts : 1);
    moves(data, at.batch, groupRows * options_.microbatches, options_.dp / groups);
    moves("mb", at.batch, groupRows, options_.microbatches);
    if (!at.gathered) moves("ep", at.batch, rows, groups);
    moves("ep", at.ep, extent(full, at.ep) / groups, groups);
    moves("cp", at.cp, half == Half::kLate ? -chunk : chunk, parts);
    const std::int64_t cut = (at.ep >= 0 && at.ep == at.tp ? groups : 1) * (sequence ? parts : 1);
    if (tpRanks.empty()) moves("tp", at.tp, extent(full, at.tp) / cut / options_.tp, options_.tp);
    if (at.dp >= 0) {  // ZeRO's pieces
      const std::int64_t own = extent(local.shape, at.dp), inner = own * options_.cp;
      const bool expert = at.ep >= 0 || groups == 1;
      moves(data, at.dp, expert ? inner : inner * groups, options_.dp / groups);
      if (!expert) moves("ep", at.dp, inner, groups);
      moves("cp", at.dp, own, options_.cp);
    }
    if (any) json_.endObject();
    json_.key("parts").beginList();
    const auto part = [&](std::int64_t tp) {
      json_.beginObject().key("local").text(local.name);
      if (size != local.shape) {
        json_.key("local_box");
        writeBox(localFrom);
      }
      if (options_.pp > 1 || tp >= 0) {
        json_.key("at").beginObject();
        if (options_.pp > 1) json_.key("pp").number(piece.rank);
        if (tp >= 0) json_.key("tp").number(tp);
        json_.endObject();
      }
      json_.endObject();
    };
    if (tpRanks.empty()) part(-1);
    for (const std::int64_t tp : tpRanks) part(tp);
    json_.endList();
    std::vector<std::string> sum;
    if (at.sumDp && options_.dp / groups > 1) sum.emplace_back(data);
    if (groups > 1 && (at.sumEp || (at.sumDp && at.ep < 0))) sum.emplace_back("ep");
    if (options_.cp > 1 && (at.sumCp || at.sumDp)) sum.emplace_back("cp");
    if (at.sumTp && options_.tp > 1 && tpRanks.empty()) sum.emplace_back("tp");
    if (at.sumMb && local.perMicrobatch) sum.emplace_back("mb");
    if (!sum.empty()) {
      json_.key("sum");
      writeNames(json_, sum);
    }
    json_.endObject();
  }

  const Generated& generated_;
  const Options& options_;
  std::vector<std::vector<Event>> timeline_;  // by pp coordinate
  JsonWriter json_;
  Steps steps_;
  std::int64_t tpRank_ = 0, cpRank_ = -1;
};

}  // namespace

std::string modelText(const Generated& generated, const Options& options) {
  JsonWriter json;
  json.beginObject(JsonWriter::kLines)
      .key("format")
      .text("shardproof-model")
      .key("version")
      .number(1)
      .key("name")
      .text(options.architecture);
  json.key("tensors").beginObject(JsonWriter::kLines);
  for (const Tensor& t : generated.tensors.list()) writeTensor(json, t);
  json.endObject().key("nodes").beginList(JsonWriter::kLines);
  for (const Node& node : generated.nodes) writeNode(json, node, kNoMicrobatch, 0, {});
  json.endList().key("outputs");
  writeNames(json, generated.outputs);
  return json.endObject().take();
}

std::string planText(const Generated& generated, const Options& options,
                     const std::string& modelFile) {
  return PlanWriter(generated, options).write(modelFile);
}

}  // namespace shardproof::generate
