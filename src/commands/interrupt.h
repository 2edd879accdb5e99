// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM: the run is asked to stop and to report what it has.
#pragma once

#include <atomic>

namespace shardproof {

// From now on SIGINT and SIGTERM set a flag. A second one, when the first has had a second to take
// effect, ends the process at once.
void catchInterrupts();

const std::atomic<bool>& interrupted();
int interruptingSignal();  // 0: none

}  // namespace shardproof
