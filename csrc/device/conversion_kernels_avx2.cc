#ifdef __x86_64__
#define HETCOMM_CONVERSION_KERNELS conversion_kernels_avx2
#include "device/conversion_kernels.inc"
#endif
