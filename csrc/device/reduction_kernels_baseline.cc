#define HETCOMM_REDUCTION_KERNELS reduction_kernels_baseline
#include "device/reduction_kernels.inc"
