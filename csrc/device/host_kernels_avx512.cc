#ifdef __x86_64__
#define HETCOMM_HOST_KERNELS host_kernels_avx512
#include "device/host_kernels.inc"
#endif
