// SPDX-License-Identifier: Apache-2.0
// Whether every equation of the lineage is well formed: boxes inside their tensors, local tensors
// there on every rank that is meant and of the box's size. Whether an equation holds is what the
// rest of shardproof is about.
#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ir/coordinates.h"
#include "ir/error_list.h"
#include "ir/input_sources.h"
#include "ir/output_coverage.h"
#include "ir/program_grid.h"
#include "ir/tensor_index.h"
#include "ir/validate.h"
#include "ops/attributes.h"
#include "shardproof/error.h"
#include "util/json_pointer.h"

namespace shardproof::ir {

namespace {

class LineageValidator {
 public:
  explicit LineageValidator(const Problem& problem)
      : model_(problem.model),
        plan_(problem.plan),
        names_(problem.names),
        grid_(problem.plan),
        sources_(problem) {
    for (const Program& program : plan_.programs) {
      tensors_.emplace_back(program.graph.tensors);
      std::vector<bool>& produced = produced_.emplace_back(program.graph.tensors.size(), false);
      for (const Node& node : program.graph.nodes) {
        for (const TensorId t : program.graph.out(node)) {
          if (t >= 0) produced[t] = true;
        }
      }
    }
  }

  void run() {
    for (entry_ = 0; entry_ < plan_.lineage.size(); ++entry_)
      errors_.attempt([&] { checkEntry(plan_.lineage[entry_]); });
    checkPresent();
    checkApproved();
    errors_.throwIfAny();
    sources_.check();
  }

 private:
  std::string entryPointer() const { return "/lineage/" + std::to_string(entry_); }
  std::string shardPointer() const { return entryPointer() + "/shards/" + std::to_string(shard_); }
  [[noreturn]] void fail(const std::string& pointer, const std::string& message) const {
    throw InputError(plan_.file, pointer, message);
  }
  [[noreturn]] void failPart(std::size_t part, const std::string& field,
                             const std::string& message) const {
    fail(shardPointer() + "/parts/" + std::to_string(part) + field, message);
  }
  const std::string& axisName(std::int32_t axis) const {
    static const std::string kMicrobatch = "mb";
    return axis == kMicrobatchAxis ? kMicrobatch : plan_.mesh[axis].name;
  }
  void checkEntry(const LineageEntry& entry) {
    const Tensor& tensor = model_.graph.tensors[entry.tensor];
    if (entry.role == Role::kInput && tensor.kind == TensorKind::kProduced) {
      fail(entryPointer() + "/role",
           "found \"input\" for \"" + names_.text(tensor.name) +
               "\", which a node of the model produces, expected \"output\" or \"cut_point\"");
    }
    if (entry.shards.empty()) fail(entryPointer(), "found no shards, expected at least one");
    for (shard_ = 0; shard_ < entry.shards.size(); ++shard_)
      errors_.attempt([&] { checkShard(entry, tensor, entry.shards[shard_]); });
  }

  void checkShard(const LineageEntry& entry, const Tensor& tensor, const Shard& shard) {
    if (shard.box.size() != tensor.shape.size()) {
      fail(shardPointer() + "/box", "found " + std::to_string(shard.box.size()) +
                                        " ranges, expected " + std::to_string(tensor.shape.size()) +
                                        ", as the shape is " + ops::toText(tensor.shape));
    }
    const bool within = !shard.parts.empty() && !shard.parts.front().within.empty();
    for (std::size_t d = 0; d < shard.box.size(); ++d) {
      const auto [low, high] = shard.box[d];
      const std::string found = "range [" + std::to_string(low) + ", " + std::to_string(high) + ")";
      const std::string where = shardPointer() + "/box/" + std::to_string(d);
      // The coordinates that are all 0 take no step, but where they are in no stretch. From here on
      // no extent can overflow.
      if (low < 0 && !within)
        fail(where, "found the " + found + ", expected one that begins at 0 or above");
      if (std::int64_t extent = 0; __builtin_sub_overflow(high, low, &extent))
        fail(where, "found the " + found + ", which is longer than 64 bits");
      if (low >= high) fail(where, "found the empty " + found + ", expected at least one element");
    }
    checkParts(shard);
    PerMicrobatch perMicrobatch;
    for (std::size_t p = 0; p < shard.parts.size(); ++p)
      checkPart(entry, tensor, shard, p, perMicrobatch);
    const bool eachMicrobatch = perMicrobatch.free;
    checkSum(shard, eachMicrobatch);
    checkSteps(shard, eachMicrobatch);
    checkInside(tensor, shard);
  }

  void checkParts(const Shard& shard) const {
    if (shard.parts.empty()) fail(shardPointer() + "/parts", "expected at least one part");
    for (std::size_t p = 0; p < shard.parts.size(); ++p) {
      const Part& part = shard.parts[p];
      if (part.microbatch.isOne() && part.microbatch.number() >= plan_.microbatches) {
        failPart(p, "/mb",
                 "found microbatch " + std::to_string(part.microbatch.number()) +
                     ", expected one from 0 to " + std::to_string(plan_.microbatches - 1));
      }
      // An axis that one part names is no coordinate of the shard, so a part that does not name it
      // means no rank at all.
      if (!sameAxes(shard.parts.front().at, part.at))
        failPart(p, "/at",
                 "names other axes than the first part, expected the same axes in every part of a "
                 "shard");
      // What a part would mean at a coordinate that another one lacks is anybody's guess.
      const Part& first = shard.parts.front();
      for (std::size_t a = 0; a < plan_.mesh.size(); ++a) {
        const auto axis = static_cast<std::int32_t>(a);
        if (std::binary_search(shard.sum.begin(), shard.sum.end(), axis)) continue;
        const Range own = rangeOf(plan_, part.within, axis),
                    others = rangeOf(plan_, first.within, axis);
        if (own == others) continue;
        failPart(p, "/at",
                 "means coordinates " + textOf(own) + " of \"" + axisName(axis) +
                     "\", but the first part " + textOf(others) +
                     ", expected the same in all parts of a shard, or \"sum\" over the axis");
      }
    }
  }

  static std::string textOf(const Range& range) {
    return "[" + std::to_string(range.low) + ", " + std::to_string(range.high) + ")";
  }

  // How the parts seen so far relate to microbatches.
  struct PerMicrobatch {
    bool free =
        false;  // some part is per_mb and does not say which microbatch: "mb" is a coordinate
    bool other = false;  // some part is not, or says which
  };

  void checkPart(const LineageEntry& entry, const Tensor& tensor, const Shard& shard, std::size_t p,
                 PerMicrobatch& seen) {
    const Part& part = shard.parts[p];
    grid_.forEachProgram(part.at, part.within, [&](ProgramId program) {
      const std::int32_t local = tensors_[program].find(part.local);
      if (local < 0) {
        failPart(p, "/local",
                 "found \"" + names_.text(part.local) +
                     "\", expected a tensor of every program that is meant, but /programs/" +
                     std::to_string(program) + " has none of that name");
      }
      const Tensor& t = plan_.programs[program].graph.tensors[local];
      checkExtent(shard, p, t, program);
      if (part.microbatch.isOne() && !t.perMicrobatch) {
        failPart(p, "/mb",
                 "found a microbatch for \"" + names_.text(part.local) +
                     "\", which is not \"per_mb\" in /programs/" + std::to_string(program));
      }
      const bool free = part.microbatch.isNone() && t.perMicrobatch;
      (free ? seen.free : seen.other) = true;
      if (seen.free && seen.other) {
        failPart(p, "",
                 "found parts of which some hold one tensor per microbatch and some do not (\"" +
                     names_.text(part.local) + "\" in /programs/" + std::to_string(program) +
                     "), expected all or none, or \"mb\" in each");
      }
      if (entry.role == Role::kInput) {
        checkAssumed(p, part, program, local);
        sources_.add(program, TensorId(local), entry_, shard_, p);
      }
      if (entry.role == Role::kAssumed) {
        checkReplaced(p, part, program, local);
        sources_.add(program, TensorId(local), entry_, shard_, p);
      }
      checkElement(tensor, p, t, program);
    });
  }

  // By which slip the box may have come to hold so many.
  static std::string suggestBox(const Shape& extent, const Shape& shape) {
    bool closed = extent.size() == shape.size();
    for (std::size_t d = 0; closed && d < extent.size(); ++d)
      closed = extent[d] == shape[d] || extent[d] == shape[d] - 1;
    return closed ? ": a `box` is half-open, its second number is the one after the last" : "";
  }

  void checkExtent(const Shard& shard, std::size_t p, const Tensor& local,
                   ProgramId program) const {
    Shape extent;
    extent.reserve(shard.box.size());
    for (const auto& [low, high] : shard.box) extent.push_back(high - low);
    if (extent == local.shape) return;
    failPart(p, "/local",
             "the box holds " + ops::toText(extent) + " elements, expected the shape of \"" +
                 names_.text(local.name) + "\" in /programs/" + std::to_string(program) +
                 ", which is " + ops::toText(local.shape) + suggestBox(extent, local.shape));
  }

  // An assumption about a tensor that the plan computes could contradict the computation, and would
  // then prove anything.
  void checkAssumed(std::size_t p, const Part& part, ProgramId program, std::int32_t local) const {
    const Tensor& t = plan_.programs[program].graph.tensors[local];
    const std::string found =
        "found \"" + names_.text(part.local) + "\" in a lineage of role \"input\", ";
    const std::string where = "/programs/" + std::to_string(program);
    if (produced_[program][local]) {
      failPart(p, "/local",
               found + "but a node of " + where +
                   " produces it, expected a tensor that is an input or a parameter");
    }
    if (t.kind != TensorKind::kInput && t.kind != TensorKind::kParameter) {
      failPart(p, "/local",
               found + "expected a tensor whose \"kind\" in " + where +
                   " is \"input\" or \"parameter\"");
    }
  }

  // An approved difference replaces what nodes compute. What is given has its own source.
  void checkReplaced(std::size_t p, const Part& part, ProgramId program, std::int32_t local) const {
    if (produced_[program][local]) return;
    failPart(
        p, "/local",
        "found \"" + names_.text(part.local) +
            "\" in a lineage of role \"assumed\", expected a tensor that a node of /programs/" +
            std::to_string(program) + " produces");
  }

  // The local tensor in the file of each part of an entry.
  template <class Use>
  void eachPart(std::size_t e, Use use) const {
    const LineageEntry& entry = plan_.lineage[e];
    for (std::uint32_t s = 0; s < entry.shards.size(); ++s)
      for (std::uint32_t p = 0; p < entry.shards[s].parts.size(); ++p) {
        const auto placed = placed_.find({EntryId(e), s, p});
        const Part& part = entry.shards[s].parts[p];
        use(s, p, part, placed == placed_.end() ? part.local : placed->second);
      }
  }

  // An output needs a proof. One that is itself taken as given has none.
  void checkApproved() {
    if (!plan_.hasApprovedDifferences()) return;
    for (const PlacedPart& placed : plan_.placed)
      placed_.emplace(std::tuple(placed.entry, placed.shard, placed.part), placed.local);
    std::multimap<NameId, const Part*> outputs;
    for (std::size_t e = 0; e < plan_.lineage.size(); ++e) {
      if (plan_.lineage[e].role != Role::kOutput) continue;
      eachPart(e, [&](std::uint32_t, std::uint32_t, const Part& part, NameId local) {
        outputs.emplace(local, &part);
      });
    }
    for (entry_ = 0; entry_ < plan_.lineage.size(); ++entry_) {
      if (plan_.lineage[entry_].role != Role::kAssumed) continue;
      eachPart(entry_, [&](std::uint32_t s, std::uint32_t p, const Part& part, NameId local) {
        shard_ = s;
        errors_.attempt([&] {
          if (placed_.contains({EntryId(entry_), s, p}))
            failPart(p, "",
                     "found a part of \"" + names_.text(local) +
                         "\" in a lineage of role \"assumed\", expected a whole local tensor");
          const auto [begin, end] = outputs.equal_range(local);
          if (std::any_of(begin, end, [&](const auto& o) { return mayMeet(*o.second, part); }))
            failPart(p, "/local",
                     "found \"" + names_.text(local) +
                         "\", which output lineage names, in a lineage of role \"assumed\": an "
                         "output has to be proved, expected a tensor that it is computed from");
        });
      });
    }
  }

  void checkElement(const Tensor& tensor, std::size_t p, const Tensor& local,
                    ProgramId program) const {
    if (local.element == tensor.element) return;
    failPart(p, "/local",
             "found \"" + names_.text(local.name) + "\" with a dtype of " +
                 elementName(local.element) + " elements in /programs/" + std::to_string(program) +
                 ", expected " + elementName(tensor.element) + " ones, as in the model");
  }

  // A coordinate of the shard: an axis that the parts leave open.
  bool isCoordinate(const Shard& shard, std::int32_t axis, bool eachMicrobatch) const {
    if (axis == kMicrobatchAxis) return eachMicrobatch;
    const Coordinates& at = shard.parts.front().at;
    return std::none_of(at.begin(), at.end(), [axis](const auto& c) { return c.first == axis; });
  }

  void checkSum(const Shard& shard, bool eachMicrobatch) const {
    for (const std::int32_t axis : shard.sum) {
      if (std::count(shard.sum.begin(), shard.sum.end(), axis) > 1)
        fail(shardPointer() + "/sum", "found the axis \"" + axisName(axis) + "\" twice");
      if (isCoordinate(shard, axis, eachMicrobatch)) continue;
      fail(shardPointer() + "/sum",
           "found \"" + axisName(axis) + "\", which is no coordinate of this shard: " +
               (axis == kMicrobatchAxis ? "its parts do not range over microbatches"
                                        : "its parts' \"at\" fix it"));
    }
  }

  void checkSteps(const Shard& shard, bool eachMicrobatch) const {
    std::int32_t last = -1;
    for (const auto& [axis, offsets] : shard.step) {
      const std::string pointer = shardPointer() + "/step/" + escapePointer(axisName(axis));
      if (axis == last) fail(pointer, "found two steps along one axis, expected one");
      last = axis;
      if (offsets.size() != shard.box.size()) {
        fail(pointer, "found " + std::to_string(offsets.size()) + " offsets, expected " +
                          std::to_string(shard.box.size()) + ", one for each dimension");
      }
      if (!isCoordinate(shard, axis, eachMicrobatch)) {
        fail(pointer, "found a step along \"" + axisName(axis) +
                          "\", which is no coordinate of this shard, expected none (or 0)");
      }
      if (std::binary_search(shard.sum.begin(), shard.sum.end(), axis)) {
        fail(pointer, "found a step along \"" + axisName(axis) +
                          "\", over which the shard sums, expected none (or 0)");
      }
    }
  }

  // The extreme positions of the box decide, and they are sums over the axes one by one.
  void checkInside(const Tensor& tensor, const Shard& shard) const {
    for (std::size_t d = 0; d < shard.box.size(); ++d) {
      std::int64_t low = shard.box[d].first, high = shard.box[d].second;
      bool overflow = false;
      for (const auto& [axis, offsets] : shard.step) {
        const Range range = rangeOf(plan_, shard, axis);
        std::int64_t start = 0, reach = 0;
        overflow = overflow || __builtin_mul_overflow(offsets[d], range.low, &start) ||
                   __builtin_add_overflow(low, start, &low) ||
                   __builtin_add_overflow(high, start, &high) ||
                   __builtin_mul_overflow(offsets[d], range.size() - 1, &reach) ||
                   __builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high);
      }
      if (!overflow && low >= 0 && high <= tensor.shape[d]) continue;
      const std::string found = overflow
                                    ? "more than 64 bits"
                                    : "[" + std::to_string(low) + ", " + std::to_string(high) + ")";
      fail(shardPointer() + "/box/" + std::to_string(d),
           "the box reaches over " + found + (shard.step.empty() ? "" : " with all its steps") +
               ", expected it inside [0, " + std::to_string(tensor.shape[d]) + ") of \"" +
               names_.text(tensor.name) + "\"");
    }
  }

  void checkPresent() {
    std::vector<bool> assumed(model_.graph.tensors.size(), false), claimed(assumed);
    for (const LineageEntry& entry : plan_.lineage) {
      if (entry.role == Role::kInput) assumed[entry.tensor] = true;
      if (entry.role == Role::kOutput) claimed[entry.tensor] = true;
    }
    for (std::size_t t = 0; t < assumed.size(); ++t) {
      const Tensor& tensor = model_.graph.tensors[t];
      const bool given = tensor.kind == TensorKind::kInput || tensor.kind == TensorKind::kParameter;
      if (given && !assumed[t])
        errors_.attempt([&] {
          missing(tensor, tensor.kind == TensorKind::kInput ? "input" : "parameter", "input");
        });
    }
    for (const TensorId output : model_.outputs) {
      if (!claimed[output])
        errors_.attempt([&] { missing(model_.graph.tensors[output], "output", "output"); });
    }
  }

  [[noreturn]] void missing(const Tensor& tensor, const std::string& what,
                            const std::string& role) const {
    fail("/lineage", "the model's " + what + " \"" + names_.text(tensor.name) +
                         "\" has no lineage, expected an entry with \"role\": \"" + role + "\"");
  }

  const Model& model_;
  const Plan& plan_;
  const Names& names_;
  ProgramGrid grid_;
  std::vector<TensorIndex> tensors_;         // per program
  std::vector<std::vector<bool>> produced_;  // per program and tensor: some node has it as a result
  InputSources sources_;
  // The local tensors in the file of parts that are not whole (Plan::placed).
  std::map<std::tuple<EntryId, std::uint32_t, std::uint32_t>, NameId> placed_;
  std::size_t entry_ = 0, shard_ = 0;  // where we are, for messages
  ErrorList errors_;
};

}  // namespace

void validateLineage(const Problem& problem) {
  LineageValidator(problem).run();
  checkOutputsCovered(problem);
}

void validate(const Problem& problem) {
  validateMesh(problem.plan.file, problem.plan.mesh, problem.plan.microbatches);
  validateNodes(problem);
  validateModel(problem);
  validatePrograms(problem);
  validateLineage(problem);
  validateCapture(problem);
}

}  // namespace shardproof::ir
