// SPDX-License-Identifier: Apache-2.0
// A graph as a document, written node by node, for plans that are made by hand: shapes follow from
// the operators.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "adversary/case.h"
#include "ops/operator.h"

namespace shardproof::adversary {

class GraphWriter {
 public:
  explicit GraphWriter(std::string prefix = "t") : prefix_(std::move(prefix)) {}

  std::string given(const std::string& name, const Shape& shape, const char* kind = "input",
                    ElementKind element = ElementKind::kReal);
  std::string constant(const Shape& shape, const Json& value);
  // The first result; of `results` many. `fields`: mb and the like.
  std::string node(const std::string& op, const std::vector<std::string>& in,
                   const Json& attributes = Json::object(), std::size_t results = 1,
                   const Json& fields = Json::object());
  // Communication: the shape of the result is the caller's affair.
  std::string communication(const std::string& op, const std::string& in, const Shape& shape,
                            const Json& fields);

  const Shape& shape(const std::string& name) const;
  bool has(const std::string& name) const { return infos_.contains(name); }
  std::vector<std::string> names(const Shape& shape) const;  // of real tensors of this shape
  const Json& tensors() const { return tensors_; }
  const Json& nodes() const { return nodes_; }
  Json program() const { return {{"tensors", tensors_}, {"nodes", nodes_}}; }

 private:
  std::string prefix_;
  Json tensors_ = Json::object(), nodes_ = Json::array();
  std::map<std::string, ops::TensorInfo> infos_;
};

Json modelOf(const GraphWriter& graph, const std::vector<std::string>& outputs);
Json planOf(const Json& mesh, std::int64_t microbatches, const Json& programs, const Json& lineage);
// An entry of one shard: a box of this size from `low` on, of one part.
Json entryOf(const std::string& tensor, const char* role, const Shape& low, const Shape& length,
             const std::string& local, const Json& step = Json(), const Json& at = Json());

}  // namespace shardproof::adversary
