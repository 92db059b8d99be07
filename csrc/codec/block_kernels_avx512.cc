#ifdef __x86_64__
#define HETCOMM_BLOCK_KERNELS block_kernels_avx512
#include "codec/block_kernels.inc"
#endif
