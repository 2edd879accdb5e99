// SPDX-License-Identifier: Apache-2.0
// All operators by name. Built once, immutable.
#pragma once

#include <string_view>
#include <vector>

#include "ops/operator.h"

namespace shardproof::ops {

class Registry {
 public:
  static const Registry& instance();
  OperatorId find(std::string_view name) const;  // invalid when there is none
  const OperatorInfo& at(OperatorId id) const { return operators_.at(id.index()); }
  std::size_t size() const { return operators_.size(); }
  // Names resembling `name`, best first, for "unknown operator" messages.
  std::vector<std::string> similar(std::string_view name) const;

 private:
  Registry();
  std::vector<OperatorInfo> operators_;
};

}  // namespace shardproof::ops
