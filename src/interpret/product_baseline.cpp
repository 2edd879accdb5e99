#define SHARDPROOF_PROCESSOR baseline
#include "interpret/product_kernel.h"
