// SPDX-License-Identifier: Apache-2.0
// The part of the builder that brings local tensors from one layout into another, and states
// layouts as lineage.
#include <algorithm>

#include "adversary/plan_builder.h"
#include "util/index.h"

namespace shardproof::adversary {
namespace {

const char* nameOf(int reduction) {
  return reduction == kSum    ? "sum"
         : reduction == kMean ? "mean"
         : reduction == kMax  ? "max"
                              : "min";
}

std::vector<std::int64_t> padOf(const Shape& shape, int dim, std::int64_t left,
                                std::int64_t right) {
  std::vector<std::int64_t> pad;
  for (int d = static_cast<int>(shape.size()) - 1; d >= dim; --d) {
    pad.push_back(d == dim ? left : 0);
    pad.push_back(d == dim ? right : 0);
  }
  return pad;
}

}  // namespace

std::string PlanBuilder::freshComm() { return "c" + std::to_string(comms_++); }

void PlanBuilder::fillGroup(Json& node, const std::vector<std::size_t>& list, bool backwards) {
  std::int64_t members = 1;
  for (const std::size_t a : list) members *= count(a);
  if (!backwards && (members > 8 || random_.chance(65))) {
    Json group = Json::array();
    for (const std::size_t a : list) group.push_back(axisName(a));
    node["group"] = group;
    return;
  }
  Json group = Json::array();
  for (std::int64_t m = 0; m < members; ++m) {
    std::int64_t rest = m;
    Json member = Json::object();
    for (auto a = list.rbegin(); a != list.rend(); ++a) {
      const std::int64_t c = rest % count(*a);
      member[axisName(*a)] = backwards ? count(*a) - 1 - c : c;
      rest /= count(*a);
    }
    group.push_back(std::move(member));
  }
  node["group_at"] = std::move(group);
}

// Members in the order of their coordinates, or the other way round.
Json PlanBuilder::communication(const std::string& op, const std::string& in,
                                const std::string& out, const std::vector<std::size_t>& list,
                                bool backwards) {
  Json node{{"op", op}, {"in", {in}}, {"out", {out}}, {"comm", freshComm()}};
  fillGroup(node, list, backwards);
  return node;
}

// The pieces in the opposite order.
int PlanBuilder::flip(int from, std::size_t axis) {
  const Local old = local(from);
  const std::int64_t n = count(axis);
  Local other = old;
  Cut& cut = other.cuts[axis];
  other.low[at(cut.dim)] += cut.step * (n - 1);
  cut.step = -cut.step;
  const int id = declare(other);
  Json node = communication("collective_permute", old.name, local(id).name, {axis}, false);
  std::vector<std::int64_t> sources;
  for (std::int64_t k = 0; k < n; ++k) sources.push_back(k);
  random_.shuffle(sources);
  node["pairs"] = Json::array();
  for (const std::int64_t k : sources) node["pairs"].push_back({k, n - 1 - k});
  emit(
      old, old.perMb, [&](const auto&) { return node; }, true);
  if (random_.chance(options_.cutPoints / 2)) lineage(old.logical, "cut_point", local(id));
  return id;
}

// Equal pieces, said one by one.
void PlanBuilder::maySaySizes(Json& node, std::int64_t members, std::int64_t size) {
  if (members > 8 || !random_.chance(20)) return;
  const Json row = std::vector<std::int64_t>(at(static_cast<int>(members)), size);
  node["sizes"] = node["op"] == "all_to_all" ? Json(std::vector<Json>(row.size(), row)) : row;
}

int PlanBuilder::gather(int from, std::size_t axis) {
  if (axis < axes() && count(axis) <= 8 && random_.chance(10)) from = flip(from, axis);
  const Local old = local(from);
  const Cut cut = old.cuts[axis];
  const std::int64_t n = count(axis), length = old.length[at(cut.dim)];
  const bool backwards = cut.step < 0;
  const bool once = axis == axes();
  const bool real = logical(old.logical).info.element == ElementKind::kReal;
  if (real && random_.chance(20)) {  // zeros around each piece, and added up
    Local padded = old;
    padded.length[at(cut.dim)] *= n;
    if (backwards) padded.low[at(cut.dim)] += cut.step * (n - 1);
    padded.cuts[axis] = {Cut::Kind::kPart, -1, 0, kSum, 0};
    const int id = declare(padded);
    const std::string name = local(id).name;
    emit(old, old.perMb, [&](const std::vector<std::int64_t>& coordinates) {
      const std::int64_t place = backwards ? n - 1 - coordinates[axis] : coordinates[axis];
      return Json{
          {"op", "pad"},
          {"in", {old.name}},
          {"out", {name}},
          {"attrs",
           {{"pad", padOf(old.length, cut.dim, place * length, (n - 1 - place) * length)}}}};
    });
    return combine(id, {axis});
  }
  Local whole = old;
  whole.length[at(cut.dim)] *= n;
  if (backwards) whole.low[at(cut.dim)] += cut.step * (n - 1);
  whole.cuts[axis] = {};
  if (once) whole.perMb = false;
  const int id = declare(whole);
  const std::string name = local(id).name;
  if (once) {
    Json pieces = Json::array();
    for (std::int64_t k = 0; k < n; ++k)
      pieces.push_back(old.name + "#" + std::to_string(backwards ? n - 1 - k : k));
    emit(old, false, [&](const auto&) {
      return Json{{"op", "cat"}, {"in", pieces}, {"out", {name}}, {"attrs", {{"dim", cut.dim}}}};
    });
  } else if (random_.chance(15)) {
    return toRoot(from, axis, whole, "gather", {{"dim", cut.dim}}, backwards);
  } else {
    Json node = communication("all_gather", old.name, name, {axis}, backwards);
    node["attrs"]["dim"] =
        random_.chance(20) ? cut.dim - static_cast<int>(old.length.size()) : cut.dim;
    maySaySizes(node, n, length);
    emit(
        old, old.perMb, [&](const auto&) { return node; }, true);
  }
  if (random_.chance(options_.cutPoints / 2)) lineage(old.logical, "cut_point", local(id));
  return id;
}

// One coordinate alone gets what all give, and tells the others; some wait for each other between.
int PlanBuilder::toRoot(int from, std::size_t axis, Local whole, const char* op,
                        const Json& attributes, bool backwards) {
  const Local old = local(from);
  const std::int64_t root = random_.below(count(axis));
  whole.cuts[axis] = {Cut::Kind::kOnly, -1, 0, kSum, root};
  const int id = declare(whole);
  Json node = communication(op, old.name, local(id).name, {axis}, backwards);
  node["root"] = {{axisName(axis), root}};
  if (!attributes.empty()) node["attrs"] = attributes;
  emit(
      old, old.perMb,
      [&](const std::vector<std::int64_t>& coordinates) {
        Json own = node;
        if (coordinates[axis] != root) own["out"] = Json::array();
        return own;
      },
      true);
  if (random_.chance(20)) {
    Json barrier = communication("barrier", "", "", {axis}, false);
    barrier["in"] = barrier["out"] = Json::array();
    emit(
        old, old.perMb, [&](const auto&) { return barrier; }, true);
  }
  return spread(id, axis);
}

int PlanBuilder::combine(int from, const std::vector<std::size_t>& list) {
  const Local old = local(from);
  const int reduction = old.cuts[list[0]].reduction;
  Local whole = old;
  for (const std::size_t a : list) whole.cuts[a] = {};
  if (list[0] == axes()) return accumulate(old, whole);
  if (list.size() == 1 && random_.chance(15)) {
    Json attributes = Json::object();
    if (reduction != kSum) attributes["reduce"] = nameOf(reduction);
    return toRoot(from, list[0], whole, "reduce", attributes, random_.chance(10));
  }
  const int id = declare(whole);
  Json node = communication("all_reduce", old.name, local(id).name, list, random_.chance(10));
  if (reduction != kSum || random_.chance(20)) node["attrs"]["reduce"] = nameOf(reduction);
  emit(
      old, old.perMb, [&](const auto&) { return node; }, true);
  if (random_.chance(options_.cutPoints / 2)) lineage(old.logical, "cut_point", local(id));
  return id;
}

// Over the microbatches: one after the other, in any order.
int PlanBuilder::accumulate(const Local& old, Local whole) {
  whole.perMb = false;
  const bool mean = old.cuts[axes()].reduction == kMean;
  std::vector<std::string> order;
  for (std::int64_t k = 0; k < options_.microbatches; ++k)
    order.push_back(old.name + "#" + std::to_string(k));
  random_.shuffle(order);
  std::string sum = order[0];
  for (std::size_t k = 1; k < order.size(); ++k) {
    std::string name;
    if (k + 1 == order.size() && !mean) {
      name = local(declare(whole)).name;
    } else {  // a tensor of the plan alone
      name = old.name + ".sum" + std::to_string(locals_.size()) + "." + std::to_string(k);
      for (Rank& rank : ranks_)
        if (has(rank, whole)) rank.tensors[name] = Json{{"shape", whole.length}};
    }
    emit(old, false, [&](const auto&) {
      return Json{{"op", "add"}, {"in", {sum, order[k]}}, {"out", {name}}};
    });
    sum = name;
  }
  if (mean || order.size() == 1) {
    const std::string name = local(declare(whole)).name;
    emit(old, false, [&](const auto&) {
      Json node{{"op", mean ? "div" : "identity"}, {"in", {sum}}, {"out", {name}}};
      if (mean) node["attrs"]["scalar"] = options_.microbatches;
      return node;
    });
  }
  const int id = static_cast<int>(locals_.size()) - 1;
  if (random_.chance(options_.cutPoints / 2)) lineage(old.logical, "cut_point", local(id));
  return id;
}

int PlanBuilder::combineScattered(int from, std::size_t axis, int dim) {
  const Local old = local(from);
  const int reduction = old.cuts[axis].reduction;
  Local piece = old;
  piece.length[at(dim)] /= count(axis);
  piece.cuts[axis] = {Cut::Kind::kPiece, dim, piece.length[at(dim)], kSum, 0};
  const int id = declare(piece);
  Json node = communication("reduce_scatter", old.name, local(id).name, {axis}, false);
  node["attrs"]["dim"] = dim;
  if (reduction != kSum) node["attrs"]["reduce"] = nameOf(reduction);
  maySaySizes(node, count(axis), piece.length[at(dim)]);
  emit(
      old, old.perMb, [&](const auto&) { return node; }, true);
  if (random_.chance(options_.cutPoints / 2)) lineage(old.logical, "cut_point", local(id));
  return id;
}

// From pieces of one dimension to pieces of another.
int PlanBuilder::exchange(int from, std::size_t axis, int dim) {
  const Local old = local(from);
  const Cut cut = old.cuts[axis];
  const std::int64_t n = count(axis);
  const bool backwards = cut.step < 0;
  Local other = old;
  other.length[at(cut.dim)] *= n;
  if (backwards) other.low[at(cut.dim)] += cut.step * (n - 1);
  other.length[at(dim)] /= n;
  const std::int64_t step = other.length[at(dim)];
  other.cuts[axis] = {Cut::Kind::kPiece, dim, backwards ? -step : step, kSum, 0};
  if (backwards) other.low[at(dim)] += step * (n - 1);
  const int id = declare(other);
  Json node = communication("all_to_all", old.name, local(id).name, {axis}, backwards);
  node["attrs"] = {{"idim", dim}, {"odim", cut.dim}};
  maySaySizes(node, n, step);
  emit(
      old, old.perMb, [&](const auto&) { return node; }, true);
  if (random_.chance(options_.cutPoints / 2)) lineage(old.logical, "cut_point", local(id));
  return id;
}

int PlanBuilder::scatter(int from, std::size_t axis, int dim) {
  const Local old = local(from);
  const std::int64_t n = count(axis);
  Local piece = old;
  piece.length[at(dim)] /= n;
  const std::int64_t length = piece.length[at(dim)];
  piece.cuts[axis] = {Cut::Kind::kPiece, dim, length, kSum, 0};
  if (axis == axes()) piece.perMb = true;
  const int id = declare(piece);
  const std::string name = local(id).name;
  const bool real = logical(old.logical).info.element == ElementKind::kReal;
  if (axis < axes() && real &&
      random_.chance(30)) {  // of equal copies the mean, the largest and the smallest are the copy
    Json node = communication("reduce_scatter", old.name, name, {axis}, false);
    node["attrs"] = {{"dim", dim}, {"reduce", random_.pick({"mean", "max", "min"})}};
    emit(
        old, old.perMb, [&](const auto&) { return node; }, true);
  } else if (axis < axes() && random_.chance(20)) {
    const std::int64_t root = random_.below(n);
    Json node = communication("scatter", old.name, name, {axis}, false);
    node["root"] = {{axisName(axis), root}};
    node["attrs"] = {{"dim", dim}};
    emit(
        old, old.perMb,
        [&](const std::vector<std::int64_t>& coordinates) {
          Json own = node;
          if (coordinates[axis] != root) own["in"] = Json::array();
          return own;
        },
        true);
  } else {
    const bool chunk = random_.chance(30);
    emit(old, piece.perMb, [&](const std::vector<std::int64_t>& coordinates) {
      Json node{{"op", chunk ? "chunk" : "slice"}, {"in", {old.name}}, {"out", {name}}};
      const std::int64_t c = coordinates[axis];
      if (chunk) node["attrs"] = {{"dim", dim}, {"parts", n}, {"index", c}};
      else node["attrs"] = {{"dim", dim}, {"start", c * length}, {"stop", (c + 1) * length}};
      return node;
    });
  }
  if (random_.chance(options_.cutPoints / 2)) lineage(old.logical, "cut_point", local(id));
  return id;
}

// From a whole to parts of a sum.
int PlanBuilder::part(int from, std::size_t axis) {
  const Local old = local(from);
  Local piece = old;
  piece.cuts[axis] = {Cut::Kind::kPart, -1, 0, kSum, 0};
  if (axis == axes()) piece.perMb = true;
  const int id = declare(piece);
  const std::string name = local(id).name;
  const bool equal = random_.chance(50);
  const std::int64_t one = random_.below(count(axis));
  emit(old, piece.perMb, [&](const std::vector<std::int64_t>& coordinates) {
    Json node{{"op", equal ? "div" : "mul"}, {"in", {old.name}}, {"out", {name}}};
    node["attrs"]["scalar"] = equal ? count(axis) : coordinates[axis] == one ? 1 : 0;
    return node;
  });
  if (random_.chance(options_.cutPoints / 2)) lineage(old.logical, "cut_point", local(id));
  return id;
}

// What one coordinate has goes to all.
int PlanBuilder::spread(int from, std::size_t axis) {
  const Local old = local(from);
  Local whole = old;
  whole.cuts[axis] = {};
  const int id = declare(whole);
  const std::string name = local(id).name, comm = freshComm();
  const std::int64_t root = old.cuts[axis].coordinate;
  Json group = Json::object();
  fillGroup(group, {axis}, random_.chance(20));
  emit(
      whole, old.perMb,
      [&](const std::vector<std::int64_t>& coordinates) {
        const bool own = coordinates[axis] == root;
        Json node{{"op", "broadcast"},
                  {"in", Json::array()},
                  {"out", Json::array()},
                  {"comm", comm},
                  {"root", {{axisName(axis), root}}}};
        node[own ? "in" : "out"].push_back(own ? old.name : name);
        node.update(group);
        return node;
      },
      true);
  emit(old, old.perMb, [&](const auto&) {
    return Json{{"op", "identity"}, {"in", {old.name}}, {"out", {name}}};
  });
  if (random_.chance(options_.cutPoints / 2)) lineage(old.logical, "cut_point", local(id));
  return id;
}

int PlanBuilder::move(int from, std::size_t axis, std::int64_t to) {
  const Local old = local(from);
  Local moved = old;
  moved.cuts[axis].coordinate = to;
  const int id = declare(moved);
  const std::string name = local(id).name, comm = freshComm(), axisText = axisName(axis);
  const std::int64_t source = old.cuts[axis].coordinate;
  Local both = old;
  both.cuts[axis] = {};
  emit(
      both, old.perMb,
      [&](const std::vector<std::int64_t>& coordinates) {
        if (coordinates[axis] == source)
          return Json{{"op", "send"},
                      {"in", {old.name}},
                      {"out", Json::array()},
                      {"comm", comm},
                      {"to", {{axisText, to}}}};
        if (coordinates[axis] == to)
          return Json{{"op", "recv"},
                      {"in", Json::array()},
                      {"out", {name}},
                      {"comm", comm},
                      {"from", {{axisText, source}}}};
        return Json();
      },
      true);
  if (random_.chance(options_.cutPoints / 2)) lineage(old.logical, "cut_point", local(id));
  return id;
}

// ---- lineage ----

// What the tensor holds, in one of the ways to say it: along each axis by a step or coordinate by
// coordinate, sums by `sum` or by parts, copies all or some. Nothing for what is no sum.
std::optional<Json> PlanBuilder::shards(const Local& l, bool assumed) {
  enum class How { kFree, kEach, kOne, kSummed, kParts };
  std::vector<How> how;
  std::vector<std::int64_t> one(axes() + 1, 0);
  std::int64_t shardCount = 1;
  for (std::size_t a = 0; a <= axes(); ++a) {
    const Cut& cut = l.cuts[a];
    if (a == axes() && !l.perMb) {
      how.push_back(How::kFree);
      continue;
    }
    const bool few = shardCount * count(a) <= 8;
    if (cut.kind == Cut::Kind::kPart) {
      if (cut.reduction != kSum) return std::nullopt;
      how.push_back(count(a) <= 8 && random_.chance(30) ? How::kParts : How::kSummed);
    } else if (cut.kind == Cut::Kind::kOnly) {
      one[a] = cut.coordinate;
      how.push_back(How::kOne);
    } else if (few && random_.chance(25)) {
      how.push_back(How::kEach);
      shardCount *= count(a);
    } else if (cut.kind == Cut::Kind::kWhole && !assumed && random_.chance(15)) {
      one[a] = random_.below(count(a));
      how.push_back(How::kOne);
    } else {
      how.push_back(How::kFree);
    }
  }
  Json list = Json::array();
  std::vector<std::int64_t> at0(axes() + 1, 0);
  const auto next = [&](std::vector<std::int64_t>& c,
                        How which) {  // counts through the axes that are treated so
    for (std::size_t a = axes() + 1; a-- > 0;) {
      if (how[a] != which) continue;
      if (++c[a] < count(a)) return true;
      c[a] = 0;
    }
    return false;
  };
  do {
    Json shard, box = Json::array(), parts = Json::array(), step = Json::object(),
                sum = Json::array();
    Shape low = l.low;
    for (std::size_t a = 0; a <= axes(); ++a) {
      const Cut& cut = l.cuts[a];
      if (how[a] == How::kSummed) sum.push_back(axisName(a));
      if (cut.kind != Cut::Kind::kPiece) continue;
      if (how[a] == How::kFree) {
        Shape s(low.size(), 0);
        s[at(cut.dim)] = cut.step;
        step[axisName(a)] = s;
      } else {
        low[at(cut.dim)] += cut.step * at0[a];
      }
    }
    for (std::size_t d = 0; d < low.size(); ++d) box.push_back({low[d], low[d] + l.length[d]});
    std::vector<std::int64_t> c = at0;
    do {
      Json p{{"local", l.name}};
      for (std::size_t a = 0; a <= axes(); ++a) {
        if (how[a] == How::kFree || how[a] == How::kSummed) continue;
        const std::int64_t value = how[a] == How::kOne ? one[a] : c[a];
        if (a < axes()) p["at"][axisName(a)] = value;
        else p["mb"] = value;
      }
      parts.push_back(std::move(p));
    } while (next(c, How::kParts));
    shard["box"] = std::move(box);
    if (!step.empty()) shard["step"] = std::move(step);
    shard["parts"] = std::move(parts);
    if (!sum.empty()) shard["sum"] = std::move(sum);
    list.push_back(std::move(shard));
  } while (next(at0, How::kEach));
  return list;
}

void PlanBuilder::lineage(int logicalId, const char* role, const Local& l) {
  const Local copy = l;
  if (auto list = shards(copy, role == std::string("input")))
    lineage_.push_back(
        {{"tensor", logical(logicalId).name}, {"role", role}, {"shards", std::move(*list)}});
}

}  // namespace shardproof::adversary
