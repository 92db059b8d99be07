#ifdef __x86_64__
#define HETCOMM_REDUCTION_KERNELS reduction_kernels_avx2
#include "device/reduction_kernels.inc"
#endif
