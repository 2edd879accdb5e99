// SPDX-License-Identifier: Apache-2.0
// What was found, in words.
#include <algorithm>

#include "diagnose/finder.h"

namespace shardproof::diagnose {

namespace {

std::string number(Ratio r) {
  return r.den == 1 ? std::to_string(r.num) : std::to_string(r.num) + "/" + std::to_string(r.den);
}

}  // namespace

std::string Finder::tensorName(TensorId logical) const {
  return numbers_.setup().tensorName(logical);
}

std::string Finder::boxText(const Match& match) const {
  const std::string name = "`" + tensorName(match.tensor) + "`";
  const Shape& whole = image_.problem().model.graph.tensors[match.tensor].shape;
  if (match.extent == whole) return name;
  if (!image_.isFull()) return "a part of " + name;
  if (match.extent.empty()) {
    if (whole.empty()) return name;
    return "elements of " + name + " from " + std::to_string(match.low.empty() ? 0 : match.low[0]) +
           " on";
  }
  std::string text = name + "[";
  for (std::size_t d = 0; d < match.low.size(); ++d)
    text += (d ? ", " : "") + std::to_string(match.low[d]) + ":" +
            std::to_string(match.low[d] + match.extent[d]);
  return text + "]";
}

std::string Finder::axesText(const std::vector<std::int32_t>& axes) const {
  std::string text;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (i > 0) text += i + 1 == axes.size() ? " and " : ", ";
    text += axes[i] == kMicrobatchAxis ? "microbatches" : image_.problem().plan.mesh[axes[i]].name;
  }
  return text;
}

std::int64_t Finder::sizeOf(std::int32_t axis) const {
  const Plan& plan = image_.problem().plan;
  return axis == kMicrobatchAxis ? plan.microbatches : plan.mesh[axis].size;
}

// Sizes of the image stand for those of the plan, which are the ones to be told.
std::string Finder::ratioText(Ratio ratio) const {
  const Plan &here = image_.problem().plan, &full = image_.full().plan;
  const std::int64_t size = ratio.num == 1 ? ratio.den : ratio.den == 1 ? ratio.num : 0;
  std::vector<std::string> names;
  std::optional<std::int64_t> told;
  const auto consider = [&](std::int64_t own, std::int64_t real, const std::string& name) {
    if (own != size || own < 2 || (told && *told != real)) return;
    told = real;
    names.push_back(name);
  };
  std::int64_t ranks = 1, fullRanks = 1;
  for (std::size_t a = 0; a < here.mesh.size(); ++a) {
    consider(here.mesh[a].size, full.mesh[a].size, here.mesh[a].name + " size");
    ranks *= here.mesh[a].size;
    fullRanks *= full.mesh[a].size;
  }
  consider(here.microbatches, full.microbatches, "number of microbatches");
  if (names.empty()) {
    for (std::size_t a = 0; a < here.mesh.size(); ++a) {
      consider(std::int64_t{here.mesh[a].size} * here.microbatches,
               std::int64_t{full.mesh[a].size} * full.microbatches,
               here.mesh[a].name + " size times number of microbatches");
      for (std::size_t b = a + 1; b < here.mesh.size(); ++b)
        consider(std::int64_t{here.mesh[a].size} * here.mesh[b].size,
                 std::int64_t{full.mesh[a].size} * full.mesh[b].size,
                 here.mesh[a].name + " size times " + here.mesh[b].name + " size");
    }
    consider(ranks, fullRanks, "number of ranks");
  }
  if (!told || names.size() > 4) return number(ratio);
  std::string text =
      ratio.num == 1 ? "1/" + std::to_string(*told) + ", where " + std::to_string(*told) + " is "
                     : std::to_string(*told) + " = ";
  for (std::size_t i = 0; i < names.size(); ++i) text += (i ? " or " : "") + names[i];
  return text;
}

std::string Finder::text(const Match& match) const {
  switch (match.kind) {
    case Match::Kind::kUnknown:
      return "nothing that is known";
    case Match::Kind::kZero:
      return "0 everywhere";
    case Match::Kind::kUniform:
      return "the same number everywhere";
    case Match::Kind::kBox:
      return boxText(match);
    case Match::Kind::kPartial:
      return "a partial sum over " + axesText(match.axes) + " of " + boxText(match) +
             (match.ratio == Ratio{} ? "" : " times " + ratioText(match.ratio));
    case Match::Kind::kMultiple:
      return boxText(match) + " times " + ratioText(match.ratio);
    case Match::Kind::kSummed:
      return "the pieces of `" + tensorName(match.tensor) + "` added up over " +
             axesText(match.axes);
    case Match::Kind::kLess:
      return boxText(match) + " without `" + match.local + "`";
    case Match::Kind::kMore:
      return boxText(match) + " with `" + match.local + "` once more";
    case Match::Kind::kPermuted:
      return "the elements of " + boxText(match) + " in another order";
  }
  return "";
}

}  // namespace shardproof::diagnose
