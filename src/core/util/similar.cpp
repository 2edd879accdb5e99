// SPDX-License-Identifier: Apache-2.0
#include "util/similar.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace shardproof {

namespace {

// Longer names are nobody's slip, and the distance takes the square of their length.
constexpr std::size_t kLongest = 200;

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

std::vector<std::string> similarTo(std::string_view word, const std::vector<std::string>& known,
                                   std::size_t most) {
  if (word.size() > kLongest) return {};
  std::vector<std::pair<std::size_t, std::string>> near;
  const std::size_t limit = 1 + word.size() / 3;
  for (const std::string& name : known) {
    if (name.size() > word.size() + limit || word.size() > name.size() + limit) continue;
    const std::size_t d = distance(word, name);
    if (d <= limit && d < std::max(word.size(), name.size())) near.emplace_back(d, name);
  }
  std::sort(near.begin(), near.end());
  near.erase(std::unique(near.begin(), near.end()), near.end());
  std::vector<std::string> names;
  for (auto& [d, name] : near)
    if (names.size() < most) names.push_back(std::move(name));
  return names;
}

std::string didYouMean(std::string_view word, const std::vector<std::string>& known) {
  const std::vector<std::string> similar = similarTo(word, known);
  if (similar.empty()) return "";
  std::string text = ", did you mean ";
  for (std::size_t i = 0; i < similar.size(); ++i)
    text += (i > 0 ? " or \"" : "\"") + similar[i] + "\"";
  return text + "?";
}

}  // namespace shardproof
