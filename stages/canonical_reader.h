// SPDX-License-Identifier: Apache-2.0
// Reads canonical forms back: a stage that can be proved again from nothing but its form. That it
// can is what shows that a form leaves nothing out (docs/soundness.md, "The proof cache"), and how
// a proof cache is checked without the plans that it was filled from.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "stages/stage.h"

namespace shardproof {

// These bytes are no canonical form.
class DamagedForm : public std::runtime_error {
 public:
  explicit DamagedForm(const std::string& what) : std::runtime_error(what) {}
};

// Throws DamagedForm. canonicalForm of the result is `form` again.
Stage readCanonicalForm(std::string_view form);

}  // namespace shardproof
