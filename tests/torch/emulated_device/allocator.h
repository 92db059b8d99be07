#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

// A caching allocator as torch's for GPUs, but quicker to give memory away again: what is freed on
// a stream is the next of its size that this stream gets, and no other one gets it, ever.
// Thread-safe.
namespace emulated_device {

// Freed memory that another stream was recorded on is given away once that stream has passed.
void record_on_stream(const void* data, const c10::Stream& stream);
int streams_recorded(const void* data);  // on the block that begins there, since it was allocated
bool is_free(const void* data);          // the block would be given away

}  // namespace emulated_device
