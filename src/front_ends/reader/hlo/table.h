// SPDX-License-Identifier: Apache-2.0
// Tensors that are known without the program's inputs (on one rank): constants, iotas, masks,
// positions. A dimension along which all is alike is stored once.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "reader/hlo/scalars.h"
#include "reader/hlo/syntax.h"

namespace shardproof::hlo {

// `extent[d]` is the size of dimension d, or 1 where nothing depends on it; `values` is row-major
// over the extents.
struct Table {
  std::vector<std::int64_t> sizes, extent;
  std::vector<ScalarId> values;

  bool uniform() const { return values.size() == 1; }
  ScalarId value(std::span<const std::int64_t> index) const;
};

// How many values a table may hold; throws std::length_error beyond. Functions below throw it, too.
constexpr std::int64_t kMostTableValues = std::int64_t{1} << 22;

Table uniformTable(std::vector<std::int64_t> sizes, ScalarId value);
// Counted in that type: integers wrap around.
Table iotaTable(const std::vector<std::int64_t>& sizes, std::size_t dim, Scalars& scalars,
                std::string_view type = "s64");
// Dimension i of `t` becomes dimensions[i] of the result.
Table broadcastTable(const Table& t, const std::vector<std::int64_t>& sizes,
                     std::span<const std::int64_t> dimensions);
Table reshapeTable(const Table& t, const std::vector<std::int64_t>& sizes);
Table transposeTable(const Table& t, std::span<const std::int64_t> permutation);
Table sliceTable(const Table& t, std::span<const std::int64_t> start,
                 std::span<const std::int64_t> limit, std::span<const std::int64_t> stride);
Table concatenateTables(std::span<const Table* const> tables, std::size_t dim);
Table reverseTable(const Table& t, std::span<const std::int64_t> dims);
// low, high (may be negative) and interior padding of each dimension.
Table padTable(const Table& t, ScalarId value,
               const std::vector<std::vector<std::int64_t>>& padding);
// f at each place of tables of equal sizes.
Table mapTables(std::span<const Table* const> tables,
                const std::function<ScalarId(std::span<const ScalarId>)>& f);
// f, which takes two, over the dimensions, beginning with `start`.
Table reduceTable(const Table& t, std::span<const std::int64_t> dims, ScalarId start,
                  const std::function<ScalarId(ScalarId, ScalarId)>& f);
// With every dimension stored whole.
Table wholeTable(const Table& t);

}  // namespace shardproof::hlo
