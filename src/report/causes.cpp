#include "report/causes.h"

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
                     {"from", f.from}});
  Json mend = nullptr;
  if (cause.mend) mend = {{"text", cause.mend->text}, {"proved", cause.mend->proved}};
  return {{"kind", cause.kind},
          {"sentence", cause.sentence},
          {"nodes", std::move(nodes)},
          {"ranks", cause.ranks},
          {"microbatches", cause.microbatches},
          {"tensors", cause.tensors},
          {"defects", cause.defects},
          {"mend", std::move(mend)},
          {"found", std::move(found)}};
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
  if (const Json& mend = json.at("mend"); !mend.is_null())
    cause.mend = {mend.at("text").get<std::string>(), mend.at("proved").get<bool>()};
  for (const Json& f : json.at("found"))
    cause.found.push_back({placeFromJson(f.at("node")), f.at("tensor").get<std::string>(),
                           f.at("is").get<std::string>(), f.at("wrong").get<bool>(),
                           f.at("from").get<std::vector<std::string>>()});
  return cause;
}

}  // namespace shardproof
