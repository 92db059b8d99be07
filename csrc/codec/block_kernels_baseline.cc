#define HETCOMM_BLOCK_KERNELS block_kernels_baseline
#include "codec/block_kernels.inc"
