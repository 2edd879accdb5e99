// SPDX-License-Identifier: Apache-2.0
#include "adversary/plan_builder.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "ops/registry.h"
#include "util/index.h"

namespace shardproof::adversary {
namespace {

double decimal(const Rational& r) { return std::round(r.toDouble() * 1000) / 1000; }
std::int64_t elementsOf(const Shape& s) {
  std::int64_t n = 1;
  for (const std::int64_t d : s) n *= d;
  return n;
}

Json nested(const std::vector<double>& values, const Shape& shape, std::size_t dim,
            std::size_t& next) {
  if (dim == shape.size()) return values[next++];
  Json list = Json::array();
  for (std::int64_t i = 0; i < shape[dim]; ++i)
    list.push_back(nested(values, shape, dim + 1, next));
  return list;
}

Json tensorJson(const Shape& shape) { return {{"shape", shape}}; }

}  // namespace

Attributes rounded(Attributes attributes) {
  for (auto& [key, value] : attributes) {
    if (auto* number = std::get_if<Rational>(&value); number && !number->isInteger())
      *number = Rational(static_cast<std::int64_t>(std::llround(number->toDouble() * 1000)), 1000);
  }
  return attributes;
}

Json attributesJson(const Attributes& attributes) {
  Json json = Json::object();
  for (const auto& [key, value] : attributes) {
    if (const auto* flag = std::get_if<bool>(&value)) json[key] = *flag;
    else if (const auto* text = std::get_if<std::string>(&value)) json[key] = *text;
    else if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value)) json[key] = *list;
    else if (const Rational& r = std::get<Rational>(value); r.isInteger()) json[key] = r.toInt64();
    else json[key] = decimal(r);
  }
  return json;
}

PlanBuilder::PlanBuilder(Random& random, BuilderOptions options)
    : random_(random), options_(std::move(options)), mesh_(options_.mesh) {
  static const std::vector<std::string> kNames{"dp", "tp", "pp", "ep"};
  for (std::size_t a = 0; a < axes(); ++a) names_.push_back(kNames.at(a));
  names_.push_back("mb");
  for (std::size_t a = 0; a <= axes(); ++a) order_.push_back(a);
  random_.shuffle(order_);
  std::int64_t ranks = 1;
  for (const std::int64_t n : mesh_) ranks *= n;
  for (std::int64_t r = 0; r < ranks; ++r) {
    Rank rank;
    rank.at.resize(axes());
    std::int64_t rest = r;
    for (std::size_t a = axes(); a-- > 0; rest /= mesh_[a]) rank.at[a] = rest % mesh_[a];
    ranks_.push_back(std::move(rank));
  }
}

// ---- the model ----

int PlanBuilder::input(const Shape& shape, ElementKind element, bool parameter) {
  Logical l;
  l.name = (parameter ? "w" : "x") + std::to_string(logicals_.size());
  l.info = {shape, element, false};
  l.kind = parameter && element == ElementKind::kReal ? "parameter" : "input";
  logicals_.push_back(std::move(l));
  return size() - 1;
}

int PlanBuilder::constant(const Shape& shape) {
  Logical l;
  l.name = "c" + std::to_string(logicals_.size());
  l.info = {shape, ElementKind::kReal, false};
  l.kind = "constant";
  const std::int64_t n = random_.chance(50) ? 1 : elementsOf(shape);
  for (std::int64_t i = 0; i < n; ++i)
    l.values.push_back(static_cast<double>(random_.between(-8, 8)) / 4);
  logicals_.push_back(std::move(l));
  return size() - 1;
}

std::vector<int> PlanBuilder::apply(const ops::testing::Call& call,
                                    const std::vector<int>& operands) {
  Made made;
  made.call = call;
  made.call.attributes = rounded(call.attributes);
  made.operands = operands;
  const std::vector<ops::TensorInfo> infos = ops::testing::inferResults(made.call);
  Json node{{"op", call.op}, {"in", Json::array()}, {"out", Json::array()}};
  for (const int o : operands) {
    if (o >= 0) logical(o).read = true;
    node["in"].push_back(o >= 0 ? Json(logical(o).name) : Json());
  }
  for (std::size_t r = 0; r < infos.size(); ++r) {
    const bool wanted = !infos[r].absent;
    made.results.push_back(wanted ? size() : -1);
    if (wanted) {
      Logical l;
      l.name = "t" + std::to_string(logicals_.size());
      l.info = infos[r];
      l.producer = static_cast<int>(made_.size());
      l.result = static_cast<int>(r);
      logicals_.push_back(std::move(l));
    }
    node["out"].push_back(wanted ? Json(logicals_.back().name) : Json());
  }
  if (!made.call.attributes.empty()) node["attrs"] = attributesJson(made.call.attributes);
  modelNodes_.push_back(std::move(node));
  const std::vector<int> results = made.results;
  made_.push_back(std::move(made));
  const int index = static_cast<int>(made_.size()) - 1;
  produce(index, false);
  if (random_.chance(8)) produce(index, random_.chance(50));  // once more, in another way perhaps
  return results;
}

// ---- layouts ----

// Where several axes cut one dimension, the one that comes first in order_ is the outer one.
Local PlanBuilder::canonical(int logicalId, const std::vector<Cut>& wants) const {
  Local l;
  l.logical = logicalId;
  l.length = logicals_[at(logicalId)].info.shape;
  l.low.assign(l.length.size(), 0);
  l.cuts = wants;
  for (const std::size_t a : order_) {
    Cut& cut = l.cuts[a];
    if (cut.kind != Cut::Kind::kPiece) continue;
    l.length[at(cut.dim)] /= count(a);
    cut.step = l.length[at(cut.dim)];
  }
  return l;
}

bool PlanBuilder::satisfies(const Local& have, const Local& target) {
  if (have.low != target.low || have.length != target.length) return false;
  for (std::size_t a = 0; a < have.cuts.size(); ++a) {
    const bool restricted =
        have.cuts[a].kind == Cut::Kind::kWhole && target.cuts[a].kind == Cut::Kind::kOnly;
    if (!restricted && !(have.cuts[a] == target.cuts[a])) return false;
  }
  return true;
}

// Whether what cuts this dimension can stay: it is as wanted, and what is still to be cut lies
// inside of it.
bool PlanBuilder::cleanDim(const Local& have, const Local& target, int dim) const {
  bool missing = false;
  for (const std::size_t a : order_) {
    const bool cut = have.cuts[a].kind == Cut::Kind::kPiece && have.cuts[a].dim == dim;
    const bool wanted = target.cuts[a].kind == Cut::Kind::kPiece && target.cuts[a].dim == dim;
    if (cut && (!(have.cuts[a] == target.cuts[a]) || missing)) return false;
    missing = missing || (wanted && !cut);
  }
  std::int64_t length = logicals_[at(have.logical)].info.shape[at(dim)];
  for (const std::size_t a : order_)
    if (have.cuts[a].kind == Cut::Kind::kPiece && have.cuts[a].dim == dim) length /= count(a);
  return have.low[at(dim)] == 0 && have.length[at(dim)] == length;
}

// Whether its pieces along this axis, side by side, are one box.
bool PlanBuilder::tiles(const Local& l, std::size_t axis) const {
  const Cut& cut = l.cuts[axis];
  return cut.kind == Cut::Kind::kPiece && std::abs(cut.step) == l.length[at(cut.dim)];
}

// ---- local tensors ----

bool PlanBuilder::has(const Rank& rank, const Local& l) const {
  for (std::size_t a = 0; a < axes(); ++a)
    if (l.cuts[a].kind == Cut::Kind::kOnly && l.cuts[a].coordinate != rank.at[a]) return false;
  return true;
}

int PlanBuilder::declare(Local l) {
  l.name = logical(l.logical).name + "." + std::to_string(locals_.size());
  for (Rank& rank : ranks_) {
    if (!has(rank, l)) continue;
    Json tensor = tensorJson(l.length);
    if (l.perMb) tensor["per_mb"] = true;
    rank.tensors[l.name] = std::move(tensor);
  }
  logical(l.logical).locals.push_back(static_cast<int>(locals_.size()));
  locals_.push_back(std::move(l));
  return static_cast<int>(locals_.size()) - 1;
}

int PlanBuilder::given(int logicalId, Local l) {
  const Logical& g = logical(logicalId);
  const std::string kind = g.kind;
  const ElementKind element = g.info.element;
  const int id = declare(std::move(l));
  const Local& made = local(id);
  for (Rank& rank : ranks_) {
    if (!has(rank, made)) continue;
    Json& tensor = rank.tensors[made.name];
    tensor["kind"] = kind;
    if (element == ElementKind::kInteger) tensor["dtype"] = "int64";
    if (element == ElementKind::kComplex) tensor["dtype"] = "complex64";
    if (kind != "constant") continue;
    const Logical& whole = logical(logicalId);
    if (whole.values.size() == 1) {
      tensor["value"] = whole.values[0];
      continue;
    }
    Shape low = made.low;
    for (std::size_t a = 0; a < axes(); ++a)
      if (made.cuts[a].kind == Cut::Kind::kPiece)
        low[at(made.cuts[a].dim)] += rank.at[a] * made.cuts[a].step;
    std::vector<double> values;
    for (std::int64_t i = 0; i < elementsOf(made.length); ++i) {
      std::int64_t rest = i, place = 0, stride = 1;
      for (std::size_t d = made.length.size(); d-- > 0;) {
        place += (low[d] + rest % made.length[d]) * stride;
        stride *= whole.info.shape[d];
        rest /= made.length[d];
      }
      values.push_back(whole.values[static_cast<std::size_t>(place)]);
    }
    std::size_t next = 0;
    tensor["value"] = nested(values, made.length, 0, next);
  }
  if (kind != "constant") lineage(logicalId, "input", made);
  return id;
}

// A given tensor in any layout that lineage can state.
int PlanBuilder::anyGiven(int logicalId) {
  const Shape shape = info(logicalId).shape;
  std::vector<Cut> wants(axes() + 1);
  Local l = canonical(logicalId, wants);
  const bool constant = logical(logicalId).kind == "constant";
  l.perMb = !constant && random_.chance(40);
  for (std::size_t a = 0; a <= axes(); ++a) {
    if ((a == axes() && !l.perMb) || shape.empty() || !random_.chance(options_.cut)) continue;
    const int dim = static_cast<int>(random_.below(static_cast<std::int64_t>(shape.size())));
    const std::int64_t n = count(a), length = l.length[at(dim)];
    Cut& cut = l.cuts[a];
    if (!constant && info(logicalId).element == ElementKind::kReal && random_.chance(8)) {
      cut.kind = Cut::Kind::kPart;
    } else if (random_.chance(options_.strange) && length > 1) {
      // Any box that stays inside: overlapping, backwards, with gaps, the same for all.
      const std::int64_t piece = random_.between(1, length);
      const std::int64_t most = n > 1 ? (length - piece) / (n - 1) : 0;
      cut = {Cut::Kind::kPiece, dim, random_.between(-most, most), kSum, 0};
      const std::int64_t span = std::abs(cut.step) * (n - 1);
      l.low[at(dim)] += random_.between(0, length - piece - span) + (cut.step < 0 ? span : 0);
      l.length[at(dim)] = piece;
      if (cut.step == 0) cut = {};
    } else if (length % n == 0 && n > 1) {
      cut = {Cut::Kind::kPiece, dim, length / n, kSum, 0};
      l.length[at(dim)] = length / n;
      if (random_.chance(20)) {
        l.low[at(dim)] += cut.step * (n - 1);
        cut.step = -cut.step;
      }
    }
  }
  return given(logicalId, std::move(l));
}

// ---- bringing a tensor into a layout ----

int PlanBuilder::need(int logicalId, const std::vector<Cut>& wants) {
  const Local target = canonical(logicalId, wants);
  const bool isGiven = logical(logicalId).producer < 0;
  if (isGiven && (logical(logicalId).locals.empty() || random_.chance(15)) && random_.chance(60))
    anyGiven(logicalId);
  std::vector<int> fitting;
  for (const int v : logical(logicalId).locals)
    if (satisfies(local(v), target)) fitting.push_back(v);
  if (!fitting.empty() && random_.chance(85)) return random_.pick(fitting);
  std::vector<int> versions = logical(logicalId).locals;
  random_.shuffle(versions);
  for (const int v : versions) {
    if (isGiven && random_.chance(40)) break;
    if (const auto brought = bring(v, target)) return *brought;
  }
  if (isGiven) {
    Local l = target;
    for (Cut& cut : l.cuts)
      if (cut.kind == Cut::Kind::kPart && logical(logicalId).kind == "constant")
        throw std::logic_error("a constant in parts");
    l.perMb = logical(logicalId).kind != "constant" &&
              (l.cuts[axes()].kind != Cut::Kind::kWhole || random_.chance(20));
    if (logical(logicalId).kind == "constant" && l.cuts[axes()].kind != Cut::Kind::kWhole) {
      l.cuts[axes()] = {};
      std::vector<Cut> fewer = l.cuts;
      const int whole = given(logicalId, canonical(logicalId, fewer));
      return *bring(whole, target);
    }
    return given(logicalId, std::move(l));
  }
  produce(logical(logicalId).producer, true);
  return *bring(logical(logicalId).locals.back(), target);
}

// Nothing where the version's boxes cannot be put together again.
std::optional<int> PlanBuilder::bring(int from, const Local& target) {
  int id = from;
  for (std::size_t a = 0; a <= axes(); ++a) {
    const Cut cut = local(id).cuts[a];
    if (cut.kind != Cut::Kind::kOnly ||
        (target.cuts[a].kind == Cut::Kind::kOnly && target.cuts[a].coordinate == cut.coordinate))
      continue;
    id = target.cuts[a].kind == Cut::Kind::kOnly && random_.chance(70)
             ? move(id, a, target.cuts[a].coordinate)
             : spread(id, a);
  }
  for (std::size_t a = 0; a <= axes(); ++a) {
    const Cut cut = local(id).cuts[a], wanted = target.cuts[a];
    if (cut.kind != Cut::Kind::kPart ||
        (wanted.kind == Cut::Kind::kPart && wanted.reduction == cut.reduction))
      continue;
    std::vector<std::size_t> list{a};
    for (std::size_t b = a + 1; b < axes(); ++b) {
      const bool same = local(id).cuts[b].kind == Cut::Kind::kPart &&
                        local(id).cuts[b].reduction == cut.reduction &&
                        target.cuts[b].kind != Cut::Kind::kPart;
      if (a < axes() && same && random_.chance(50)) list.push_back(b);
    }
    const bool scattered = a < axes() && list.size() == 1 && wanted.kind == Cut::Kind::kPiece &&
                           cleanDim(local(id), target, wanted.dim) &&
                           local(id).length[at(wanted.dim)] % count(a) == 0;
    id = scattered && random_.chance(60) ? combineScattered(id, a, wanted.dim) : combine(id, list);
  }
  for (int turns = 0;; ++turns) {
    if (turns > 12) return std::nullopt;
    std::vector<std::size_t> dirty;
    bool any = false;
    for (std::size_t a = 0; a <= axes(); ++a) {
      const Cut& cut = local(id).cuts[a];
      if (cut.kind != Cut::Kind::kPiece || cleanDim(local(id), target, cut.dim)) continue;
      any = true;
      if (tiles(local(id), a)) dirty.push_back(a);
    }
    if (!any) break;
    if (dirty.empty()) return std::nullopt;
    const std::size_t a = random_.pick(dirty);
    const Cut wanted = target.cuts[a];
    const bool exchanged = a < axes() && turns < 4 && wanted.kind == Cut::Kind::kPiece &&
                           wanted.dim != local(id).cuts[a].dim &&
                           local(id).length[at(wanted.dim)] % count(a) == 0;
    id = exchanged && random_.chance(60) ? exchange(id, a, wanted.dim) : gather(id, a);
  }
  // A box that is too short without any axis cutting it cannot be fixed.
  for (std::size_t d = 0; d < target.length.size(); ++d)
    if (!cleanDim(local(id), target, static_cast<int>(d))) return std::nullopt;
  for (const std::size_t a : order_) {
    const Cut wanted = target.cuts[a];
    if (local(id).cuts[a] == wanted) continue;
    if (wanted.kind == Cut::Kind::kPiece) id = scatter(id, a, wanted.dim);
    else if (wanted.kind == Cut::Kind::kPart) id = part(id, a);
  }
  return id;
}

// ---- operators of the plan ----

void PlanBuilder::produce(int index, bool whole) {
  const Made made = made_[at(index)];
  std::vector<ops::TensorInfo> results = ops::testing::inferResults(made.call);
  const auto all = shardingsOf(made.call, results);
  // As it is: an elementwise operator on any boxes.
  if (!whole && isElementwise(made.call.op) && made.call.in.size() == 1 && random_.chance(35)) {
    const int operand = made.operands[0];
    if (logical(operand).locals.empty()) anyGiven(operand);
    const Local from = local(random_.pick(logical(operand).locals));
    const bool parts = std::any_of(from.cuts.begin(), from.cuts.end(),
                                   [](const Cut& c) { return c.kind == Cut::Kind::kPart; });
    if (!parts) {
      std::vector<std::string> names;
      for (const int r : made.results) {
        Local l = from;
        l.logical = r;
        names.push_back(local(declare(std::move(l))).name);
      }
      emit(from, from.perMb, [&](const std::vector<std::int64_t>&) {
        Json node{{"op", made.call.op}, {"in", {from.name}}, {"out", names}};
        if (!made.call.attributes.empty()) node["attrs"] = attributesJson(made.call.attributes);
        return node;
      });
      for (const int r : made.results) {
        if (random_.chance(options_.cutPoints))
          lineage(r, "cut_point", local(logical(r).locals.back()));
      }
      return;
    }
  }
  std::vector<Sharding> chosen(axes() + 1, all[0]);
  std::vector<std::optional<std::int64_t>> only(axes() + 1);
  std::vector<Shape> lengths, resultLengths;
  for (const auto& o : made.call.in) lengths.push_back(o.shape);
  for (const auto& r : results) resultLengths.push_back(r.shape);
  bool windowed = false;
  const bool seeded = made.call.op.starts_with("dropout") && made.call.attributes.contains("seed");
  for (const std::size_t a : order_) {
    if (whole || !random_.chance(options_.cut)) continue;
    if (a < axes() && random_.chance(12)) {
      only[a] = random_.below(count(a));
      continue;
    }
    std::vector<Sharding> fitting;
    for (std::size_t i = 1; i < all.size(); ++i) {
      const Sharding& s = all[i];
      bool fits = !(s.window && windowed);
      for (std::size_t o = 0; o < s.in.size(); ++o) {
        if (made.operands[o] < 0) continue;
        if (s.in[o] >= 0) fits = fits && lengths[o][at(s.in[o])] % count(a) == 0;
        if (s.in[o] == kSum)
          fits = fits && !seeded && info(made.operands[o]).element == ElementKind::kReal &&
                 logical(made.operands[o]).kind != "constant";
      }
      for (std::size_t r = 0; r < s.out.size(); ++r) {
        if (s.out[r] >= 0) fits = fits && resultLengths[r][at(s.out[r])] % count(a) == 0;
        if (a == axes()) fits = fits && s.out[r] != kMax && s.out[r] != kMin;
      }
      if (fits) fitting.push_back(s);
    }
    if (fitting.empty()) continue;
    chosen[a] = random_.pick(fitting);
    windowed = windowed || static_cast<bool>(chosen[a].window);
    for (std::size_t o = 0; o < lengths.size(); ++o)
      if (chosen[a].in[o] >= 0) lengths[o][at(chosen[a].in[o])] /= count(a);
    for (std::size_t r = 0; r < resultLengths.size(); ++r)
      if (chosen[a].out[r] >= 0) resultLengths[r][at(chosen[a].out[r])] /= count(a);
  }
  produceAs(made, chosen, only);
}

void PlanBuilder::produceAs(const Made& made, const std::vector<Sharding>& chosen,
                            const std::vector<std::optional<std::int64_t>>& only) {
  std::vector<int> operands(made.operands.size(), -1);
  bool perMb = false, mustBe = false;
  const bool seeded = made.call.op.starts_with("dropout") && made.call.attributes.contains("seed");
  for (std::size_t o = 0; o < operands.size(); ++o) {
    if (made.operands[o] < 0) continue;
    std::vector<Cut> wants(axes() + 1);
    for (std::size_t a = 0; a <= axes(); ++a) {
      if (only[a]) wants[a] = {Cut::Kind::kOnly, -1, 0, kSum, *only[a]};
      else if (chosen[a].in[o] >= 0) wants[a] = {Cut::Kind::kPiece, chosen[a].in[o], 0, kSum, 0};
      else if (chosen[a].in[o] == kSum) wants[a] = {Cut::Kind::kPart, -1, 0, kSum, 0};
    }
    operands[o] = need(made.operands[o], wants);
    const Local& l = local(operands[o]);
    perMb = perMb || l.perMb;
    mustBe = mustBe || l.cuts[axes()].kind != Cut::Kind::kWhole;
    if (seeded && !given(made.operands[o])) lineage(made.operands[o], "cut_point", l);
  }
  for (const int o : chosen[axes()].out) mustBe = mustBe || o != kUncut;
  perMb = mustBe || (perMb && random_.chance(60)) || random_.chance(4);
  std::vector<int> results;
  Local where;
  where.cuts.resize(axes() + 1);
  for (std::size_t a = 0; a < axes(); ++a)
    if (only[a]) where.cuts[a] = {Cut::Kind::kOnly, -1, 0, kSum, *only[a]};
  std::vector<Shape> operandShapes, resultShapes;
  for (const int o : operands) operandShapes.push_back(o >= 0 ? local(o).length : Shape{});
  for (std::size_t r = 0; r < made.results.size(); ++r) {
    if (made.results[r] < 0) {
      results.push_back(-1);
      resultShapes.emplace_back();
      continue;
    }
    std::vector<Cut> cuts(axes() + 1);
    for (std::size_t a = 0; a <= axes(); ++a) {
      const int cut = chosen[a].out[r];
      if (only[a]) cuts[a] = where.cuts[a];
      else if (cut >= 0) cuts[a] = {Cut::Kind::kPiece, cut, 0, kSum, 0};
      else if (cut != kUncut) cuts[a] = {Cut::Kind::kPart, -1, 0, cut, 0};
    }
    Local l = canonical(made.results[r], cuts);
    l.perMb = perMb;
    resultShapes.push_back(l.length);
    results.push_back(declare(std::move(l)));
  }
  Json in = Json::array(), out = Json::array();
  for (const int o : operands) in.push_back(o >= 0 ? Json(read(o, perMb)) : Json());
  for (const int r : results) out.push_back(r >= 0 ? Json(local(r).name) : Json());
  emit(where, perMb, [&](const std::vector<std::int64_t>& coordinates) {
    Attributes attributes = made.call.attributes;
    adaptShapes(made.call.op, attributes, operandShapes, resultShapes);
    for (std::size_t a = 0; a <= axes(); ++a)
      if (chosen[a].window) chosen[a].window(attributes, coordinates[a], count(a));
    Json node{{"op", made.call.op}, {"in", in}, {"out", out}};
    if (!attributes.empty()) node["attrs"] = attributesJson(attributes);
    return node;
  });
  for (const int r : results) {
    if (r >= 0 && random_.chance(options_.cutPoints))
      lineage(local(r).logical, "cut_point", local(r));
  }
}

std::string PlanBuilder::read(int id, bool perMb) {
  const Local& l = local(id);
  return l.perMb && !perMb ? l.name + "#" + std::to_string(random_.below(options_.microbatches))
                           : l.name;
}

// One node for each rank that has `where`, and each microbatch; as "*" where they are the same for
// all of them.
void PlanBuilder::emit(const Local& where, bool perMb, const NodeOf& node, bool communicates) {
  const bool each = !options_.issueOrder && random_.chance(75);
  const bool tagged = communicates && !(perMb && each) && random_.chance(25);
  const std::int64_t tag = tag_;
  if (tagged) tag_ += random_.chance(20) ? -100 - options_.microbatches : options_.microbatches;
  for (Rank& rank : ranks_) {
    if (!has(rank, where)) continue;
    std::vector<std::int64_t> coordinates = rank.at;
    coordinates.push_back(0);
    std::vector<Json> list;
    for (std::int64_t k = 0; k < (perMb ? options_.microbatches : 1); ++k) {
      coordinates.back() = k;
      list.push_back(node(coordinates));
      if (tagged && !list.back().is_null()) {
        list.back()["comm"] = "shared";
        list.back()["tag"] = tag + k;
      }
    }
    if (list.front().is_null()) continue;
    const bool same =
        std::all_of(list.begin(), list.end(), [&](const Json& n) { return n == list.front(); });
    if (perMb && each && same && !tagged) {
      list.resize(1);
      list[0]["mb"] = "*";
    } else if (perMb) {
      for (std::size_t k = 0; k < list.size(); ++k) list[k]["mb"] = k;
    }
    rank.nodes.insert(rank.nodes.end(), list.begin(), list.end());
  }
}

// ---- programs ----

void PlanBuilder::sortByMicrobatch(std::vector<Json>& nodes,
                                   const std::vector<std::int64_t>& order) const {
  const auto key = [&](const Json& n) {
    return order[static_cast<std::size_t>(n["mb"].get<std::int64_t>())];
  };
  const auto numbered = [](const Json& n) { return n.contains("mb") && n["mb"].is_number(); };
  for (auto from = nodes.begin(); from != nodes.end();) {
    if (!numbered(*from)) {
      ++from;
      continue;
    }
    const auto to = std::find_if_not(from, nodes.end(), numbered);
    std::stable_sort(from, to, [&](const Json& a, const Json& b) { return key(a) < key(b); });
    from = to;
  }
}

// Ranks that run the same share a program, unless chance keeps them apart.
void PlanBuilder::programs(Json& to, std::vector<const Rank*> ranks,
                           std::vector<std::size_t> fixed) {
  const Rank& first = *ranks.front();
  const bool same = std::all_of(ranks.begin(), ranks.end(), [&](const Rank* r) {
    return r->nodes == first.nodes && r->tensors == first.tensors;
  });
  if ((same && !random_.chance(10)) || fixed.size() == axes()) {
    Json program = Json::object();
    for (const std::size_t a : fixed) program["at"][axisName(a)] = first.at[a];
    if (options_.issueOrder && random_.chance(80)) program["order"] = "issue";
    program["tensors"] = first.tensors;
    program["nodes"] = first.nodes;
    to.push_back(std::move(program));
    return;
  }
  std::size_t axis = 0;
  do axis = random_.index(axes());
  while (std::find(fixed.begin(), fixed.end(), axis) != fixed.end());
  fixed.push_back(axis);
  for (std::int64_t c = 0; c < mesh_[axis]; ++c) {
    std::vector<const Rank*> some;
    for (const Rank* r : ranks)
      if (r->at[axis] == c) some.push_back(r);
    programs(to, some, fixed);
  }
}

Case PlanBuilder::finish() {
  Case made;
  std::vector<int> outputs;
  for (int t = 0; t < size(); ++t) {
    const Logical& l = logical(t);
    if (l.producer >= 0 && (!l.read || random_.chance(15)) &&
        (l.info.element == ElementKind::kReal || random_.chance(50)))
      outputs.push_back(t);
  }
  for (int t = size() - 1; t >= 0 && outputs.empty(); --t)
    if (logical(t).producer >= 0) outputs.push_back(t);
  while (outputs.size() > 1 && random_.chance(15))
    outputs.erase(outputs.begin() + random_.below(static_cast<std::int64_t>(outputs.size())));
  for (int t = 0; t < size(); ++t)
    if (logical(t).producer < 0 && logical(t).kind != "constant" && logical(t).locals.empty())
      anyGiven(t);
  for (const int t : outputs) {
    std::vector<Cut> wants(axes() + 1);
    std::vector<int> direct;
    for (const int v : logical(t).locals) {
      Local target = canonical(t, local(v).cuts);
      const bool sums = std::all_of(local(v).cuts.begin(), local(v).cuts.end(), [](const Cut& c) {
        return c.kind != Cut::Kind::kPart || c.reduction == kSum;
      });
      if (sums && satisfies(local(v), target)) direct.push_back(v);
    }
    const int chosen =
        !direct.empty() && random_.chance(70) ? random_.pick(direct) : need(t, wants);
    lineage(t, "output", local(chosen));
  }
  std::vector<Json> entries(lineage_.begin(), lineage_.end());
  if (random_.chance(30)) random_.shuffle(entries);

  Json tensors = Json::object();
  for (const Logical& l : logicals_) {
    Json tensor = tensorJson(l.info.shape);
    if (!l.kind.empty()) tensor["kind"] = l.kind;
    if (!l.kind.empty() && l.info.element == ElementKind::kInteger) tensor["dtype"] = "int64";
    if (!l.kind.empty() && l.info.element == ElementKind::kComplex) tensor["dtype"] = "complex64";
    if (l.kind == "constant") {
      std::size_t next = 0;
      if (l.values.size() == 1) tensor["value"] = l.values[0];
      else tensor["value"] = nested(l.values, l.info.shape, 0, next);
    }
    tensors[l.name] = std::move(tensor);
  }
  Json names = Json::array();
  for (const int t : outputs) names.push_back(logical(t).name);
  made.model = {{"format", "shardproof-model"},
                {"version", 1},
                {"tensors", tensors},
                {"nodes", modelNodes_},
                {"outputs", names}};

  std::vector<std::int64_t> order;
  for (std::int64_t k = 0; k < options_.microbatches; ++k) order.push_back(k);
  random_.shuffle(order);
  if (random_.chance(50)) {
    for (Rank& rank : ranks_) sortByMicrobatch(rank.nodes, order);
  }
  std::vector<const Rank*> all;
  for (const Rank& rank : ranks_) all.push_back(&rank);
  Json list = Json::array(), mesh = Json::array();
  programs(list, all, {});
  for (std::size_t a = 0; a < axes(); ++a) mesh.push_back({axisName(a), mesh_[a]});
  made.plan = {{"format", "shardproof-plan"},
               {"version", 1},
               {"model", "m.model.json"},
               {"mesh", mesh},
               {"microbatches", options_.microbatches},
               {"programs", list},
               {"lineage", entries}};
  if (options_.microbatches == 1 && random_.chance(30)) made.plan.erase("microbatches");
  return made;
}

}  // namespace shardproof::adversary
