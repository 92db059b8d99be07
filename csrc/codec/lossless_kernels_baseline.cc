#define HETCOMM_LOSSLESS_KERNELS lossless_kernels_baseline
#include "codec/lossless_kernels.inc"
