// SPDX-License-Identifier: Apache-2.0
#include "adversary/graph_writer.h"

#include <stdexcept>

#include "ops/registry.h"

namespace shardproof::adversary {
namespace {

Attributes attributesOf(const Json& json) {
  Attributes attributes;
  for (const auto& [key, value] : json.items()) {
    if (value.is_boolean()) attributes[key] = value.get<bool>();
    else if (value.is_string()) attributes[key] = value.get<std::string>();
    else if (value.is_array()) attributes[key] = value.get<std::vector<std::int64_t>>();
    else attributes[key] = Rational::parse(value.dump());
  }
  return attributes;
}

}  // namespace

std::string GraphWriter::given(const std::string& name, const Shape& shape, const char* kind,
                               ElementKind element) {
  tensors_[name] = {{"shape", shape}, {"kind", kind}};
  if (element == ElementKind::kInteger) tensors_[name]["dtype"] = "int64";
  infos_[name] = {shape, element, false};
  return name;
}

std::string GraphWriter::constant(const Shape& shape, const Json& value) {
  const std::string name = prefix_ + std::to_string(tensors_.size());
  given(name, shape, "constant");
  tensors_[name]["value"] = value;
  return name;
}

std::string GraphWriter::node(const std::string& op, const std::vector<std::string>& in,
                              const Json& attributes, std::size_t results, const Json& fields) {
  const ops::OperatorInfo& info = ops::Registry::instance().at(ops::Registry::instance().find(op));
  const Attributes parsed = attributesOf(attributes);
  std::vector<const ops::TensorInfo*> operands;
  for (const std::string& name : in) operands.push_back(name.empty() ? nullptr : &infos_.at(name));
  info.validate(parsed, in.size(), results);
  const std::vector<ops::TensorInfo> made = info.infer(ops::Signature{parsed, operands, results});
  Json node{{"op", op}, {"in", Json::array()}, {"out", Json::array()}};
  for (const std::string& name : in) node["in"].push_back(name.empty() ? Json() : Json(name));
  std::string first;
  for (const ops::TensorInfo& result : made) {
    if (result.absent) {
      node["out"].push_back(Json());
      continue;
    }
    const std::string name = prefix_ + std::to_string(tensors_.size());
    tensors_[name] = {{"shape", result.shape}};
    infos_[name] = result;
    node["out"].push_back(name);
    if (first.empty()) first = name;
  }
  if (!attributes.empty()) node["attrs"] = attributes;
  node.update(fields);
  nodes_.push_back(std::move(node));
  return first;
}

std::string GraphWriter::communication(const std::string& op, const std::string& in,
                                       const Shape& shape, const Json& fields) {
  const std::string name = prefix_ + std::to_string(tensors_.size());
  tensors_[name] = {{"shape", shape}};
  infos_[name] = {shape, infos_.at(in).element, false};
  Json node{{"op", op}, {"in", {in}}, {"out", {name}}};
  node.update(fields);
  nodes_.push_back(std::move(node));
  return name;
}

const Shape& GraphWriter::shape(const std::string& name) const { return infos_.at(name).shape; }

std::vector<std::string> GraphWriter::names(const Shape& shape) const {
  std::vector<std::string> list;
  for (const auto& [name, info] : infos_)
    if (info.shape == shape && info.element == ElementKind::kReal) list.push_back(name);
  return list;
}

Json modelOf(const GraphWriter& graph, const std::vector<std::string>& outputs) {
  return {{"format", "shardproof-model"},
          {"version", 1},
          {"tensors", graph.tensors()},
          {"nodes", graph.nodes()},
          {"outputs", outputs}};
}

Json planOf(const Json& mesh, std::int64_t microbatches, const Json& programs,
            const Json& lineage) {
  return {{"format", "shardproof-plan"},
          {"version", 1},
          {"model", "m.model.json"},
          {"mesh", mesh},
          {"microbatches", microbatches},
          {"programs", programs},
          {"lineage", lineage}};
}

Json entryOf(const std::string& tensor, const char* role, const Shape& low, const Shape& length,
             const std::string& local, const Json& step, const Json& at) {
  Json box = Json::array(), part{{"local", local}};
  for (std::size_t d = 0; d < length.size(); ++d) box.push_back({low[d], low[d] + length[d]});
  if (!at.is_null()) part["at"] = at;
  Json shard{{"box", box}, {"parts", {part}}};
  if (!step.is_null()) shard["step"] = step;
  return {{"tensor", tensor}, {"role", role}, {"shards", {shard}}};
}

}  // namespace shardproof::adversary
