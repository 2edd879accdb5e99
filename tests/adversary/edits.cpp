// SPDX-License-Identifier: Apache-2.0
#include "adversary/edits.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include "adversary/stretches.h"

namespace shardproof::adversary {
namespace {

constexpr int kEndMoved = 25;  // per cent of the edits of a plan with stretches

// Operators that take each other's operands and yield the same shapes.
const std::vector<std::vector<std::string>> kAlike{
    {"add", "sub", "mul", "div"},
    {"neg", "square", "exp", "sigmoid", "tanh", "silu", "relu", "gelu", "identity"},
    {"sqrt", "rsqrt", "log", "identity"},
    {"sum", "mean", "amax", "amin"},
    {"softmax", "log_softmax"},
    {"layer_norm", "rms_norm"},
    {"sigmoid_backward", "tanh_backward", "silu_backward", "relu_backward", "gelu_backward",
     "exp_backward", "square_backward"}};

class Editor {
 public:
  Editor(Case& made, Random& random) : model_(made.model), plan_(made.plan), random_(random) {}

  std::string once() {
    if (random_.chance(8)) return inGraph(model_, "model");
    if (random_.chance(25)) return inLineage();
    Json& programs = plan_["programs"];
    std::size_t p = random_.index(programs.size());
    std::string where = "program " + std::to_string(p);
    if (random_.chance(45)) {
      const std::string split = splitProgram(p);
      where += split;
    }
    Json& program = plan_["programs"][p];
    if (program["nodes"].empty()) return {};
    if (random_.chance(20)) where += splitMicrobatches(program);
    return inGraph(program, where);
  }

 private:
  using Change = std::string (Editor::*)(Json& graph, Json& node, std::size_t n);

  std::string inGraph(Json& graph, const std::string& where) {
    if (graph["nodes"].empty()) return {};
    static constexpr std::array<Change, 16> kChanges{
        &Editor::attribute,    &Editor::attribute,     &Editor::swapOperands, &Editor::otherOperand,
        &Editor::otherOperand, &Editor::otherOperator, &Editor::group,        &Editor::partner,
        &Editor::dropped,      &Editor::twice,         &Editor::microbatch,   &Editor::scaled,
        &Editor::constant,     &Editor::swapNodes,     &Editor::tag,          &Editor::issued};
    const Change change = kChanges[random_.index(kChanges.size())];
    const std::size_t n = random_.index(graph["nodes"].size());
    const std::string node = graph["nodes"][n]["op"].get<std::string>() + " " + std::to_string(n);
    const std::string what = (this->*change)(graph, graph["nodes"][n], n);
    return what.empty() ? what : where + ", " + node + ": " + what;
  }

  // The program of a rank or of one coordinate alone; the rest keeps the old one. `p` is the part's
  // number then.
  std::string splitProgram(std::size_t& p) {
    Json& programs = plan_["programs"];
    std::vector<std::pair<std::string, std::int64_t>> free;
    for (const Json& axis : plan_["mesh"]) {
      const std::string name = axis[0];
      if (axis[1] > 1 && !(programs[p].contains("at") && programs[p]["at"].contains(name)))
        free.emplace_back(name, axis[1]);
    }
    if (free.empty()) return {};
    const auto [axis, size] = random_.pick(free);
    const Json old = programs[p];
    const std::int64_t chosen = random_.below(size);
    programs[p]["at"][axis] = chosen;
    for (std::int64_t c = 0; c < size; ++c) {
      if (c == chosen) continue;
      Json other = old;
      other["at"][axis] = c;
      programs.push_back(std::move(other));
    }
    return " at " + axis + " " + std::to_string(chosen);
  }

  // A "*" node becomes one for each microbatch.
  std::string splitMicrobatches(Json& program) {
    Json& nodes = program["nodes"];
    const std::size_t n = random_.index(nodes.size());
    const std::int64_t count = plan_.value("microbatches", 1);
    if (!nodes[n].contains("mb") || nodes[n]["mb"] != "*") return {};
    const Json old = nodes[n];
    nodes[n]["mb"] = 0;
    for (std::int64_t k = count - 1; k > 0; --k) {
      Json other = old;
      other["mb"] = k;
      nodes.insert(nodes.begin() + static_cast<std::ptrdiff_t>(n) + 1, std::move(other));
    }
    return " (node " + std::to_string(n) + " by microbatch)";
  }

  Json changedNumber(const Json& value) {
    if (value.is_number_integer()) {
      const std::int64_t v = value;
      return random_.pick<std::int64_t>({v + 1, v - 1, v + 1, v - 1, -v, 2 * v, 0});
    }
    const double v = value;
    return random_.pick({v * 2, v / 2, -v, v + 0.5, v + 0.001});
  }

  std::string attribute(Json& graph, Json& node, std::size_t) {
    if (!node.contains("attrs") || node["attrs"].empty()) return {};
    Json& attrs = node["attrs"];
    auto it = attrs.begin();
    std::advance(it, random_.below(static_cast<std::int64_t>(attrs.size())));
    const Json old = *it;
    Json& value = *it;
    if (value.is_boolean()) {
      value = !value.get<bool>();
    } else if (value.is_number()) {
      // A window moves as a whole, so that its shape stays.
      for (const auto& [from, to] : std::map<std::string, std::string>{
               {"start", "stop"}, {"local_expert_start", "local_expert_end"}}) {
        if ((it.key() == from || it.key() == to) && attrs.contains(from) && attrs.contains(to) &&
            random_.chance(80)) {
          const std::int64_t by = random_.pick({-1, 1, 2});
          attrs[from] = attrs[from].get<std::int64_t>() + by;
          attrs[to] = attrs[to].get<std::int64_t>() + by;
          return from + " moved by " + std::to_string(by);
        }
      }
      value = changedNumber(value);
    } else if (value.is_array() && !value.empty()) {
      if (value.size() > 1 && random_.chance(70))
        std::swap(value[random_.index(value.size())], value[random_.index(value.size())]);
      else value[random_.index(value.size())] = changedNumber(value[0]);
    } else if (value.is_string()) {
      if (it.key() == "reduce") value = random_.pick({"sum", "mean", "max", "min"});
      else if (it.key() == "reduction") value = random_.pick({"sum", "mean", "none"});
      else if (it.key() == "score_func") value = random_.pick({"softmax", "sigmoid"});
      else return {};
    }
    (void)graph;
    return value == old ? std::string() : it.key() + " " + old.dump() + " -> " + value.dump();
  }

  std::string swapOperands(Json&, Json& node, std::size_t) {
    Json& in = node["in"];
    if (in.size() < 2) return {};
    const std::size_t a = random_.index(in.size()), b = random_.index(in.size());
    if (in[a] == in[b] || in[a].is_null() || in[b].is_null()) return {};
    std::swap(in[a], in[b]);
    return "operands " + std::to_string(a) + " and " + std::to_string(b) + " swapped";
  }

  static std::string base(const Json& tensors, const std::string& operand) {
    return tensors.contains(operand) ? operand : operand.substr(0, operand.find('#'));
  }

  std::string otherOperand(Json& graph, Json& node, std::size_t n) {
    Json& in = node["in"];
    if (in.empty()) return {};
    Json& operand = in[random_.index(in.size())];
    if (operand.is_null()) return {};
    const Json& tensors = graph["tensors"];
    const std::string name = operand, own = base(tensors, name);
    if (!tensors.contains(own)) return {};
    const bool ofOneMicrobatch =
        node.contains("mb") && node["mb"].is_number() && tensors[own].value("per_mb", false);
    if (random_.chance(own != name ? 50 : ofOneMicrobatch ? 25 : 0)) {  // another microbatch's
      operand = own + "#" + std::to_string(random_.below(plan_.value("microbatches", 1)));
      return operand == name ? std::string()
                             : "reads " + operand.get<std::string>() + " for " + name;
    }
    std::set<std::string> produced;  // later: reading these is reading too early
    for (std::size_t m = n; m < graph["nodes"].size(); ++m)
      for (const Json& r : graph["nodes"][m]["out"])
        if (r.is_string()) produced.insert(r.get<std::string>());
    std::vector<std::string> fitting;
    for (const auto& [other, t] : tensors.items()) {
      if (other != own && t["shape"] == tensors[own]["shape"] &&
          t.value("per_mb", false) == tensors[own].value("per_mb", false) &&
          (!produced.contains(other) || random_.chance(5)))
        fitting.push_back(other);
    }
    if (fitting.empty()) return {};
    operand = random_.pick(fitting) + name.substr(own.size());
    return "reads " + operand.get<std::string>() + " for " + name;
  }

  std::string otherOperator(Json&, Json& node, std::size_t) {
    const std::string op = node["op"];
    for (const auto& alike : kAlike) {
      if (std::find(alike.begin(), alike.end(), op) == alike.end()) continue;
      const std::string other = alike[random_.index(alike.size())];
      if (other == op) return {};
      node["op"] = other;
      if (other == "identity" || other == "mul" || other == "div") {
        if (node.contains("attrs")) node["attrs"].erase("alpha");
      }
      return op + " -> " + other;
    }
    if (op == "all_reduce" || op == "reduce_scatter" || op == "reduce") {
      node["attrs"]["reduce"] = random_.pick({"sum", "mean", "max", "min"});
      return "reduce " + node["attrs"]["reduce"].get<std::string>();
    }
    return {};
  }

  std::string group(Json&, Json& node, std::size_t) {
    if (node.contains("group")) {
      Json& list = node["group"];
      std::vector<std::string> axes;
      for (const Json& axis : plan_["mesh"]) axes.push_back(axis[0]);
      if (axes.empty()) return {};
      const std::string axis = random_.pick(axes);
      const auto it = std::find(list.begin(), list.end(), axis);
      if (it != list.end()) list.erase(it);
      else list.push_back(axis);
      if (list.empty()) list.push_back(random_.pick(axes));
      return "group is " + list.dump();
    }
    if (!node.contains("group_at") || node["group_at"].empty()) return {};
    Json& list = node["group_at"];
    const std::size_t a = random_.index(list.size()), b = random_.index(list.size());
    if (random_.chance(60) && a != b) {
      std::swap(list[a], list[b]);
    } else if (list.size() > 1) {
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(a));
    } else {
      return {};
    }
    return "group_at is " + list.dump();
  }

  std::string partner(Json&, Json& node, std::size_t) {
    for (const char* field : {"root", "to", "from"}) {
      if (!node.contains(field) || node[field].empty()) continue;
      auto it = node[field].begin();
      for (const Json& axis : plan_["mesh"]) {
        if (axis[0] == it.key()) *it = random_.below(axis[1]);
      }
      return std::string(field) + " is " + node[field].dump();
    }
    return node.contains("pairs") ? pairs(node["pairs"]) : sizes(node);
  }

  // A pair less, or two with each other's targets.
  std::string pairs(Json& list) {
    if (list.empty()) return {};
    const std::size_t a = random_.index(list.size()), b = random_.index(list.size());
    if (a == b) list.erase(list.begin() + static_cast<std::ptrdiff_t>(a));
    else std::swap(list[a][1], list[b][1]);
    return "pairs are " + list.dump();
  }

  // A piece has one position more, another one less: of an all_to_all what one member sends.
  std::string sizes(Json& node) {
    if (!node.contains("sizes")) return {};
    Json& all = node["sizes"];
    Json& list = all[0].is_array() ? all[random_.index(all.size())] : all;
    const std::size_t a = random_.index(list.size()), b = random_.index(list.size());
    if (a == b || list[a] == 0) return {};
    list[a] = list[a].get<std::int64_t>() - 1;
    list[b] = list[b].get<std::int64_t>() + 1;
    return "sizes are " + all.dump();
  }

  // The node is gone; where it has one operand and one result of one shape the result is the
  // operand.
  std::string dropped(Json& graph, Json& node, std::size_t n) {
    const Json& tensors = graph["tensors"];
    if (node["in"].size() == 1 && node["out"].size() == 1 && node["in"][0].is_string() &&
        node["out"][0].is_string()) {
      const std::string own = base(tensors, node["in"][0]);
      if (tensors.contains(own) && tensors.contains(node["out"][0].get<std::string>()) &&
          tensors[own]["shape"] == tensors[node["out"][0].get<std::string>()]["shape"]) {
        Json identity{{"op", "identity"}, {"in", node["in"]}, {"out", node["out"]}};
        if (node.contains("mb")) identity["mb"] = node["mb"];
        if (node["op"] == "identity") return {};
        node = identity;
        return "becomes an identity";
      }
    }
    if (random_.chance(80)) return {};
    graph["nodes"].erase(graph["nodes"].begin() + static_cast<std::ptrdiff_t>(n));
    return "is gone";
  }

  // Its result goes through `op` once more before anyone reads it.
  std::string after(Json& graph, std::size_t n, Json op) {
    Json& node = graph["nodes"][n];
    std::vector<std::size_t> results;
    for (std::size_t r = 0; r < node["out"].size(); ++r)
      if (node["out"][r].is_string()) results.push_back(r);
    if (results.empty()) return {};
    const std::size_t r = random_.pick(results);
    const std::string name = node["out"][r], before = name + "~";
    if (!graph["tensors"].contains(name) || graph["tensors"].contains(before)) return {};
    // Other microbatches' nodes would go on writing the old name.
    for (const Json& other : graph["nodes"])
      if (&other != &node &&
          std::find(other["out"].begin(), other["out"].end(), Json(name)) != other["out"].end())
        return {};
    graph["tensors"][before] = graph["tensors"][name];
    node["out"][r] = before;
    op["in"] = {before};
    op["out"] = {name};
    if (node.contains("mb")) op["mb"] = node["mb"];
    const std::string what = op.dump();
    graph["nodes"].insert(graph["nodes"].begin() + static_cast<std::ptrdiff_t>(n) + 1,
                          std::move(op));
    return "then " + what;
  }
  std::string twice(Json& graph, Json& node, std::size_t n) {
    Json op = node;
    if (node["in"].size() != 1 || node["out"].size() != 1 || op["op"] == "send" ||
        op["op"] == "recv" || op["op"] == "broadcast" || op["op"] == "barrier")
      return {};
    if (op.contains("comm")) op["comm"] = op["comm"].get<std::string>() + "~";
    return after(graph, n, op);
  }
  std::string scaled(Json& graph, Json& node, std::size_t n) {
    if (node["out"].empty()) return {};
    Json op{{"op", "mul"}};
    op["in"] = op["out"] = Json::array();
    op["attrs"]["scalar"] = random_.pick({0.0, 2.0, 0.5, -1.0, 1.001, 4.0, 0.25});
    return after(graph, n, op);
  }

  std::string microbatch(Json&, Json& node, std::size_t) {
    if (!node.contains("mb")) return {};
    const std::int64_t count = plan_.value("microbatches", 1);
    const Json old = node["mb"];
    if (random_.chance(10)) node.erase("mb");
    else node["mb"] = random_.chance(20) ? Json("*") : Json(random_.below(count));
    return node.contains("mb") && node["mb"] == old
               ? std::string()
               : "runs for " + node.value("mb", Json("none")).dump();
  }

  std::string constant(Json& graph, Json&, std::size_t) {
    std::vector<std::string> constants;
    for (const auto& [name, t] : graph["tensors"].items())
      if (t.contains("value")) constants.push_back(name);
    if (constants.empty()) return {};
    const std::string name = random_.pick(constants);
    Json* value = &graph["tensors"][name]["value"];
    while (value->is_array()) value = &(*value)[random_.index(value->size())];
    *value = changedNumber(*value);
    return "an element of constant " + name;
  }

  std::string swapNodes(Json& graph, Json&, std::size_t n) {
    Json& nodes = graph["nodes"];
    if (n + 1 >= nodes.size()) return {};
    std::swap(nodes[n], nodes[n + 1]);
    return "after the next one";
  }

  // The rank reaches its communications in another order.
  std::string issued(Json& graph, Json&, std::size_t) {
    Json& nodes = graph["nodes"];
    std::vector<std::size_t> all;
    for (std::size_t n = 0; n < nodes.size(); ++n)
      if (nodes[n].contains("comm")) all.push_back(n);
    if (all.size() < 2) return {};
    const std::size_t from = random_.pick(all), to = random_.pick(all);
    if (from == to) return {};
    const auto begin = nodes.begin(), a = begin + static_cast<std::ptrdiff_t>(from),
               b = begin + static_cast<std::ptrdiff_t>(to);
    if (from < to) std::rotate(a, a + 1, b + 1);
    else std::rotate(b, a, a + 1);
    return "communication " + std::to_string(from) + " is issued in place of " + std::to_string(to);
  }

  std::string tag(Json&, Json& node, std::size_t) {
    if (!node.contains("comm")) return {};
    if (node.contains("tag")) node["tag"] = node["tag"].get<std::int64_t>() + random_.pick({-1, 1});
    else node["comm"] = random_.pick({"c0", "c1", "c2", "other"});
    return node.contains("tag") ? "other tag" : "other name of communication";
  }

  std::string inLineage() {
    Json& lineage = plan_["lineage"];
    const std::size_t e = random_.index(lineage.size());
    Json& entry = lineage[e];
    Json& shard = entry["shards"][random_.index(entry["shards"].size())];
    const std::string where =
        entry["role"].get<std::string>() + " " + entry["tensor"].get<std::string>() + ": ";
    switch (random_.below(9)) {
      case 0: {  // the box somewhere else
        if (shard["box"].empty()) return {};
        Json& range = shard["box"][random_.index(shard["box"].size())];
        const std::int64_t by = random_.pick({-2, -1, 1, 2, 4});
        range = {range[0].get<std::int64_t>() + by, range[1].get<std::int64_t>() + by};
        return where + "box moved by " + std::to_string(by);
      }
      case 1:
      case 2: {  // other steps
        std::vector<std::string> axes{"mb"};
        for (const Json& axis : plan_["mesh"]) axes.push_back(axis[0]);
        if (shard["box"].empty()) return {};
        const std::string axis = random_.pick(axes);
        Json& step = shard["step"][axis];
        if (step.is_null()) step = Json(std::vector<std::int64_t>(shard["box"].size(), 0));
        Json& one = step[random_.index(step.size())];
        one = random_.chance(50) ? -one.get<std::int64_t>()
                                 : one.get<std::int64_t>() + random_.pick({-1, 1, 2, -2});
        if (random_.chance(40)) {  // the mirrored box
          for (const Json& m : plan_["mesh"]) {
            if (m[0] != axis || one >= 0) continue;
            const std::int64_t by = -one.get<std::int64_t>() * (m[1].get<std::int64_t>() - 1);
            Json& range = shard["box"][static_cast<std::size_t>(&one - &step[0])];
            range = {range[0].get<std::int64_t>() + by, range[1].get<std::int64_t>() + by};
          }
        }
        return where + "step along " + axis + " is " + step.dump();
      }
      case 3: {  // summed or not
        std::vector<std::string> axes{"mb"};
        for (const Json& axis : plan_["mesh"]) axes.push_back(axis[0]);
        const std::string axis = random_.pick(axes);
        if (!shard.contains("sum")) shard["sum"] = Json::array();
        const auto it = std::find(shard["sum"].begin(), shard["sum"].end(), axis);
        if (it == shard["sum"].end()) shard["sum"].push_back(axis);
        else shard["sum"].erase(it);
        return where + "sum is " + shard["sum"].dump();
      }
      case 4: {  // another local tensor
        Json& part = shard["parts"][random_.index(shard["parts"].size())];
        const Json& tensors = plan_["programs"][random_.index(plan_["programs"].size())]["tensors"];
        const std::string local = part["local"];
        std::vector<std::string> fitting;
        if (!tensors.contains(local)) return {};
        for (const auto& [name, t] : tensors.items())
          if (name != local && t["shape"] == tensors[local]["shape"] &&
              t.value("per_mb", false) == tensors[local].value("per_mb", false) &&
              t.contains("kind") == tensors[local].contains("kind"))
            fitting.push_back(name);
        if (fitting.empty()) return {};
        part["local"] = random_.pick(fitting);
        return where + "part is " + part["local"].get<std::string>();
      }
      case 5: {  // at other coordinates
        Json& part = shard["parts"][random_.index(shard["parts"].size())];
        if (!part.contains("at") || part["at"].empty()) {
          if (!part.contains("mb")) return {};
          part["mb"] = random_.below(plan_.value("microbatches", 1));
          return where + "part is of microbatch " + part["mb"].dump();
        }
        auto it = part["at"].begin();
        std::advance(it, random_.below(static_cast<std::int64_t>(part["at"].size())));
        for (const Json& axis : plan_["mesh"])
          if (axis[0] == it.key()) *it = random_.below(axis[1]);
        return where + "part is at " + part["at"].dump();
      }
      case 6:
        if (entry["role"] != "cut_point") return {};
        lineage.erase(lineage.begin() + static_cast<std::ptrdiff_t>(e));
        return where + "is gone";
      case 7: {  // a part twice or one less
        Json& parts = shard["parts"];
        if (parts.size() > 1 && random_.chance(50))
          parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(random_.index(parts.size())));
        else parts.push_back(parts[random_.index(parts.size())]);
        return where + "parts are " + parts.dump();
      }
      default: {  // the cut point is said of another tensor of the same shape
        const Json& tensors = model_["tensors"];
        std::vector<std::string> fitting;
        for (const auto& [name, t] : tensors.items())
          if (name != entry["tensor"] &&
              t["shape"] == tensors[entry["tensor"].get<std::string>()]["shape"] &&
              t.contains("kind") == tensors[entry["tensor"].get<std::string>()].contains("kind"))
            fitting.push_back(name);
        if (fitting.empty() || entry["role"] != "cut_point") return {};
        entry["tensor"] = random_.pick(fitting);
        return where + "is said of " + entry["tensor"].get<std::string>();
      }
    }
  }

  Json& model_;
  Json& plan_;
  Random& random_;
};

}  // namespace

std::string edit(Case& made, Random& random) {
  for (int attempt = 0; attempt < 12; ++attempt) {
    Case tried = made;
    const bool end = random.chance(made.plan["version"] == 2 ? kEndMoved : 0);
    const std::string what = end ? moveEnd(tried, random) : Editor(tried, random).once();
    if (what.empty() || (tried.model == made.model && tried.plan == made.plan)) continue;
    made = std::move(tried);
    made.edit += (made.edit.empty() ? "" : "; ") + what;
    return what;
  }
  return {};
}

}  // namespace shardproof::adversary
