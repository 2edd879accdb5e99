// SPDX-License-Identifier: Apache-2.0
#define SHARDPROOF_PROCESSOR avx2
#include "executor/product_kernel.h"
