#pragma once

#include <cstddef>
#include <cstdint>

#include "base/descriptor.h"

namespace hetcomm::shm {

// An empty file in memory, without a name, of a size that nobody can change any more: whoever maps
// the file need not fear that the file shrinks. It takes no room in /dev/shm. -1 and errno where
// the system gives none. `name` shows in /proc/self/maps.
Descriptor make_memory_file(const char* name, int64_t bytes);

// Reserves the pages of [begin, begin + bytes) in a mapping of such a file, near the calling thread
// and without a change to what they hold. Lack of memory is thus an error here, and no signal at
// the first touch. 0 or errno.
int populate(const std::byte* begin, size_t bytes);

}  // namespace hetcomm::shm
