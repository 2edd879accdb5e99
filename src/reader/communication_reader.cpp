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
  std::string_view op;
  Communication kind;
  bool collective;        // has a group
  std::string_view peer;  // the field with the peer's coordinates, or empty
  std::vector<std::string_view> attributes;
};

const std::array<Rule, 7>& rules() {
  static const std::array<Rule, 7> table{{
      {"all_reduce", Communication::kAllReduce, true, "", {"reduce"}},
      {"all_gather", Communication::kAllGather, true, "", {"dim"}},
      {"reduce_scatter", Communication::kReduceScatter, true, "", {"dim", "reduce"}},
      {"all_to_all", Communication::kAllToAll, true, "", {"idim", "odim"}},
      {"broadcast", Communication::kBroadcast, true, "root", {}},
      {"send", Communication::kSend, false, "to", {}},
      {"recv", Communication::kReceive, false, "from", {}},
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
      -kLimit, kLimit));  // against the rank of the operand: plan_resolver
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

void readAttributes(const Rule& rule, const Value& node, CommunicationSpec& spec) {
  const auto attributes = node.find("attrs");
  if (!attributes) {
    const bool needed = std::any_of(rule.attributes.begin(), rule.attributes.end(),
                                    [](std::string_view a) { return a != "reduce"; });
    if (needed)
      node.fail("the field \"attrs\" is missing: " + std::string(rule.op) + " needs " +
                listNames(rule.attributes));
    return;
  }
  if (rule.attributes.empty() && attributes->expectObject().size() > 0) {
    (*attributes->begin()).fail("unknown attribute: " + std::string(rule.op) + " has none");
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

void readGroup(const Value& node, Names& names, CommunicationSpec& spec) {
  const auto axes = node.find("group");
  const auto listed = node.find("group_at");
  if (axes && listed)
    node.fail("found both \"group\" and \"group_at\", expected exactly one of them");
  if (!axes && !listed)
    node.fail("found neither \"group\" nor \"group_at\", expected exactly one of them");
  if (axes) {
    for (const Value axis : axes->expectArray()) {
      const std::int32_t id = names.intern(axis.name()).value;
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

Communication findCommunication(std::string_view op) {
  const auto it =
      std::find_if(rules().begin(), rules().end(), [&](const Rule& r) { return r.op == op; });
  return it == rules().end() ? Communication::kNone : it->kind;
}

Coordinates readCoordinates(const Value& value, Names& names) {
  Coordinates out;
  out.reserve(value.expectObject().size());
  for (const Value c : value) {
    const auto k =
        static_cast<std::int32_t>(c.integer(0, std::numeric_limits<std::int32_t>::max()));
    out.emplace_back(names.intern(c.key()).value, k);
  }
  return out;
}

CommunicationSpec readCommunication(Communication kind, const Value& node, Names& names) {
  const Rule& rule = ruleOf(kind);
  expectOnlyFields(rule, node);
  CommunicationSpec spec;
  spec.kind = kind;
  spec.comm = names.intern(node.require("comm").name());
  if (const auto tag = node.find("tag")) spec.tag = tag->integer();
  readAttributes(rule, node, spec);
  if (rule.collective) readGroup(node, names, spec);
  if (!rule.peer.empty()) spec.peer = readCoordinates(node.require(rule.peer), names);
  return spec;
}

void checkCommunicationOperands(Communication kind, const Value& node, std::size_t operands,
                                std::size_t results) {
  const std::string found = "found " + std::to_string(operands) + " operands and " +
                            std::to_string(results) + " results, expected ";
  const bool one = operands + results == 1;
  switch (kind) {
    case Communication::kSend:
      if (!one || operands != 1) node.fail(found + "one operand and no result for send");
      break;
    case Communication::kReceive:
      if (!one || results != 1) node.fail(found + "no operand and one result for recv");
      break;
    case Communication::kBroadcast:
      if (!one)
        node.fail(found + "one operand on the root of a broadcast, or one result on the others");
      break;
    default:
      if (operands != 1 || results != 1)
        node.fail(found + "one operand and one result for " + std::string(ruleOf(kind).op));
  }
}

}  // namespace shardproof::reader
