// SPDX-License-Identifier: Apache-2.0
// Communication.
#include <algorithm>
#include <stdexcept>

#include "reader/hlo/groups.h"
#include "reader/hlo/lowering.h"
#include "reader/hlo/mesh.h"
#include "util/index.h"
#include "util/union_find.h"

namespace shardproof::hlo {
namespace {

// "all-reduce-start" is the communication, "all-reduce-done" its result.
std::string withoutSuffix(const std::string& opcode, std::string_view suffix) {
  return opcode.ends_with(suffix) ? opcode.substr(0, opcode.size() - suffix.size()) : "";
}

std::string textOf(const NodeAttributes& fields) {
  std::string text;
  for (const auto& [key, value] : fields) text += " " + key + "=" + value;
  return text;
}

}  // namespace

// The groups in terms of the devices that are told apart. HLO has three ways to count them.
std::vector<std::vector<std::int64_t>> Lowering::groupsOf(const Instruction& i) const {
  auto groups = hlo::groupsOf(i, file_, devices_.count, devices_.replicas);
  if (!groups) unsupported(i, "partitions that meet in a program of several replicas");
  return std::move(*groups);
}

// Whether a value is a function of an index that is the same on all devices, of elements of the
// same input or within the same bounds, so that what is communicated is the index. It is known when
// the devices have been gone through.
bool Lowering::alikeOnAll(const std::string& communication, const Value& x) {
  std::string function;
  if (x.isIndex()) {
    for (const Piece& p : x.index->pieces)
      function += std::to_string(p.low) + " " + std::to_string(p.high) + " " + std::to_string(p.a) +
                  " " + p.b.toString() + ";";
    if (const auto p = parameterOf_.find(x.index->base); p != parameterOf_.end())
      function += " parameter " + std::to_string(p->second);
    if (const auto r = constantRanges_.find(x.index->base); r != constantRanges_.end())
      function += " " + std::to_string(r->second.first) + ".." + std::to_string(r->second.second);
  }
  const auto [it, added] = shared_.communicatedIndices.emplace(communication, function);
  if (it->second != function && !it->second.empty()) {
    it->second.clear();
    shared_.communicatedChanged = true;
  }
  return !it->second.empty();
}

// Devices with equal numbers hold the same elements, whatever the input is: an input by its
// sharding; a node if its operands are the same and its attributes, too; what members of a group
// receive if the groups' members hold the same in the same order. Only while all devices are
// lowered at once, as others may run something else.
std::vector<std::uint32_t> Lowering::sameDevices(const std::string& tensor) {
  if (const auto known = sameDevices_.find(tensor); known != sameDevices_.end())
    return known->second;
  const std::size_t count = at(devices_.count);
  std::vector<std::vector<std::string>> keys(count);
  const GraphTensor& t = graph.tensor(tensor);
  const auto number = [](std::uint32_t n) { return std::to_string(n); };
  if (t.kind == "input") {
    const auto port = std::find_if(parameters.begin(), parameters.end(), [&](const Port& p) {
      return p.name == tensor || p.name + kAsNumber == tensor;
    });
    std::optional<Tiling> tiling;
    if (port != parameters.end())
      tiling = tilingOf(port->sharding.value_or(Sharding{}), t.sizes.size(), devices_.count);
    for (std::size_t d = 0; d < count; ++d) {
      // Of another input nothing is said.
      if (!tiling) keys[d] = {std::to_string(d)};
      else
        for (const std::int64_t tile : tiling->tileOf[d]) keys[d].push_back(std::to_string(tile));
    }
  } else if (t.kind.empty()) {
    const GraphNode& n = graph.nodes()[t.producer];
    std::vector<std::vector<std::uint32_t>> in;
    for (const std::string& x : n.in) in.push_back(sameDevices(x));
    const auto own = [&](std::size_t d) {
      std::vector<std::string> key;
      for (const auto& x : in) key.push_back(number(x[d]));
      return key;
    };
    const auto groups = groupsOfNode_.find(t.producer);
    if (!n.communication.empty() && groups != groupsOfNode_.end()) {
      const bool placed = n.op != "all_gather" && n.op != "all_reduce";
      for (const std::vector<std::int64_t>& group : groups->second)
        for (std::size_t k = 0; k < group.size(); ++k) {
          std::vector<std::string>& key = keys[at(group[k])];
          for (const std::int64_t d : group)
            for (const std::string& x : own(at(d))) key.push_back(x);
          if (placed) key.push_back("place " + std::to_string(k));
        }
    } else {
      for (std::size_t d = 0; d < count; ++d) {
        keys[d] = own(d);
        if (!n.communication.empty()) keys[d].push_back("device " + std::to_string(d));
        const auto different = n.ofDevice.find(static_cast<std::int64_t>(d));
        if (different != n.ofDevice.end()) keys[d].push_back(textOf(different->second));
      }
    }
  }
  std::map<std::vector<std::string>, std::uint32_t> numbers;
  std::vector<std::uint32_t> same;
  for (std::vector<std::string>& key : keys)
    same.push_back(
        numbers.emplace(std::move(key), static_cast<std::uint32_t>(numbers.size())).first->second);
  return sameDevices_[tensor] = same;
}

bool Lowering::isSameOnAll(const Value& v, const std::string& path) {
  // Seen when all were lowered at once: it is so whoever is lowered now.
  if (shared_.sameOnAll.contains(path)) return true;
  if (devices_.candidates.size() != at(devices_.count)) return false;
  sameDevices_.clear();  // names may have been given again
  const std::vector<std::uint32_t> same = sameDevices(v.isIndex() ? v.index->base : node(v));
  if (std::any_of(same.begin(), same.end(), [](std::uint32_t n) { return n != 0; })) return false;
  shared_.sameOnAll.insert(path);
  return true;
}

const Shared::Told& Lowering::told(const std::string& communication, const std::string& in) {
  const GraphTensor& t = graph.tensor(in);
  const Positive positive = graph.positive(in);
  const auto [it, added] = shared_.communicated.emplace(
      communication, Shared::Told{t.known, t.definedness, positive, t.least, t.greatest});
  Shared::Told& all = it->second;
  const Shared::Told now{std::min(all.known, t.known), std::min(all.definedness, t.definedness),
                         std::min(all.positive, positive), std::min(all.least, t.least),
                         std::max(all.greatest, t.greatest)};
  if (now.known != all.known || now.definedness != all.definedness ||
      now.positive != all.positive || now.least != all.least || now.greatest != all.greatest)
    shared_.communicatedChanged = true;
  all = now;
  return all;
}

Value Lowering::communicated(const Frame& frame, const Instruction& i, const std::string& op,
                             const Value& x, const NodeAttributes& attributes, const Sizes& sizes,
                             std::size_t k) {
  const auto groups = groupsOf(i);
  const auto own = std::find_if(groups.begin(), groups.end(), [&](const auto& g) {
    return std::find(g.begin(), g.end(), device()) != g.end();
  });
  if (own == groups.end()) unsupported(i, "a device that stands in no group");
  for (const auto& g : groups)
    if (g.size() != own->size()) unsupported(i, "groups of different sizes");
  if (grouping_ != nullptr && own->size() > 1)
    narrowByPart(i, 0, [&](std::int64_t d) {
      const bool stands = std::any_of(groups.begin(), groups.end(), [&](const auto& g) {
        return std::find(g.begin(), g.end(), d) != g.end();
      });
      return stands ? textOf(grouping_->groupOf(groups, d)) : "none";
    });
  const bool moves = op == "all_gather" || op == "all_to_all";
  const bool integer = moves && alikeOnAll(frame.path + i.name + "#" + std::to_string(k), x);
  const std::string in = integer ? baseNode(*x.index, x.shape.sizes) : node(x);
  Shape shape = x.shape;
  shape.sizes = sizes;
  std::string y = in;
  if (own->size() > 1) {
    if (grouping_ == nullptr) unsupported(i, "communication in a program of one device");
    NodeAttributes communication{
        {"comm", quotedJson(frame.path + i.name + (k == 0 ? "" : "#" + std::to_string(k)))}};
    for (auto& field : grouping_->groupOf(groups, device()))
      communication.push_back(std::move(field));
    const Shared::Told& known = told(communication[0].second, in);
    const NodeAttributes group(communication.begin() + 1, communication.end());
    y = graph.communicate(op, in, attributes, std::move(communication), sizes);
    groupsOfNode_.insert_or_assign(graph.tensor(y).producer, groups);
    graph.tensor(y).known = known.known;
    graph.tensor(y).definedness = known.definedness;
    graph.tensor(y).positive = known.positive;
    const bool sums = op == "all_reduce" || op == "reduce_scatter";
    const double most = sums ? static_cast<double>(own->size()) : 1;
    graph.tensor(y).least = std::min(known.least, known.least * most);
    graph.tensor(y).greatest = std::max(known.greatest, known.greatest * most);
    if (op == "all_gather") {
      Gathered g{in, frame.path + i.name + "#" + std::to_string(k), *own, groups, group, 0, {}};
      g.dim = at(std::stoll(attributes[0].second));
      if (x.isIndex())
        if (const auto piece = singlePiece(x.index->pieces);
            piece && piece->a == 1 && piece->b.isInteger() && piece->b.fitsInt64() &&
            keepsOrder(*x.index, x.shape.sizes)) {
          g.places = x.index->base;
          const std::int64_t start = piece->b.toInt64();
          for (const std::int64_t d : devices_.candidates) {
            const auto [at, isNew] = shared_.gatheredStarts[g.communication].emplace(d, start);
            if (isNew || at->second == start) continue;
            at->second = start;
            shared_.communicatedChanged = true;
          }
        }
      gathered_.insert_or_assign(graph.tensor(y).producer, std::move(g));
    }
  } else if (sizes != x.shape.sizes) {
    unsupported(i, "a shape that does not fit groups of one device");
  }
  if (!integer) return nodeValue(shape, y);
  if (graph.tensor(in).kind != "constant") sameIntegers(in, y);
  Value sized = x;
  sized.shape = shape;
  return asIndex(sized, y);
}

// What all devices that meet know each of them knows of the one that sends to it. `meeting`: how
// many these are; the others are never seen here.
std::optional<Value> Lowering::permutedTable(const std::string& communication, const Value& x,
                                             const std::vector<std::int64_t>& sourceOf,
                                             std::size_t meeting) {
  if (shared_.forgetTables) return std::nullopt;
  auto& known = shared_.communicatedTables[communication];
  const std::shared_ptr<const Table> mine = x.isTable() ? x.table : nullptr;
  for (const std::int64_t d : devices_.candidates) {
    const auto [entry, added] = known.emplace(d, mine);
    const auto& before = entry->second;
    const bool same =
        before == mine || (before && mine && before->sizes == mine->sizes &&
                           before->extent == mine->extent && before->values == mine->values);
    // One that sends none makes nothing known to the others, whenever it is seen.
    if (added ? mine != nullptr : !same) shared_.communicatedChanged = true;
    entry->second = mine;
  }
  if (known.size() < meeting ||
      std::any_of(known.begin(), known.end(), [](const auto& e) { return e.second == nullptr; }))
    return std::nullopt;
  std::vector<Value> values;
  std::vector<std::uint32_t> valueOf(at(devices_.count), 0);
  for (const std::int64_t d : devices_.candidates) {
    valueOf[at(d)] = static_cast<std::uint32_t>(values.size());
    values.push_back(tableValue(
        x.shape, sourceOf[at(d)] >= 0 ? *known.at(sourceOf[at(d)])
                                      : uniformTable(x.shape.sizes, shared_.scalars.rational(0))));
  }
  return varyingValue(x.shape, std::move(values), valueOf);
}

// Each device gets what the one that sends to it has, or zeros: as a gathering of those that are
// connected, of which one piece is taken.
Value Lowering::permuted(const Frame& frame, const Instruction& i, const Value& x, std::size_t k) {
  const Attribute* a = i.attribute("source_target_pairs");
  if (a == nullptr) unsupported(i, "no attribute 'source_target_pairs'");
  const bool channel = i.attribute("channel_id") != nullptr;
  if (channel == devices_.replicas) unsupported(i, "devices of other replicas");
  const auto pairs = parseLists(*a, file_);
  std::vector<std::int64_t> sourceOf(at(devices_.count), -1), leader(at(devices_.count));
  std::vector<bool> sends(at(devices_.count), false);
  UnionFind<std::int64_t> connected(at(devices_.count));
  for (const auto& p : pairs) {
    if (p.size() != 2 || p[0] < 0 || p[1] < 0 || p[0] >= devices_.count || p[1] >= devices_.count)
      failAt(file_, a->place, "found a pair of devices that are not there");
    if (sourceOf[at(p[1])] >= 0 || sends[at(p[0])])
      failAt(file_, a->place, "found a device that sends or receives twice");
    sourceOf[at(p[1])] = p[0];
    sends[at(p[0])] = true;
    connected.unite(p[0], p[1]);
  }
  for (std::int64_t d = 0; d < devices_.count; ++d) leader[at(d)] = connected.find(d);
  std::vector<std::vector<std::int64_t>> groups;
  std::map<std::int64_t, std::size_t> groupOf;
  for (std::int64_t d = 0; d < devices_.count; ++d) {
    const auto [it, added] = groupOf.emplace(leader[at(d)], groups.size());
    if (added) groups.emplace_back();
    groups[it->second].push_back(d);
  }
  const auto groupWith = [&](std::int64_t d) -> const std::vector<std::int64_t>& {
    return groups[groupOf.at(leader[at(d)])];
  };
  const auto placeIn = [](const std::vector<std::int64_t>& group, std::int64_t d) {
    return std::find(group.begin(), group.end(), d) - group.begin();
  };
  // Devices that would take part in different ways do the same in larger groups, but for the place
  // from which they take.
  std::optional<std::vector<std::vector<std::int64_t>>> larger;
  if (grouping_ != nullptr) larger = grouping_->affineGroups(sourceOf);
  if (larger && larger->front().size() > 1) {
    groups = std::move(*larger);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      groupOf[groups[g].front()] = g;
      for (const std::int64_t d : groups[g]) leader[at(d)] = groups[g].front();
    }
  } else {
    larger.reset();
  }
  if (!larger)
    narrowByPart(i, 1, [&](std::int64_t d) {
      const std::int64_t from = sourceOf[at(d)];
      const std::vector<std::int64_t>& group = groupWith(d);
      std::string text = from < 0 ? "none" : std::to_string(placeIn(group, from));
      if (group.size() == 1) return text + " alone";
      return text + (grouping_ == nullptr ? "" : textOf(grouping_->groupOf(groups, d)));
    });
  const std::vector<std::int64_t>& own = groupWith(device());
  const std::int64_t source = sourceOf[at(device())];
  const auto zeros = [&] {
    return tableValue(x.shape, uniformTable(x.shape.sizes, shared_.scalars.rational(0)));
  };
  if (own.size() == 1) return source == device() ? x : zeros();
  if (x.kind == Value::Kind::kParts && !isFloat(x.shape.type)) {
    // Each piece for itself: of some all may be known.
    Parts parts;
    parts.dim = x.parts->dim;
    for (const auto& [size, part] : x.parts->parts)
      parts.parts.emplace_back(size, permuted(frame, i, part, (k + 1) * 1000 + parts.parts.size()));
    return partsValue(x.shape, std::move(parts));
  }
  if (!isFloat(x.shape.type)) {
    std::size_t meeting = 0;
    for (std::int64_t d = 0; d < devices_.count; ++d) meeting += groupWith(d).size() > 1 ? 1U : 0U;
    if (auto known =
            permutedTable(frame.path + i.name + "#" + std::to_string(k), x, sourceOf, meeting))
      return *known;
  }
  const bool integer = alikeOnAll(frame.path + i.name + "#" + std::to_string(k), x);
  const std::string in = integer ? baseNode(*x.index, x.shape.sizes) : node(x);
  if (grouping_ == nullptr) unsupported(i, "communication in a program of one device");
  Sizes one = x.shape.sizes, all;
  one.insert(one.begin(), 1);
  all = one;
  all[0] = static_cast<std::int64_t>(own.size());
  NodeAttributes communication{
      {"comm", quotedJson(frame.path + i.name + (k == 0 ? "" : "#" + std::to_string(k)))}};
  for (auto& field : grouping_->groupOf(groups, device()))
    communication.push_back(std::move(field));
  const Shared::Told& known = told(communication[0].second, in);
  const std::string gathered =
      graph.communicate("all_gather", view(in, one), {{"dim", "0"}}, std::move(communication), all);
  groupsOfNode_.insert_or_assign(graph.tensor(gathered).producer, groups);
  graph.tensor(gathered).definedness = known.definedness;
  graph.tensor(gathered).positive = known.positive;
  if (source < 0) return zeros();
  const auto pieceOf = [&](std::int64_t d) { return placeIn(groupWith(d), sourceOf[at(d)]); };
  const std::int64_t at = pieceOf(device());
  const std::string piece = sliceDim(gathered, 0, at, at + 1);
  if (larger) {
    std::map<std::int64_t, NodeAttributes> ofDevice;
    for (const std::int64_t d : devices_.candidates)
      ofDevice[d] = sliceAttributes(0, pieceOf(d), pieceOf(d) + 1);
    graph.setOfDevice(graph.nodes().size() - 1, std::move(ofDevice));
  }
  const std::string y = view(piece, x.shape.sizes);
  if (!integer) return nodeValue(x.shape, y);
  if (graph.tensor(in).kind != "constant") sameIntegers(in, y);
  return asIndex(x, y);
}

std::optional<Value> Lowering::lowerCollective(Frame& frame, const Instruction& i) {
  static const std::set<std::string, std::less<>> kKnown{
      "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"};
  if (const std::string done = withoutSuffix(i.opcode, "-done"); kKnown.contains(done)) {
    const Value& x = operand(frame, i, 0);
    return x.elements.size() == 1 ? x.elements[0] : x;
  }
  std::string op = i.opcode;
  if (const std::string start = withoutSuffix(op, "-start"); kKnown.contains(start)) op = start;
  if (!kKnown.contains(op)) return std::nullopt;
  const bool started = op != i.opcode;
  std::vector<Value> received;
  const auto groupSize = [&] { return static_cast<std::int64_t>(groupsOf(i)[0].size()); };
  const auto oneDim = [&](const Sizes& sizes) {
    const Sizes d = dims(i, "dimensions");
    if (d.size() != 1 || d[0] < 0 || at(d[0]) >= sizes.size())
      unsupported(i, "'dimensions' that is not one dimension");
    return at(d[0]);
  };
  if (op == "all-to-all" && i.operands.size() > 1) {
    // One operand for each member: the k-th is for the k-th.
    const std::int64_t n = groupSize();
    if (n != static_cast<std::int64_t>(i.operands.size()))
      unsupported(i, "another number of operands than members of a group");
    std::vector<std::string> pieces;
    const Shape shape = operand(frame, i, 0).shape;
    Sizes one = shape.sizes, all;
    one.insert(one.begin(), 1);
    all = one;
    all[0] = n;
    for (std::size_t k = 0; k < i.operands.size(); ++k) {
      if (operand(frame, i, k).shape.sizes != shape.sizes) unsupported(i, "unequal operands");
      pieces.push_back(view(node(operand(frame, i, k)), one));
    }
    Shape wide = shape;
    wide.sizes = all;
    const Value y = communicated(frame, i, "all_to_all", nodeValue(wide, cat(pieces, 0)),
                                 {{"idim", "0"}, {"odim", "0"}}, all, 0);
    Shape tuple;
    tuple.tuple = true;
    for (std::int64_t k = 0; k < n; ++k) {
      received.push_back(nodeValue(shape, view(sliceDim(y.name, 0, k, k + 1), shape.sizes)));
      tuple.elements.push_back(shape);
    }
    return tupleValue(std::move(tuple), std::move(received));
  }
  const std::size_t operands = op == "collective-permute" ? 1 : i.operands.size();
  for (std::size_t k = 0; k < operands; ++k) {
    const Value& x = operand(frame, i, k);
    Sizes sizes = x.shape.sizes;
    if (op == "collective-permute") {
      if (i.operands.size() != 1) unsupported(i, "several operands, expected one");
      received.push_back(permuted(frame, i, x, k));
    } else if (op == "all-gather") {
      const std::size_t d = oneDim(sizes);
      sizes[d] *= groupSize();
      received.push_back(
          communicated(frame, i, "all_gather", x, {{"dim", std::to_string(d)}}, sizes, k));
    } else if (op == "all-to-all") {
      const std::size_t d = oneDim(sizes);
      const std::string text = std::to_string(d);
      if (sizes[d] % groupSize() != 0) unsupported(i, "pieces that are not equal");
      received.push_back(
          communicated(frame, i, "all_to_all", x, {{"idim", text}, {"odim", text}}, sizes, k));
    } else {
      const std::string region = binaryRegion(i, called(i, "to_apply"));
      const bool pred = x.shape.type == "pred";
      const std::string reduce = region == "maximum" || region == "or" || (pred && region == "add")
                                     ? "max"
                                 : region == "minimum" || region == "and" ? "min"
                                 : region == "add"                        ? "sum"
                                                                          : "";
      if (reduce.empty() || ((region == "and" || region == "or") && !pred))
        unsupported(i, "a reduction by '" + region + "' of " + x.shape.type + " is not supported");
      NodeAttributes attributes{{"reduce", quotedJson(reduce)}};
      if (op == "reduce-scatter") {
        const std::size_t d = oneDim(sizes);
        if (sizes[d] % groupSize() != 0) unsupported(i, "pieces that are not equal");
        sizes[d] /= groupSize();
        attributes.emplace_back("dim", std::to_string(d));
        received.push_back(communicated(frame, i, "reduce_scatter", x, attributes, sizes, k));
      } else {
        received.push_back(communicated(frame, i, "all_reduce", x, attributes, sizes, k));
      }
    }
  }
  Value result;
  if (received.size() == 1) {
    result = received[0];
  } else {
    for (const Value& v : received) result.shape.elements.push_back(v.shape);
    result.shape.tuple = true;
    result.elements = std::move(received);
  }
  // A start's shape tells of its buffers, too.
  if (started && i.shape.tuple && i.shape != result.shape) return tupleValue(i.shape, {result});
  return result;
}

}  // namespace shardproof::hlo
