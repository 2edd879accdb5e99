// SPDX-License-Identifier: Apache-2.0
#include "mutate/plan_graph.h"

#include <algorithm>

#include "ops/registry.h"
#include "shardproof/error.h"
#include "util/json_pointer.h"

namespace shardproof::mutate {
namespace {

shardproof::NodeRef idOf(NodeRef ref) { return {ProgramId(ref.program), NodeId(ref.node)}; }

// Equal for nodes that do the same for different microbatches, whatever they call their results.
std::string lineOf(const Json& node) {
  Json key = node;
  for (const char* field : {"mb", "out", "loc"}) key.erase(field);
  for (Json& operand : key["in"])
    if (operand.is_string()) operand = std::string(stem(operand.get_ref<const std::string&>()));
  return key.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool wants(const Json& node, std::size_t result) {
  const Json& out = node.at("out");
  return result < out.size() && !out[result].is_null();
}

// Bugs are planted in programs of single coordinates and in lineage of those.
void refuseStretches(const Json& plan, const std::string& file) {
  const auto check = [&](const Json& owner, const std::string& pointer) {
    const auto at = owner.find("at");
    if (at == owner.end()) return;
    for (const auto& [axis, c] : at->items())
      if (c.is_array())
        throw InputError(file, pointer + "/at/" + escapePointer(axis),
                         "found a stretch of coordinates, which no bug can be planted beside, "
                         "expected single coordinates");
  };
  for (std::size_t p = 0; p < plan.at("programs").size(); ++p)
    check(plan["programs"][p], "/programs/" + std::to_string(p));
  for (std::size_t e = 0; e < plan.at("lineage").size(); ++e) {
    const Json& shards = plan["lineage"][e].at("shards");
    for (std::size_t s = 0; s < shards.size(); ++s)
      for (std::size_t k = 0; k < shards[s].at("parts").size(); ++k)
        check(shards[s]["parts"][k], "/lineage/" + std::to_string(e) + "/shards/" +
                                         std::to_string(s) + "/parts/" + std::to_string(k));
  }
}

}  // namespace

std::string pointerTo(NodeRef ref) {
  return "/programs/" + std::to_string(ref.program) + "/nodes/" + std::to_string(ref.node);
}

const std::string& opOf(const Json& node) { return node.at("op").get_ref<const std::string&>(); }

const Json& attributeOf(const Json& node, const char* name) {
  static const Json null;
  const auto attrs = node.find("attrs");
  if (attrs == node.end()) return null;
  const auto it = attrs->find(name);
  return it == attrs->end() ? null : *it;
}

std::vector<std::string> stepAxes(const Json& node) {
  std::vector<std::string> axes;
  if (const auto step = node.find("step"); step != node.end())
    for (const auto& [axis, by] : step->items()) axes.push_back(axis);
  return axes;
}

bool isCommunication(const Json& node) { return node.contains("comm"); }
const std::string& commOf(const Json& node) {
  return node.at("comm").get_ref<const std::string&>();
}
bool isCollective(const Json& node) {
  return isCommunication(node) && opOf(node) != "send" && opOf(node) != "recv" &&
         opOf(node) != "broadcast";
}
bool isBackward(const Json& node) { return opOf(node).ends_with("_backward"); }
bool isSum(const Json& node) {
  return attributeOf(node, "reduce").is_null() || attributeOf(node, "reduce") == "sum";
}
bool isIdentity(const std::string& op) {
  return op == "identity" || op == "to" || op == "contiguous" || op == "float";
}

std::string_view stem(std::string_view operand) {
  const std::size_t at = operand.rfind('#');
  return at == std::string_view::npos ? operand : operand.substr(0, at);
}

bool valueMatters(const Json& node, std::size_t operand) {
  const std::string& op = opOf(node);
  if (node.at("in").at(operand).is_null()) return false;
  if (!isBackward(node)) return op != "create_mask" && op != "amax" && op != "amin";
  const std::string base = op.substr(0, op.size() - std::string_view("_backward").size());
  if (base == "multiref") return true;
  const std::size_t gradients = base == "apply_rotary_emb" || base == "moe_gate" ? 2 : 1;
  if (operand < gradients) return true;
  const std::size_t own = operand - gradients;  // of the operator's operands
  const bool scaled = !attributeOf(node, "scalar").is_null();
  if (!scaled && (base == "mul" || base == "matmul" || base == "linear"))
    return own < 2 && wants(node, 1 - own);
  if (base == "div" && !scaled) return own == 1 || wants(node, 1);
  if (base == "embedding") return own == 0;
  if (base == "apply_rotary_emb") return own == 2;
  if (base == "rms_norm" || base == "layer_norm") return own == 0 || (own == 1 && wants(node, 0));
  if (base == "where") return own == 0;
  if (scaled) return base == "pow";
  const ops::Registry& registry = ops::Registry::instance();
  const OperatorId forward = registry.find(base);
  return !forward.valid() || !registry.at(forward).traits.affine;
}

PlanGraph::PlanGraph(const Json& plan, const std::string& file) : plan_(plan) {
  asPlan(file, [&] {
    if (plan.at("format") != "shardproof-plan")
      throw InputError(file, "/format", "expected \"shardproof-plan\"");
    checkSizes(plan, file);
    refuseStretches(plan, file);
    for (const Json& axis : plan.at("mesh"))
      axes_.emplace_back(axis.at(0).get<std::string>(), axis.at(1).get<std::int64_t>());
    if (axes_.size() > 60) throw InputError(file, "/mesh", "too many axes");
    if (plan.contains("microbatches")) microbatches_ = plan.at("microbatches").get<std::int64_t>();
    readPrograms();
    findCorrespondence();
    readLineage();
    propagate();
    numberValues();
  });
}

const Json& PlanGraph::nodesOf(int program) const { return in(program).json->at("nodes"); }

std::int64_t PlanGraph::axisSize(const std::string& axis) const {
  for (const auto& [name, size] : axes_)
    if (name == axis) return size;
  return 1;
}

PlanGraph::Mask PlanGraph::axisBit(const std::string& axis) const {
  for (std::size_t i = 0; i < axes_.size(); ++i)
    if (axes_[i].first == axis) return axes_[i].second > 1 ? Mask{1} << i : 0;
  return axis == "mb" && microbatches_ > 1 ? Mask{1} << axes_.size() : 0;
}

void PlanGraph::readPrograms() {
  for (const Json& json : plan_.at("programs")) {
    Program program{.json = &json};
    if (json.contains("at"))
      for (const auto& [axis, c] : json.at("at").items()) program.at[axis] = c.get<std::int64_t>();
    for (const auto& [name, tensor] : json.at("tensors").items()) {
      Tensor& own = program.tensors[name];
      own.declared = &tensor;
      own.id = TensorId(program.order.size());
      program.order.push_back(name);
    }
    programs_.push_back(std::move(program));
    const int p = programs() - 1;
    for (int n = 0; n < nodes(p); ++n) {
      const Json& node = this->node({p, n});
      opOf(node);
      for (const Json& operand : node.at("in")) {
        if (Tensor* t = find(p, operand);
            t != nullptr && (t->readers.empty() || t->readers.back() != n))
          t->readers.push_back(n);
      }
      for (const Json& result : node.at("out")) {
        if (Tensor* t = find(p, result)) t->producers.push_back(n);
      }
      if (isCommunication(node)) byComm_[commOf(node)].push_back({p, n});
    }
  }
}

void PlanGraph::findCorrespondence() {
  std::unordered_map<std::string, std::int32_t> numbers;
  const auto number = [&](std::string key) {
    return numbers.emplace(std::move(key), static_cast<std::int32_t>(numbers.size())).first->second;
  };
  std::vector<Correspondence::Outline> outlines;
  for (int p = 0; p < programs(); ++p) {
    Correspondence::Outline& outline = outlines.emplace_back();
    outline.kinds.resize(in(p).order.size());
    const auto tensorsIn = [&](const Json& list) {
      std::vector<TensorId> tensors;
      for (const Json& name : list) {
        const Tensor* t = find(p, name);
        tensors.push_back(t == nullptr ? TensorId::none() : t->id);
      }
      return tensors;
    };
    for (const Json& node : nodesOf(p)) {
      Correspondence::Outline::Node& own = outline.nodes.emplace_back();
      // Two stages may run the same operators, not the same collectives. Messages have ids of their
      // own on each rank in some plans.
      own.operation = number(opOf(node) + ' ' + node.value("mb", Json()).dump() + ' ' +
                             (isCollective(node) ? commOf(node) : ""));
      own.in = tensorsIn(node.at("in"));
      own.out = tensorsIn(node.at("out"));
      if (node.contains("mb") && node.at("mb").is_number_integer()) own.line = number(lineOf(node));
    }
  }
  correspondence_.emplace(std::move(outlines));
}

PlanGraph::Tensor* PlanGraph::find(int program, const Json& operand) {
  if (!operand.is_string()) return nullptr;
  auto& tensors = programs_[static_cast<std::size_t>(program)].tensors;
  const std::string& name = operand.get_ref<const std::string&>();
  auto it = tensors.find(name);
  if (it == tensors.end()) it = tensors.find(std::string(stem(name)));
  return it == tensors.end() ? nullptr : &it->second;
}

const PlanGraph::Tensor& PlanGraph::find(int program, std::string_view name) const {
  static const Tensor none;
  const auto& tensors = in(program).tensors;
  auto it = tensors.find(std::string(name));
  if (it == tensors.end()) it = tensors.find(std::string(stem(name)));
  return it == tensors.end() ? none : it->second;
}

std::vector<NodeRef> PlanGraph::all(const std::function<bool(NodeRef)>& wanted) const {
  std::vector<NodeRef> found;
  for (int p = 0; p < programs(); ++p)
    for (int n = 0; n < nodes(p); ++n)
      if (const NodeRef ref{p, n}; wanted(ref)) found.push_back(ref);
  return found;
}

std::optional<std::int64_t> PlanGraph::at(int program, const std::string& axis) const {
  const auto it = in(program).at.find(axis);
  return it == in(program).at.end() ? std::nullopt : std::optional(it->second);
}

std::vector<std::string> PlanGraph::freeAxes(int program) const {
  std::vector<std::string> free;
  for (const auto& [axis, size] : axes_)
    if (size > 1 && !at(program, axis)) free.push_back(axis);
  return free;
}

const Json& PlanGraph::tensor(int program, std::string_view name) const {
  static const Json none = Json::object();
  const Json* declared = find(program, name).declared;
  return declared == nullptr ? none : *declared;
}
bool PlanGraph::isGiven(int program, std::string_view name) const {
  return tensor(program, name).contains("kind");
}
bool PlanGraph::alike(int program, std::string_view a, std::string_view b) const {
  const Json &x = tensor(program, a), &y = tensor(program, b);
  for (const char* field : {"shape", "dtype", "per_mb"})
    if (x.contains(field) != y.contains(field) || (x.contains(field) && x.at(field) != y.at(field)))
      return false;
  return true;
}
std::vector<std::int64_t> PlanGraph::shape(int program, std::string_view name) const {
  return tensor(program, name).at("shape").get<std::vector<std::int64_t>>();
}

namespace {
std::vector<NodeRef> refs(int program, const std::vector<int>& nodes) {
  std::vector<NodeRef> found;
  for (const int n : nodes) found.push_back({program, n});
  return found;
}
}  // namespace

std::vector<NodeRef> PlanGraph::producers(int program, std::string_view name) const {
  return refs(program, find(program, name).producers);
}
std::vector<NodeRef> PlanGraph::readers(int program, std::string_view name) const {
  return refs(program, find(program, name).readers);
}
std::optional<NodeRef> PlanGraph::producer(int program, std::string_view name) const {
  const auto& list = find(program, name).producers;
  return list.empty() ? std::nullopt : std::optional(NodeRef{program, list.front()});
}

std::vector<std::string> PlanGraph::groupAxes(NodeRef ref) const {
  const Json& n = node(ref);
  if (n.contains("group")) return n.at("group").get<std::vector<std::string>>();
  std::vector<std::string> named;
  if (n.contains("group_at"))
    for (const Json& member : n.at("group_at"))
      for (const auto& [axis, c] : member.items())
        if (std::find(named.begin(), named.end(), axis) == named.end()) named.push_back(axis);
  return named;
}

std::int64_t PlanGraph::groupSize(NodeRef ref) const {
  const Json& n = node(ref);
  if (n.contains("group_at")) return static_cast<std::int64_t>(n.at("group_at").size());
  std::int64_t size = 1;
  for (const std::string& axis : groupAxes(ref)) size *= axisSize(axis);
  return size;
}

PlanGraph::Mask PlanGraph::groupMask(NodeRef ref) const {
  Mask mask = 0;
  for (const std::string& axis : groupAxes(ref)) mask |= axisBit(axis);
  return mask;
}

// Whether some rank of a's program and some rank of b's can be in one group.
bool PlanGraph::meets(NodeRef a, NodeRef b) const {
  const std::vector<std::string> group = groupAxes(a);
  for (const auto& [axis, c] : in(a.program).at) {
    if (std::find(group.begin(), group.end(), axis) != group.end()) continue;
    const auto other = at(b.program, axis);
    if (other && *other != c) return false;
  }
  return true;
}

std::vector<NodeRef> PlanGraph::copies(NodeRef ref) const {
  std::vector<NodeRef> found;
  const auto add = [&](NodeRef r) {
    if (std::find(found.begin(), found.end(), r) == found.end()) found.push_back(r);
  };
  for (const auto& [program, n] : correspondence_->line(idOf(ref))) add({program.value, n.value});
  if (isCollective(node(ref)))
    for (std::size_t i = 0; i < found.size(); ++i)  // members of members' groups too
      for (const NodeRef r : byComm_.at(commOf(node(ref))))
        if (opOf(node(r)) == opOf(node(ref)) && meets(found[i], r))
          for (const auto& [program, n] : correspondence_->microbatchesOf(idOf(r)))
            add({program.value, n.value});
  return found;
}

bool PlanGraph::isFirstCopy(NodeRef ref) const {
  const std::vector<NodeRef> same = copies(ref);
  return *std::min_element(same.begin(), same.end()) == ref;
}

std::vector<NodeRef> PlanGraph::partners(NodeRef ref) const {
  const Json& n = node(ref);
  const char* wanted = opOf(n) == "send" ? "recv" : "send";
  std::vector<NodeRef> found;
  for (const NodeRef r : byComm_.at(commOf(n))) {
    const Json& other = node(r);
    if (opOf(other) == wanted && other.contains("mb") == n.contains("mb") &&
        (!n.contains("mb") || other.at("mb") == n.at("mb")))
      found.push_back(r);
  }
  return found;
}

std::string PlanGraph::corresponding(int from, std::string_view name, int to) const {
  if (from == to) return std::string(name);
  const std::string_view own = stem(name);
  const TensorId here = find(from, own).id;
  const TensorId there = here.valid()
                             ? correspondence_->tensor(ProgramId(from), here, ProgramId(to))
                             : TensorId::none();
  return there.valid() ? in(to).order[there.index()] + std::string(name.substr(own.size()))
                       : std::string();
}

void PlanGraph::readLineage() {
  for (const Json& entry : plan_.at("lineage")) {
    const std::string& role = entry.at("role").get_ref<const std::string&>();
    if (role != "input" && role != "output") continue;
    const Json& shards = entry.at("shards");
    for (const Json& shard : shards) {
      for (const Json& part : shard.at("parts")) {
        Mask mask = 0;
        std::set<std::string> cut;
        const auto varies = [&](const std::string& axis) {
          mask |= axisBit(axis);
          cut.insert(axis);
        };
        if (shard.contains("step"))
          for (const auto& [axis, step] : shard.at("step").items())
            if (std::any_of(step.begin(), step.end(), [](const Json& s) { return s != 0; }))
              varies(axis);
        if (shard.contains("sum"))
          for (const Json& axis : shard.at("sum")) varies(axis.get<std::string>());
        const Json at = part.value("at", Json::object());
        for (const auto& [axis, c] : at.items())
          for (const Json& other : shards) {
            const Json otherAt = other.at("parts").at(0).value("at", Json::object());
            if (otherAt.contains(axis) && otherAt.at(axis) != c &&
                other.at("box") != shard.at("box"))
              varies(axis);
          }
        for (int p = 0; p < programs(); ++p) {
          const bool meant =
              std::all_of(at.items().begin(), at.items().end(), [&](const auto& item) {
                const auto own = this->at(p, item.key());
                return !own || *own == item.value().template get<std::int64_t>();
              });
          Tensor* t = meant ? find(p, part.at("local")) : nullptr;
          if (t == nullptr) continue;
          if (role == "output") t->live = true;
          else t->varies |= mask;
          if (role == "input" && t->declared->value("kind", "") == "input")
            for (const std::string& axis : cut)
              if (axis != "mb" && axisBit(axis) != 0) dataAxes_.insert(axis);
        }
      }
    }
  }
}

}  // namespace shardproof::mutate
