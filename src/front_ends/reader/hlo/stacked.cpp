// SPDX-License-Identifier: Apache-2.0
// The program of one device has each instruction once for every device, its copies. Where devices
// meet, the copies are put together as the collective puts together what they hold. A computation
// in which devices meet is gone through by all of them at once (in lockstep): it takes and gives
// tuples of what each has.
//
// A loop in which devices meet turns as often for one as for all: the condition is an array of what
// each device finds, and a loop of which that is not one number for all is refused (lowerWhile).
#include "reader/hlo/stacked.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "reader/hlo/computation_writer.h"
#include "reader/hlo/groups.h"
#include "reader/hlo/mesh.h"
#include "reader/hlo/parser.h"
#include "util/index.h"

namespace shardproof::hlo {
namespace {

using Names = std::vector<std::string>;  // of one value's copies, by device

constexpr std::size_t kMostCopies = 4'000'000;

std::string kindOf(const std::string& opcode) {
  for (const char* suffix : {"-start", "-done", "-update"})
    if (opcode.ends_with(suffix)) return opcode.substr(0, opcode.rfind('-'));
  return opcode;
}

bool meets(const std::string& opcode) {
  static const std::set<std::string, std::less<>> kMeet{
      "all-reduce", "all-gather",         "reduce-scatter",
      "all-to-all", "collective-permute", "collective-broadcast"};
  return kMeet.contains(kindOf(opcode));
}

bool asksForDevice(const std::string& opcode) {
  return opcode == "partition-id" || opcode == "replica-id";
}

Shape withDimension(const Shape& shape, std::int64_t size) {
  Shape made = shape;
  made.sizes.insert(made.sizes.begin(), size);
  return made;
}

std::string listText(const std::vector<std::int64_t>& list) {
  std::string text;
  for (const std::int64_t n : list) text += (text.empty() ? "" : ",") + std::to_string(n);
  return "{" + text + "}";
}

std::int64_t numberOf(const Instruction& parameter, const std::string& file) {
  Cursor c(parameter.literal, file, parameter.literalPlace);
  return c.integer("the parameter's number");
}

// The instructions that are parameters, by number.
std::map<std::int64_t, const Instruction*> parametersOf(const Computation& c,
                                                        const std::string& file) {
  std::map<std::int64_t, const Instruction*> found;
  for (const Instruction& i : c.instructions)
    if (i.opcode == "parameter" && !found.emplace(numberOf(i, file), &i).second)
      failAt(file, i.place, "parameter '" + i.name + "': a parameter's number used twice");
  return found;
}

std::vector<Shape> resultsOf(const Computation& c) {
  const Shape& shape = c.instructions[c.root].shape;
  return shape.tuple ? shape.elements : std::vector<Shape>{shape};
}

std::optional<Tiling> tilingOf(const Instruction& parameter, const std::string& file,
                               std::int64_t devices) {
  const Attribute* sharding = parameter.attribute("sharding");
  if (sharding == nullptr || parameter.shape.tuple) return std::nullopt;
  const Sharding read = parseSharding(*sharding, file);
  if (read.kind != Sharding::Kind::kTiled && read.kind != Sharding::Kind::kReplicated)
    return std::nullopt;
  return hlo::tilingOf(read, parameter.shape.sizes.size(), devices);
}

class OneDevice {
 public:
  OneDevice(const Module& module, const std::string& file, std::int64_t devices, bool replicas,
            const std::map<std::int64_t, Tiling>& placed)
      : module_(module), file_(file), devices_(devices), replicas_(replicas), placed_(placed) {}

  Module make() {
    for (const Computation& c : module_.computations) inLockstep(c);
    made_ = module_;
    made_.computations.clear();
    made_.byName.clear();
    for (const Attribute& a : module_.attributes)
      if (a.name == "num_partitions" || a.name == "replica_count")
        made_.attributes.erase(std::find_if(made_.attributes.begin(), made_.attributes.end(),
                                            [&](const Attribute& b) { return b.name == a.name; }));
    // Those in which no devices meet stay as they are, and come first.
    for (const Computation& c : module_.computations)
      if (!c.entry && !lockstep_.at(c.name)) keep(c);
    for (const Computation& c : module_.computations)
      if (!c.entry && lockstep_.at(c.name)) lockstepOf(c);
    entry(module_.computations[module_.entry]);
    return std::move(made_);
  }

 private:
  using Copies = std::map<std::string, Names>;

  [[noreturn]] void unsupported(const Instruction& i, const std::string& what) const {
    failAt(file_, i.place, i.opcode + ": " + what + " in a program before a pass");
  }

  void keep(Computation c) {
    made_.byName.emplace(c.name, made_.computations.size());
    if (c.entry) made_.entry = made_.computations.size();
    made_.computations.push_back(std::move(c));
  }

  const Computation& computation(const Attribute& named) const {
    const auto found = module_.byName.find(nameIn(named));
    if (found == module_.byName.end()) failAt(file_, named.place, "found no such computation");
    return module_.computations[found->second];
  }

  static std::string nameIn(const Attribute& a) {
    return a.value.starts_with('%') ? a.value.substr(1) : a.value;
  }

  // Whether devices meet in it, or ask for their numbers.
  bool inLockstep(const Computation& c) {
    if (const auto known = lockstep_.find(c.name); known != lockstep_.end()) return known->second;
    lockstep_[c.name] = false;
    bool found = false;
    for (const Instruction& i : c.instructions) {
      found = found || meets(i.opcode) || asksForDevice(i.opcode);
      for (const Attribute& a : i.attributes)
        for (const std::string& name : calledIn(a)) {
          const auto called = module_.byName.find(name);
          if (called != module_.byName.end() && inLockstep(module_.computations[called->second]))
            found = true;
        }
    }
    lockstep_[c.name] = found;
    return found;
  }

  static Names calledIn(const Attribute& a) {
    static const std::set<std::string, std::less<>> kCall{"to_apply",
                                                          "calls",
                                                          "body",
                                                          "condition",
                                                          "branch_computations",
                                                          "called_computations",
                                                          "true_computation",
                                                          "false_computation",
                                                          "select",
                                                          "scatter"};
    if (!kCall.contains(a.name)) return {};
    Names names;
    std::string name;
    for (const char c : a.value + ",") {
      if (c == ',' || c == '{' || c == '}' || c == ' ' || c == '%') {
        if (!name.empty()) names.push_back(std::exchange(name, {}));
      } else {
        name += c;
      }
    }
    return names;
  }

  bool callsLockstep(const Instruction& i) const {
    for (const Attribute& a : i.attributes)
      for (const std::string& name : calledIn(a))
        if (const auto found = lockstep_.find(name); found != lockstep_.end() && found->second)
          return true;
    return false;
  }

  static std::string allOf(const std::string& computation) { return computation + "..all"; }

  // Takes and gives tuples of what each device has.
  void lockstep(const Computation& c) {
    Writer writer(allOf(c.name), false, c.place);
    Copies copies;
    for (const auto& [number, parameter] : parametersOf(c, file_)) {
      const std::string all =
          writer.add(*parameter, parameter->name, "parameter",
                     tupleOf(std::vector<Shape>(at(devices_), parameter->shape)), {}, {},
                     std::to_string(number));
      for (std::int64_t d = 0; d < devices_; ++d)
        copies[parameter->name].push_back(writer.element(*parameter, all, at(d), parameter->shape));
    }
    keep(finished(writer, c, copies));
  }

  Computation finished(Writer& writer, const Computation& c, Copies& copies) {
    for (const Instruction& i : c.instructions)
      if (i.opcode != "parameter") copies[i.name] = copied(writer, c, i, copies);
    const Instruction& root = c.instructions[c.root];
    return writer.finish(writer.add(root, "all", "tuple",
                                    tupleOf(std::vector<Shape>(at(devices_), root.shape)),
                                    copies.at(root.name)));
  }

  void entry(const Computation& c) {
    Writer writer(c.name, true, c.place);
    Copies copies;
    for (const auto& [number, parameter] : parametersOf(c, file_))
      copies[parameter->name] = parameterCopies(writer, *parameter, number);
    for (const Instruction& i : c.instructions)
      if (i.opcode != "parameter") copies[i.name] = copied(writer, c, i, copies);
    const Instruction& root = c.instructions[c.root];
    const std::vector<Shape> shapes = resultsOf(c);
    std::vector<Shape> stacked;
    Names results;
    for (std::size_t k = 0; k < shapes.size(); ++k) {
      Names pieces;
      for (const std::string& copy : copies.at(root.name)) {
        const std::string piece =
            root.shape.tuple ? writer.element(root, copy, k, shapes[k]) : copy;
        pieces.push_back(
            writer.add(root, piece + "@row", "reshape", withDimension(shapes[k], 1), {piece}));
      }
      stacked.push_back(withDimension(shapes[k], devices_));
      results.push_back(writer.add(root, "result@" + std::to_string(k), "concatenate",
                                   stacked.back(), pieces, {{"dimensions", "{0}", {}}}));
    }
    keep(writer.finish(writer.add(root, "results@all", "tuple", tupleOf(stacked), results)));
  }

  Names parameterCopies(Writer& writer, const Instruction& parameter, std::int64_t number) {
    Instruction whole = parameter;
    std::erase_if(whole.attributes, [](const Attribute& a) { return a.name == "sharding"; });
    Names copies;
    const auto placed = placed_.find(number);
    if (placed == placed_.end()) {
      whole.shape = withDimension(parameter.shape, devices_);
      const Shape shape = whole.shape;
      const std::string name = writer.add(std::move(whole));
      for (std::int64_t d = 0; d < devices_; ++d) {
        const std::string row =
            writer.slice(parameter, name + "@row" + std::to_string(d), name, shape, 0, d, d + 1);
        copies.push_back(writer.add(parameter, name + "@" + std::to_string(d), "reshape",
                                    parameter.shape, {row}));
      }
      return copies;
    }
    const Tiling& tiling = placed->second;
    for (std::size_t d = 0; d < whole.shape.sizes.size(); ++d)
      whole.shape.sizes[d] *= tiling.tiles[d];
    const Shape full = whole.shape;
    const std::string name = writer.add(std::move(whole));
    for (std::int64_t device = 0; device < devices_; ++device) {
      std::string piece = name;
      Shape shape = full;
      for (std::size_t d = 0; d < full.sizes.size(); ++d) {
        const std::int64_t size = parameter.shape.sizes[d],
                           low = tiling.tileOf[at(device)][d] * size;
        if (tiling.tiles[d] == 1) continue;
        piece = writer.slice(parameter, name + "@" + std::to_string(device), piece, shape, d, low,
                             low + size);
        shape.sizes[d] = size;
      }
      copies.push_back(piece);
    }
    return copies;
  }

  const Names& operandCopies(const Instruction& i, std::size_t k, const Copies& copies) const {
    if (k >= i.operands.size()) unsupported(i, "found too few operands");
    return copies.at(i.operands[k].name);
  }

  const Attribute& required(const Instruction& i, const char* name) const {
    const Attribute* a = i.attribute(name);
    if (a == nullptr) unsupported(i, "no attribute '" + std::string(name) + "'");
    return *a;
  }

  Names copied(Writer& writer, const Computation& c, const Instruction& i, const Copies& copies) {
    const std::string kind = kindOf(i.opcode);
    if (i.opcode.ends_with("-done") || i.opcode.ends_with("-update"))
      if (meets(i.opcode) ||
          (kind == "async" && !i.operands.empty() && begun_.contains(i.operands[0].name))) {
        if (kind == "async") begun_.insert(i.name);
        return operandCopies(i, 0, copies);
      }
    if (meets(i.opcode)) return met(writer, c, i, copies);
    if (asksForDevice(i.opcode)) {
      Names names;
      const bool own = (i.opcode == "replica-id") == replicas_;
      for (std::int64_t d = 0; d < devices_; ++d)
        names.push_back(writer.add(i, copyName(i, d), "constant", i.shape, {}, {},
                                   std::to_string(own ? d : 0)));
      return names;
    }
    if (i.opcode == "send" || i.opcode == "recv" || i.opcode.starts_with("ragged-"))
      unsupported(i, "is not supported");
    if (callsLockstep(i)) return called(writer, i, copies);
    Names names;
    for (std::int64_t d = 0; d < devices_; ++d) {
      Instruction copy = i;
      copy.root = false;
      copy.name = copyName(i, d);
      for (Operand& operand : copy.operands) operand.name = copies.at(operand.name)[at(d)];
      std::erase_if(copy.attributes, [](const Attribute& a) { return a.name == "sharding"; });
      names.push_back(writer.add(std::move(copy)));
    }
    return names;
  }

  static std::string copyName(const Instruction& i, std::int64_t device) {
    return i.name + "@" + std::to_string(device);
  }

  Names called(Writer& writer, const Instruction& i, const Copies& copies) {
    const auto all = [&](const Names& of, const Shape& shape) {
      return writer.add(i, i.name + "@given", "tuple",
                        tupleOf(std::vector<Shape>(at(devices_), shape)), of);
    };
    const auto shapeOf = [&](const Computation& c, std::int64_t k) {
      const auto parameters = parametersOf(c, file_);
      const auto found = parameters.find(k);
      if (found == parameters.end()) unsupported(i, "what it calls takes fewer operands");
      return found->second->shape;
    };
    const Shape given = tupleOf(std::vector<Shape>(at(devices_), i.shape));
    std::string result;
    Shape each = i.shape;
    if (i.opcode == "call" || i.opcode == "fusion" || i.opcode == "async-start") {
      const Computation& c = computation(required(i, i.opcode == "call" ? "to_apply" : "calls"));
      Names operands;
      for (std::size_t k = 0; k < i.operands.size(); ++k)
        operands.push_back(
            all(operandCopies(i, k, copies), shapeOf(c, static_cast<std::int64_t>(k))));
      each = c.instructions[c.root].shape;
      if (i.opcode == "async-start") begun_.insert(i.name);
      result =
          writer.add(i, i.name + "@all", "call", tupleOf(std::vector<Shape>(at(devices_), each)),
                     operands, {{"to_apply", allOf(c.name), {}}});
    } else if (i.opcode == "while") {
      const Computation &condition = computation(required(i, "condition")),
                        &body = computation(required(i, "body"));
      lockstepOf(body);
      result = writer.add(
          i, i.name + "@all", "while", given, {all(operandCopies(i, 0, copies), i.shape)},
          {{"condition", conditionOfAll(condition), {}}, {"body", allOf(body.name), {}}});
    } else {
      unsupported(i, "devices that meet, or ask for their numbers, in what it calls");
    }
    Names names;
    for (std::int64_t d = 0; d < devices_; ++d)
      names.push_back(writer.element(i, result, at(d), each));
    return names;
  }

  void lockstepOf(const Computation& c) {
    if (made_.byName.contains(allOf(c.name))) return;
    lockstep(c);
  }

  // An array of what each device finds: a loop is refused that has not one number for all.
  std::string conditionOfAll(const Computation& c) {
    const std::string name = c.name + "..each";
    if (made_.byName.contains(name)) return name;
    lockstepOf(c);
    const auto parameters = parametersOf(c, file_);
    const Instruction& root = c.instructions[c.root];
    if (parameters.size() != 1 || !parameters.contains(0) || root.shape.tuple)
      failAt(file_, c.place, "found no condition of a loop: one parameter, and one result");
    const Instruction& parameter = *parameters.at(0);
    Writer writer(name, false, c.place);
    const Shape given = tupleOf(std::vector<Shape>(at(devices_), parameter.shape));
    const std::string state = writer.add(parameter, "state", "parameter", given, {}, {}, "0");
    const std::string found =
        writer.add(root, "found", "call", tupleOf(std::vector<Shape>(at(devices_), root.shape)),
                   {state}, {{"to_apply", allOf(c.name), {}}});
    Names rows;
    for (std::int64_t d = 0; d < devices_; ++d)
      rows.push_back(writer.add(root, "row@" + std::to_string(d), "reshape",
                                withDimension(root.shape, 1),
                                {writer.element(root, found, at(d), root.shape)}));
    keep(writer.finish(writer.add(root, "each", "concatenate", withDimension(root.shape, devices_),
                                  rows, {{"dimensions", "{0}", {}}})));
    return name;
  }

  // ---- where devices meet ----

  std::vector<std::vector<std::int64_t>> groups(const Instruction& i) const {
    auto found = groupsOf(i, file_, devices_, replicas_);
    if (!found) unsupported(i, "partitions that meet in a program of several replicas");
    std::vector<bool> seen(at(devices_), false);
    for (const auto& group : *found) {
      if (group.size() != found->front().size()) unsupported(i, "groups of different sizes");
      for (const std::int64_t d : group) {
        if (d < 0 || d >= devices_ || seen[at(d)]) unsupported(i, "groups that are no partition");
        seen[at(d)] = true;
      }
    }
    if (std::find(seen.begin(), seen.end(), false) != seen.end())
      unsupported(i, "a device that stands in no group");
    return *found;
  }

  std::size_t dimension(const Instruction& i, const Shape& shape) const {
    const Attribute* a = i.attribute("dimensions");
    const std::vector<std::int64_t> list =
        a == nullptr ? std::vector<std::int64_t>{} : parseIntegers(*a, file_);
    if (list.size() != 1 || list[0] < 0 || at(list[0]) >= shape.sizes.size())
      unsupported(i, "'dimensions' that is not one dimension");
    return at(list[0]);
  }

  // Of operand k, before the collective.
  Shape operandShape(const Computation& c, const Instruction& i, std::size_t k) const {
    return c.instructions[c.byName.at(i.operands[k].name)].shape;
  }

  Names met(Writer& writer, const Computation& c, const Instruction& i, const Copies& copies) {
    const std::string kind = kindOf(i.opcode);
    if (kind == "all-to-all" && i.operands.size() > 1) return exchangedPieces(writer, c, i, copies);
    std::vector<Names> results;
    std::vector<Shape> shapes;
    for (std::size_t k = 0; k < i.operands.size(); ++k) {
      const Names& x = operandCopies(i, k, copies);
      Shape shape = operandShape(c, i, k);
      if (shape.tuple) unsupported(i, "an operand that is a tuple");
      results.push_back(kind == "collective-permute" ? permuted(writer, i, x, shape)
                                                     : metOne(writer, i, kind, x, shape));
      shapes.push_back(shape);
    }
    if (results.size() == 1) return results[0];
    Names tuples;
    for (std::int64_t d = 0; d < devices_; ++d) {
      Names elements;
      for (const Names& r : results) elements.push_back(r[at(d)]);
      tuples.push_back(writer.add(i, copyName(i, d), "tuple", tupleOf(shapes), elements));
    }
    return tuples;
  }

  // `shape`: of the operand, becomes that of the result.
  Names metOne(Writer& writer, const Instruction& i, const std::string& kind, const Names& x,
               Shape& shape) {
    const Shape one = shape;
    const auto all = groups(i);
    const auto size = static_cast<std::int64_t>(all[0].size());
    Names names(at(devices_));
    if (kind == "all-gather") shape.sizes[dimension(i, one)] *= size;
    if (kind == "reduce-scatter" || kind == "all-to-all") {
      const std::size_t dim = dimension(i, one);
      if (one.sizes[dim] % size != 0) unsupported(i, "pieces that are not equal");
      if (kind == "reduce-scatter") shape.sizes[dim] /= size;
    }
    for (const auto& group : all) {
      Names members;
      for (const std::int64_t d : group) members.push_back(x[at(d)]);
      if (kind == "collective-broadcast") {
        for (const std::int64_t d : group) names[at(d)] = members[0];
      } else if (kind == "all-gather") {
        const std::string gathered = writer.add(
            i, i.name, "concatenate", shape, members,
            {{"dimensions", listText({static_cast<std::int64_t>(dimension(i, one))}), {}}});
        for (const std::int64_t d : group) names[at(d)] = gathered;
      } else if (kind == "all-to-all") {
        const std::size_t dim = dimension(i, one);
        const std::int64_t piece = one.sizes[dim] / size;
        for (std::int64_t m = 0; m < size; ++m) {
          Names pieces;
          for (const std::string& member : members)
            pieces.push_back(
                writer.slice(i, member + "@piece", member, one, dim, m * piece, (m + 1) * piece));
          names[at(group[at(m)])] =
              writer.add(i, copyName(i, group[at(m)]), "concatenate", one, pieces,
                         {{"dimensions", listText({static_cast<std::int64_t>(dim)}), {}}});
        }
      } else {
        const std::string sum = reduced(writer, i, members, one);
        for (std::int64_t m = 0; m < size; ++m) {
          std::string& name = names[at(group[at(m)])];
          name = sum;
          if (kind == "all-reduce") continue;
          const std::size_t dim = dimension(i, one);
          const std::int64_t piece = shape.sizes[dim];
          name =
              writer.slice(i, copyName(i, group[at(m)]), sum, one, dim, m * piece, (m + 1) * piece);
        }
      }
    }
    return names;
  }

  std::string reduced(Writer& writer, const Instruction& i, const Names& members,
                      const Shape& shape) {
    const Computation& c = computation(required(i, "to_apply"));
    static const std::set<std::string, std::less<>> kKnown{"add", "multiply", "maximum", "minimum",
                                                           "and", "or",       "xor"};
    const Instruction& root = c.instructions[c.root];
    const auto isParameter = [&](const Operand& o) {
      return c.instructions[c.byName.at(o.name)].opcode == "parameter";
    };
    if (!kKnown.contains(root.opcode) || root.operands.size() != 2 ||
        !isParameter(root.operands[0]) || !isParameter(root.operands[1]) ||
        root.operands[0].name == root.operands[1].name)
      unsupported(i, "a reduction other than one by " + std::string("add, multiply, maximum, ") +
                         "minimum, and, or, xor");
    std::string sum = members[0];
    for (std::size_t m = 1; m < members.size(); ++m)
      sum = writer.add(i, i.name, root.opcode, shape, {sum, members[m]});
    return sum;
  }

  // One operand for each member of a group: the k-th is for the k-th.
  Names exchangedPieces(Writer& writer, const Computation& c, const Instruction& i,
                        const Copies& copies) {
    Names tuples(at(devices_));
    for (const auto& group : groups(i)) {
      if (group.size() != i.operands.size())
        unsupported(i, "another number of operands than members of a group");
      for (std::size_t m = 0; m < group.size(); ++m) {
        Names elements;
        for (const std::int64_t from : group)
          elements.push_back(operandCopies(i, m, copies)[at(from)]);
        tuples[at(group[m])] =
            writer.add(i, copyName(i, group[m]), "tuple",
                       tupleOf(std::vector<Shape>(group.size(), operandShape(c, i, m))), elements);
      }
    }
    return tuples;
  }

  Names permuted(Writer& writer, const Instruction& i, const Names& x, const Shape& shape) {
    const Attribute& pairs = required(i, "source_target_pairs");
    if ((i.attribute("channel_id") != nullptr) == replicas_)
      unsupported(i, "devices of other replicas");
    Names names(at(devices_));
    for (const auto& p : parseLists(pairs, file_)) {
      if (p.size() != 2 || p[0] < 0 || p[1] < 0 || p[0] >= devices_ || p[1] >= devices_)
        failAt(file_, pairs.place, "found a pair of devices that are not there");
      if (!names[at(p[1])].empty())
        failAt(file_, pairs.place, "found a device that receives twice");
      names[at(p[1])] = x[at(p[0])];
    }
    for (std::int64_t d = 0; d < devices_; ++d) {
      if (!names[at(d)].empty()) continue;
      const std::string zero =
          writer.add(i, copyName(i, d) + "@zero", "constant", arrayOf(shape, {}), {}, {},
                     shape.type == "pred" ? "false" : "0");
      names[at(d)] =
          writer.add(i, copyName(i, d), "broadcast", shape, {zero}, {{"dimensions", "{}", {}}});
    }
    return names;
  }

  const Module& module_;
  const std::string& file_;
  std::int64_t devices_;
  bool replicas_;
  const std::map<std::int64_t, Tiling>& placed_;  // by the parameter's number
  std::map<std::string, bool> lockstep_;          // by the computation's name
  std::set<std::string> begun_;                   // async-start that became calls
  Module made_;
};

// The program after the pass: what is stacked has a first dimension, of which each device holds one
// element.
Module withFirstDimension(const Module& module, std::int64_t devices,
                          const std::map<std::int64_t, Tiling>& placed, const std::string& file) {
  const auto sharding = [&](const Shape& shape) {
    std::string tiles = std::to_string(devices);
    for (std::size_t d = 0; d < shape.sizes.size(); ++d) tiles += ",1";
    return Attribute{
        "sharding", "{devices=[" + tiles + "]<=[" + std::to_string(devices) + "]}", {}};
  };
  Module made = module;
  const Computation& from = module.computations[module.entry];
  Writer writer(from.name, true, from.place);
  for (Instruction i : from.instructions) {
    i.root = false;
    if (i.opcode != "parameter" || placed.contains(numberOf(i, file))) {
      writer.add(std::move(i));
      continue;
    }
    Instruction own = i;
    own.name += "@row";
    own.shape = withDimension(i.shape, 1);
    std::erase_if(own.attributes, [](const Attribute& a) { return a.name == "sharding"; });
    own.attributes.push_back(sharding(i.shape));
    const std::string row = writer.add(std::move(own));
    writer.add(i, i.name, "reshape", i.shape, {row});
  }
  const Instruction& root = from.instructions[from.root];
  const std::vector<Shape> shapes = resultsOf(from);
  std::vector<Shape> rows;
  Names results;
  std::string shardings;
  for (std::size_t k = 0; k < shapes.size(); ++k) {
    const std::string piece =
        root.shape.tuple ? writer.element(root, root.name, k, shapes[k]) : root.name;
    rows.push_back(withDimension(shapes[k], 1));
    results.push_back(
        writer.add(root, "result@" + std::to_string(k), "reshape", rows.back(), {piece}));
    shardings += (k == 0 ? "" : ", ") + sharding(shapes[k]).value;
  }
  made.computations[made.entry] =
      writer.finish(writer.add(root, "results@row", "tuple", tupleOf(rows), results,
                               {{"sharding", "{" + shardings + "}", {}}}));
  return made;
}

}  // namespace

std::optional<CopyOf> copyOf(std::string_view modelTensor) {
  CopyOf found;
  std::optional<std::int64_t> device;
  while (!modelTensor.empty()) {
    const std::size_t mark = modelTensor.find('@');
    found.tensor += modelTensor.substr(0, mark);
    if (mark == std::string_view::npos) break;
    modelTensor.remove_prefix(mark + 1);
    if (modelTensor.starts_with("all")) {
      modelTensor.remove_prefix(3);
      continue;
    }
    std::int64_t number = 0;
    const auto [end, error] =
        std::from_chars(modelTensor.data(), modelTensor.data() + modelTensor.size(), number);
    if (error != std::errc() || (device && *device != number)) return std::nullopt;
    device = number;
    modelTensor.remove_prefix(at(end - modelTensor.data()));
  }
  if (!device) return std::nullopt;
  found.device = *device;
  return found;
}

StackedPrograms stackedPrograms(const Module& before, const std::string& beforeFile,
                                const Module& after, const std::string& afterFile,
                                std::int64_t devices, bool replicas) {
  const Computation &one = before.computations[before.entry],
                    &two = after.computations[after.entry];
  std::size_t instructions = 0;
  for (const Computation& c : before.computations) instructions += c.instructions.size();
  if (instructions * at(devices) > kMostCopies)
    failAt(beforeFile, one.place,
           "found " + std::to_string(instructions) + " instructions for " +
               std::to_string(devices) + " devices, expected at most " +
               std::to_string(kMostCopies) + " together");
  const auto given = parametersOf(one, beforeFile), wanted = parametersOf(two, afterFile);
  if (given.size() != wanted.size())
    failAt(afterFile, two.place,
           "found " + std::to_string(wanted.size()) + " parameters, the program before has " +
               std::to_string(given.size()));
  std::map<std::int64_t, Tiling> placed;
  for (const auto& [number, parameter] : wanted) {
    const auto other = given.find(number);
    if (other == given.end() || !(other->second->shape == parameter->shape))
      failAt(
          afterFile, parameter->place,
          "parameter " + std::to_string(number) + " is " + toText(parameter->shape) +
              (other == given.end() ? ", which the program before does not have"
                                    : ", in the program before " + toText(other->second->shape)));
    if (parameter->shape.tuple)
      failAt(afterFile, parameter->place, "found a parameter that is a tuple, expected an array");
    const auto here = tilingOf(*parameter, afterFile, devices),
               there = tilingOf(*other->second, beforeFile, devices);
    if (here && there && here->tiles == there->tiles && here->tileOf == there->tileOf)
      placed.emplace(number, *here);
    elementsOf(withDimension(parameter->shape, devices), afterFile, parameter->place);
  }
  const std::vector<Shape> results = resultsOf(two);
  if (results != resultsOf(one))
    failAt(afterFile, two.instructions[two.root].place,
           "the results are " + toText(two.instructions[two.root].shape) +
               ", in the program before " + toText(one.instructions[one.root].shape));
  for (const Shape& shape : results) {
    const Place place = two.instructions[two.root].place;
    if (shape.tuple) failAt(afterFile, place, "found a tuple among the results, expected arrays");
    elementsOf(withDimension(shape, devices), afterFile, place);
  }
  return {OneDevice(before, beforeFile, devices, replicas, placed).make(),
          withFirstDimension(after, devices, placed, afterFile)};
}

}  // namespace shardproof::hlo
