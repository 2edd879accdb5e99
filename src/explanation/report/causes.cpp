// SPDX-License-Identifier: Apache-2.0
#include "report/causes.h"

#include <cmath>
#include <limits>

namespace shardproof {

namespace {

using Json = nlohmann::ordered_json;

NodePlace placeFromJson(const Json& json) {
  NodePlace place;
  place.pointer = json.at("pointer").get<std::string>();
  place.op = json.at("op").get<std::string>();
  place.location = json.at("loc").get<std::string>();
  place.inPlan = json.at("in").get<std::string>() == "plan";
  return place;
}

Json numbers(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double x : values) {  // JSON has no infinity and no NaN
    if (std::isfinite(x)) list.push_back(x);
    else list.push_back(std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
  }
  return list;
}

Json toJson(const Cause::Block& block) {
  if (block.values.empty()) return nullptr;
  return {{"full", block.full},
          {"low", block.low},
          {"extent", block.extent},
          {"values", numbers(block.values)}};
}

Cause::Block blockFromJson(const Json& json) {
  Cause::Block block;
  if (json.is_null()) return block;
  block.full = json.at("full").get<Shape>();
  block.low = json.at("low").get<Shape>();
  block.extent = json.at("extent").get<Shape>();
  for (const Json& x : json.at("values")) {
    if (x.is_number()) block.values.push_back(x.get<double>());
    else {
      const auto text = x.get<std::string>();
      const double infinity = std::numeric_limits<double>::infinity();
      block.values.push_back(text == "inf"    ? infinity
                             : text == "-inf" ? -infinity
                                              : std::numeric_limits<double>::quiet_NaN());
    }
  }
  return block;
}

Json toJson(const Cause::Compared& compared) {
  return {{"tensor", compared.tensor},
          {"at", compared.at},
          {"model", toJson(compared.model)},
          {"plan", toJson(compared.plan)},
          {"rank", compared.rank},
          {"microbatch", compared.microbatch ? Json(*compared.microbatch) : Json(nullptr)}};
}

Cause::Compared comparedFromJson(const Json& json) {
  Cause::Compared compared;
  compared.tensor = json.at("tensor").get<std::string>();
  compared.at = json.at("at").get<Shape>();
  compared.model = blockFromJson(json.at("model"));
  compared.plan = blockFromJson(json.at("plan"));
  compared.rank = json.at("rank").get<std::int64_t>();
  if (!json.at("microbatch").is_null())
    compared.microbatch = json.at("microbatch").get<std::int32_t>();
  return compared;
}

}  // namespace

Json toJson(const NodePlace& place) {
  return {{"pointer", place.pointer},
          {"op", place.op},
          {"loc", place.location},
          {"in", place.inPlan ? "plan" : "model"}};
}

Json toJson(const Cause& cause) {
  Json nodes = Json::array(), found = Json::array();
  for (const NodePlace& node : cause.nodes) nodes.push_back(toJson(node));
  for (const Cause::Found& f : cause.found)
    found.push_back({{"node", toJson(f.node)},
                     {"tensor", f.tensor},
                     {"is", f.is},
                     {"wrong", f.wrong},
                     {"from", f.from},
                     {"numbers", toJson(f.numbers)}});
  Json fix = nullptr;
  if (cause.fix) fix = {{"text", cause.fix->text}, {"proved", cause.fix->proved}};
  return {{"kind", cause.kind},
          {"sentence", cause.sentence},
          {"nodes", std::move(nodes)},
          {"ranks", cause.ranks},
          {"microbatches", cause.microbatches},
          {"tensors", cause.tensors},
          {"defects", cause.defects},
          {"fix", std::move(fix)},
          {"found", std::move(found)},
          {"compared", cause.compared ? toJson(*cause.compared) : Json(nullptr)}};
}

Cause causeFromJson(const Json& json) {
  Cause cause;
  cause.kind = json.at("kind").get<std::string>();
  cause.sentence = json.at("sentence").get<std::string>();
  for (const Json& node : json.at("nodes")) cause.nodes.push_back(placeFromJson(node));
  cause.ranks = json.at("ranks").get<std::vector<std::int64_t>>();
  cause.microbatches = json.at("microbatches").get<std::vector<std::int64_t>>();
  cause.tensors = json.at("tensors").get<std::vector<std::string>>();
  cause.defects = json.at("defects").get<std::vector<std::size_t>>();
  if (const Json& fix = json.at("fix"); !fix.is_null())
    cause.fix = {fix.at("text").get<std::string>(), fix.at("proved").get<bool>()};
  for (const Json& f : json.at("found"))
    cause.found.push_back({placeFromJson(f.at("node")), f.at("tensor").get<std::string>(),
                           f.at("is").get<std::string>(), f.at("wrong").get<bool>(),
                           f.at("from").get<std::vector<std::string>>(),
                           blockFromJson(f.value("numbers", Json(nullptr)))});
  if (const auto compared = json.find("compared"); compared != json.end() && !compared->is_null())
    cause.compared = comparedFromJson(*compared);
  return cause;
}

}  // namespace shardproof
