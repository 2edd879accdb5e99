// SPDX-License-Identifier: Apache-2.0
#include "ir/part_nodes.h"

#include <algorithm>
#include <stdexcept>

#include "ops/attributes.h"
#include "ops/registry.h"

namespace shardproof::ir {

namespace {

std::string listed(const std::vector<std::int64_t>& list) {
  std::string text;
  for (const std::int64_t i : list) text += (text.empty() ? "" : ", ") + std::to_string(i);
  return "(" + text + ")";
}

Shape extentOf(const LocalBox& box) {
  Shape shape;
  for (const auto& [low, high] : box) shape.push_back(high - low);
  return shape;
}

bool isIdentity(const std::vector<std::int64_t>& permutation) {
  for (std::size_t d = 0; d < permutation.size(); ++d)
    if (permutation[d] != static_cast<std::int64_t>(d)) return false;
  return true;
}

Shape permuted(const Shape& shape, const std::vector<std::int64_t>& permutation) {
  Shape result;
  for (const std::int64_t d : permutation) result.push_back(shape[static_cast<std::size_t>(d)]);
  return result;
}

std::vector<std::int64_t> inverse(const std::vector<std::int64_t>& permutation) {
  std::vector<std::int64_t> result(permutation.size());
  for (std::size_t d = 0; d < permutation.size(); ++d)
    result[static_cast<std::size_t>(permutation[d])] = static_cast<std::int64_t>(d);
  return result;
}

std::string afterBox(const LocalPart& part) {
  std::string text;
  if (part.view) text += ".view" + listed(*part.view);
  if (!isIdentity(part.permute)) text += ".permute" + listed(part.permute);
  if (!part.scale.isOne()) text += " * " + part.scale.toString();
  return text;
}

bool contains(const LocalBox& region, const LocalBox& box) {
  for (std::size_t d = 0; d < box.size(); ++d)
    if (box[d].first < region[d].first || box[d].second > region[d].second) return false;
  return true;
}

// The positions strictly inside the region at which no box is cut in two, of those where one ends.
std::vector<std::int64_t> cutsAlong(std::size_t d, const LocalBox& region,
                                    const std::vector<PartNodes::Piece>& pieces) {
  std::vector<std::int64_t> cuts;
  for (const auto& piece : pieces) {
    for (const std::int64_t at : {piece.box[d].first, piece.box[d].second}) {
      const bool through = std::any_of(pieces.begin(), pieces.end(), [&](const auto& p) {
        return p.box[d].first < at && at < p.box[d].second;
      });
      if (region[d].first < at && at < region[d].second && !through) cuts.push_back(at);
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

std::int64_t sizeOf(const Shape& shape) {
  std::int64_t size = 1;
  for (const std::int64_t n : shape)
    if (__builtin_mul_overflow(size, n, &size)) return -1;
  return size;
}

}  // namespace

std::string textOf(const LocalBox& box) {
  std::string text;
  for (const auto& [low, high] : box)
    text += (text.empty() ? "" : ", ") + std::to_string(low) + ":" + std::to_string(high);
  return "[" + text + "]";
}

bool overlap(const LocalBox& a, const LocalBox& b) {
  for (std::size_t d = 0; d < a.size(); ++d)
    if (a[d].second <= b[d].first || b[d].second <= a[d].first) return false;
  return true;
}

LocalBox boxOf(const LocalPart& part, const Shape& whole) {
  if (!part.box.empty()) return part.box;
  LocalBox box;
  for (const std::int64_t size : whole) box.emplace_back(0, size);
  return box;
}

bool isWhole(const LocalPart& part) {
  return part.box.empty() && !part.view && isIdentity(part.permute) && part.scale.isOne();
}

std::pair<std::string, std::string> wrongWith(const LocalPart& part, const Shape& whole) {
  if (!part.box.empty() && part.box.size() != whole.size())
    return {"/local_box", "found " + std::to_string(part.box.size()) + " ranges, expected " +
                              std::to_string(whole.size()) + ", as the local shape is " +
                              ops::toText(whole)};
  for (std::size_t d = 0; d < part.box.size(); ++d) {
    const auto [low, high] = part.box[d];
    if (low < 0 || low >= high || high > whole[d])
      return {"/local_box/" + std::to_string(d),
              "found the range [" + std::to_string(low) + ", " + std::to_string(high) +
                  "), expected one that is not empty inside [0, " + std::to_string(whole[d]) +
                  "), as the local shape is " + ops::toText(whole)};
  }
  Shape shape = extentOf(boxOf(part, whole));
  if (part.view) {
    const bool positive = std::all_of(part.view->begin(), part.view->end(),
                                      [](std::int64_t size) { return size > 0; });
    if (!positive || sizeOf(*part.view) != sizeOf(shape))
      return {"/view", "found the shape " + ops::toText(*part.view) +
                           ", expected one of as many elements as " + ops::toText(shape) + " has"};
    shape = *part.view;
  }
  std::vector<std::int64_t> sorted = part.permute;
  std::sort(sorted.begin(), sorted.end());
  if (!sorted.empty() && (!isIdentity(sorted) || sorted.size() != shape.size()))
    return {"/permute", "found " + listed(part.permute) +
                            ", expected a permutation of the dimensions from 0 to " +
                            std::to_string(static_cast<std::int64_t>(shape.size()) - 1)};
  if (part.scale.isZero()) return {"/scale", "found 0, expected another number"};
  return {};
}

// --- names ---

PartNames::PartNames(Problem& problem) : names_(problem.names) {
  for (const Program& program : problem.plan.programs)
    for (const Tensor& tensor : program.graph.tensors) taken_.insert(tensor.name);
}

NameId PartNames::of(NameId local, const std::string& what) {
  const auto [it, inserted] = names_made_.emplace(std::pair(local, what), NameId());
  if (!inserted) return it->second;
  std::string text = names_.text(local) + what;
  while (!taken_.insert(names_.intern(text)).second) text += "'";
  return it->second = names_.intern(text);
}

NameId PartNames::of(NameId local, const LocalPart& part) {
  if (isWhole(part)) return of(local, ", given");
  return of(local, (part.box.empty() ? "" : textOf(part.box)) + afterBox(part));
}

// --- nodes ---

// From one tensor to the next, and back.
struct PartNodes::Step {
  const char* op;
  Attributes attributes, back;
  Shape shape;       // of the result
  std::string what;  // the result is called
};

PartNodes::PartNodes(Problem& problem, Program& program, PartNames& names)
    : problem_(problem), program_(program), names_(names) {
  for (const TensorId t : firstIds<TensorId>(program.graph.tensors.size()))
    if (program.graph.tensors[t].added) tensors_.emplace(name(t), t);
}

// Slices first: `back` of these is nothing.
std::vector<PartNodes::Step> PartNodes::stepsOf(const LocalPart& part, const Shape& whole) {
  std::vector<Step> steps;
  LocalBox box = boxOf({}, whole);
  for (std::size_t d = 0; d < part.box.size(); ++d) {
    if (part.box[d] == box[d]) continue;
    box[d] = part.box[d];
    steps.push_back({"slice",
                     {{"dim", Rational(static_cast<std::int64_t>(d))},
                      {"start", Rational(box[d].first)},
                      {"stop", Rational(box[d].second)}},
                     {},
                     extentOf(box),
                     textOf(box)});
  }
  // The whole box, but under the name of a part.
  if (steps.empty() && !part.box.empty()) steps.push_back({"identity", {}, {}, whole, textOf(box)});
  LocalPart named;
  const std::string boxText = part.box.empty() ? "" : textOf(part.box);
  Shape shape = extentOf(box);
  if (part.view) {
    named.view = part.view;
    steps.push_back(
        {"view", {{"size", *part.view}}, {{"size", shape}}, *part.view, boxText + afterBox(named)});
    shape = *part.view;
  }
  if (!isIdentity(part.permute)) {
    named.permute = part.permute;
    shape = permuted(shape, part.permute);
    steps.push_back({"permute",
                     {{"dims", part.permute}},
                     {{"dims", inverse(part.permute)}},
                     shape,
                     boxText + afterBox(named)});
  }
  if (!part.scale.isOne()) {
    named.scale = part.scale;
    steps.push_back({"mul",
                     {{"scalar", part.scale}},
                     {{"scalar", Rational(1) / part.scale}},
                     shape,
                     boxText + afterBox(named)});
  }
  return steps;
}

TensorId PartNodes::tensor(NameId name, const Shape& shape, TensorId like) {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  Tensor made;
  made.name = name;
  made.shape = shape;
  made.added = true;
  made.element = program_.graph.tensors[like].element;
  made.perMicrobatch = program_.graph.tensors[like].perMicrobatch;
  // Masks of dropout stay the last.
  Graph& graph = program_.graph;
  const TensorId place(graph.tensors.size() - graph.tensorsAdded);
  graph.tensors.insert(graph.tensors.begin() + place, std::move(made));
  if (graph.tensorsAdded > 0) {
    for (Operand& o : graph.operands)
      if (o.tensor >= place) ++o.tensor;
    for (TensorId& t : graph.results)
      if (t >= place) ++t;
  }
  return tensors_[name] = place;
}

void PartNodes::node(PartSite& site, const char* op, Attributes attributes,
                     const std::vector<TensorId>& operands, TensorId result) {
  if (!site.made.insert(result).second) return;
  Graph& graph = program_.graph;
  Node node;
  node.op = ops::Registry::instance().find(op);
  if (!node.op.valid()) throw std::logic_error(std::string("there is no operator ") + op);
  node.firstIn = static_cast<std::uint32_t>(graph.operands.size());
  node.inCount = static_cast<std::uint32_t>(operands.size());
  for (const TensorId operand : operands) graph.operands.push_back({operand, Microbatch::none()});
  node.firstOut = static_cast<std::uint32_t>(graph.results.size());
  node.outCount = 1;
  graph.results.push_back(result);
  node.attributes = problem_.attributes.intern(std::move(attributes));
  node.microbatch = site.microbatch;
  if (program_.added.empty() || program_.added.back() != site.place)
    program_.added.push_back(site.place);
  node.added = static_cast<std::int32_t>(program_.added.size()) - 1;
  site.nodes->push_back(node);
}

TensorId PartNodes::takenOut(PartSite& site, TensorId whole, const LocalPart& part) {
  TensorId at = whole;
  for (Step& step : stepsOf(part, shape(whole))) {
    const TensorId next = tensor(names_.of(name(whole), step.what), step.shape, whole);
    node(site, step.op, std::move(step.attributes), {at}, next);
    at = next;
  }
  return at;
}

TensorId PartNodes::given(TensorId whole, const LocalPart& part) {
  const std::vector<Step> steps = stepsOf(part, shape(whole));
  const TensorId made = tensor(names_.of(name(whole), part),
                               steps.empty() ? shape(whole) : steps.back().shape, whole);
  Tensor& piece = program_.graph.tensors[made];
  const Tensor& of = program_.graph.tensors[whole];
  piece.kind = of.kind == TensorKind::kProduced ? of.kindInFile : of.kind;
  piece.elementDeclared = true;
  return made;
}

TensorId PartNodes::putBack(PartSite& site, TensorId whole, const LocalPart& part, TensorId piece) {
  std::vector<Step> steps = stepsOf(part, shape(whole));
  for (; !steps.empty() && !steps.back().back.empty(); steps.pop_back()) {
    const std::size_t n = steps.size();
    const Shape before = n > 1 ? steps[n - 2].shape : shape(whole);
    const std::string what = n > 1 ? steps[n - 2].what : "";
    const TensorId next =
        tensor(names_.of(name(whole), what + ", put back from" + steps.back().what), before, whole);
    node(site, steps.back().op, std::move(steps.back().back), {piece}, next);
    piece = next;
  }
  return piece;
}

TensorId PartNodes::restOf(PartSite& site, TensorId whole, const LocalBox& region, Rest rest) {
  if (rest == Rest::kNone) throw NotCovered{region};
  if (rest == Rest::kOwn) {
    LocalPart part;
    part.box = region;
    return takenOut(site, whole, part);
  }
  const TensorId zeros =
      tensor(names_.of(name(whole), textOf(region) + ", zeros"), extentOf(region), whole);
  Graph& graph = program_.graph;
  Tensor& made = graph.tensors[zeros];
  if (made.constant >= 0) return zeros;
  made.kind = TensorKind::kConstant;
  made.elementDeclared = true;
  made.perMicrobatch = false;
  made.constant = static_cast<std::int32_t>(graph.constants.size());
  auto value = std::make_shared<ConstantValue>();
  value->elements = {Rational(0)};
  graph.constants.push_back(std::move(value));
  return zeros;
}

TensorId PartNodes::put(PartSite& site, TensorId whole, const LocalBox& region,
                        const std::vector<Piece>& pieces, Rest rest) {
  if (pieces.empty()) return restOf(site, whole, region, rest);
  if (pieces.size() == 1 && pieces.front().box == region) return pieces.front().tensor;
  for (std::size_t d = 0; d < region.size(); ++d) {
    const std::vector<std::int64_t> cuts = cutsAlong(d, region, pieces);
    if (cuts.empty()) continue;
    std::vector<TensorId> slabs;
    LocalBox slab = region;
    for (std::size_t i = 0; i <= cuts.size(); ++i) {
      slab[d] = {i == 0 ? region[d].first : cuts[i - 1],
                 i == cuts.size() ? region[d].second : cuts[i]};
      std::vector<Piece> inside;
      for (const Piece& piece : pieces)
        if (contains(slab, piece.box)) inside.push_back(piece);
      slabs.push_back(put(site, whole, slab, inside, rest));
    }
    std::string what = ", put together";
    // Microbatches of an input may be cut differently.
    if (rest != Rest::kOwn && site.microbatch.isOne())
      what += " for microbatch " + std::to_string(site.microbatch.number());
    const TensorId made =
        tensor(names_.of(name(whole), textOf(region) + what), extentOf(region), whole);
    node(site, "cat", {{"dim", Rational(static_cast<std::int64_t>(d))}}, slabs, made);
    return made;
  }
  throw NotCovered{};
}

void PartNodes::putTogether(PartSite& site, TensorId whole, const std::vector<Piece>& pieces,
                            Rest rest, TensorId to) {
  const TensorId all = put(site, whole, boxOf({}, shape(whole)), pieces, rest);
  node(site, "identity", {}, {all}, to);
}

TensorId PartNodes::standIn(TensorId whole) {
  const TensorId made = tensor(names_.of(name(whole), ", put together"), shape(whole), whole);
  program_.graph.tensors[made].standsFor = whole;
  return made;
}

}  // namespace shardproof::ir
