// SPDX-License-Identifier: Apache-2.0
#include "ops/collectives.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>

#include "ops/attributes.h"
#include "shardproof/error.h"

namespace shardproof::ops {

namespace {

constexpr Collective kCollectives[] = {
    {.kind = Communication::kAllReduce, .name = "all_reduce", .reduces = true},
    {.kind = Communication::kAllGather,
     .name = "all_gather",
     .uneven = true,
     .gathers = Along::kDim},
    {.kind = Communication::kReduceScatter,
     .name = "reduce_scatter",
     .reduces = true,
     .uneven = true,
     .scatters = Along::kDim},
    {.kind = Communication::kAllToAll,
     .name = "all_to_all",
     .uneven = true,
     .scatters = Along::kDim,
     .gathers = Along::kOtherDim},
    {.kind = Communication::kBroadcast,
     .name = "broadcast",
     .peer = "root",
     .operand = Who::kRoot,
     .result = Who::kOthers},
    {.kind = Communication::kSend,
     .name = "send",
     .peer = "to",
     .operand = Who::kIssuer,
     .result = Who::kNobody},
    {.kind = Communication::kReceive,
     .name = "recv",
     .peer = "from",
     .operand = Who::kNobody,
     .result = Who::kIssuer},
    {.kind = Communication::kReduce,
     .name = "reduce",
     .peer = "root",
     .result = Who::kRoot,
     .reduces = true},
    {.kind = Communication::kGather,
     .name = "gather",
     .peer = "root",
     .result = Who::kRoot,
     .gathers = Along::kDim},
    {.kind = Communication::kScatter,
     .name = "scatter",
     .peer = "root",
     .operand = Who::kRoot,
     .scatters = Along::kDim},
    {.kind = Communication::kBarrier,
     .name = "barrier",
     .operand = Who::kNobody,
     .result = Who::kNobody},
    {.kind = Communication::kPermute, .name = "collective_permute", .permutes = true},
};
// Of a stage only: a member takes its piece of what another node has made for all.
constexpr Collective kPart{.kind = Communication::kPart, .name = "part", .scatters = Along::kDim};

}  // namespace

std::vector<std::string_view> Collective::attributes() const {
  std::vector<std::string_view> names;
  if (gathers == Along::kOtherDim) names = {"idim", "odim"};
  else if (movesPieces()) names = {"dim"};
  if (reduces) names.push_back("reduce");
  return names;
}

std::int32_t Collective::dimension(Along along, std::int32_t dim, std::int32_t odim,
                                   std::size_t rank) {
  if (along == Along::kNothing) return -1;
  const std::int32_t d = along == Along::kDim ? dim : odim;
  return d < 0 ? d + static_cast<std::int32_t>(rank) : d;
}

std::span<const Collective> collectives() { return kCollectives; }

const Collective& collectiveOf(Communication kind) {
  if (kind == Communication::kPart) return kPart;
  const auto it = std::find_if(std::begin(kCollectives), std::end(kCollectives),
                               [kind](const Collective& c) { return c.kind == kind; });
  if (it == std::end(kCollectives)) throw std::logic_error("no communication");
  return *it;
}

const char* communicationName(Communication kind) {
  return kind == Communication::kNone ? "none" : collectiveOf(kind).name;
}

namespace {

struct ReductionName {
  Reduction reduction;
  const char* name;
};
constexpr ReductionName kReductions[] = {{Reduction::kSum, "sum"},
                                         {Reduction::kMean, "mean"},
                                         {Reduction::kMax, "max"},
                                         {Reduction::kMin, "min"}};

}  // namespace

const char* reductionName(Reduction reduction) {
  for (const ReductionName& r : kReductions) {
    if (r.reduction == reduction) return r.name;
  }
  return "unknown";
}

std::optional<Reduction> findReduction(std::string_view name) {
  for (const ReductionName& r : kReductions) {
    if (r.name == name) return r.reduction;
  }
  return std::nullopt;
}

Communication findCommunication(std::string_view op) {
  for (const Collective& c : kCollectives) {
    if (c.name == op) return c.kind;
  }
  return Communication::kNone;
}

Shape communicationShape(const CommunicationSpec& spec, const Shape& in, std::int64_t groupSize) {
  const Collective& collective = collectiveOf(spec.kind);
  Shape out = in;
  const auto size = [&](Along along) -> std::int64_t& {
    const std::int32_t dim = along == Along::kDim ? spec.dim : spec.odim;
    const auto rank = static_cast<std::int32_t>(in.size());
    if (dim < -rank || dim >= rank)
      throw ShapeError("dimension " + std::to_string(dim) +
                       " does not exist in an operand of shape " + toText(in));
    return out[static_cast<std::size_t>(dim < 0 ? dim + rank : dim)];
  };
  if (collective.scatters != Along::kNothing) {
    std::int64_t& scattered = size(collective.scatters);
    if (scattered % groupSize != 0) {
      throw ShapeError("dimension " + std::to_string(spec.dim) + " of shape " + toText(in) +
                       " is not divisible by the group's " + std::to_string(groupSize) +
                       " members");
    }
    scattered /= groupSize;
  }
  if (collective.gathers != Along::kNothing) size(collective.gathers) *= groupSize;
  return out;
}

std::int64_t membersOf(const CommunicationSpec& spec) {
  const auto count = static_cast<std::int64_t>(spec.sizes.size());
  if (spec.kind != Communication::kAllToAll) return count;
  std::int64_t members = 0;
  while (members * members < count) ++members;
  return members;
}

std::int64_t lengthGiven(const CommunicationSpec& spec, std::int64_t place) {
  const auto sum = [&](std::int64_t from, std::int64_t count) {
    const auto first = spec.sizes.begin() + from;
    return std::accumulate(first, first + count, std::int64_t{0});
  };
  const std::int64_t members = membersOf(spec);
  if (spec.kind == Communication::kAllGather) return sum(place, 1);
  if (spec.kind == Communication::kReduceScatter) return sum(0, members);
  return sum(place * members, members);
}

std::vector<Window> windowsOf(const CommunicationSpec& spec, std::int64_t place) {
  const std::int64_t members = membersOf(spec);
  const auto size = [&](std::int64_t i) { return spec.sizes.at(static_cast<std::size_t>(i)); };
  const auto before = [&](std::int64_t first, std::int64_t end) {
    std::int64_t sum = 0;
    for (std::int64_t i = first; i < end; ++i) sum += size(i);
    return sum;
  };
  std::vector<Window> windows;
  const auto add = [&](std::int64_t member, std::int64_t begin, std::int64_t length) {
    if (length > 0) windows.push_back({member, begin, length});
  };
  if (spec.kind == Communication::kReduceScatter) {
    add(0, before(0, place), size(place));
    return windows;
  }
  for (std::int64_t k = 0; k < members; ++k) {
    if (spec.kind == Communication::kAllGather) add(k, 0, size(k));
    else add(k, before(k * members, k * members + place), size(k * members + place));
  }
  return windows;
}

void checkGiven(const CommunicationSpec& spec, const Shape& operand, std::int64_t place) {
  const auto dim = static_cast<std::size_t>(spec.dim);
  const auto last = static_cast<std::size_t>(std::max(spec.dim, spec.odim));
  if (spec.dim < 0 || spec.odim < 0 || last >= operand.size())
    throw ShapeError("dimension " + std::to_string(last) +
                     " does not exist in an operand of shape " + toText(operand));
  const std::int64_t given = lengthGiven(spec, place);
  if (operand[dim] == given) return;
  throw ShapeError(
      "dimension " + std::to_string(dim) + " of the operand of member " + std::to_string(place) +
      ", of shape " + toText(operand) + ", has length " + std::to_string(operand[dim]) + ", but " +
      (spec.kind == Communication::kAllGather       ? "the size of its piece is "
       : spec.kind == Communication::kReduceScatter ? "the sizes add up to "
                                                    : "the sizes that it sends add up to ") +
      std::to_string(given));
}

Shape unevenShape(const CommunicationSpec& spec, const std::vector<const Shape*>& operands,
                  std::int64_t place) {
  const auto dim = static_cast<std::size_t>(spec.dim),
             gathered = static_cast<std::size_t>(spec.kind == Communication::kAllToAll ? spec.odim
                                                                                       : spec.dim);
  std::optional<Shape> out;
  for (const Window& window : windowsOf(spec, place)) {
    const Shape* const operand = operands.at(static_cast<std::size_t>(window.member));
    if (operand == nullptr)
      throw ShapeError("member " + std::to_string(window.member) +
                       " has no operand, but gives a piece");
    checkGiven(spec, *operand, window.member);
    Shape piece = *operand;
    piece[dim] = window.size;
    if (!out) {
      out = std::move(piece);
      continue;
    }
    const std::int64_t length = piece[gathered];
    if (piece.size() == out->size()) piece[gathered] = (*out)[gathered];
    if (piece != *out)
      throw ShapeError("the piece of member " + std::to_string(window.member) + ", " +
                       std::to_string(window.size) + " along dimension " + std::to_string(dim) +
                       " of shape " + toText(*operand) +
                       ", differs from the others in another dimension than " +
                       std::to_string(gathered));
    (*out)[gathered] += length;
  }
  if (!out) throw ShapeError("the member gets only empty pieces");
  return *out;
}

}  // namespace shardproof::ops
