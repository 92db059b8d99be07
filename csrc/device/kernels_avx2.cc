#ifdef __x86_64__
#define HETCOMM_KERNELS kernels_avx2
#include "device/kernels.inc"
#endif
