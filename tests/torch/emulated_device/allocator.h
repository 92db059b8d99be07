#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

// A caching allocator like torch's for GPUs, but quicker to reuse memory: a block freed on a stream
// is the next of its size for this stream. No other stream ever gets the block. Thread-safe.
namespace emulated_device {

// A freed block on which other streams were recorded is reused once their events have passed.
void record_on_stream(const void* data, const c10::Stream& stream);
int streams_recorded(const void* data);  // on the block that begins there, since it was allocated
bool is_free(const void* data);          // the block would be given away

}  // namespace emulated_device
