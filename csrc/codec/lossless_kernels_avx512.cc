#ifdef __x86_64__
#define HETCOMM_LOSSLESS_KERNELS lossless_kernels_avx512
#include "codec/lossless_kernels.inc"
#endif
