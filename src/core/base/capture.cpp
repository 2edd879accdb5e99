// SPDX-License-Identifier: Apache-2.0
#include "shardproof/capture.h"

namespace shardproof {

// The words of files and reports.
const char* toString(AssumptionClass kind) {
  switch (kind) {
    case AssumptionClass::kHarmless:
      return "harmless";
    case AssumptionClass::kCheckable:
      return "checkable";
    case AssumptionClass::kRisk:
      break;
  }
  return "risk";
}

}  // namespace shardproof
