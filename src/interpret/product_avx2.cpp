#define SHARDPROOF_PROCESSOR avx2
#include "interpret/product_kernel.h"
