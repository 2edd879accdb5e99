#define SHARDPROOF_PROCESSOR avx512
#include "interpret/product_kernel.h"
