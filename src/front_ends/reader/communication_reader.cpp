// SPDX-License-Identifier: Apache-2.0
#include "reader/communication_reader.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "ops/collectives.h"

namespace shardproof::reader {

namespace {

using ops::Collective;

void expectOnlyFields(const Collective& collective, const Value& node) {
  std::vector<std::string_view> known{"op", "in",   "out", "attrs",  "loc",
                                      "mb", "comm", "tag", "handle", "waits"};
  if (!collective.message()) known.insert(known.end(), {"group", "group_at"});
  if (*collective.peer != 0) known.push_back(collective.peer);
  if (collective.uneven) known.push_back("sizes");
  if (collective.permutes) known.push_back("pairs");
  node.expectFields(known);
}

std::int32_t readDimension(const Value& attributes, std::string_view key) {
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(attributes.require(key).integer(
      -kLimit, kLimit));  // against the rank of the operand: ir/validate.h
}

Reduction readReduction(const Value& attributes) {
  const auto value = attributes.find("reduce");
  if (!value) return Reduction::kSum;
  if (const auto reduction = ops::findReduction(value->string())) return *reduction;
  value->expectedOneOf("\"sum\", \"mean\", \"max\" or \"min\"", {"sum", "mean", "max", "min"});
}

void readAttributes(const Collective& collective, const Value& node, ir::CommunicationDraft& spec) {
  const auto attributes = node.find("attrs");
  const std::vector<std::string_view> names = collective.attributes();
  if (!attributes) {
    if (collective.movesPieces())
      node.fail("the field \"attrs\" is missing: " + std::string(collective.name) + " needs " +
                listNames(names));
    return;
  }
  if (names.empty() && attributes->expectObject().size() > 0)
    (*attributes->begin()).fail("unknown attribute: " + std::string(collective.name) + " has none");
  attributes->expectFields(names);
  if (collective.reduces) spec.reduction = readReduction(*attributes);
  if (collective.gathers == ops::Along::kOtherDim) {
    spec.dim = readDimension(*attributes, "idim");
    spec.odim = readDimension(*attributes, "odim");
  } else if (collective.movesPieces()) {
    spec.dim = readDimension(*attributes, "dim");
  }
}

void readGroup(const Value& node, Names& names, ir::CommunicationDraft& spec) {
  const auto axes = node.find("group");
  const auto listed = node.find("group_at");
  if (axes && listed)
    node.fail("found both \"group\" and \"group_at\", expected exactly one of them");
  if (!axes && !listed)
    node.fail("found neither \"group\" nor \"group_at\", expected exactly one of them");
  if (axes) {
    if (axes->kind() == ValueKind::kString)
      axes->expectedAs(
          "a list", "`group` is a list of axes: write [\"" + std::string(axes->string()) + "\"]");
    for (const Value axis : axes->expectArray()) {
      if (axis.kind() == ValueKind::kInteger)
        axis.expectedAs("an axis of the mesh",
                        "`group` is a list of axes, not of ranks; `group_at` lists members, each "
                        "by its coordinates");
      const NameId id = names.intern(axis.name());
      if (std::find(spec.groupAxes.begin(), spec.groupAxes.end(), id) != spec.groupAxes.end()) {
        axis.fail("found the axis \"" + std::string(axis.name()) + "\" twice in one group");
      }
      spec.groupAxes.push_back(id);
    }
    return;
  }
  if (listed->expectArray().size() == 0) listed->expected("at least one member");
  spec.groupAt.reserve(listed->size());
  for (const Value member : *listed) spec.groupAt.push_back(readCoordinates(member, names));
}

// One for each member; of an all_to_all a row for each member, of what it sends to each. How many
// there have to be follows from the group (ir/pieces.h).
std::vector<std::int64_t> readSizes(const Value& value, bool matrix) {
  std::vector<std::int64_t> sizes;
  const auto row = [&](const Value& list) {
    for (const Value size : list.expectArray())
      sizes.push_back(size.integer(0, std::numeric_limits<std::int64_t>::max()));
  };
  if (value.expectArray().size() == 0) value.expected("at least one size");
  if (!matrix) {
    row(value);
    return sizes;
  }
  for (const Value list : value) {
    if (list.kind() != ValueKind::kArray)
      list.expectedAs("a list",
                      "of an all_to_all each member has a list of what it sends to each member");
    if (list.size() != value.size())
      list.expected(std::to_string(value.size()) + " sizes, as there are lists");
    row(list);
  }
  return sizes;
}

std::vector<std::pair<std::int32_t, std::int32_t>> readPairs(const Value& value) {
  constexpr std::int64_t kLimit = std::numeric_limits<std::int32_t>::max();
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  for (const Value pair : value.expectArray()) {
    if (pair.expectArray().size() != 2) pair.expected("a source and a target, [source, target]");
    std::int32_t ends[2];
    std::size_t k = 0;
    for (const Value member : pair) {
      if (member.kind() == ValueKind::kObject)
        member.expectedAs("an integer", "members are named by their places in the group");
      ends[k++] = static_cast<std::int32_t>(member.integer(0, kLimit));
    }
    pairs.emplace_back(ends[0], ends[1]);
  }
  return pairs;
}

}  // namespace

ir::NamedCoordinates readCoordinates(const Value& value, Names& names,
                                     std::vector<ir::NamedStretch>* stretches) {
  ir::NamedCoordinates out;
  if (value.kind() == ValueKind::kInteger)
    value.expectedAs("an object",
                     "ranks are named by their coordinates: write {\"AXIS\": COORDINATE}");
  if (value.kind() == ValueKind::kArray)
    value.expectedAs("an object",
                     "coordinates have the names of their axes: write {\"AXIS\": COORDINATE}");
  out.reserve(value.expectObject().size());
  const auto coordinate = [](const Value& c) {
    return static_cast<std::int32_t>(c.integer(0, std::numeric_limits<std::int32_t>::max()));
  };
  for (const Value c : value) {
    if (stretches != nullptr && c.kind() == ValueKind::kArray) {
      if (c.size() != 2) c.expected("a pair: the first coordinate, and the one after the last");
      stretches->push_back(
          {names.intern(c.key()), coordinate(*c.begin()), coordinate(*++c.begin())});
    } else {
      out.emplace_back(names.intern(c.key()), coordinate(c));
    }
  }
  return out;
}

ir::CommunicationDraft readCommunication(Communication kind, const Value& node, Names& names) {
  const Collective& collective = ops::collectiveOf(kind);
  expectOnlyFields(collective, node);
  ir::CommunicationDraft spec;
  spec.kind = kind;
  spec.comm = names.intern(node.require("comm").name());
  if (const auto tag = node.find("tag")) spec.tag = tag->integer();
  readAttributes(collective, node, spec);
  if (!collective.message()) readGroup(node, names, spec);
  if (collective.uneven) {
    if (const auto sizes = node.find("sizes"))
      spec.sizes = readSizes(*sizes, kind == Communication::kAllToAll);
  }
  if (collective.permutes) spec.pairs = readPairs(node.require("pairs"));
  if (*collective.peer != 0) spec.peer = readCoordinates(node.require(collective.peer), names);
  return spec;
}

}  // namespace shardproof::reader
