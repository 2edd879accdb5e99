// SPDX-License-Identifier: Apache-2.0
#include "reader/hlo/placement.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "reader/hlo/parser.h"
#include "util/index.h"

namespace shardproof::hlo {
namespace {

using Kind = AxisPlacement::Kind;

std::string attribute(const GraphNode& n, std::string_view key) {
  for (const auto& [name, value] : n.attributes)
    if (name == key) return value;
  for (const auto& [name, value] : n.communication)
    if (name == key) return value;
  return {};
}

std::int64_t number(const GraphNode& n, std::string_view key, std::int64_t otherwise) {
  const std::string text = attribute(n, key);
  return text.empty() ? otherwise : std::stoll(text);
}

// On one of the devices that share the node.
std::int64_t numberOn(std::int64_t device, const GraphNode& n, std::string_view key) {
  const auto own = n.ofDevice.find(device);
  if (own != n.ofDevice.end())
    for (const auto& [name, value] : own->second)
      if (name == key) return std::stoll(value);
  return number(n, key, 0);
}

Sizes list(const GraphNode& n, std::string_view key) {
  const std::string text = attribute(n, key);
  Cursor c(text, "");
  c.skipSpace();
  return c.peek() == '[' ? c.integers('[', ']') : Sizes{c.integer("a number")};
}

bool among(const Sizes& list, std::size_t d) {
  return std::find(list.begin(), list.end(), static_cast<std::int64_t>(d)) != list.end();
}

}  // namespace

Placements::Placements(const std::vector<std::shared_ptr<Lowering>>& ranks, const DeviceMesh& mesh,
                       const std::vector<std::vector<Sizes>>& parameterBegins)
    : ranks_(ranks), first_(*ranks[0]), mesh_(mesh) {
  for (std::size_t k = 0; k < first_.parameters.size(); ++k)
    for (const char* suffix : {"", Lowering::kAsNumber})
      placements_[first_.parameters[k].name + suffix] = given(parameterBegins[k]);
  for (const GraphNode& n : first_.graph.nodes()) {
    bool known = true;
    for (const std::string& in : n.in) {
      if (placements_.contains(in)) continue;
      // Constants, and tables that differ from rank to rank, go along with what they meet.
      const std::string& kind = first_.graph.tensor(in).kind;
      known = known && (kind == "constant" || kind == "input");
      if (!kind.empty()) placements_[in] = all(Kind::kAny);
    }
    for (const std::string& out : n.out) placements_[out] = known ? apply(n) : all(Kind::kUnknown);
  }
}

Placement Placements::all(Kind kind) const {
  return Placement(mesh_.axes(), AxisPlacement{kind, 0, 0});
}

Placement Placements::given(const std::vector<Sizes>& begin) const {
  Placement p = all(Kind::kSame);
  for (std::size_t a = 0; a < mesh_.axes(); ++a) {
    for (std::int64_t r = 0; r < mesh_.devices(); ++r) {
      // The device one further along this axis alone.
      bool alone = mesh_.coordinate(r, a) == 1;
      for (std::size_t b = 0; b < mesh_.axes(); ++b)
        alone = alone && (b == a || mesh_.coordinate(r, b) == 0);
      if (!alone) continue;
      for (std::size_t d = 0; d < begin[at(r)].size(); ++d)
        if (begin[at(r)][d] != begin[0][d])
          p[a] = {p[a].kind == Kind::kSame ? Kind::kPiece : Kind::kUnknown, d,
                  begin[at(r)][d] - begin[0][d]};
    }
  }
  return p;
}

const Placement* Placements::of(const std::string& tensor) const {
  const auto found = placements_.find(tensor);
  return found == placements_.end() ? nullptr : &found->second;
}

std::optional<Sizes> Placements::fullSizes(const std::string& tensor) const {
  const Placement* p = of(tensor);
  if (p == nullptr) return std::nullopt;
  Sizes full = sizes(tensor);
  for (std::size_t a = 0; a < p->size(); ++a) {
    if ((*p)[a].kind == Kind::kUnknown && mesh_.axisSize(a) > 1) return std::nullopt;
    if ((*p)[a].kind == Kind::kPiece) {
      if ((*p)[a].dim >= full.size()) return std::nullopt;
      full[(*p)[a].dim] += (mesh_.axisSize(a) - 1) * (*p)[a].step;
    }
  }
  return full;
}

std::string Placements::shard(const std::string& tensor) const {
  const Placement& p = placementOf(tensor);
  const Sizes& own = sizes(tensor);
  std::string text = "{\"box\": [", steps, sums;
  for (std::size_t d = 0; d < own.size(); ++d)
    text += (d == 0 ? "[0, " : ", [0, ") + std::to_string(own[d]) + "]";
  for (std::size_t a = 0; a < p.size(); ++a) {
    if (p[a].kind == Kind::kPiece) {
      Sizes step(own.size(), 0);
      step[p[a].dim] = p[a].step;
      steps += (steps.empty() ? "" : ", ") + quotedJson(mesh_.axisName(a)) + ": " + listJson(step);
    }
    if (p[a].kind == Kind::kSummand)
      sums += (sums.empty() ? "" : ", ") + quotedJson(mesh_.axisName(a));
  }
  text += "]";
  if (!steps.empty()) text += ", \"step\": {" + steps + "}";
  text += ", \"parts\": [{\"local\": " + quotedJson(tensor) + "}]";
  if (!sums.empty()) text += ", \"sum\": [" + sums + "]";
  return text + "}";
}

Placement Placements::apply(const GraphNode& n) {
  static const std::set<std::string, std::less<>> kElementwise{
      "add",   "sub",  "mul", "div",   "neg",  "exp",     "log",      "sqrt",
      "rsqrt", "tanh", "pow", "relu",  "silu", "sigmoid", "identity", "relu_backward",
      "sin",   "cos",  "erf", "floor", "ceil", "round",   "trunc",    "where"};
  if (!n.communication.empty()) return communicated(n);
  if (kElementwise.contains(n.op)) return elementwise(n);
  if (n.op == "einsum") return contracted(n);
  if (n.op == "view") return viewed(n);
  if (n.op == "embedding" || n.op == "one_hot") return looked(n);
  return moved(n);
}

Placement Placements::elementwise(const GraphNode& n) const {
  static const std::set<std::string, std::less<>> kLinear{"neg", "identity"};
  Placement result = all(Kind::kAny);
  const std::size_t rank = sizes(n.out[0]).size();
  const bool scaled = (n.op == "mul" || n.op == "div") && n.in.size() == 1;
  for (std::size_t a = 0; a < result.size(); ++a) {
    AxisPlacement& r = result[a];
    bool first = true;
    for (std::size_t k = 0; k < n.in.size(); ++k) {
      AxisPlacement p = placementOf(n.in[k])[a];
      if (p.kind == Kind::kPiece) p.dim += rank - sizes(n.in[k]).size();
      if (p.kind == Kind::kSummand &&
          (n.op == "where" || (n.in.size() == 1 && !kLinear.contains(n.op) && !scaled)))
        p.kind = Kind::kUnknown;
      if (p.kind == Kind::kAny) {
        // A number added to summands, or that they are taken from, is no summand.
        if (n.in.size() == 2 && (n.op == "add" || n.op == "sub") &&
            placementOf(n.in[1 - k])[a].kind == Kind::kSummand)
          r = {Kind::kUnknown, 0, 0};
        if (r.kind == Kind::kUnknown) first = false;
        continue;
      }
      if (first) {
        r = p;
        first = false;
        // A product with summands is one of summands, a quotient by them is not.
        if (k == 1 && p.kind == Kind::kSummand && n.op != "add" && n.op != "sub" && n.op != "mul")
          r.kind = Kind::kUnknown;
        continue;
      }
      if (r.kind == Kind::kUnknown || p.kind == Kind::kUnknown) {
        r.kind = Kind::kUnknown;
      } else if (r.kind == Kind::kSummand || p.kind == Kind::kSummand) {
        const bool both = r.kind == p.kind;
        const bool sum = n.op == "add" || n.op == "sub";
        const bool product = n.op == "mul" || (n.op == "div" && r.kind == Kind::kSummand);
        const bool kept =
            (both && sum) || (!both && product && (r.kind == Kind::kSame || p.kind == Kind::kSame));
        r = {kept ? Kind::kSummand : Kind::kUnknown, 0, 0};
      } else if (r.kind == Kind::kSame) {
        r = p;  // of size 1 along the dimension
      } else if (p.kind == Kind::kPiece && r != p) {
        r.kind = Kind::kUnknown;
      }
    }
  }
  return result;
}

Placement Placements::contracted(const GraphNode& n) const {
  const std::string text = attribute(n, "equation");
  const std::string equation = text.substr(1, text.size() - 2);
  const std::size_t comma = equation.find(','), arrow = equation.find("->");
  if (n.in.size() != 2 || comma == std::string::npos) return all(Kind::kUnknown);
  const std::string in[] = {equation.substr(0, comma),
                            equation.substr(comma + 1, arrow - comma - 1)},
                    out = equation.substr(arrow + 2);
  Placement result = all(Kind::kAny);
  for (std::size_t a = 0; a < result.size(); ++a) {
    AxisPlacement& r = result[a];
    for (std::size_t k = 0; k < 2; ++k) {
      AxisPlacement p = placementOf(n.in[k])[a];
      if (p.kind == Kind::kAny) continue;
      bool fromContraction = false;
      if (p.kind == Kind::kPiece) {
        const std::size_t place = out.find(in[k][p.dim]);
        fromContraction = place == std::string::npos;
        p = fromContraction ? AxisPlacement{Kind::kSummand, p.dim, -1}
                            : AxisPlacement{Kind::kPiece, place, p.step};
        // Both sides may be cut along what they are contracted over.
        if (fromContraction) p.dim = static_cast<unsigned char>(in[k][placementOf(n.in[k])[a].dim]);
      }
      if (r.kind == Kind::kAny || r.kind == Kind::kSame) {
        r = p.kind == Kind::kSame && r.kind == Kind::kSame ? r : p;
      } else if (p.kind != Kind::kSame && r != p) {
        r.kind = Kind::kUnknown;
      }
    }
    if (r.kind == Kind::kSummand) r = {Kind::kSummand, 0, 0};
  }
  return result;
}

// What is cut along the slowest of the dimensions that are put together, or taken apart, stays cut.
Placement Placements::viewed(const GraphNode& n) const {
  const Sizes &from = sizes(n.in[0]), &to = sizes(n.out[0]);
  Placement result = placementOf(n.in[0]);
  for (AxisPlacement& p : result) {
    if (p.kind != Kind::kPiece) continue;
    // The number of elements before, and of those one position stands for.
    std::int64_t before = 1, inner = 1;
    for (std::size_t d = 0; d < p.dim; ++d) before *= from[d];
    for (std::size_t d = p.dim + 1; d < from.size(); ++d) inner *= from[d];
    std::int64_t seen = 1;
    std::optional<std::size_t> found;
    for (std::size_t d = 0; d < to.size(); ++d) {
      if (seen == before && (to[d] != 1 || (from[p.dim] == 1 && d + 1 == to.size())))
        if (!found) found = d;
      seen *= to[d];
    }
    if (from[p.dim] == 1 && !found)
      for (std::size_t d = 0; d < to.size(); ++d)
        if (to[d] == 1) found = d;
    if (!found) {
      p.kind = Kind::kUnknown;
      continue;
    }
    std::int64_t newInner = 1;
    for (std::size_t d = *found + 1; d < to.size(); ++d) newInner *= to[d];
    if (p.step * inner % newInner != 0) p.kind = Kind::kUnknown;
    else p = {Kind::kPiece, *found, p.step * inner / newInner};
  }
  return result;
}

Placement Placements::communicated(const GraphNode& n) const {
  Placement result = placementOf(n.in[0]);
  const std::string group = attribute(n, "group");
  if (group.empty()) return all(Kind::kUnknown);
  const Sizes &from = sizes(n.in[0]), &to = sizes(n.out[0]);
  const std::size_t dim = at(number(n, "dim", 0));
  std::int64_t step = n.op == "reduce_scatter" ? to[dim] : 0;
  for (std::size_t a = mesh_.axes(); a-- > 0;) {
    if (group.find('"' + mesh_.axisName(a) + '"') == std::string::npos) continue;
    AxisPlacement& p = result[a];
    if (n.op == "all_reduce") {
      p = {Kind::kSame, 0, 0};
    } else if (n.op == "all_gather") {
      p = p.kind == Kind::kPiece && p.dim == dim && p.step >= from[dim]
              ? AxisPlacement{Kind::kSame, 0, 0}
              : AxisPlacement{};
    } else if (n.op == "reduce_scatter") {
      p = {Kind::kPiece, dim, step};
      step *= mesh_.axisSize(a);
    } else if (n.op == "all_to_all") {
      const std::size_t idim = at(number(n, "idim", 0)), odim = at(number(n, "odim", 0));
      p = p.kind == Kind::kPiece && p.dim == odim && idim != odim
              ? AxisPlacement{Kind::kPiece, idim, to[idim]}
              : AxisPlacement{};
    }
  }
  return result;
}

Placement Placements::looked(const GraphNode& n) const {
  Placement result = placementOf(n.in[0]);
  const std::size_t last = sizes(n.out[0]).size() - 1;
  for (std::size_t a = 0; a < result.size(); ++a) {
    // A window that moves with the rank: rows of one-hot, or summands of what is looked up.
    std::int64_t moved = 0;
    for (std::int64_t r = 0; r < mesh_.devices(); ++r) {
      bool alone = mesh_.coordinate(r, a) == 1;
      for (std::size_t b = 0; b < mesh_.axes(); ++b)
        alone = alone && (b == a || mesh_.coordinate(r, b) == 0);
      const Graph& other = ranks_[at(r)]->graph;
      if (!alone || !other.has(n.out[0])) continue;
      const GraphTensor& t = other.tensor(n.out[0]);
      if (!t.kind.empty() || other.nodes()[t.producer].op != n.op) continue;
      moved = numberOn(r, other.nodes()[t.producer], "start") - numberOn(0, n, "start");
    }
    AxisPlacement& p = result[a];
    if (moved != 0) {
      const bool free = p.kind == Kind::kSame || p.kind == Kind::kAny;
      if (!free) p = {};
      else if (n.op == "one_hot") p = {Kind::kPiece, last, moved};
      else p = {Kind::kSummand, 0, 0};
      continue;
    }
    if (n.op == "one_hot" || n.in.size() < 2) continue;
    const AxisPlacement& table = placementOf(n.in[1])[a];
    if (table.kind == Kind::kSame || table.kind == Kind::kAny) continue;
    if (p.kind != Kind::kSame && p.kind != Kind::kAny) p = {};
    else if (table.kind == Kind::kPiece && table.dim == 1) p = {Kind::kPiece, last, table.step};
    else p = table.kind == Kind::kSummand ? table : AxisPlacement{};
  }
  return result;
}

Placement Placements::moved(const GraphNode& n) const {
  Placement result = placementOf(n.in[0]);
  const Sizes &from = sizes(n.in[0]), &to = sizes(n.out[0]);
  for (std::size_t a = 0; a < result.size(); ++a) {
    AxisPlacement& p = result[a];
    if (n.op == "permute") {
      const Sizes dims = list(n, "dims");
      if (p.kind == Kind::kPiece)
        p.dim = at(std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(p.dim)) -
                   dims.begin());
    } else if (n.op == "expand") {
      if (p.kind == Kind::kPiece) p.dim += to.size() - from.size();
    } else if (n.op == "slice" || n.op == "pad") {
      if (p.kind == Kind::kPiece && from[p.dim] != to[p.dim]) p = {};
    } else if (n.op == "cat") {
      const std::size_t dim = at(number(n, "dim", 0));
      for (const std::string& in : n.in) {
        const AxisPlacement& other = placementOf(in)[a];
        if (p.kind == Kind::kAny) p = other;
        else if (other.kind != Kind::kAny && other != p) p = {};
      }
      if (p.kind == Kind::kPiece && p.dim == dim) p = {};
    } else if (n.op == "sum" || n.op == "amax" || n.op == "amin") {
      const Sizes dims = attribute(n, "dim").empty() ? Sizes{} : list(n, "dim");
      if (p.kind == Kind::kPiece && among(dims, p.dim)) {
        p = n.op == "sum" ? AxisPlacement{Kind::kSummand, 0, 0} : AxisPlacement{};
      } else if (p.kind == Kind::kPiece) {
        p.dim -= at(std::count_if(dims.begin(), dims.end(), [&](std::int64_t d) {
          return d < static_cast<std::int64_t>(p.dim);
        }));
      } else if (p.kind == Kind::kSummand && n.op != "sum") {
        p = {};
      }
    } else if (n.op == "topk") {
      if (p.kind == Kind::kSummand || (p.kind == Kind::kPiece && p.dim + 1 == from.size())) p = {};
    } else {
      p = {};
    }
  }
  return result;
}

}  // namespace shardproof::hlo
