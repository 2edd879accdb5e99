// Reads canonical forms back: a stage that can be proved again from nothing but its form. That it
// can is what shows that a form leaves nothing out (docs/soundness.md, "The proof cache"), and how
// a proof cache is checked without the plans that it was filled from.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "shardproof/graph.h"
#include "stages/stage.h"

namespace shardproof {

// These bytes are no canonical form.
class DamagedForm : public std::runtime_error {
 public:
  explicit DamagedForm(const std::string& what) : std::runtime_error(what) {}
};

// The problem holds the stage's attributes, constants and made-up names ("t7" for the stage's
// tensor 7), and nothing else.
struct StageOfForm {
  std::unique_ptr<Problem> problem;
  Stage stage;
};

// Throws DamagedForm. canonicalForm of the result is `form` again.
StageOfForm readCanonicalForm(std::string_view form);

}  // namespace shardproof
