// SPDX-License-Identifier: Apache-2.0
#include "report/parameter_text.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "report/text.h"

namespace shardproof {

namespace {

using State = ParameterTable::State;

std::string made(const ParameterTable::Axis& axis) {
  switch (axis.state) {
    case State::kSharded:
      return "sharded: each rank makes its part of it";
    case State::kRedundant:
      return "redundant: every rank makes all of it";
    case State::kReduced:
      return "already reduced: every rank has all of it, by " + axis.reducedInBackward +
             " within backward";
    case State::kPartial:
      return "partial: each rank makes a part of a sum";
    case State::kOnSome:
      return (axis.coordinates.size() == 1 ? "on " : "each at one of ") + axis.axis + " " +
             formatRanks(axis.coordinates) + (axis.coordinates.size() == 1 ? " only" : "");
    case State::kUnknown:
      return "unknown: it has no value in the execution";
  }
  return "";
}

// "layers.3.norm.weight" as "layers.*.norm.weight".
std::string withoutLayers(const std::string& name) {
  std::string text;
  for (std::size_t i = 0; i < name.size();) {
    const auto isDigit = [&](std::size_t at) {
      return at < name.size() && std::isdigit(static_cast<unsigned char>(name[at])) != 0;
    };
    std::size_t end = i;
    if (i > 0 && name[i - 1] == '.')
      while (isDigit(end)) ++end;
    if (end > i && (end == name.size() || name[end] == '.')) {
      text += '*';
      i = end;
    } else {
      text += name[i++];
    }
  }
  return text;
}

}  // namespace

std::vector<ParameterTable::Row> layersTogether(const std::vector<ParameterTable::Row>& rows) {
  struct Group {
    ParameterTable::Row row;
    std::vector<std::set<std::int64_t>> coordinates;  // by axis
    struct Name {
      std::string masked, first;
      std::size_t count;
    };
    std::vector<Name> names;
  };
  std::vector<Group> groups;
  for (const ParameterTable::Row& one : rows) {
    ParameterTable::Row row = one;
    std::vector<std::set<std::int64_t>> coordinates;
    for (ParameterTable::Axis& axis : row.axes) {
      axis.reducedBy = withoutLayers(axis.reducedBy);
      axis.reducedInBackward = withoutLayers(axis.reducedInBackward);
      coordinates.emplace_back(axis.coordinates.begin(), axis.coordinates.end());
      // Those that have one coordinate each go together.
      if (axis.coordinates.size() == 1) axis.coordinates.clear();
    }
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& g) { return g.row.axes == row.axes; });
    if (group == groups.end()) {
      groups.push_back({row, coordinates, {}});
      group = std::prev(groups.end());
    }
    for (std::size_t a = 0; a < coordinates.size(); ++a)
      group->coordinates[a].insert(coordinates[a].begin(), coordinates[a].end());
    for (const std::string& parameter : one.parameters) {
      const std::string name = withoutLayers(parameter);
      const auto known = std::find_if(group->names.begin(), group->names.end(),
                                      [&](const Group::Name& n) { return n.masked == name; });
      if (known == group->names.end()) group->names.push_back({name, parameter, 1});
      else ++known->count;
    }
  }
  std::vector<ParameterTable::Row> together;
  for (Group& group : groups) {
    group.row.parameters.clear();
    for (const Group::Name& name : group.names)
      group.row.parameters.push_back(
          name.count == 1 ? name.first : name.masked + " (" + std::to_string(name.count) + ")");
    for (std::size_t a = 0; a < group.coordinates.size(); ++a)
      group.row.axes[a].coordinates.assign(group.coordinates[a].begin(),
                                           group.coordinates[a].end());
    together.push_back(std::move(group.row));
  }
  return together;
}

std::string textOf(const ParameterTable::Axis& axis) {
  std::string text = made(axis);
  if (axis.state == State::kUnknown) return text;
  if (!axis.reducedBy.empty())
    text += (axis.state == State::kPartial ? "; reduced by " : "; reduced all the same, by ") +
            axis.reducedBy;
  else if (axis.state == State::kPartial)
    text += axis.summedAfter ? "; it is one at the end of the step, too (a DTensor that is Partial)"
                             : "; nothing reduces it";
  if (axis.shardedAfter && axis.state != State::kSharded) text += "; each rank keeps its part";
  return text;
}

}  // namespace shardproof
