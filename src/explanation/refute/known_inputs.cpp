// SPDX-License-Identifier: Apache-2.0
#include "refute/known_inputs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "util/index.h"

namespace shardproof {
namespace {

constexpr std::int64_t kMostDrawn = 32;  // of integers that nothing limits

using IntegerRanges = std::vector<std::pair<std::int64_t, std::int64_t>>;

bool contains(const IntegerRanges& within, std::int64_t value) {
  return within.empty() || std::any_of(within.begin(), within.end(), [&](const auto& s) {
           return s.first <= value && value < s.second;
         });
}

}  // namespace

KnownInputs::KnownInputs(const Stage& stage)
    : stage_(stage), size_(stage.tensors.size(), 0), asNumber_(stage.tensors.size(), 0) {
  for (const StageTensorId t : firstIds<StageTensorId>(stage.tensors.size())) {
    const StageTensor& tensor = stage.tensors[t];
    if (!tensor.known) continue;
    any_ = true;
    for (const double number : tensor.known->numbers)
      size_[t] = std::max(size_[t], std::abs(number));
    if (tensor.known->kind != KnownInput::Kind::kNumberOf) continue;
    asNumber_[t] = 1;
    if (const std::int32_t of = knownSource(stage, tensor); of >= 0) asNumber_[of] = 1;
  }
}

std::optional<double> KnownInputs::number(const ReducedStage& reduced, StageTensorId tensor,
                                          std::int64_t index) const {
  const auto& known = stage_.tensors[tensor].known;
  if (!known || known->kind != KnownInput::Kind::kNumbers) return std::nullopt;
  if (known->numbers.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto& dims = reduced.dims[tensor];
  std::int64_t place = 0, stride = 1;
  for (std::size_t d = dims.size(); d-- > 0;) {
    place += dims[d]->position[index % dims[d]->size()] * stride;
    index /= dims[d]->size();
    stride *= dims[d]->full;
  }
  return known->numbers.at(at(place));
}

std::optional<std::int64_t> KnownInputs::drawInteger(const ReducedStage& reduced,
                                                     StageTensorId tensor, std::mt19937_64& random,
                                                     bool positive) const {
  static const IntegerRanges kAnything;
  const auto& known = stage_.tensors[tensor].known;
  const IntegerRanges& within = known ? known->within : kAnything;
  std::vector<std::int64_t> values = reduced.values[tensor];
  if (!values.empty()) {
    std::erase_if(values, [&](std::int64_t v) { return !contains(within, v); });
    if (values.empty()) return std::nullopt;
    return values[random() % values.size()];
  }
  if (!within.empty()) {
    const auto& [low, high] = within[random() % within.size()];
    return low + static_cast<std::int64_t>(
                     random() %
                     static_cast<std::uint64_t>(std::min<std::int64_t>(high - low, kMostDrawn)));
  }
  if (!asNumber_[tensor]) return 0;
  // Small ones more often: thresholds lie there.
  const std::uint64_t most = random() % 2 == 0 ? 2 : kMostDrawn;
  const std::int64_t value = 1 + static_cast<std::int64_t>(random() % most);
  if (!positive && random() % 8 == 0) return 0;
  return !positive && random() % 2 == 0 ? -value : value;
}

}  // namespace shardproof
