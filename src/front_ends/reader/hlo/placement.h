// SPDX-License-Identifier: Apache-2.0
// How the tensors of a plan lie on the devices, guessed forward from the parameters. What comes of
// it are cut points, which are proved before they are used: a wrong guess costs time only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "reader/hlo/lowering.h"
#include "reader/hlo/mesh.h"

namespace shardproof::hlo {

// Along one axis of the mesh.
struct AxisPlacement {
  enum class Kind : std::uint8_t {
    kAny,      // a number that is the same everywhere: fits all
    kSame,     // all coordinates have the same
    kPiece,    // coordinate c has the piece that begins c * step further along `dim`
    kSummand,  // the tensor is the sum over the coordinates
    kUnknown
  };
  Kind kind = Kind::kUnknown;
  std::size_t dim = 0;
  std::int64_t step = 0;
  friend bool operator==(const AxisPlacement&, const AxisPlacement&) = default;
};
using Placement = std::vector<AxisPlacement>;  // for each axis

class Placements {
 public:
  // `ranks`: the program of each device. Parameters' begins: for each device where its piece lies.
  Placements(const std::vector<std::shared_ptr<Lowering>>& ranks, const DeviceMesh& mesh,
             const std::vector<std::vector<Sizes>>& parameterBegins);

  // Null where nothing is known.
  const Placement* of(const std::string& tensor) const;
  // The sizes of the whole tensor; nothing where a placement is unknown.
  std::optional<Sizes> fullSizes(const std::string& tensor) const;
  // The shard as JSON, of a tensor that has full sizes.
  std::string shard(const std::string& tensor) const;

 private:
  Placement given(const std::vector<Sizes>& begin) const;
  Placement apply(const GraphNode& n);
  Placement elementwise(const GraphNode& n) const;
  Placement contracted(const GraphNode& n) const;
  Placement viewed(const GraphNode& n) const;
  Placement communicated(const GraphNode& n) const;
  Placement looked(const GraphNode& n) const;
  Placement moved(const GraphNode& n) const;
  const Sizes& sizes(const std::string& tensor) const { return first_.graph.tensor(tensor).sizes; }
  const Placement& placementOf(const std::string& tensor) const { return placements_.at(tensor); }
  Placement all(AxisPlacement::Kind kind) const;

  const std::vector<std::shared_ptr<Lowering>>& ranks_;
  const Lowering& first_;
  const DeviceMesh& mesh_;
  std::unordered_map<std::string, Placement> placements_;
};

}  // namespace shardproof::hlo
