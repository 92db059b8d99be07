#define HETCOMM_HOST_KERNELS host_kernels_baseline
#include "device/host_kernels.inc"
