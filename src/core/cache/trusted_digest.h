// SPDX-License-Identifier: Apache-2.0
// A digest of all sources that a proof rests on (CMakeLists.txt, "trusted_folders"), made when the
// program is built. Part of what proofs are stored under, so that none is believed after a change
// that might have made it differently.
#pragma once

namespace shardproof {

extern const char kTrustedDigest[];

}  // namespace shardproof
