#define HETCOMM_KERNELS kernels_baseline
#include "device/kernels.inc"
