// SPDX-License-Identifier: Apache-2.0
// Messages between pipeline stages, and how layers are divided among them.
#include <algorithm>
#include <map>

#include "mutate/bug_helpers.h"

namespace shardproof::mutate {
namespace {

bool isSend(const PlanGraph& g, NodeRef r) { return opOf(g.node(r)) == "send"; }

// ---- peers ----

// Where a message could go wrongly: another rank than the right one.
std::optional<std::pair<std::string, std::int64_t>> wrongPeer(const PlanGraph& graph, NodeRef ref) {
  const Json& to = graph.node(ref).at("to");
  for (const auto& [axis, c] : to.items()) {
    const std::int64_t right = c.get<std::int64_t>(), size = graph.axisSize(axis);
    for (std::int64_t other = right + 1; other < right + size; ++other)
      if (graph.at(ref.program, axis) != other % size) return std::pair(axis, other % size);
  }
  for (const std::string& axis : graph.freeAxes(ref.program))
    if (!to.contains(axis)) return std::pair(axis, std::int64_t{1});
  for (const auto& [axis, size] : graph.axes())
    if (size > 1 && !to.contains(axis) && graph.at(ref.program, axis))
      return std::pair(axis, (*graph.at(ref.program, axis) + 1) % size);
  // Two ranks: to itself.
  for (const auto& [axis, c] : to.items())
    if (graph.at(ref.program, axis)) return std::pair(axis, *graph.at(ref.program, axis));
  return std::nullopt;
}

// An axis, not that of the message, along which ranks send different values: two of them can get
// each other's.
std::string exchangeAxis(const PlanGraph& graph, NodeRef ref) {
  const std::vector<NodeRef> receivers = graph.partners(ref);
  if (receivers.empty()) return {};
  for (const std::string& axis : graph.variesOver(ref.program, operand(graph.node(ref), 0)))
    if (axis != "mb" && !graph.node(ref).at("to").contains(axis) && !graph.at(ref.program, axis) &&
        !graph.at(receivers.front().program, axis))
      return axis;
  return {};
}

void exchangePeers(const PlanGraph& graph, NodeRef site, Json& plan, Editor& editor) {
  const std::string axis = exchangeAxis(graph, site);
  std::vector<NodeRef> ends;
  for (const NodeRef ref : graph.copies(site)) {
    ends.push_back(ref);
    const auto partners = graph.partners(ref);
    ends.insert(ends.end(), partners.begin(), partners.end());
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  std::set<int> programs;
  for (const NodeRef ref : ends) programs.insert(ref.program);
  std::map<int, int> moved;  // where a program's first copy lies after the splits
  const int added = static_cast<int>(graph.axisSize(axis)) - 1;
  int before = 0;
  for (const int p : programs) {
    moved[p] = splitAxis(plan, p + before, axis);
    before += added;
  }
  for (const NodeRef ref : ends)
    for (int c = 0; c < 2; ++c) {
      Json& n = editor.touch(editor.hold({moved.at(ref.program) + c, ref.node}));
      n[n.contains("to") ? "to" : "from"][axis] = 1 - c;
    }
}

// ---- microbatches ----

bool canShuffle(const PlanGraph& graph, NodeRef ref) {
  return isSend(graph, ref) && graph.microbatches() > 1 && graph.node(ref).contains("mb") &&
         !graph.node(ref).contains("tag") && !graph.partners(ref).empty() &&
         graph.variesOver(ref.program, operand(graph.node(ref), 0)).contains("mb");
}

// The first two messages arrive as each other's.
void shuffleMicrobatches(const PlanGraph& graph, NodeRef site, Json& plan, Editor& editor) {
  std::set<NodeRef> ends;
  for (const NodeRef ref : graph.copies(site)) {
    ends.insert(ref);
    for (const NodeRef r : graph.partners(ref)) {
      const auto copies = graph.copies(r);
      ends.insert(copies.begin(), copies.end());
    }
  }
  for (const auto h : editor.hold(std::vector<NodeRef>(ends.begin(), ends.end())))
    for (const auto each : splitMicrobatches(plan, editor, h)) {
      const auto k = editor.node(each).at("mb").get<std::int64_t>();
      const bool receives = opOf(editor.node(each)) == "recv";
      editor.touch(each)["tag"] = receives && k < 2 ? 1 - k : k;
    }
}

// ---- layers. A layer is what lies between two tensors of the residual stream's shape, where
// nothing else passes from one side to the other; if its operators are repeated, once the repeated
// part. ----

struct Segment {
  std::string from;            // what goes in
  std::vector<NodeRef> nodes;  // that make the sent tensor from it
};

std::optional<Segment> lastLayer(const PlanGraph& graph, NodeRef send) {
  const int p = send.program;
  const std::string sent = operand(graph.node(send), 0);
  const Json microbatch = graph.node(send).value("mb", Json());
  std::vector<NodeRef> nodes;
  for (const NodeRef r : graph.ancestors(p, sent))
    if (graph.node(r).value("mb", Json()) == microbatch || opOf(graph.node(r)) == "recv")
      nodes.push_back(r);
  // Only what depends on a parameter or came from another stage is part of the stream; masks and
  // tables of angles are not.
  std::set<std::string> stream;
  for (const NodeRef r : nodes) {
    const Json& n = graph.node(r);
    bool streams = opOf(n) == "recv";
    for (std::size_t i = 0; i < n.at("in").size(); ++i) {
      const std::string t(stem(operand(n, i)));
      streams = streams || stream.contains(t) ||
                (!t.empty() && graph.tensor(p, t).value("kind", "") == "parameter");
    }
    for (const Json& t : n.at("out"))
      if (streams && t.is_string()) stream.insert(t.get<std::string>());
  }
  struct Cut {
    std::string tensor;
    std::size_t next;  // index into nodes
  };
  std::vector<Cut> cuts;
  // What a first stage starts from.
  if (!nodes.empty())
    for (std::size_t i = 0; i < graph.node(nodes.front()).at("in").size(); ++i)
      if (const std::string t = operand(graph.node(nodes.front()), i);
          !t.empty() && graph.tensor(p, t).value("kind", "") == "input") {
        Json given = graph.tensor(p, t), wanted = graph.tensor(p, sent);
        if (given.at("shape") == wanted.at("shape") && !given.contains("dtype"))
          cuts.push_back({t, 0});
      }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Json& n = graph.node(nodes[i]);
    if (n.at("out").size() != 1 || !n.at("out")[0].is_string()) continue;
    const std::string t = result(n, 0);
    if (!stream.contains(t) || !graph.alike(p, t, sent)) continue;
    std::set<std::string> before;
    for (std::size_t k = 0; k <= i; ++k)
      for (const Json& made : graph.node(nodes[k]).at("out"))
        if (made.is_string() && stream.contains(made.get<std::string>()))
          before.insert(made.get<std::string>());
    before.erase(t);
    bool only = true;
    for (std::size_t k = i + 1; k < nodes.size() && only; ++k)
      for (const Json& read : graph.node(nodes[k]).at("in"))
        only = only && !(read.is_string() &&
                         before.contains(std::string(stem(read.get_ref<const std::string&>()))));
    if (only) cuts.push_back({t, i + 1});
  }
  if (cuts.size() < 2) return std::nullopt;
  std::vector<std::string> signatures;
  for (std::size_t k = 0; k + 1 < cuts.size(); ++k) {
    std::string s;
    for (std::size_t i = cuts[k].next; i < cuts[k + 1].next; ++i)
      s += opOf(graph.node(nodes[i])) + ' ';
    signatures.push_back(s);
  }
  std::size_t period = 1;
  const auto repeats = [&](std::size_t by) {
    for (std::size_t i = 0; i + by < signatures.size(); ++i)
      if (signatures[i] != signatures[i + by]) return false;
    return true;
  };
  while (!repeats(period)) ++period;
  const Cut& from = cuts[cuts.size() - 1 - period];
  return Segment{from.tensor,
                 {nodes.begin() + static_cast<std::ptrdiff_t>(from.next),
                  nodes.begin() + static_cast<std::ptrdiff_t>(cuts.back().next)}};
}

// Lets a new local tensor lie where another one of the program does, as a lemma.
void copyLineage(Json& plan, const PlanGraph& graph, int program, const std::string& from,
                 const std::string& to) {
  Json made = Json::array();
  const auto isThere = [&](const Json& part, const std::string& name) {
    if (part.at("local") != name) return false;
    const Json at = part.value("at", Json::object());
    return std::all_of(at.items().begin(), at.items().end(), [&](const auto& item) {
      const auto own = graph.at(program, item.key());
      return !own || *own == item.value().template get<std::int64_t>();
    });
  };
  for (const Json& entry : plan.at("lineage")) {
    Json shards = Json::array();
    for (Json shard : entry.at("shards")) {
      if (shard.at("parts").size() != 1) continue;
      if (isThere(shard.at("parts")[0], to))
        return;  // for another microbatch, or another rank of the stage
      if (!isThere(shard.at("parts")[0], from)) continue;
      shard["parts"][0]["local"] = to;
      shards.push_back(std::move(shard));
    }
    if (shards.empty()) continue;
    Json copy = Json::object();
    copy["tensor"] = entry.at("tensor");
    copy["role"] = "cut_point";
    copy["shards"] = std::move(shards);
    made.push_back(std::move(copy));
  }
  for (Json& entry : made) plan["lineage"].push_back(std::move(entry));
}

bool endsStage(const PlanGraph& g, NodeRef r) {
  return isSend(g, r) && !g.afterBackward(r) && lastLayer(g, r).has_value();
}

void skipLayer(const PlanGraph& graph, NodeRef site, Json&, Editor& editor) {
  for (const NodeRef ref : graph.copies(site))
    if (const auto layer = lastLayer(graph, ref))
      editor.touch(editor.hold(ref))["in"][0] = layer->from;
}

void doubleLayer(const PlanGraph& graph, NodeRef site, Json& plan, Editor& editor) {
  const std::vector<NodeRef> copies = graph.copies(site);
  const std::vector<Editor::Handle> sends = editor.hold(copies);
  for (std::size_t k = 0; k < copies.size(); ++k) {
    const auto layer = lastLayer(graph, copies[k]);
    if (!layer) continue;
    const std::string sent(stem(operand(graph.node(copies[k]), 0)));
    std::map<std::string, std::string> renamed{{layer->from, sent}};
    for (const NodeRef r : layer->nodes) {
      Json again = graph.node(r);
      for (Json& in : again["in"])
        if (in.is_string())
          if (const auto it = renamed.find(in.get<std::string>()); it != renamed.end())
            in = it->second;
      for (Json& out : again["out"])
        if (out.is_string()) {
          const std::string name = out.get<std::string>();
          out = renamed[name] = editor.fresh(sends[k], name, "twice");
        }
      if (again.contains("comm")) again["comm"] = again.at("comm").get<std::string>() + ".twice";
      // Its mask is that of the positions which lineage gives it.
      if (opOf(again) == "dropout")
        copyLineage(plan, graph, copies[k].program, result(graph.node(r), 0), result(again, 0));
      editor.insertBefore(sends[k], std::move(again));
    }
    editor.touch(sends[k])["in"][0] = renamed.at(sent);
  }
}

}  // namespace

std::vector<Bug> pipelineBugs() {
  return {
      {"wrong_pipeline_peer",
       "a message between stages is sent to a rank that does not wait for it", "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(g,
                          [&](NodeRef r) { return isSend(g, r) && wrongPeer(g, r).has_value(); });
       },
       [](const PlanGraph& g, NodeRef site, Json&, Editor& editor) {
         for (const NodeRef ref : g.copies(site)) {
           const auto [axis, c] = *wrongPeer(g, ref);
           editor.touch(editor.hold(ref))["to"][axis] = c;
         }
       }},
      {"exchanged_pipeline_peers", "two ranks of a stage get each other's messages", "TrainVerify",
       [](const PlanGraph& g) {
         return liveLines(g,
                          [&](NodeRef r) { return isSend(g, r) && !exchangeAxis(g, r).empty(); });
       },
       exchangePeers},
      {"shuffled_microbatches", "a stage takes the messages of two microbatches for each other's",
       "PyTorch 139404",
       [](const PlanGraph& g) { return liveLines(g, [&](NodeRef r) { return canShuffle(g, r); }); },
       shuffleMicrobatches},
      {"layer_skipped",
       "layers are divided among the stages so that none runs the last one of a stage", "TTrace",
       [](const PlanGraph& g) { return liveLines(g, [&](NodeRef r) { return endsStage(g, r); }); },
       skipLayer},
      {"layer_doubled",
       "layers are divided among the stages so that the last one of a stage runs twice", "TTrace",
       [](const PlanGraph& g) { return liveLines(g, [&](NodeRef r) { return endsStage(g, r); }); },
       doubleLayer},
  };
}

}  // namespace shardproof::mutate
