// SPDX-License-Identifier: Apache-2.0
#define SHARDPROOF_PROCESSOR baseline
#include "executor/product_kernel.h"
