// SPDX-License-Identifier: Apache-2.0
// The operators and collectives of the format, with what is known of each: for people, and for
// front ends that decide by it (docs/operators.md).
#include "commands/operators_command.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "commands/streams.h"
#include "commands/words.h"
#include "ops/collectives.h"
#include "ops/interface.h"
#include "ops/registry.h"

namespace shardproof {

namespace {

using Json = nlohmann::ordered_json;

const char* nameOf(ops::AttributeType type) {
  switch (type) {
    case ops::AttributeType::kFlag:
      return "flag";
    case ops::AttributeType::kInteger:
      return "integer";
    case ops::AttributeType::kNumber:
      return "number";
    case ops::AttributeType::kText:
      return "text";
    case ops::AttributeType::kIntegers:
      return "integers";
    case ops::AttributeType::kIntegerOrIntegers:
      break;
  }
  return "integer or integers";
}

const char* nameOf(ops::Sign sign) {
  switch (sign) {
    case ops::Sign::kNotNegative:
      return "not negative";
    case ops::Sign::kPositive:
      return "positive";
    case ops::Sign::kAny:
      break;
  }
  return "any";
}

const char* nameOf(ops::Who who) {
  switch (who) {
    case ops::Who::kNobody:
      return "nobody";
    case ops::Who::kRoot:
      return "root";
    case ops::Who::kOthers:
      return "others";
    case ops::Who::kIssuer:
      return "issuer";
    case ops::Who::kAll:
      break;
  }
  return "all";
}

const char* fieldOf(ops::Along along) {
  switch (along) {
    case ops::Along::kDim:
      return "dim";
    case ops::Along::kOtherDim:
      return "odim";
    case ops::Along::kNothing:
      break;
  }
  return "";
}

// [least, most]; null: any number.
Json counts(std::size_t least, std::size_t most) {
  return {least, most == ops::kAnyNumber ? Json(nullptr) : Json(most)};
}

struct Trait {
  const char* name;
  bool ops::Traits::*flag;
};
constexpr Trait kTraits[] = {
    {"elementwise", &ops::Traits::elementwise},
    {"rearranges", &ops::Traits::rearranges},
    {"moves", &ops::Traits::moves},
    {"picks", &ops::Traits::picks},
    {"affine", &ops::Traits::affine},
    {"total", &ops::Traits::total},
    {"finite", &ops::Traits::finite},
    {"keeps sign", &ops::Traits::keepsSign},
};

std::vector<std::string> traitsOf(const ops::OperatorInfo& op) {
  std::vector<std::string> names;
  for (const Trait& trait : kTraits)
    if (op.traits.*trait.flag) names.emplace_back(trait.name);
  if (op.traits.sign != ops::Sign::kAny) names.emplace_back(nameOf(op.traits.sign));
  return names;
}

Json toJson(const ops::OperatorInfo& op) {
  Json attributes = Json::array();
  for (const ops::AttributeRule& rule : op.attributes) {
    Json a{{"name", rule.key}, {"type", nameOf(rule.type)}, {"required", rule.required}};
    if (rule.min) a["min"] = rule.min->toString();
    if (rule.max) a["max"] = rule.max->toString();
    if (!rule.choices.empty()) a["choices"] = rule.choices;
    attributes.push_back(std::move(a));
  }
  return {{"name", op.name},
          {"operands", counts(op.minOperands, op.maxOperands)},
          {"results", counts(op.minResults, op.maxResults)},
          {"attributes", std::move(attributes)},
          {"gradient", op.differentiable},
          {"traits", traitsOf(op)}};
}

std::vector<std::string> traitsOf(const ops::Collective& c) {
  std::vector<std::string> names{"total"};
  names.emplace_back(c.reduces ? "reduces" : "moves");
  if (c.message()) names.emplace_back("message");
  if (c.uneven) names.emplace_back("uneven");
  if (c.permutes) names.emplace_back("permutes");
  return names;
}

Json toJson(const ops::Collective& c) {
  Json attributes = Json::array();
  for (const std::string_view name : c.attributes()) attributes.push_back(name);
  return {{"name", c.name},
          {"operand of", nameOf(c.operand)},
          {"result of", nameOf(c.result)},
          {"attributes", std::move(attributes)},
          {"peer", c.peer},
          {"scatters along", fieldOf(c.scatters)},
          {"gathers along", fieldOf(c.gathers)},
          {"traits", traitsOf(c)}};
}

std::string asJson() {
  Json operators = Json::array(), collectives = Json::array();
  const ops::Registry& registry = ops::Registry::instance();
  for (const OperatorId id : firstIds<OperatorId>(registry.size()))
    operators.push_back(toJson(registry.at(id)));
  for (const ops::Collective& c : ops::collectives()) collectives.push_back(toJson(c));
  return Json{{"format", "shardproof-operators"},
              {"version", 1},
              {"operators", std::move(operators)},
              {"collectives", std::move(collectives)}}
             .dump(1) +
         "\n";
}

std::string asText() {
  std::ostringstream text;
  const auto row = [&](const std::string& name, const std::string& traits) {
    text << name << std::string(name.size() < 28 ? 28 - name.size() : 1, ' ') << traits << "\n";
  };
  const ops::Registry& registry = ops::Registry::instance();
  text << "Operators:\n";
  for (const OperatorId id : firstIds<OperatorId>(registry.size()))
    row("  " + registry.at(id).name, joined(traitsOf(registry.at(id)), ", "));
  text << "\nCommunication:\n";
  for (const ops::Collective& c : ops::collectives())
    row(std::string("  ") + c.name, joined(traitsOf(c), ", "));
  return text.str();
}

}  // namespace

void addOperatorsCommand(CLI::App& app, std::function<int()>& run) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand(
      "operators", "List the operators and collectives of the format, and what is known of each");
  command->add_flag("--json", *json, "As JSON, with attributes and numbers of operands");
  command->callback([json, &run] {
    run = [json] {
      writeStandardOutput(*json ? asJson() : asText());
      return 0;
    };
  });
}

}  // namespace shardproof
