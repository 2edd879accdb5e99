#include "reader/lineage_resolver.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ops/attributes.h"
#include "reader/output_coverage.h"
#include "shardproof/error.h"
#include "util/json_pointer.h"

namespace shardproof::reader {

namespace {

class LineageResolver {
 public:
  LineageResolver(Problem& problem, const PlanIndex& index)
      : model_(problem.model),
        plan_(problem.plan),
        names_(problem.names),
        index_(index),
        logical_(problem.model.graph) {}

  void run() {
    for (entry_ = 0; entry_ < plan_.lineage.size(); ++entry_) resolveEntry(plan_.lineage[entry_]);
    checkPresent();
    checkOutputs();
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
    return axis == kMicrobatchAxis ? kMicrobatch : plan_.mesh[static_cast<std::size_t>(axis)].name;
  }
  std::int64_t axisSize(std::int32_t axis) const {
    return axis == kMicrobatchAxis ? plan_.microbatches
                                   : plan_.mesh[static_cast<std::size_t>(axis)].size;
  }

  void resolveEntry(LineageEntry& entry) {
    const NameId name(entry.tensor);
    entry.tensor = logical_.find(name);
    if (entry.tensor < 0)
      fail(entryPointer() + "/tensor", "found \"" + names_.text(name) +
                                           "\", expected the name of a tensor of the model " +
                                           model_.file);
    const Tensor& tensor = model_.graph.tensors[static_cast<std::size_t>(entry.tensor)];
    if (entry.role == Role::kInput && tensor.kind == TensorKind::kProduced) {
      fail(entryPointer() + "/role",
           "found \"input\" for \"" + names_.text(name) +
               "\", which a node of the model produces, expected \"output\" or \"checkpoint\"");
    }
    for (shard_ = 0; shard_ < entry.shards.size(); ++shard_)
      resolveShard(entry, tensor, entry.shards[shard_]);
  }

  void resolveShard(const LineageEntry& entry, const Tensor& tensor, Shard& shard) {
    if (shard.box.size() != tensor.shape.size()) {
      fail(shardPointer() + "/box", "found " + std::to_string(shard.box.size()) +
                                        " ranges, expected " + std::to_string(tensor.shape.size()) +
                                        ", as the shape is " + ops::toText(tensor.shape));
    }
    resolveParts(shard);
    PerMicrobatch perMicrobatch;
    for (std::size_t p = 0; p < shard.parts.size(); ++p)
      checkPart(entry, tensor, shard, p, perMicrobatch);
    const bool eachMicrobatch = perMicrobatch.free;
    resolveSum(shard, eachMicrobatch);
    resolveSteps(shard, eachMicrobatch);
    checkInside(tensor, shard);
  }

  void resolveParts(Shard& shard) const {
    for (std::size_t p = 0; p < shard.parts.size(); ++p) {
      Part& part = shard.parts[p];
      index_.axes.resolve(part.at,
                          [&] { return shardPointer() + "/parts/" + std::to_string(p) + "/at"; });
      if (part.microbatch.isOne() && part.microbatch.number() >= plan_.microbatches) {
        failPart(p, "/mb",
                 "found microbatch " + std::to_string(part.microbatch.number()) +
                     ", expected one from 0 to " + std::to_string(plan_.microbatches - 1));
      }
      // An axis that one part names is no coordinate of the shard, so a part that does not name it
      // means no rank at all.
      const Coordinates& first = shard.parts.front().at;
      const bool same = std::equal(first.begin(), first.end(), part.at.begin(), part.at.end(),
                                   [](const auto& a, const auto& b) { return a.first == b.first; });
      if (!same)
        failPart(p, "/at",
                 "names other axes than the first part, expected the same axes in every part of a "
                 "shard");
    }
  }

  // How the parts seen so far relate to microbatches.
  struct PerMicrobatch {
    bool free =
        false;  // some part is per_mb and does not say which microbatch: "mb" is a coordinate
    bool other = false;  // some part is not, or says which
  };

  void checkPart(const LineageEntry& entry, const Tensor& tensor, const Shard& shard, std::size_t p,
                 PerMicrobatch& seen) const {
    const Part& part = shard.parts[p];
    index_.grid.forEachProgram(part.at, [&](std::int32_t program) {
      const std::int32_t local = index_.tensors[static_cast<std::size_t>(program)].find(part.local);
      if (local < 0) {
        failPart(p, "/local",
                 "found \"" + names_.text(part.local) +
                     "\", expected a tensor of every program that is meant, but /programs/" +
                     std::to_string(program) + " has none of that name");
      }
      const Tensor& t = plan_.programs[static_cast<std::size_t>(program)]
                            .graph.tensors[static_cast<std::size_t>(local)];
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
      if (entry.role == Role::kInput) checkAssumed(tensor, p, part, program, local);
    });
  }

  void checkExtent(const Shard& shard, std::size_t p, const Tensor& local,
                   std::int32_t program) const {
    Shape extent;
    extent.reserve(shard.box.size());
    for (const auto& [low, high] : shard.box) extent.push_back(high - low);
    if (extent == local.shape) return;
    failPart(p, "/local",
             "the box holds " + ops::toText(extent) + " elements, expected the shape of \"" +
                 names_.text(local.name) + "\" in /programs/" + std::to_string(program) +
                 ", which is " + ops::toText(local.shape));
  }

  // An assumption about a tensor that the plan computes could contradict the computation, and would
  // then prove anything.
  void checkAssumed(const Tensor& tensor, std::size_t p, const Part& part, std::int32_t program,
                    std::int32_t local) const {
    const Tensor& t = plan_.programs[static_cast<std::size_t>(program)]
                          .graph.tensors[static_cast<std::size_t>(local)];
    const std::string found =
        "found \"" + names_.text(part.local) + "\" in a lineage of role \"input\", ";
    const std::string where = "/programs/" + std::to_string(program);
    if (index_.produced[static_cast<std::size_t>(program)][static_cast<std::size_t>(local)]) {
      failPart(p, "/local",
               found + "but a node of " + where +
                   " produces it, expected a tensor that is an input or a parameter");
    }
    if (t.kind != TensorKind::kInput && t.kind != TensorKind::kParameter) {
      failPart(p, "/local",
               found + "expected a tensor whose \"kind\" in " + where +
                   " is \"input\" or \"parameter\"");
    }
    if (t.element != tensor.element) {
      failPart(p, "/local",
               found + "with a dtype of " + std::string(elementName(t.element)) + " elements in " +
                   where + ", expected " + std::string(elementName(tensor.element)) +
                   " ones, as in the model");
    }
  }

  // A coordinate of the shard: an axis that the parts leave open.
  bool isCoordinate(const Shard& shard, std::int32_t axis, bool eachMicrobatch) const {
    if (axis == kMicrobatchAxis) return eachMicrobatch;
    const Coordinates& at = shard.parts.front().at;
    return std::none_of(at.begin(), at.end(), [axis](const auto& c) { return c.first == axis; });
  }

  std::int32_t axisOrMicrobatch(std::int32_t name, const std::string& pointer) const {
    return index_.axes.isMicrobatch(name) ? kMicrobatchAxis : index_.axes.find(name, pointer);
  }

  void resolveSum(Shard& shard, bool eachMicrobatch) const {
    for (std::size_t i = 0; i < shard.sum.size(); ++i) {
      const std::string pointer = shardPointer() + "/sum/" + std::to_string(i);
      shard.sum[i] = axisOrMicrobatch(shard.sum[i], pointer);
      if (!isCoordinate(shard, shard.sum[i], eachMicrobatch)) {
        fail(pointer,
             "found \"" + axisName(shard.sum[i]) + "\", which is no coordinate of this shard: " +
                 (shard.sum[i] == kMicrobatchAxis ? "its parts do not range over microbatches"
                                                  : "its parts' \"at\" fix it"));
      }
    }
    std::sort(shard.sum.begin(), shard.sum.end());
  }

  void resolveSteps(Shard& shard, bool eachMicrobatch) const {
    for (auto& [axis, offsets] : shard.step) {
      const std::string pointer =
          shardPointer() + "/step/" + escapePointer(names_.text(NameId(axis)));
      axis = axisOrMicrobatch(axis, pointer);
      if (offsets.size() != shard.box.size()) {
        fail(pointer, "found " + std::to_string(offsets.size()) + " offsets, expected " +
                          std::to_string(shard.box.size()) + ", one for each dimension");
      }
      if (isZero(offsets)) continue;
      if (!isCoordinate(shard, axis, eachMicrobatch)) {
        fail(pointer, "found a step along \"" + axisName(axis) +
                          "\", which is no coordinate of this shard, expected none (or 0)");
      }
      if (std::binary_search(shard.sum.begin(), shard.sum.end(), axis)) {
        fail(pointer, "found a step along \"" + axisName(axis) +
                          "\", over which the shard sums, expected none (or 0)");
      }
    }
    std::erase_if(shard.step, [](const auto& step) {
      return isZero(step.second);
    });  // absent and 0 mean the same
    std::sort(shard.step.begin(), shard.step.end());
  }

  static bool isZero(const Shape& offsets) {
    return std::all_of(offsets.begin(), offsets.end(), [](std::int64_t o) { return o == 0; });
  }

  // The extreme positions of the box decide, and they are sums over the axes one by one.
  void checkInside(const Tensor& tensor, const Shard& shard) const {
    for (std::size_t d = 0; d < shard.box.size(); ++d) {
      std::int64_t low = shard.box[d].first, high = shard.box[d].second;
      bool overflow = false;
      for (const auto& [axis, offsets] : shard.step) {
        std::int64_t reach = 0;
        overflow = overflow || __builtin_mul_overflow(offsets[d], axisSize(axis) - 1, &reach);
        overflow = overflow ||
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

  void checkPresent() const {
    std::vector<bool> assumed(model_.graph.tensors.size(), false), claimed(assumed);
    for (const LineageEntry& entry : plan_.lineage) {
      if (entry.role == Role::kInput) assumed[static_cast<std::size_t>(entry.tensor)] = true;
      if (entry.role == Role::kOutput) claimed[static_cast<std::size_t>(entry.tensor)] = true;
    }
    for (std::size_t t = 0; t < assumed.size(); ++t) {
      const Tensor& tensor = model_.graph.tensors[t];
      const bool given = tensor.kind == TensorKind::kInput || tensor.kind == TensorKind::kParameter;
      if (given && !assumed[t])
        missing(tensor, tensor.kind == TensorKind::kInput ? "input" : "parameter", "input");
    }
    for (const std::int32_t output : model_.outputs) {
      if (!claimed[static_cast<std::size_t>(output)])
        missing(model_.graph.tensors[static_cast<std::size_t>(output)], "output", "output");
    }
  }

  [[noreturn]] void missing(const Tensor& tensor, const std::string& what,
                            const std::string& role) const {
    fail("/lineage", "the model's " + what + " \"" + names_.text(tensor.name) +
                         "\" has no lineage, expected an entry with \"role\": \"" + role + "\"");
  }

  void checkOutputs() const {
    std::vector<std::vector<const Shard*>> goals(model_.graph.tensors.size());
    for (const LineageEntry& entry : plan_.lineage) {
      if (entry.role != Role::kOutput) continue;
      for (const Shard& shard : entry.shards)
        goals[static_cast<std::size_t>(entry.tensor)].push_back(&shard);
    }
    for (const std::int32_t output : model_.outputs) {
      const Tensor& tensor = model_.graph.tensors[static_cast<std::size_t>(output)];
      std::vector<Box> boxes;
      for (const Shard* shard : goals[static_cast<std::size_t>(output)]) {
        std::vector<std::int64_t> sizes;
        for (const auto& step : shard->step) sizes.push_back(axisSize(step.first));
        appendBoxes(*shard, sizes, boxes);
        if (boxes.size() > kMaxBoxes) {
          fail("/lineage", "the lineage of the model's output \"" + names_.text(tensor.name) +
                               "\" has more than " + std::to_string(kMaxBoxes) +
                               " separate boxes, which is the limit");
        }
      }
      const std::vector<std::int64_t> gap = firstUncovered(tensor.shape, std::move(boxes));
      if (!gap.empty()) {
        fail("/lineage",
             "the lineage of the model's output \"" + names_.text(tensor.name) +
                 "\" leaves out the element at " + ops::toText(gap) +
                 ", expected shards of role \"output\" that cover the whole tensor of shape " +
                 ops::toText(tensor.shape));
      }
    }
  }

  const Model& model_;
  Plan& plan_;
  const Names& names_;
  const PlanIndex& index_;
  TensorIndex logical_;
  std::size_t entry_ = 0, shard_ = 0;  // where we are, for messages
};

}  // namespace

void resolveLineage(Problem& problem, const PlanIndex& index) {
  LineageResolver(problem, index).run();
}

}  // namespace shardproof::reader
