// Small members of the problem's structures.
#include "shardproof/graph.h"

#include <stdexcept>

#include "util/json_pointer.h"

namespace shardproof {

namespace {

struct CommunicationName {
  Communication kind;
  const char* name;
};
constexpr CommunicationName kCommunications[] = {
    {Communication::kAllReduce, "all_reduce"},
    {Communication::kAllGather, "all_gather"},
    {Communication::kReduceScatter, "reduce_scatter"},
    {Communication::kAllToAll, "all_to_all"},
    {Communication::kBroadcast, "broadcast"},
    {Communication::kSend, "send"},
    {Communication::kReceive, "recv"},
};

}  // namespace

const char* communicationName(Communication kind) {
  for (const CommunicationName& c : kCommunications) {
    if (c.kind == kind) return c.name;
  }
  return "none";
}

Communication findCommunication(std::string_view op) {
  for (const CommunicationName& c : kCommunications) {
    if (c.name == op) return c.kind;
  }
  return Communication::kNone;
}

std::string Model::tensorPointer(std::int32_t tensor, const Names& names) const {
  return "/tensors/" +
         escapePointer(names.text(graph.tensors.at(static_cast<std::size_t>(tensor)).name));
}

std::int64_t Plan::ranks() const {
  std::int64_t product = 1;
  for (const MeshAxis& axis : mesh) {
    if (__builtin_mul_overflow(product, std::int64_t{axis.size}, &product))
      throw std::overflow_error("the mesh has more than 2^63 ranks");
  }
  return product;
}

}  // namespace shardproof
