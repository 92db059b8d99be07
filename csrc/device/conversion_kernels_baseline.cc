#define HETCOMM_CONVERSION_KERNELS conversion_kernels_baseline
#include "device/conversion_kernels.inc"
