#pragma once

#include <vector>

#include "device/device_format.h"
#include "device/kernel_launch.h"

namespace hetcomm {

// The launches for encode_elements(), decode_elements() and sum_elements() of codec/codec.h on
// device memory, for the dtypes of the codec. Results have the same bits as on the host, with two
// exceptions. The host leaves some blocks of lossless coding as they are without a try. Data that
// no encoder made give NaNs, where the host returns an error. Encoded memory begins with its
// header. The residual and `first` may be null. Status(invalid_argument) as in kernel_launch.h;
// encoded memory begins at a multiple of 16. A count of 0 is legal.

// One after the other on one stream.
Status encode_launches(std::vector<KernelLaunch>& launches, Dtype dtype, const DeviceFormat& format,
                       void* encoded, const void* source, float* residual, size_t count);
// Of a codec without loss: one source, and no `first`.
Status decode_launch(KernelLaunch& launch, Dtype dtype, const DeviceFormat& format, void* target,
                     const void* first, const void* const* encoded, int source_count, size_t count);

}  // namespace hetcomm
