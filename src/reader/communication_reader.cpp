#include "reader/communication_reader.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace shardproof::reader {

namespace {

struct Rule {
  Communication kind;
  bool collective;        // has a group
  std::string_view peer;  // the field with the peer's coordinates, or empty
  std::vector<std::string_view> attributes;
};

const std::array<Rule, 7>& rules() {
  static const std::array<Rule, 7> table{{
      {Communication::kAllReduce, true, "", {"reduce"}},
      {Communication::kAllGather, true, "", {"dim"}},
      {Communication::kReduceScatter, true, "", {"dim", "reduce"}},
      {Communication::kAllToAll, true, "", {"idim", "odim"}},
      {Communication::kBroadcast, true, "root", {}},
      {Communication::kSend, false, "to", {}},
      {Communication::kReceive, false, "from", {}},
  }};
  return table;
}

const Rule& ruleOf(Communication kind) {
  return *std::find_if(rules().begin(), rules().end(),
                       [&](const Rule& r) { return r.kind == kind; });
}

void expectOnlyFields(const Rule& rule, const Value& node) {
  std::vector<std::string_view> known{"op", "in", "out", "attrs", "loc", "mb", "comm", "tag"};
  if (rule.collective) known.insert(known.end(), {"group", "group_at"});
  if (!rule.peer.empty()) known.push_back(rule.peer);
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
  const std::string_view text = value->string();
  if (text == "sum") return Reduction::kSum;
  if (text == "mean") return Reduction::kMean;
  if (text == "max") return Reduction::kMax;
  if (text == "min") return Reduction::kMin;
  value->expected("\"sum\", \"mean\", \"max\" or \"min\"");
}

void readAttributes(const Rule& rule, const Value& node, ir::CommunicationDraft& spec) {
  const auto attributes = node.find("attrs");
  if (!attributes) {
    const bool needed = std::any_of(rule.attributes.begin(), rule.attributes.end(),
                                    [](std::string_view a) { return a != "reduce"; });
    if (needed)
      node.fail("the field \"attrs\" is missing: " + std::string(communicationName(rule.kind)) +
                " needs " + listNames(rule.attributes));
    return;
  }
  if (rule.attributes.empty() && attributes->expectObject().size() > 0) {
    (*attributes->begin())
        .fail("unknown attribute: " + std::string(communicationName(rule.kind)) + " has none");
  }
  attributes->expectFields(rule.attributes);
  spec.reduction = readReduction(*attributes);
  switch (rule.kind) {
    case Communication::kAllGather:
    case Communication::kReduceScatter:
      spec.dim = readDimension(*attributes, "dim");
      break;
    case Communication::kAllToAll:
      spec.dim = readDimension(*attributes, "idim");
      spec.odim = readDimension(*attributes, "odim");
      break;
    default:
      break;
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
    for (const Value axis : axes->expectArray()) {
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

}  // namespace

ir::NamedCoordinates readCoordinates(const Value& value, Names& names) {
  ir::NamedCoordinates out;
  out.reserve(value.expectObject().size());
  for (const Value c : value) {
    const auto k =
        static_cast<std::int32_t>(c.integer(0, std::numeric_limits<std::int32_t>::max()));
    out.emplace_back(names.intern(c.key()), k);
  }
  return out;
}

ir::CommunicationDraft readCommunication(Communication kind, const Value& node, Names& names) {
  const Rule& rule = ruleOf(kind);
  expectOnlyFields(rule, node);
  ir::CommunicationDraft spec;
  spec.kind = kind;
  spec.comm = names.intern(node.require("comm").name());
  if (const auto tag = node.find("tag")) spec.tag = tag->integer();
  readAttributes(rule, node, spec);
  if (rule.collective) readGroup(node, names, spec);
  if (!rule.peer.empty()) spec.peer = readCoordinates(node.require(rule.peer), names);
  return spec;
}

}  // namespace shardproof::reader
