#include "reader/plan_resolver.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "shardproof/error.h"
#include "util/json_pointer.h"

namespace shardproof::reader {

// --- AxisIndex ---

AxisIndex::AxisIndex(const Plan& plan, const Names& names) : plan_(&plan), names_(&names) {
  for (std::size_t i = 0; i < plan.mesh.size(); ++i) {
    // An axis whose name was never read anywhere else has no id, and nothing can refer to it.
    if (const NameId id = names.find(plan.mesh[i].name); id.valid())
      axes_.emplace_back(id.value, static_cast<std::int32_t>(i));
  }
  if (const NameId id = names.find("mb"); id.valid()) microbatch_ = id.value;
}

std::int32_t AxisIndex::lookUp(std::int32_t name) const {
  for (const auto& [n, axis] : axes_) {
    if (n == name) return axis;
  }
  return -1;
}

void AxisIndex::unknown(std::int32_t name, const std::string& pointer) const {
  std::string message =
      "found \"" + names_->text(NameId(name)) + "\", expected an axis of the mesh (";
  for (std::size_t i = 0; i < plan_->mesh.size(); ++i)
    message += (i > 0 ? ", \"" : "\"") + plan_->mesh[i].name + "\"";
  throw InputError(plan_->file, pointer, message + ")");
}

std::int32_t AxisIndex::find(std::int32_t name, const std::string& pointer) const {
  const std::int32_t axis = lookUp(name);
  if (axis < 0) unknown(name, pointer);
  return axis;
}

void AxisIndex::refuse(std::int32_t name, std::int32_t coordinate,
                       const std::string& pointer) const {
  const std::string place = pointer + "/" + escapePointer(names_->text(NameId(name)));
  const std::int32_t size = plan_->mesh[static_cast<std::size_t>(find(name, place))].size;
  throw InputError(plan_->file, place,
                   "found the coordinate " + std::to_string(coordinate) +
                       ", expected one from 0 to " + std::to_string(size - 1));
}

namespace {

// True when two members of a group are one and the same rank, seen from some rank of the program.
bool mayMeet(const Coordinates& a, const Coordinates& b) {
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].first == b[j].first && a[i].second != b[j].second) return false;
    if (a[i].first == b[j].first) {
      ++i, ++j;
    } else {
      ++(a[i].first < b[j].first ? i : j);
    }
  }
  return true;
}

bool sameAxes(const Coordinates& a, const Coordinates& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.first == y.first; });
}

// What a member means on the program's ranks: axes that it does not name are the rank's own, and
// the program fixes some of those.
Coordinates completed(const Coordinates& member, const Coordinates& program) {
  Coordinates out = member;
  for (const auto& c : program) {
    const auto named = std::find_if(member.begin(), member.end(),
                                    [&](const auto& m) { return m.first == c.first; });
    if (named == member.end()) out.push_back(c);
  }
  std::sort(out.begin(), out.end());
  return out;
}

class ProgramResolver {
 public:
  ProgramResolver(Problem& problem, std::int32_t program, const AxisIndex& axes,
                  const TensorIndex& index, std::vector<bool>& produced)
      : plan_(problem.plan),
        names_(problem.names),
        number_(program),
        program_(problem.plan.programs[static_cast<std::size_t>(program)]),
        axes_(axes),
        index_(index),
        produced_(produced) {}

  void run() {
    produced_.assign(program_.graph.tensors.size(), false);
    for (std::size_t n = 0; n < program_.graph.nodes.size(); ++n)
      resolveNode(static_cast<std::int32_t>(n));
  }

 private:
  [[noreturn]] void fail(std::int32_t node, const std::string& field,
                         const std::string& message) const {
    throw InputError(plan_.file, pointer(node) + field, message);
  }
  std::string pointer(std::int32_t node) const { return Plan::nodePointer(number_, node); }
  const Tensor& tensor(std::int32_t t) const {
    return program_.graph.tensors[static_cast<std::size_t>(t)];
  }

  void resolveNode(std::int32_t n) {
    Graph& g = program_.graph;
    Node& node = g.nodes[static_cast<std::size_t>(n)];
    if (node.microbatch.isOne() && node.microbatch.number() >= plan_.microbatches) {
      fail(n, "/mb",
           "found microbatch " + std::to_string(node.microbatch.number()) + ", expected " +
               microbatchRange());
    }
    bool perMicrobatch = false;
    for (std::uint32_t i = 0; i < node.inCount; ++i) {
      Operand& operand = g.operands[node.firstIn + i];
      if (!operand.present()) continue;
      resolveOperand(n, i, node, operand);
      perMicrobatch = perMicrobatch || tensor(operand.tensor).perMicrobatch;
    }
    for (std::uint32_t i = 0; i < node.outCount; ++i) {
      std::int32_t& result = g.results[node.firstOut + i];
      if (result < 0) continue;
      resolveResult(n, i, node, result);
      perMicrobatch = perMicrobatch || tensor(result).perMicrobatch;
    }
    if (program_.issueOrder && perMicrobatch && node.microbatch.isEach()) {
      fail(n, "/mb",
           "found \"*\" in a program with \"order\": \"issue\", expected the number of one "
           "microbatch");
    }
    if (plan_.microbatches == 1)
      node.microbatch = node.microbatch.at(Microbatch::of(0));  // "*" of one microbatch is that one
    if (node.communication >= 0) resolveCommunication(n, node);
  }

  std::string microbatchRange() const {
    return "one from 0 to " + std::to_string(plan_.microbatches - 1);
  }

  // "x#3" is microbatch 3's instance of x, unless a tensor is really called that.
  bool splitMicrobatch(std::string_view text, Operand& operand) const {
    const std::size_t hash = text.rfind('#');
    if (hash == std::string_view::npos) return false;
    const std::string_view digits = text.substr(hash + 1);
    std::int32_t k = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), k);
    if (error != std::errc() || end != digits.data() + digits.size() || k < 0) return false;
    operand.tensor = index_.find(names_.find(text.substr(0, hash)));
    operand.microbatch = Microbatch::of(k);
    return operand.tensor >= 0;
  }

  void resolveOperand(std::int32_t n, std::uint32_t i, const Node& node, Operand& operand) const {
    const std::string& text = names_.text(NameId(operand.tensor));
    const auto place = [&] { return "/in/" + std::to_string(i); };
    const std::int32_t plain = index_.find(NameId(operand.tensor));
    if (plain >= 0) {
      operand.tensor = plain;
    } else if (!splitMicrobatch(text, operand)) {
      fail(n, place(), "found \"" + text + "\", expected the name of a tensor of this program");
    }
    const bool perMicrobatch = tensor(operand.tensor).perMicrobatch;
    if (operand.microbatch.isOne() && !perMicrobatch)
      fail(n, place(), "found \"" + text + "\", but that tensor is not \"per_mb\"");
    if (operand.microbatch.isOne() && operand.microbatch.number() >= plan_.microbatches)
      fail(n, place(), "found \"" + text + "\", expected a microbatch, " + microbatchRange());
    if (operand.microbatch.isNone() && perMicrobatch && node.microbatch.isNone()) {
      fail(n, place(),
           "found the \"per_mb\" tensor \"" + text + "\" in a node without \"mb\", expected \"" +
               text + "#k\" (or \"mb\" on the node)");
    }
  }

  void resolveResult(std::int32_t n, std::uint32_t i, const Node& node,
                     std::int32_t& result) const {
    const std::string& text = names_.text(NameId(result));
    const auto place = [&] { return "/out/" + std::to_string(i); };
    result = index_.find(NameId(result));
    if (result < 0) {
      Operand operand;
      if (splitMicrobatch(text, operand))
        fail(n, place(),
             "found \"" + text +
                 "\", expected a result without \"#\": a node writes its own microbatch");
      fail(n, place(), "found \"" + text + "\", expected the name of a tensor of this program");
    }
    if (tensor(result).perMicrobatch && node.microbatch.isNone()) {
      fail(n, place(),
           "found the \"per_mb\" tensor \"" + text +
               "\" as a result of a node without \"mb\", expected \"mb\" on the node");
    }
    produced_[static_cast<std::size_t>(result)] = true;
  }

  void resolveCommunication(std::int32_t n, const Node& node) {
    CommunicationSpec& spec = program_.communications[static_cast<std::size_t>(node.communication)];
    for (std::size_t i = 0; i < spec.groupAxes.size(); ++i) {
      std::int32_t& axis = spec.groupAxes[i];
      axis = axes_.known(axis) ? axes_.find(axis, {})
                               : axes_.find(axis, pointer(n) + "/group/" + std::to_string(i));
    }
    std::sort(spec.groupAxes.begin(),
              spec.groupAxes.end());  // the group is in rank order, however its axes are listed
    for (std::size_t i = 0; i < spec.groupAt.size(); ++i)
      axes_.resolve(spec.groupAt[i], [&] { return pointer(n) + "/group_at/" + std::to_string(i); });
    checkMembers(n, spec);
    axes_.resolve(spec.peer, [&] { return pointer(n) + peerField(spec.kind); });
    resolveDimensions(n, node, spec);
  }

  static std::string peerField(Communication kind) {
    if (kind == Communication::kBroadcast) return "/root";
    return kind == Communication::kSend ? "/to" : "/from";
  }

  void checkMembers(std::int32_t n, const CommunicationSpec& spec) const {
    std::vector<std::pair<Coordinates, std::size_t>> members;
    for (std::size_t i = 0; i < spec.groupAt.size(); ++i)
      members.emplace_back(completed(spec.groupAt[i], program_.at), i);
    std::sort(members.begin(), members.end());
    const bool uniform = std::all_of(members.begin(), members.end(), [&](const auto& m) {
      return sameAxes(m.first, members.front().first);
    });
    for (std::size_t i = 0; i + 1 < members.size(); ++i) {
      // Members that name the same axes meet only when they are equal, hence neighbours; others
      // need all pairs.
      const std::size_t last = uniform ? i + 1 : members.size() - 1;
      for (std::size_t j = i + 1; j <= last; ++j) {
        if (!mayMeet(members[i].first, members[j].first)) continue;
        const auto [first, second] = std::minmax(members[i].second, members[j].second);
        fail(n, "/group_at/" + std::to_string(second),
             "names the same rank as member " + std::to_string(first) +
                 ", expected every member once");
      }
    }
  }

  void resolveDimensions(std::int32_t n, const Node& node, CommunicationSpec& spec) const {
    const Graph& g = program_.graph;
    if (spec.kind == Communication::kAllToAll) {
      resolveDimension(n, "/attrs/idim", g.in(node)[0].tensor, spec.dim);
      resolveDimension(n, "/attrs/odim", g.in(node)[0].tensor, spec.odim);
    } else if (spec.kind == Communication::kAllGather ||
               spec.kind == Communication::kReduceScatter) {
      resolveDimension(n, "/attrs/dim", g.in(node)[0].tensor, spec.dim);
    }
  }

  // Negative dimensions count from the end, as in PyTorch.
  void resolveDimension(std::int32_t n, const std::string& field, std::int32_t operand,
                        std::int32_t& dim) const {
    const auto rank = static_cast<std::int32_t>(tensor(operand).shape.size());
    if (dim < -rank || dim >= rank) {
      fail(n, field,
           "found dimension " + std::to_string(dim) + ", but the operand has " +
               std::to_string(rank) + " dimensions");
    }
    if (dim < 0) dim += rank;
  }

  const Plan& plan_;
  const Names& names_;
  std::int32_t number_;
  Program& program_;
  const AxisIndex& axes_;
  const TensorIndex& index_;
  std::vector<bool>& produced_;
};

}  // namespace

PlanIndex resolvePrograms(Problem& problem) {
  Plan& plan = problem.plan;
  PlanIndex out;
  out.axes = AxisIndex(plan, problem.names);
  for (std::size_t p = 0; p < plan.programs.size(); ++p)
    out.axes.resolve(plan.programs[p].at, [p] { return "/programs/" + std::to_string(p) + "/at"; });
  out.grid = ProgramGrid(plan);
  out.tensors.reserve(plan.programs.size());
  out.produced.resize(plan.programs.size());
  for (std::size_t p = 0; p < plan.programs.size(); ++p) {
    out.tensors.emplace_back(plan.programs[p].graph);
    ProgramResolver(problem, static_cast<std::int32_t>(p), out.axes, out.tensors[p],
                    out.produced[p])
        .run();
  }
  return out;
}

}  // namespace shardproof::reader
