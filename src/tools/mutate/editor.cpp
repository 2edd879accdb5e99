// SPDX-License-Identifier: Apache-2.0
#include "mutate/editor.h"

#include <algorithm>
#include <stdexcept>

namespace shardproof::mutate {
namespace {

Json& nodesOf(Json& plan, int program) {
  return plan.at("programs").at(static_cast<std::size_t>(program)).at("nodes");
}

std::int64_t sizeOf(const Json& plan, const std::string& axis) {
  for (const Json& a : plan.at("mesh"))
    if (a.at(0) == axis) return a.at(1).get<std::int64_t>();
  return 1;
}

std::int64_t valuesIn(const Json& json) {
  std::int64_t values = 1;
  if (json.is_structured())
    for (const Json& each : json) values += valuesIn(each);
  return values;
}

// Of a mutated plan: about a gigabyte of memory.
constexpr std::int64_t kMostValues = 1 << 23;

// Throws std::length_error where that would take too much memory.
void refuseCopies(const Json& plan, const Json& what, std::int64_t times, const std::string& name,
                  const std::string& why) {
  // Copies are at most kMaxRanks, so that nothing overflows.
  if (valuesIn(plan) + valuesIn(what) * times > kMostValues)
    throw std::length_error(name + " would be written " + std::to_string(times) + " times, " + why +
                            "; a mutated plan has at most " + std::to_string(kMostValues) +
                            " JSON values");
}

}  // namespace

Editor::Handle Editor::hold(NodeRef ref) {
  held_.push_back(ref);
  return held_.size() - 1;
}
std::vector<Editor::Handle> Editor::hold(const std::vector<NodeRef>& refs) {
  std::vector<Handle> handles;
  for (const NodeRef ref : refs) handles.push_back(hold(ref));
  return handles;
}

Json& Editor::node(Handle h) {
  return nodesOf(plan_, held_[h].program).at(static_cast<std::size_t>(held_[h].node));
}
Json& Editor::touch(Handle h) {
  touched_.push_back(h);
  return node(h);
}

std::vector<NodeRef> Editor::touched() const {
  std::vector<NodeRef> refs;
  for (const Handle h : touched_) refs.push_back(held_[h]);
  std::sort(refs.begin(), refs.end());
  refs.erase(std::unique(refs.begin(), refs.end()), refs.end());
  return refs;
}

Editor::Handle Editor::insertAt(NodeRef position, Json made) {
  Json& list = nodesOf(plan_, position.program);
  list.insert(list.begin() + position.node, std::move(made));
  for (NodeRef& ref : held_)
    if (ref.program == position.program && ref.node >= position.node) ++ref.node;
  const Handle h = hold(position);
  touched_.push_back(h);
  return h;
}

Editor::Handle Editor::insertBefore(Handle h, Json made) {
  if (node(h).contains("mb")) made["mb"] = node(h).at("mb");
  return insertAt(held_[h], std::move(made));
}
Editor::Handle Editor::insertAfter(Handle h, Json made) {
  const Json& before = node(h);
  if (before.contains("mb")) made["mb"] = before.at("mb");
  NodeRef place{held_[h].program, held_[h].node + 1};
  const Json& brought = before.at("out");
  const bool reads =
      std::any_of(made.at("in").begin(), made.at("in").end(), [&](const Json& operand) {
        return std::find(brought.begin(), brought.end(), operand) != brought.end();
      });
  if (before.contains("handle") && reads) {  // what is begun is read behind the wait for it
    const Json& handle = before.at("handle");
    const Json& list = nodesOf(plan_, place.program);
    const auto waits = std::find_if(list.begin() + place.node, list.end(), [&](const Json& n) {
      return n.contains("waits") &&
             std::find(n.at("waits").begin(), n.at("waits").end(), handle) != n.at("waits").end();
    });
    place.node = static_cast<int>(waits - list.begin());
    made["waits"] = Json::array({handle});
  }
  return insertAt(place, std::move(made));
}

Json& Editor::tensors(int program) {
  return plan_.at("programs").at(static_cast<std::size_t>(program)).at("tensors");
}

std::string Editor::fresh(Handle h, const std::string& like, const std::string& suffix,
                          const std::vector<std::int64_t>* shape) {
  const int program = held_[h].program;
  Json& declared = tensors(program);
  const std::string base(declared.contains(like) ? like : std::string(stem(like)));
  // Results that each microbatch has a name of its own for keep it so.
  std::string& name = fresh_[{program, base, suffix}];
  if (!name.empty()) return name;
  name = base + "." + suffix;
  for (int i = 2; declared.contains(name); ++i) name = base + "." + suffix + std::to_string(i);
  Json made = declared.at(base);
  for (const char* field : {"kind", "value", "per_mb"}) made.erase(field);
  if (node(h).contains("mb")) made["per_mb"] = true;
  if (shape != nullptr) made["shape"] = *shape;
  declared[name] = std::move(made);
  return name;
}

Json& Editor::becomes(Handle h, const std::string& op) {
  Json& n = touch(h);
  n["op"] = op;
  if (n.contains("handle")) dropWaits(held_[h].program, n.at("handle"));
  for (const char* field : {"attrs", "step", "comm", "tag", "group", "group_at", "handle"})
    n.erase(field);
  return n;
}

// What is no communication is not waited for.
void Editor::dropWaits(int program, const Json& handle) {
  const auto drop = [&](Json& owner) {
    if (!owner.contains("waits")) return;
    Json left = Json::array();
    for (const Json& waited : owner.at("waits"))
      if (waited != handle) left.push_back(waited);
    if (left.empty()) owner.erase("waits");
    else owner["waits"] = std::move(left);
  };
  drop(plan_.at("programs").at(static_cast<std::size_t>(program)));
  for (Json& n : nodesOf(plan_, program)) drop(n);
}

int splitAxis(Json& plan, int program, const std::string& axis) {
  Json& programs = plan.at("programs");
  const Json whole = programs.at(static_cast<std::size_t>(program));
  refuseCopies(plan, whole, sizeOf(plan, axis), "/programs/" + std::to_string(program),
               "for the ranks along '" + axis + "'");
  std::vector<Json> made;
  for (std::int64_t c = 0; c < sizeOf(plan, axis); ++c) {
    Json each = whole;
    each["at"] = Json::object();
    for (const Json& a : plan.at("mesh")) {  // in the mesh's order
      const std::string name = a.at(0).get<std::string>();
      if (name == axis) each["at"][name] = c;
      else if (whole.contains("at") && whole.at("at").contains(name))
        each["at"][name] = whole.at("at").at(name);
    }
    made.push_back(std::move(each));
  }
  programs.erase(programs.begin() + program);
  for (std::size_t i = 0; i < made.size(); ++i)
    programs.insert(programs.begin() + program + static_cast<std::ptrdiff_t>(i),
                    std::move(made[i]));
  return program;
}

int splitOffLast(Json& plan, int program, const std::vector<std::string>& axes) {
  for (const std::string& axis : axes)
    program = splitAxis(plan, program, axis) + static_cast<int>(sizeOf(plan, axis)) - 1;
  return program;
}

std::vector<Editor::Handle> splitMicrobatches(Json& plan, Editor& editor, Editor::Handle h) {
  const Json whole = editor.node(h);
  if (!whole.contains("mb") || whole.at("mb") != "*") return {h};
  const auto count = plan.value("microbatches", std::int64_t{1});
  refuseCopies(plan, whole, count, pointerTo(editor.where(h)), "for the microbatches");
  std::vector<Editor::Handle> handles{h};
  editor.touch(h)["mb"] = 0;
  for (std::int64_t k = 1; k < count; ++k) {
    handles.push_back(editor.insertAfter(handles.back(), whole));
    editor.node(handles.back())["mb"] = k;
  }
  return handles;
}

}  // namespace shardproof::mutate
