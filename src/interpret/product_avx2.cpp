// SPDX-License-Identifier: Apache-2.0
#define SHARDPROOF_PROCESSOR avx2
#include "interpret/product_kernel.h"
