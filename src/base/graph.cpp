// Small members of the problem's structures.
#include "shardproof/graph.h"

#include <stdexcept>

#include "util/json_pointer.h"

namespace shardproof {

std::string Model::tensorPointer(TensorId tensor, const Names& names) const {
  return "/tensors/" + escapePointer(names.text(graph.tensors.at(tensor).name));
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
