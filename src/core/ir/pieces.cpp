// SPDX-License-Identifier: Apache-2.0
#include "ir/pieces.h"

#include <algorithm>
#include <map>
#include <utility>

#include "ops/collectives.h"

namespace shardproof::ir {

namespace {

using Fail = std::function<void(const std::string&, const std::string&)>;

std::int64_t groupSize(const Plan& plan, const CommunicationSpec& spec) {
  if (!spec.groupAt.empty()) return static_cast<std::int64_t>(spec.groupAt.size());
  std::int64_t size = 1;  // at most all ranks
  for (const std::int32_t axis : spec.groupAxes) size *= plan.mesh[axis].size;
  return size;
}

void checkSizes(const CommunicationSpec& spec, std::int64_t members, const Fail& fail) {
  const ops::Collective& collective = ops::collectiveOf(spec.kind);
  if (!collective.uneven)
    fail("/sizes",
         std::string("found sizes of pieces, but those of a ") + collective.name + " are equal");
  const bool matrix = spec.kind == Communication::kAllToAll;
  const auto count = static_cast<std::int64_t>(spec.sizes.size());
  const std::int64_t wanted = matrix ? members * members : members;
  if (count != wanted)
    fail("/sizes", "found " + std::to_string(count) + " sizes, expected " + std::to_string(wanted) +
                       (matrix ? ", one for each pair of members of the group"
                               : ", one for each member of the group"));
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t size = spec.sizes[static_cast<std::size_t>(i)];
    const auto field = [&] {
      return matrix ? "/sizes/" + std::to_string(i / members) + "/" + std::to_string(i % members)
                    : "/sizes/" + std::to_string(i);
    };
    if (size < 0) fail(field(), "found the size " + std::to_string(size) + ", expected one from 0");
    if (__builtin_add_overflow(sum, size, &sum)) fail(field(), "the sizes exceed 64 bits");
  }
  if (sum == 0) fail("/sizes", "found only empty pieces, expected one that is not");
}

void checkPairs(const CommunicationSpec& spec, std::int64_t members, const Fail& fail) {
  if (!spec.pairs.empty() && !ops::collectiveOf(spec.kind).permutes)
    fail("/pairs", std::string("found pairs, which a ") + ops::collectiveOf(spec.kind).name +
                       " does not have");
  std::map<std::int32_t, std::size_t> sources, targets;
  for (std::size_t i = 0; i < spec.pairs.size(); ++i) {
    const std::string field = "/pairs/" + std::to_string(i);
    const auto check = [&](std::int32_t member, const char* side, const char* what,
                           std::map<std::int32_t, std::size_t>& known) {
      if (member < 0 || member >= members)
        fail(field + side, "found the member " + std::to_string(member) +
                               ", expected a place in the group, from 0 to " +
                               std::to_string(members - 1));
      const auto [it, added] = known.emplace(member, i);
      if (!added)
        fail(field + side, "found the member " + std::to_string(member) + " as " + what +
                               " again, after pair " + std::to_string(it->second) +
                               ", expected it once");
    };
    check(spec.pairs[i].first, "/0", "a source", sources);
    check(spec.pairs[i].second, "/1", "a target", targets);
  }
}

}  // namespace

void settlePieces(const Plan& plan, CommunicationSpec& spec, const Fail& fail) {
  if (spec.sizes.empty() && spec.pairs.empty()) return;
  const std::int64_t members = groupSize(plan, spec);
  if (!spec.sizes.empty()) checkSizes(spec, members, fail);
  checkPairs(spec, members, fail);
  std::sort(spec.pairs.begin(), spec.pairs.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
}

}  // namespace shardproof::ir
