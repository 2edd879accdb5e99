// SPDX-License-Identifier: Apache-2.0
// What a plan states of how it was made: which outputs of the model are compared, what is not
// compared, and what was taken for granted (docs/format.md, "Capture"). Front ends that record a
// program write it. No proof uses it: the verdict and the report do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof {

// How an assumption bears on the verdict.
enum class AssumptionClass : std::uint8_t {
  kHarmless,   // cannot hide a bug
  kCheckable,  // the user can check it
  kRisk,       // could hide a bug: without the user's consent the verdict is conditional
};

struct Assumption {
  std::string name;  // by which it is accepted
  AssumptionClass kind = AssumptionClass::kRisk;
  std::string text;       // one sentence
  bool accepted = false;  // by the user (VerifyOptions::accept)
  friend bool operator==(const Assumption&, const Assumption&) = default;
};

struct NotCompared {
  std::string what, because;
  bool allowed = false;  // by the user (VerifyOptions::allowUncompared)
  friend bool operator==(const NotCompared&, const NotCompared&) = default;
};

// Outputs of the model of one kind ("gradients").
struct ComparedOutputs {
  std::string kind;
  std::vector<std::string> outputs;
  friend bool operator==(const ComparedOutputs&, const ComparedOutputs&) = default;
};

struct Capture {
  std::string source;  // what was recorded; may be empty
  std::vector<ComparedOutputs> compared;
  std::vector<NotCompared> notCompared;
  std::vector<Assumption> assumptions;
  bool empty() const {
    return source.empty() && compared.empty() && notCompared.empty() && assumptions.empty();
  }
  friend bool operator==(const Capture&, const Capture&) = default;
};

const char* toString(AssumptionClass);

}  // namespace shardproof
