// SPDX-License-Identifier: Apache-2.0
#include "report/version.h"

namespace shardproof {

const char* const kVersion = SHARDPROOF_VERSION;  // given to this file alone (CMakeLists.txt)

}  // namespace shardproof
