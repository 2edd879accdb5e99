// SPDX-License-Identifier: Apache-2.0
#define SHARDPROOF_PROCESSOR avx512
#include "interpret/product_kernel.h"
