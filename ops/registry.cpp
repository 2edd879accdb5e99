#include "ops/registry.h"

#include <algorithm>
#include <numeric>

#include "ops/definition.h"

namespace shardproof::ops {
namespace {

// Levenshtein distance.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replace});
    }
  }
  return row.back();
}

}  // namespace

const Registry& Registry::instance() {
  static const Registry registry;
  return registry;
}

Registry::Registry() {
  defineElementwise(operators_);
  defineLayout(operators_);
  defineReductions(operators_);
  defineLinearAlgebra(operators_);
  defineNormalization(operators_);
  defineEmbeddingAttention(operators_);
  defineMoe(operators_);
  defineLosses(operators_);
  defineOptimizer(operators_);
  defineOneHot(operators_);
  std::sort(operators_.begin(), operators_.end(),
            [](const OperatorInfo& a, const OperatorInfo& b) { return a.name < b.name; });
}

OperatorId Registry::find(std::string_view name) const {
  const auto it =
      std::lower_bound(operators_.begin(), operators_.end(), name,
                       [](const OperatorInfo& op, std::string_view n) { return op.name < n; });
  return it == operators_.end() || it->name != name ? OperatorId()
                                                    : OperatorId(it - operators_.begin());
}

std::vector<std::string> Registry::similar(std::string_view name) const {
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const OperatorInfo& op : operators_) {
    const std::size_t d = distance(name, op.name);
    if (d <= 1 + name.size() / 3) near.emplace_back(d, op.name);
  }
  std::sort(near.begin(), near.end());
  std::vector<std::string> names;
  for (const auto& [d, n] : near)
    if (names.size() < 5) names.push_back(n);
  return names;
}

}  // namespace shardproof::ops
