#pragma once

#include <cstddef>
#include <cstdint>

#include "base/descriptor.h"

namespace hetcomm::shm {

// An empty file in memory, without a name. Nobody can change its size any more, so a mapping of the
// file never loses pages. It takes no room in /dev/shm. -1 and errno where
// the system gives none. `name` shows in /proc/self/maps.
Descriptor make_memory_file(const char* name, int64_t bytes);

// Reserves the pages of [begin, begin + bytes) in a mapping of such a file, near the calling thread
// and without a change to their contents. Lack of memory is thus an error here, and no signal at
// the first touch. 0 or errno.
int populate(const std::byte* begin, size_t bytes);

}  // namespace hetcomm::shm
