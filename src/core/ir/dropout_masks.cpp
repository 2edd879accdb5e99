// SPDX-License-Identifier: Apache-2.0
// Why the positions may come from cut points, which nobody has proved yet: a plan has no other way
// to say for which positions a rank draws. No verdict "equivalent" is given before these
// cut points are proved themselves (Plan::positioning). Why the masks may be any integers: a proof
// for all masks holds for those that a generator of random numbers draws; only the value 1 keeps.
#include "ir/dropout_masks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "ir/coordinates.h"
#include "ops/attributes.h"
#include "ops/registry.h"
#include "util/index.h"

namespace shardproof {
namespace {

class Masks {
 public:
  explicit Masks(Problem& problem) : problem_(problem) {
    forward_ = ops::Registry::instance().find("dropout");
    backward_ = ops::Registry::instance().find("dropout_backward");
  }

  void run() {
    Graph& model = problem_.model.graph;
    for (const Node& node : model.nodes) {
      if (!draws(node)) continue;
      for (const Operand& o : model.in(node)) place(o.tensor);
      for (const TensorId t : model.out(node)) place(t);
    }
    if (positioned_.empty()) return;
    for (const NodeId i : firstIds<NodeId>(model.nodes.size())) {
      const Node node = model.nodes[i];
      if (!draws(node)) continue;
      const Shape shape = model.tensors[model.in(node)[0].tensor].shape;
      give(model, model.nodes[i], {TensorId(logicalMask(node, shape)), Microbatch::none()});
    }
    for (const ProgramId p : firstIds<ProgramId>(problem_.plan.programs.size())) {
      Graph& graph = problem_.plan.programs[p].graph;
      forwards_.clear();
      for (const Node& node : graph.nodes) {
        if (node.op == forward_ && draws(node)) forwards_.push_back(node);
      }
      for (const NodeId i : firstIds<NodeId>(graph.nodes.size())) {
        const Node node = graph.nodes[i];
        if (!draws(node)) continue;
        const auto mask = localMask(p, node);
        if (!mask) continue;
        give(graph, graph.nodes[i], *mask);
      }
    }
    problem_.lineageAdded = shards_.size();
    for (auto& [tensor, shards] : shards_)
      problem_.plan.lineage.push_back({tensor, Role::kInput, std::move(shards)});
  }

 private:
  bool draws(const Node& node) const {
    if (node.communication >= 0 || (node.op != forward_ && node.op != backward_)) return false;
    const Rational p = ops::number(problem_.attributes.at(node.attributes), "p");
    return !p.isZero() && !p.isOne() && node.inCount == (node.op == forward_ ? 1u : 2u);
  }

  void place(TensorId tensor) {
    if (tensor >= 0) positioned_.insert(tensor);
  }

  // The operand is appended; the gradient of a mask is absent. The seed has done its part: without
  // it, layers that differ in nothing else are alike.
  void give(Graph& graph, Node& node, Operand mask) {
    const auto first = static_cast<std::uint32_t>(graph.operands.size());
    for (std::uint32_t i = 0; i < node.inCount; ++i)
      graph.operands.push_back(graph.operands[node.firstIn + i]);
    graph.operands.push_back(mask);
    node.firstIn = first;
    ++node.inCount;
    if (node.op == backward_) {
      const auto results = static_cast<std::uint32_t>(graph.results.size());
      for (std::uint32_t i = 0; i < node.outCount; ++i)
        graph.results.push_back(graph.results[node.firstOut + i]);
      graph.results.push_back(TensorId());
      node.firstOut = results;
      ++node.outCount;
    }
    graph.drawnMasks.push_back({NodeId(&node - graph.nodes.data()), node.attributes});
    Attributes attributes = problem_.attributes.at(node.attributes);
    attributes.erase("seed");
    node.attributes = problem_.attributes.intern(std::move(attributes));
  }

  TensorId addMask(Graph& graph, std::string name, const Shape& shape, bool perMicrobatch) {
    const auto taken = [&] {
      const NameId id = problem_.names.find(name);
      return id.valid() && std::any_of(graph.tensors.begin(), graph.tensors.end(),
                                       [&](const Tensor& t) { return t.name == id; });
    };
    while (taken()) name += "'";
    Tensor mask;
    mask.name = problem_.names.intern(name);
    mask.shape = shape;
    mask.kind = TensorKind::kInput;
    mask.element = ElementKind::kInteger;
    mask.elementDeclared = true;
    mask.perMicrobatch = perMicrobatch;
    graph.tensors.push_back(std::move(mask));
    ++graph.tensorsAdded;
    return TensorId(static_cast<std::int32_t>(graph.tensors.size()) - 1);
  }

  using Key = std::tuple<std::string, std::string, Shape>;  // seed, p, logical shape
  Key keyOf(const Node& node, const Shape& shape) const {
    const Attributes& attributes = problem_.attributes.at(node.attributes);
    return {std::to_string(ops::integer(attributes, "seed")),
            ops::number(attributes, "p").toString(), shape};
  }

  TensorId logicalMask(const Node& node, const Shape& shape) {
    const Key key = keyOf(node, shape);
    const auto it = logical_.find(key);
    if (it != logical_.end()) return it->second;
    const std::string name =
        "dropout mask (seed " + std::get<0>(key) + ", p " + std::get<1>(key) + ")";
    return logical_[key] = addMask(problem_.model.graph, name, shape, false);
  }

  // What says the positions is what is dropped out, or what comes out of that. Backward it is the
  // operand that was dropped out: nothing else depends on it, so only its own lineage, or that of
  // the result of the dropout that read it, shows that it is the right one. The mask is read for
  // the microbatch for which that is.
  std::optional<Operand> localMask(std::size_t program, const Node& node) {
    const Graph& graph = problem_.plan.programs[program].graph;
    const Operand dropped = graph.in(node).back();
    std::vector<Operand> candidates{dropped};
    if (node.op == forward_) {
      candidates.push_back({graph.out(node)[0], Microbatch::none()});
    } else if (!dropped.microbatch.isOne()) {
      for (const Node& forward : forwards_) {
        const Operand& read = graph.in(forward)[0];
        if (read.tensor == dropped.tensor && !read.microbatch.isOne() &&
            forward.microbatch == node.microbatch && sameMask(forward, node))
          candidates.push_back({graph.out(forward)[0], Microbatch::none()});
      }
    }
    for (const Operand& o : candidates) {
      const EntryId entry = o.present() ? entryOf(program, o.tensor) : EntryId();
      if (entry < 0) continue;
      return Operand{TensorId(localMask(program, node, o.tensor, problem_.plan.lineage[entry])),
                     o.microbatch};
    }
    return std::nullopt;
  }

  bool sameMask(const Node& a, const Node& b) const {
    const Attributes &x = problem_.attributes.at(a.attributes),
                     &y = problem_.attributes.at(b.attributes);
    return ops::integer(x, "seed") == ops::integer(y, "seed") &&
           ops::number(x, "p") == ops::number(y, "p");
  }

  TensorId localMask(std::size_t program, const Node& node, TensorId tensor,
                     const LineageEntry& entry) {
    const Tensor local = problem_.plan.programs[program].graph.tensors[tensor];
    const TensorId whole = logicalMask(node, problem_.model.graph.tensors[entry.tensor].shape);
    const auto key = std::make_tuple(program, whole, tensor);
    const auto it = local_.find(key);
    if (it != local_.end()) return it->second;
    problem_.plan.positioning.push_back(EntryId(&entry - problem_.plan.lineage.data()));
    const TensorId mask = addMask(problem_.plan.programs[program].graph,
                                  "dropout mask of " + problem_.names.text(local.name), local.shape,
                                  local.perMicrobatch);
    const NameId name = problem_.plan.programs[program].graph.tensors[mask].name;
    for (const Shard& shard : entry.shards) {
      for (const Part& part : shard.parts) {
        if (part.local != local.name) continue;
        if (auto own = restricted(shard, part, problem_.plan.programs[program])) {
          own->parts.front().local = name;
          shards_[whole].push_back(std::move(*own));
        }
      }
    }
    return local_[key] = mask;
  }

  // The part's place on the program's ranks alone; none if it lies on others.
  static std::optional<Shard> restricted(const Shard& shard, const Part& part,
                                         const Program& program) {
    if (!ir::mayMeet(part, program)) return std::nullopt;
    Shard own;
    own.box = shard.box;
    Part place = part;
    for (const Stretch& s : program.within) {
      const auto theirs = std::find_if(place.within.begin(), place.within.end(),
                                       [&](const Stretch& t) { return t.axis == s.axis; });
      const bool fixed = std::any_of(place.at.begin(), place.at.end(),
                                     [&](const auto& c) { return c.first == s.axis; });
      if (theirs != place.within.end()) {
        theirs->low = std::max(theirs->low, s.low);
        theirs->high = std::min(theirs->high, s.high);
      } else if (!fixed) {
        place.within.push_back(s);
      }
    }
    std::sort(place.within.begin(), place.within.end());
    std::erase_if(place.within, [&](const Stretch& s) {
      return std::any_of(program.at.begin(), program.at.end(),
                         [&](const auto& c) { return c.first == s.axis; });
    });
    for (const auto& [axis, coordinate] : program.at) {
      const auto named = std::find_if(place.at.begin(), place.at.end(),
                                      [&, a = axis](const auto& c) { return c.first == a; });
      if (named == place.at.end()) place.at.emplace_back(axis, coordinate);
      else if (named->second != coordinate) return std::nullopt;
    }
    std::sort(place.at.begin(), place.at.end());
    for (const auto& [axis, offset] : shard.step) {
      const auto fixed = std::find_if(place.at.begin(), place.at.end(),
                                      [&, a = axis](const auto& c) { return c.first == a; });
      if (fixed == place.at.end()) {
        own.step.emplace_back(axis, offset);
        continue;
      }
      for (std::size_t d = 0; d < own.box.size(); ++d) {
        own.box[d].first += fixed->second * offset[d];
        own.box[d].second += fixed->second * offset[d];
      }
    }
    own.parts = {std::move(place)};
    return own;
  }

  // The first entry that places the local tensor in one that the model drops out, everywhere and in
  // one place only; -1: none.
  EntryId entryOf(std::size_t program, TensorId tensor) {
    if (entries_.empty()) {
      for (const EntryId e : firstIds<EntryId>(problem_.plan.lineage.size())) {
        const LineageEntry& entry = problem_.plan.lineage[e];
        if (!positioned_.contains(entry.tensor)) continue;
        for (const Shard& shard : entry.shards)
          for (const Part& part : shard.parts) entries_.emplace(part.local, e);
      }
    }
    const Program& own = problem_.plan.programs[program];
    const NameId name = own.graph.tensors[tensor].name;
    std::int32_t last = -1;
    for (auto [it, end] = entries_.equal_range(name); it != end; ++it) {
      if (it->second == last) continue;
      last = it->second;
      std::vector<Part> places;
      for (const Shard& shard : problem_.plan.lineage[last].shards)
        for (const Part& part : shard.parts)
          if (part.local == name)
            if (const auto s = restricted(shard, part, own)) places.push_back(s->parts.front());
      std::sort(places.begin(), places.end(), [](const Part& a, const Part& b) {
        return std::tie(a.at, a.within, a.microbatch) < std::tie(b.at, b.within, b.microbatch);
      });
      const bool once = apartFromEachOther(places);
      // Places that name different axes could meet, and so could one that is for all microbatches
      // and one that is not: the mask would have two sources.
      const auto apart = std::all_of(places.begin(), places.end(), [&](const Part& p) {
        return ir::sameAxes(p.at, places.front().at) &&
               p.microbatch.isOne() == places.front().microbatch.isOne();
      });
      if (!places.empty() && once && apart &&
          coversAll(places, own, own.graph.tensors[tensor].perMicrobatch))
        return EntryId(last);
    }
    return EntryId();
  }

  // Of places in order that name the same axes, but for stretches, and all a microbatch or none.
  static bool apartFromEachOther(const std::vector<Part>& places) {
    const bool stretches =
        std::any_of(places.begin(), places.end(), [](const Part& p) { return !p.within.empty(); });
    for (std::size_t i = 0; i < places.size(); ++i) {
      // Equal ones are neighbours; stretches may overlap otherwise, too.
      const std::size_t end = stretches ? places.size() : std::min(places.size(), i + 2);
      for (std::size_t j = i + 1; j < end; ++j)
        if (places[i].microbatch == places[j].microbatch && ir::mayMeet(places[i], places[j]))
          return false;
    }
    return true;
  }

  // Whether places that do not overlap are all that the program's ranks (and microbatches) have:
  // elsewhere the mask would be any, and right plans look wrong.
  bool coversAll(const std::vector<Part>& places, const Program& program,
                 bool perMicrobatch) const {
    const Plan& plan = problem_.plan;
    const auto ranks = [&](const auto& of) {
      std::int64_t n = 1;
      for (std::size_t a = 0; a < plan.mesh.size(); ++a) {
        if (std::none_of(of.at.begin(), of.at.end(),
                         [&](const auto& c) { return at(c.first) == a; }))
          n *= ir::rangeOf(plan, of.within, static_cast<std::int32_t>(a)).size();
      }
      return n;
    };
    const std::int64_t microbatches = perMicrobatch ? plan.microbatches : 1;
    std::int64_t covered = 0;
    for (const Part& place : places)
      covered += ranks(place) * (place.microbatch.isOne() ? 1 : microbatches);
    return covered == ranks(program) * microbatches;
  }

  Problem& problem_;
  OperatorId forward_, backward_;
  std::vector<Node> forwards_;  // of the program that is being seen to: its dropouts, as they were
  std::set<TensorId> positioned_;  // logical tensors that share their positions with a mask
  std::multimap<NameId, EntryId>
      entries_;  // local tensor -> lineage entries that place it in one of these
  std::map<Key, TensorId> logical_;
  std::map<std::tuple<std::size_t, TensorId, TensorId>, TensorId> local_;
  std::map<TensorId, std::vector<Shard>> shards_;  // by logical mask
};

}  // namespace

void giveDropoutMasks(Problem& problem) { Masks(problem).run(); }

}  // namespace shardproof
