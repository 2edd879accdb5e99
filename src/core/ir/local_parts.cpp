// SPDX-License-Identifier: Apache-2.0
#include "ir/local_parts.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ir/attribute_steps.h"
#include "ir/coordinates.h"
#include "ir/error_list.h"
#include "ir/part_nodes.h"
#include "ir/program_grid.h"
#include "ir/tensor_index.h"
#include "shardproof/error.h"

namespace shardproof::ir {

namespace {

constexpr std::size_t kMostNodes = 8'000'000;  // of all programs, where ranks are told apart

std::string placeOf(const PlacedPart& p) {
  return "/lineage/" + std::to_string(p.entry) + "/shards/" + std::to_string(p.shard) + "/parts/" +
         std::to_string(p.part);
}

class Lowering {
 public:
  Lowering(Problem& problem, std::size_t first)
      : problem_(problem), plan_(problem.plan), names_(problem.names), first_(first) {}

  void run() {
    addWholeInputs();
    if (plan_.placed.size() == first_) return;
    for (std::size_t i = first_; i < plan_.placed.size(); ++i)
      if (!partOf(plan_.placed[i]).within.empty())
        fail(
            plan_.placed[i], "/at",
            "found a stretch of coordinates for a part of a local tensor, or for an input that has "
            "such parts, expected single coordinates");
    static_cast<void>(ProgramGrid(plan_));  // each rank has one program
    split();
    PartNames names(problem_);
    for (const ProgramId p : firstIds<ProgramId>(plan_.programs.size()))
      errors_.attempt([&] { lower(p, names); });
    errors_.throwIfAny();
    for (std::size_t i = first_; i < plan_.placed.size(); ++i) {
      const PlacedPart& placed = plan_.placed[i];
      partOf(placed).local = names.of(placed.local, placed.where);
    }
  }

 private:
  [[noreturn]] void fail(const PlacedPart& p, const std::string& field,
                         const std::string& message) const {
    throw InputError(plan_.file, placeOf(p) + field, message);
  }
  const LineageEntry& entryOf(const PlacedPart& p) const { return plan_.lineage[p.entry]; }
  Part& partOf(const PlacedPart& p) const {
    return problem_.plan.lineage[p.entry].shards[p.shard].parts[p.part];
  }
  bool isInput(const PlacedPart& p) const { return entryOf(p).role == Role::kInput; }

  // A tensor that is put together of what lineage says of it has all of its lineage as parts.
  void addWholeInputs() {
    std::set<NameId> inputs;
    std::set<std::tuple<EntryId, std::uint32_t, std::uint32_t>> placed;
    for (std::size_t i = first_; i < plan_.placed.size(); ++i) {
      const PlacedPart& p = plan_.placed[i];
      if (isInput(p)) inputs.insert(p.local);
      placed.insert({p.entry, p.shard, p.part});
    }
    if (inputs.empty()) return;
    for (const EntryId e : firstIds<EntryId>(plan_.lineage.size())) {
      if (plan_.lineage[e].role != Role::kInput) continue;
      for (std::uint32_t s = 0; s < plan_.lineage[e].shards.size(); ++s) {
        const auto& parts = plan_.lineage[e].shards[s].parts;
        for (std::uint32_t p = 0; p < parts.size(); ++p)
          if (inputs.contains(parts[p].local) && !placed.contains({e, s, p}))
            plan_.placed.push_back({e, s, p, parts[p].local, {}});
      }
    }
  }

  // Nodes are those of all ranks of a program, so ranks with inputs of other parts get their own.
  void split() {
    std::vector<Program> made;
    std::size_t nodes = 0;
    for (const ProgramId p : firstIds<ProgramId>(plan_.programs.size())) {
      const Program& program = plan_.programs[p];
      std::vector<std::int32_t> axes;
      for (std::size_t i = first_; i < plan_.placed.size(); ++i) {
        const PlacedPart& placed = plan_.placed[i];
        if (!isInput(placed) || !mayMeet(partOf(placed), program)) continue;
        for (const auto& [axis, coordinate] : partOf(placed).at) axes.push_back(axis);
      }
      for (Program& own : splitAlong(plan_, program, std::move(axes))) {
        if (!own.inFile.valid() && (own.at != program.at || own.within != program.within))
          own.inFile = p;
        nodes += own.graph.nodes.size();
        if (nodes > kMostNodes)
          throw InputError(plan_.file, "/lineage",
                           "inputs of which each rank has other parts make more than " +
                               std::to_string(kMostNodes) + " nodes, which is the limit");
        made.push_back(std::move(own));
      }
    }
    if (made.size() == plan_.programs.size()) return;
    // All know their place in the file now.
    for (const ProgramId p : firstIds<ProgramId>(made.size()))
      if (!made[p].inFile.valid())
        for (const ProgramId q : firstIds<ProgramId>(plan_.programs.size()))
          if (plan_.programs[q].at == made[p].at && plan_.programs[q].within == made[p].within)
            made[p].inFile = q;
    plan_.programs = std::move(made);
  }

  using Parts = std::vector<const PlacedPart*>;

  void lower(ProgramId p, PartNames& names) {
    Program& program = plan_.programs[p];
    const TensorIndex index(program.graph.tensors);
    std::map<TensorId, Parts> inputs, others;
    for (std::size_t i = first_; i < plan_.placed.size(); ++i) {
      const PlacedPart& placed = plan_.placed[i];
      if (!mayMeet(partOf(placed), program)) continue;
      const TensorId t = index.find(placed.local);
      if (t < 0)
        fail(placed, "/local",
             "found \"" + names_.text(placed.local) +
                 "\", expected a tensor of every program that is meant, but /programs/" +
                 std::to_string(p) + " has none of that name");
      check(placed, program, t);
      (isInput(placed) ? inputs : others)[t].push_back(&placed);
    }
    if (inputs.empty() && others.empty()) return;
    // Nodes that take a part out would have to wait, and what is put together lies in no buffer.
    if (!program.asynchrony.empty())
      fail(*(inputs.empty() ? others : inputs).begin()->second.front(), "",
           "found a part of a local tensor of /programs/" + std::to_string(p) +
               ", whose nodes or tensors have \"handle\", \"waits\" or \"buffer\", expected "
               "lineage of whole local tensors there");
    std::vector<std::vector<NodeId>> producers(program.graph.tensors.size());
    std::vector<bool> read(program.graph.tensors.size(), false);
    for (const NodeId n : firstIds<NodeId>(program.graph.nodes.size())) {
      for (const TensorId t : program.graph.out(program.graph.nodes[n]))
        if (t.valid()) producers[t].push_back(n);
      for (const Operand& o : program.graph.in(program.graph.nodes[n]))
        if (o.present()) read[o.tensor] = true;
    }
    std::vector<Node> front;
    std::vector<std::vector<Node>> after(program.graph.nodes.size());
    PartNodes nodes(problem_, program, names);
    for (const auto& [t, parts] : inputs) {
      checkGiven(*parts.front(), program, p, t, !producers[t].empty());
      putTogether(program, p, nodes, names, t, parts, front);
    }
    std::map<TensorId, TensorId> standIns;
    for (const auto& [t, parts] : others) {
      if (producers[t].empty()) {
        for (PartSite& site : sitesAtFront(program, t, parts, front))
          for (const PlacedPart* part : parts) nodes.takenOut(site, t, part->where);
        continue;
      }
      const Shape shape = program.graph.tensors[t].shape;  // tensors are added
      const TensorId standIn = read[t] ? standIns[t] = nodes.standIn(t) : TensorId();
      for (const NodeId n : producers[t]) {
        PartSite site{&after[n], program.graph.nodes[n].microbatch, placeOf(*parts.front()), {}};
        takeApart(nodes, site, shape, t, parts, standIn);
      }
    }
    for (const Node& node : program.graph.nodes)
      for (std::uint32_t i = node.firstIn; i < node.firstIn + node.inCount; ++i)
        if (const auto it = standIns.find(program.graph.operands[i].tensor); it != standIns.end())
          program.graph.operands[i].tensor = it->second;
    insert(program.graph, std::move(front), std::move(after));
  }

  // What the operators could not do, or would say without knowing of lineage.
  void check(const PlacedPart& placed, const Program& program, TensorId t) const {
    const auto [field, message] = wrongWith(placed.where, program.graph.tensors[t].shape);
    if (!message.empty()) fail(placed, field, message);
    const Tensor& logical = problem_.model.graph.tensors[entryOf(placed).tensor];
    if (logical.element != ElementKind::kReal && !placed.where.scale.isOne())
      fail(placed, "/scale",
           "found a multiple of \"" + names_.text(logical.name) + "\", whose elements are " +
               (logical.element == ElementKind::kInteger ? "integers" : "complex") +
               ", expected none (or 1)");
    if (!placed.where.padded) return;
    if (!isInput(placed))
      fail(placed, "/padding",
           "found padding of what is no input, expected it in lineage of role \"input\" only");
    if (logical.element == ElementKind::kComplex)
      fail(placed, "/padding",
           "found padding of \"" + names_.text(logical.name) +
               "\", whose elements are complex, expected none: there are no complex constants");
  }

  void checkGiven(const PlacedPart& placed, const Program& program, ProgramId p, TensorId t,
                  bool produced) const {
    const TensorKind kind = program.graph.tensors[t].kind;
    const std::string found =
        "found \"" + names_.text(placed.local) + "\" in a lineage of role \"input\", ";
    if (produced)
      fail(placed, "/local",
           found + "but a node of /programs/" + std::to_string(p) +
               " produces it, expected a tensor that is an input or a parameter");
    if (kind != TensorKind::kInput && kind != TensorKind::kParameter)
      fail(placed, "/local",
           found + "expected a tensor whose \"kind\" in /programs/" + std::to_string(p) +
               " is \"input\" or \"parameter\"");
  }

  // Once, or for each microbatch: one by one where parts name some, or the program's order is that
  // of its nodes.
  std::vector<PartSite> sitesAtFront(const Program& program, TensorId t, const Parts& parts,
                                     std::vector<Node>& front) const {
    const std::string place = placeOf(*parts.front());
    if (!program.graph.tensors[t].perMicrobatch) return {{&front, Microbatch::none(), place, {}}};
    const bool named = std::any_of(parts.begin(), parts.end(), [&](const PlacedPart* p) {
      return partOf(*p).microbatch.isOne();
    });
    if (!named && !program.issueOrder) return {{&front, Microbatch::each(), place, {}}};
    std::vector<PartSite> sites;
    for (std::int32_t m = 0; m < plan_.microbatches; ++m)
      sites.push_back({&front, Microbatch::of(m), place, {}});
    return sites;
  }

  void putTogether(Program& program, ProgramId p, PartNodes& nodes, PartNames& names, TensorId t,
                   const Parts& parts, std::vector<Node>& front) {
    const Shape shape = program.graph.tensors[t].shape;
    std::map<NameId, TensorId> given;
    for (const PlacedPart* part : parts)
      given.emplace(names.of(part->local, part->where), nodes.given(t, part->where));
    for (PartSite& site : sitesAtFront(program, t, parts, front)) {
      std::vector<PartNodes::Piece> pieces;
      std::vector<std::pair<TensorId, const PlacedPart*>> taken;
      bool padded = false;
      for (const PlacedPart* part : parts) {
        const Microbatch of = partOf(*part).microbatch;
        if (of.isOne() && site.microbatch.isOne() && of != site.microbatch) continue;
        padded = padded || part->where.padded;
        const TensorId piece = given.at(names.of(part->local, part->where));
        // Of the same part two sources are compared later.
        if (std::any_of(taken.begin(), taken.end(),
                        [&](const auto& other) { return other.first == piece; }))
          continue;
        const LocalBox box = boxOf(part->where, shape);
        for (std::size_t i = 0; i < pieces.size(); ++i) {
          if (overlap(pieces[i].box, box))
            fail(*part, part->where.box.empty() ? "" : "/local_box",
                 "found a part of \"" + names_.text(part->local) +
                     "\" that overlaps with that at " + placeOf(*taken[i].second) +
                     ", expected each element of a local input in one part only");
        }
        taken.emplace_back(piece, part);
        pieces.push_back({box, nodes.putBack(site, t, part->where, piece)});
      }
      // Of a microbatch that lineage does not speak of it stays what it is: anything.
      if (pieces.empty()) pieces.push_back({boxOf({}, shape), nodes.given(t, {})});
      try {
        nodes.putTogether(site, t, pieces,
                          padded ? PartNodes::Rest::kZeros : PartNodes::Rest::kNone, t);
      } catch (const PartNodes::NotCovered& left) {
        const std::string& name = names_.text(parts.front()->local);
        if (left.rest.empty())
          fail(*parts.front(), "",
               "no cut through all of \"" + name +
                   "\" separates its parts, expected ones that cuts along its dimensions, one "
                   "after the other, separate");
        fail(*parts.front(), "",
             "the parts of the input \"" + name + "\" leave out its elements " + textOf(left.rest) +
                 " in /programs/" + std::to_string(p) +
                 ", expected parts that make up all of it, or \"padding\": 0 where the rest is 0");
      }
    }
    Tensor& whole = program.graph.tensors[t];
    whole.kindInFile = whole.kind;
    whole.kind = TensorKind::kProduced;
  }

  // The first of parts that overlap are those that the tensor is put together of again.
  static void takeApart(PartNodes& nodes, PartSite& site, const Shape& shape, TensorId t,
                        const Parts& parts, TensorId standIn) {
    std::vector<PartNodes::Piece> pieces;
    std::set<TensorId> taken;
    for (const PlacedPart* part : parts) {
      const TensorId piece = nodes.takenOut(site, t, part->where);
      const LocalBox box = boxOf(part->where, shape);
      if (!standIn.valid() || !taken.insert(piece).second ||
          std::any_of(pieces.begin(), pieces.end(),
                      [&](const auto& other) { return overlap(other.box, box); }))
        continue;
      pieces.push_back({box, nodes.putBack(site, t, part->where, piece)});
    }
    while (standIn.valid()) {
      try {
        nodes.putTogether(site, t, pieces, PartNodes::Rest::kOwn, standIn);
        return;
      } catch (const PartNodes::NotCovered&) {
        pieces.pop_back();  // no cuts separate them
      }
    }
  }

  static void insert(Graph& graph, std::vector<Node>&& front,
                     std::vector<std::vector<Node>>&& after) {
    std::vector<Node> nodes = std::move(front);
    std::vector<NodeId> placeOf;
    for (const NodeId n : firstIds<NodeId>(graph.nodes.size())) {
      placeOf.emplace_back(nodes.size());
      nodes.push_back(graph.nodes[n]);
      std::move(after[n].begin(), after[n].end(), std::back_inserter(nodes));
    }
    graph.nodes = std::move(nodes);
    for (DrawnMask& drawn : graph.drawnMasks) drawn.node = placeOf[drawn.node];
  }

  Problem& problem_;
  Plan& plan_;
  Names& names_;
  std::size_t first_;
  ErrorList errors_;
};

}  // namespace

void takeOutParts(Problem& problem, std::size_t first) { Lowering(problem, first).run(); }

void makePartsOwn(Problem& problem) {
  problem.plan.placed.clear();
  for (Program& program : problem.plan.programs) {
    program.added.clear();
    for (Node& node : program.graph.nodes) node.added = -1;
    for (Tensor& tensor : program.graph.tensors) {
      tensor.added = false;
      tensor.standsFor = {};
      tensor.kindInFile = TensorKind::kProduced;
    }
  }
}

}  // namespace shardproof::ir
