// SPDX-License-Identifier: Apache-2.0
// What a value of a plan depends on and reaches: which mesh axes it varies over, whether an output
// needs it, and which results are computed alike from the same tensors. A bug put where nothing
// reaches an output would be none.
#include <algorithm>
#include "mutate/plan_graph.h"
#include "shardproof/error.h"
#include "util/json_pointer.h"

namespace shardproof::mutate {

void PlanGraph::propagate() {
  // Both ways until nothing changes: ranks of different stages depend on each other through
  // messages.
  for (bool changed = true; changed;) {
    changed = false;
    const auto raise = [&](auto& value, auto with) {
      if ((value | with) != value) {
        value = value | with;
        changed = true;
      }
    };
    const auto set = [&](bool& value, bool with) {
      changed = changed || (with && !value);
      value = value || with;
    };
    for (int p = 0; p < programs(); ++p) {
      for (int n = 0; n < nodes(p); ++n) {
        const Json& node = this->node({p, n});
        bool after = isBackward(node);
        Mask varies = 0;
        const auto from = [&](const Tensor* t) {
          if (t == nullptr) return;
          after = after || t->afterBackward;
          varies |= t->varies;
        };
        for (std::size_t i = 0; i < node.at("in").size(); ++i) {
          const Json& operand = node.at("in")[i];
          if (const Tensor* t = find(p, operand)) after = after || t->afterBackward;
          // A maximum varies, even if that matters to nobody in the end.
          if (valueMatters(node, i) || opOf(node) == "amax" || opOf(node) == "amin")
            from(find(p, operand));
        }
        if (opOf(node) == "recv")
          for (const NodeRef sender : partners({p, n}))
            from(find(sender.program, this->node(sender).at("in").at(0)));
        // Ranks of the stage that do the same with other attributes (a window of the vocabulary, an
        // index of a piece).
        for (const ProgramId like : correspondence_->programsLike(ProgramId(p)))
          if (const int q = like.value;
              q != p && this->node({q, n}).value("attrs", Json()) != node.value("attrs", Json()))
            for (const auto& [axis, c] : in(p).at)
              if (this->at(q, axis) != c) varies |= axisBit(axis);
        for (const std::string& axis : stepAxes(node)) varies |= axisBit(axis);
        if (opOf(node) == "all_reduce" || opOf(node) == "all_gather") varies &= ~groupMask({p, n});
        if (opOf(node) == "reduce_scatter" || opOf(node) == "all_to_all" ||
            opOf(node) == "collective_permute")
          varies |= groupMask({p, n});
        for (const Json& result : node.at("out"))
          if (Tensor* t = find(p, result)) {
            set(t->afterBackward, after);
            const bool perMicrobatch = t->declared->value("per_mb", false);
            // What exists once holds no microbatch's own value, unless only one microbatch makes
            // it.
            raise(t->varies,
                  perMicrobatch || (node.contains("mb") && node.at("mb").is_number_integer())
                      ? varies
                      : varies & ~axisBit("mb"));
          }
      }
    }
    for (int p = programs(); p-- > 0;) {
      for (int n = nodes(p); n-- > 0;) {
        const Json& node = this->node({p, n});
        bool live = false;
        for (const Json& result : node.at("out"))
          if (const Tensor* t = find(p, result)) live = live || t->live;
        if (isCommunication(node) && !live)
          for (const NodeRef r : byComm_.at(commOf(node)))
            for (const Json& result : this->node(r).at("out"))
              if (const Tensor* t = find(r.program, result)) live = live || t->live;
        if (!live) continue;
        for (std::size_t i = 0; i < node.at("in").size(); ++i)
          if (Tensor* t = find(p, node.at("in")[i]); t != nullptr && valueMatters(node, i))
            set(t->live, true);
      }
    }
  }
}

void PlanGraph::numberValues() {
  for (int p = 0; p < programs(); ++p) {
    Program& program = programs_[static_cast<std::size_t>(p)];
    std::map<std::string, int> numbers;
    const auto number = [&](const std::string& key) {
      return numbers.emplace(key, static_cast<int>(numbers.size())).first->second;
    };
    const auto of = [&](const Json& operand) -> std::string {
      Tensor* t = find(p, operand);
      if (t == nullptr) return "none";
      const std::string& name = operand.get_ref<const std::string&>();
      if (t->valueNumber < 0) t->valueNumber = number("given " + std::string(stem(name)));
      return std::to_string(t->valueNumber) +
             (name.find('#') == std::string::npos ? "" : name.substr(stem(name).size()));
    };
    for (int n = 0; n < nodes(p); ++n) {
      const Json& node = this->node({p, n});
      const bool passes = isIdentity(opOf(node)) || opOf(node) == "multiref";
      std::string key = opOf(node);
      if (opOf(node) == "recv") key += " " + commOf(node);
      for (const char* field : {"attrs", "step", "group", "group_at"})
        if (node.contains(field))
          key += " " + Json(node.at(field)).dump(-1, ' ', false, Json::error_handler_t::replace);
      for (const Json& operand : node.at("in")) key += " " + of(operand);
      // Several microbatches of one line, with results of their own in some plans, are no
      // repetition.
      bool first = true, repeated = false;
      for (std::size_t i = 0; i < node.at("out").size(); ++i) {
        Tensor* t = find(p, node.at("out")[i]);
        if (t == nullptr || t->valueNumber >= 0) continue;
        if (!t->declared->value("per_mb", false) && node.contains("mb")) {
          t->valueNumber = number("microbatch " + node.at("out")[i].get<std::string>());
          continue;
        }
        if (passes) {
          const Tensor* source = find(p, node.at("in").at(0));
          if (source != nullptr &&
              node.at("in").at(0).get_ref<const std::string&>().find('#') == std::string::npos) {
            t->valueNumber = source->valueNumber;
            continue;
          }
        }
        const std::string resultKey = key + " -> " + std::to_string(i);
        if (first) repeated = numbers.contains(resultKey);
        first = false;
        t->valueNumber = number(resultKey);
      }
      if (repeated) program.repeated.insert(n);
    }
    // The other microbatches' nodes of a program in issue order.
    for (const int n : std::set<int>(program.repeated))
      for (const auto& [own, other] : correspondence_->microbatchesOf({ProgramId(p), NodeId(n)}))
        program.repeated.insert(other.value);
  }
}

bool PlanGraph::afterBackward(NodeRef ref) const {
  const Json& n = node(ref);
  if (isBackward(n)) return true;
  const auto any = [&](const Json& list) {
    return std::any_of(list.begin(), list.end(), [&](const Json& t) {
      return t.is_string() && find(ref.program, t.get_ref<const std::string&>()).afterBackward;
    });
  };
  return any(n.at("in")) || any(n.at("out"));
}

bool PlanGraph::isLive(NodeRef ref) const {
  const auto results = [&](NodeRef r) {
    const Json& out = node(r).at("out");
    return std::any_of(out.begin(), out.end(), [&](const Json& t) {
      return t.is_string() && find(r.program, t.get_ref<const std::string&>()).live;
    });
  };
  if (opOf(node(ref)) == "send") {
    const auto receivers = partners(ref);
    return std::any_of(receivers.begin(), receivers.end(), results);
  }
  return results(ref);
}
bool PlanGraph::isLive(int program, std::string_view name) const {
  return find(program, name).live;
}

std::set<std::string> PlanGraph::variesOver(int program, std::string_view name) const {
  const Mask mask = find(program, name).varies;
  std::set<std::string> found;
  for (const auto& [axis, size] : axes_)
    if ((mask & axisBit(axis)) != 0) found.insert(axis);
  if ((mask & axisBit("mb")) != 0) found.insert("mb");
  return found;
}

int PlanGraph::valueNumber(int program, std::string_view name) const {
  return find(program, name).valueNumber;
}
bool PlanGraph::isRepeated(NodeRef ref) const {
  return in(ref.program).repeated.contains(ref.node);
}

bool PlanGraph::sameStage(int program, int other) const {
  return correspondence_->alike(ProgramId(program), ProgramId(other));
}

std::set<NodeRef> PlanGraph::ancestors(int program, std::string_view name) const {
  std::set<NodeRef> found;
  std::vector<NodeRef> open = producers(program, name);
  while (!open.empty()) {
    const NodeRef ref = open.back();
    open.pop_back();
    if (!found.insert(ref).second) continue;
    for (const Json& operand : node(ref).at("in"))
      if (operand.is_string())
        for (const NodeRef r : producers(program, operand.get_ref<const std::string&>()))
          open.push_back(r);
  }
  return found;
}

}  // namespace shardproof::mutate
