#include "ops/collectives.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "ops/attributes.h"
#include "shardproof/error.h"

namespace shardproof::ops {

namespace {

constexpr Collective kCollectives[] = {
    {.kind = Communication::kAllReduce, .name = "all_reduce", .reduces = true},
    {.kind = Communication::kAllGather, .name = "all_gather", .gathers = Along::kDim},
    {.kind = Communication::kReduceScatter,
     .name = "reduce_scatter",
     .reduces = true,
     .scatters = Along::kDim},
    {.kind = Communication::kAllToAll,
     .name = "all_to_all",
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

}  // namespace shardproof::ops
