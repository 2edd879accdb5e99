// SPDX-License-Identifier: Apache-2.0
// Line coverage (scripts/coverage) of code that runs in workers: gcov writes its counts when a
// process exits, and workers are killed.
#pragma once

#ifdef SHARDPROOF_COVERAGE
extern "C" {  // the header does not say so itself
#include <gcov.h>
}
#endif

namespace shardproof {

inline void keepCoverage() {
#ifdef SHARDPROOF_COVERAGE
  __gcov_dump();
  __gcov_reset();  // what was written is not to be counted again
#endif
}

}  // namespace shardproof
