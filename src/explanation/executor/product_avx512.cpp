// SPDX-License-Identifier: Apache-2.0
#define SHARDPROOF_PROCESSOR avx512
#include "executor/product_kernel.h"
