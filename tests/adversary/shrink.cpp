// SPDX-License-Identifier: Apache-2.0
#include "adversary/shrink.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <vector>

namespace shardproof::adversary {
namespace {

class Shrinker {
 public:
  Shrinker(Case made, const std::function<bool(const Case&)>& stays, double seconds)
      : best_(std::move(made)),
        stays_(stays),
        end_(std::chrono::steady_clock::now() +
             std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                 std::chrono::duration<double>(seconds))) {}

  Case run() {
    for (bool smaller = true; smaller && !late();) {
      smaller = false;
      smaller = outputs() || smaller;
      smaller = entries() || smaller;
      smaller = programs() || smaller;
      smaller = nodes() || smaller;
      smaller = attempt([](Case& c) { dropUnused(c); }) || smaller;
      smaller = attempt([](Case& c) { dropUnused(c, false); }) || smaller;
      smaller = skips() || smaller;
      smaller = fields() || smaller;
      smaller = mesh() || smaller;
    }
    return best_;
  }

 private:
  bool late() const { return std::chrono::steady_clock::now() > end_; }

  template <class Change>
  bool attempt(Change&& change) {
    if (late()) return false;
    Case tried = best_;
    change(tried);
    if ((tried.model == best_.model && tried.plan == best_.plan) || !stays_(tried)) return false;
    best_ = std::move(tried);
    return true;
  }
  static void erase(Json& list, std::size_t i) {
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
  }

  // An output with its entries and what only it needs.
  bool outputs() {
    bool any = false;
    for (std::size_t i = best_.model["outputs"].size(); i-- > 0;) {
      if (best_.model["outputs"].size() < 2) break;
      any = attempt([&](Case& c) {
              const Json name = c.model["outputs"][i];
              erase(c.model["outputs"], i);
              Json& lineage = c.plan["lineage"];
              for (std::size_t e = lineage.size(); e-- > 0;)
                if (lineage[e]["tensor"] == name && lineage[e]["role"] == "output")
                  erase(lineage, e);
              dropUnused(c);
            }) ||
            any;
    }
    return any;
  }
  bool entries() {
    bool any = false;
    for (std::size_t e = best_.plan["lineage"].size(); e-- > 0;) {
      any = attempt([&](Case& c) { erase(c.plan["lineage"], e); }) || any;
      if (e >= best_.plan["lineage"].size()) continue;
      for (std::size_t s = best_.plan["lineage"][e]["shards"].size(); s-- > 0;)
        any = attempt([&](Case& c) { erase(c.plan["lineage"][e]["shards"], s); }) || any;
    }
    return any;
  }
  bool programs() {  // one program for all
    return attempt([&](Case& c) {
      c.plan["programs"].erase(c.plan["programs"].begin() + 1, c.plan["programs"].end());
      c.plan["programs"][0].erase("at");
    });
  }
  bool nodes() {
    bool any = false;
    for (std::size_t p = 0; p < best_.plan["programs"].size(); ++p)
      for (std::size_t n = best_.plan["programs"][p]["nodes"].size(); n-- > 0;)
        any = attempt([&](Case& c) { erase(c.plan["programs"][p]["nodes"], n); }) || any;
    for (std::size_t n = best_.model["nodes"].size(); n-- > 0;)
      any = attempt([&](Case& c) { erase(c.model["nodes"], n); }) || any;
    return any;
  }

  // An operator is left out: its result is its operand, in one program, in all, or in the model and
  // all.
  bool skips() {
    bool any = false;
    std::set<std::string> ops;
    for (std::size_t n = best_.model["nodes"].size(); n-- > 0;)
      any = attempt([&](Case& c) { skip(c.model, n); }) || any;
    for (std::size_t p = 0; p < best_.plan["programs"].size(); ++p)
      for (std::size_t n = best_.plan["programs"][p]["nodes"].size(); n-- > 0;)
        any = attempt([&](Case& c) { skip(c.plan["programs"][p], n); }) || any;
    for (std::size_t n = best_.plan["programs"][0]["nodes"].size(); n-- > 0;) {
      any = attempt([&](Case& c) {
              const Json node = c.plan["programs"][0]["nodes"][n];
              for (Json& program : c.plan["programs"]) skipLike(program, node);
            }) ||
            any;
    }
    // The same operator on both sides.
    for (std::size_t n = best_.model["nodes"].size(); n-- > 0;) {
      any = attempt([&](Case& c) {
              const Json op = c.model["nodes"][n]["op"];
              skip(c.model, n);
              for (Json& program : c.plan["programs"]) {
                for (std::size_t m = program["nodes"].size(); m-- > 0;)
                  if (program["nodes"][m]["op"] == op) skip(program, m);
              }
            }) ||
            any;
    }
    return any;
  }
  static void skipLike(Json& program, const Json& node) {
    for (std::size_t m = program["nodes"].size(); m-- > 0;)
      if (program["nodes"][m]["out"] == node["out"] && program["nodes"][m]["in"] == node["in"])
        skip(program, m);
  }
  static void skip(Json& graph, std::size_t n) {
    if (n >= graph["nodes"].size()) return;
    const Json node = graph["nodes"][n];
    if (node["out"].size() != 1 || node["in"].empty() || !node["out"][0].is_string() ||
        !node["in"][0].is_string())
      return;
    if (node["in"].size() == 1 && node["op"] == "identity") {
      // Readers take the operand itself.
      for (Json& other : graph["nodes"])
        for (Json& operand : other["in"])
          if (operand == node["out"][0]) operand = node["in"][0];
      return;
    }
    Json identity{{"op", "identity"}, {"in", {node["in"][0]}}, {"out", node["out"]}};
    if (node.contains("mb")) identity["mb"] = node["mb"];
    graph["nodes"][n] = identity;
  }

  // Whatever a node, a shard or a part need not say.
  bool fields() {
    bool any = false;
    for (std::size_t e = 0; e < best_.plan["lineage"].size(); ++e) {
      for (std::size_t s = 0; s < best_.plan["lineage"][e]["shards"].size(); ++s) {
        for (const char* key : {"step", "sum"})
          any = attempt([&](Case& c) { c.plan["lineage"][e]["shards"][s].erase(key); }) || any;
        for (std::size_t p = best_.plan["lineage"][e]["shards"][s]["parts"].size(); p-- > 0;) {
          if (best_.plan["lineage"][e]["shards"][s]["parts"].size() > 1)
            any = attempt([&](Case& c) { erase(c.plan["lineage"][e]["shards"][s]["parts"], p); }) ||
                  any;
          for (const char* key : {"at", "mb"})
            any = attempt([&](Case& c) {
                    if (p < c.plan["lineage"][e]["shards"][s]["parts"].size())
                      c.plan["lineage"][e]["shards"][s]["parts"][p].erase(key);
                  }) ||
                  any;
        }
      }
    }
    for (std::size_t p = 0; p < best_.plan["programs"].size(); ++p)
      for (std::size_t n = 0; n < best_.plan["programs"][p]["nodes"].size(); ++n)
        for (const char* key : {"tag", "attrs"})
          any = attempt([&](Case& c) { c.plan["programs"][p]["nodes"][n].erase(key); }) || any;
    return any;
  }

  // An axis of one rank, fewer microbatches, no axis at all.
  bool mesh() {
    bool any = false;
    for (std::size_t a = best_.plan["mesh"].size(); a-- > 0;) {
      const std::string name = best_.plan["mesh"][a][0];
      any = attempt([&](Case& c) {
              erase(c.plan["mesh"], a);
              for (std::size_t p = c.plan["programs"].size(); p-- > 0;) {
                Json& program = c.plan["programs"][p];
                if (!program.contains("at") || !program["at"].contains(name)) continue;
                if (program["at"][name] == 0) program["at"].erase(name);
                else erase(c.plan["programs"], p);
              }
              for (Json& entry : c.plan["lineage"]) {
                for (Json& shard : entry["shards"]) {
                  if (shard.contains("step")) shard["step"].erase(name);
                  if (shard.contains("sum"))
                    shard["sum"].erase(
                        std::remove(shard["sum"].begin(), shard["sum"].end(), Json(name)),
                        shard["sum"].end());
                  for (Json& part : shard["parts"])
                    if (part.contains("at")) part["at"].erase(name);
                }
              }
            }) ||
            any;
      if (a < best_.plan["mesh"].size() && best_.plan["mesh"][a][1] > 1)
        any = attempt([&](Case& c) {
                c.plan["mesh"][a][1] = c.plan["mesh"][a][1].get<std::int64_t>() - 1;
              }) ||
              any;
    }
    return any;
  }

  // Tensors that nothing names, nodes of the model whose results nobody reads, given tensors that
  // are not read.
  static void dropUnused(Case& c, bool inputsToo = true) {
    for (bool more = true; more;) {
      more = false;
      std::set<std::string> used;
      for (const Json& o : c.model["outputs"]) used.insert(o.get<std::string>());
      for (const Json& e : c.plan["lineage"])
        if (e["role"] != "input") used.insert(e["tensor"].get<std::string>());
      for (const Json& n : c.model["nodes"])
        for (const Json& i : n["in"])
          if (i.is_string()) used.insert(i.get<std::string>());
      Json& nodes = c.model["nodes"];
      for (std::size_t n = nodes.size(); n-- > 0;) {
        const bool read = std::any_of(
            nodes[n]["out"].begin(), nodes[n]["out"].end(),
            [&](const Json& o) { return o.is_string() && used.contains(o.get<std::string>()); });
        if (read) continue;
        erase(nodes, n);
        more = true;
      }
    }
    std::set<std::string> named, locals;
    for (const Json& n : c.model["nodes"])
      for (const char* side : {"in", "out"})
        for (const Json& i : n[side])
          if (i.is_string()) named.insert(i.get<std::string>());
    for (const Json& o : c.model["outputs"]) named.insert(o.get<std::string>());
    Json& lineage = c.plan["lineage"];
    for (std::size_t e = lineage.size(); e-- > 0;)
      if (inputsToo && lineage[e]["role"] == "input" &&
          !named.contains(lineage[e]["tensor"].get<std::string>()))
        erase(lineage, e);
    for (const Json& e : lineage) named.insert(e["tensor"].get<std::string>());
    dropTensors(c.model, named);
    for (const Json& e : lineage)
      for (const Json& s : e["shards"])
        for (const Json& p : s["parts"]) locals.insert(p["local"].get<std::string>());
    for (Json& program : c.plan["programs"]) {
      std::set<std::string> own = locals;
      for (const Json& n : program["nodes"])
        for (const char* side : {"in", "out"})
          for (const Json& i : n[side])
            if (i.is_string()) {
              own.insert(i.get<std::string>());
              own.insert(i.get<std::string>().substr(0, i.get<std::string>().find('#')));
            }
      dropTensors(program, own);
    }
  }
  static void dropTensors(Json& graph, const std::set<std::string>& named) {
    Json kept = Json::object();
    for (const auto& [name, t] : graph["tensors"].items())
      if (named.contains(name)) kept[name] = t;
    graph["tensors"] = kept;
  }

  Case best_;
  const std::function<bool(const Case&)>& stays_;
  std::chrono::steady_clock::time_point end_;
};

}  // namespace

Case shrink(Case made, const std::function<bool(const Case&)>& stays, double seconds) {
  return Shrinker(std::move(made), stays, seconds).run();
}

}  // namespace shardproof::adversary
