// Where terms are defined. A proof compares two sides as expressions, and rewriting may remove a division or a root from one of them; so it
// must be known besides that the plan is defined wherever the model is.
#pragma once

#include <cstddef>
#include <optional>

#include "terms/term_algebra.h"

namespace shardproof {

// The first partial operation (division, root, logarithm) among algebra.partialUses() from index `modelUses` on whose condition neither
// always holds nor is implied by one of the first `modelUses`. `budget` bounds the expansion of terms that are compared.
// Works on a normalised algebra.
std::optional<TermAlgebra::PartialUse> uncoveredUse(TermAlgebra& algebra, std::size_t modelUses, std::size_t budget);

}  // namespace shardproof
