// SPDX-License-Identifier: Apache-2.0
// Devices as a mesh: axes along which shardings and groups lie, found from what they are.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reader/hlo/lowering.h"
#include "reader/hlo/syntax.h"

namespace shardproof::hlo {

class DeviceMesh : public Grouping {
 public:
  // Looks at all shardings and groups of the module. Throws InputError for those that are wrong.
  DeviceMesh(const Module& module, const std::string& file, std::int64_t devices);

  NodeAttributes groupOf(const std::vector<std::vector<std::int64_t>>& groups,
                         std::int64_t device) const override;
  std::optional<std::vector<std::vector<std::int64_t>>> affineGroups(
      const std::vector<std::int64_t>& sourceOf) const override;

  std::int64_t devices() const { return devices_; }
  std::size_t axes() const { return sizes_.size(); }
  std::string axisName(std::size_t axis) const;
  std::int64_t axisSize(std::size_t axis) const { return sizes_[axis]; }
  std::int64_t coordinate(std::int64_t device, std::size_t axis) const {
    return device / strides_[axis] % sizes_[axis];
  }
  // [["x0", 2], ["x1", 4]]
  std::string json() const;
  // {"x0": 1, ...}: the device's place on these axes.
  std::string coordinatesOf(std::int64_t device, const std::vector<std::size_t>& axes) const;

  // The tensor's shards as JSON objects: local `name` of these sizes on the devices `on` (empty:
  // all) holds a box that begins at begin[device]. One shard with steps where the begins allow it.
  std::string shards(const std::string& name, const Sizes& sizes, const std::vector<Sizes>& begin,
                     const std::vector<std::int64_t>& on) const;

 private:
  std::int64_t devices_ = 1;
  std::vector<std::int64_t> sizes_, strides_;  // slowest axis first
};

// How many tiles along each dimension of a tensor of this rank, and for each device which of them
// it has. Nothing for a sharding that does not say (manual).
struct Tiling {
  Sizes tiles;
  std::vector<Sizes> tileOf;
};
std::optional<Tiling> tilingOf(const Sharding& sharding, std::size_t rank, std::int64_t devices);

}  // namespace shardproof::hlo
