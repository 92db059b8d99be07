#pragma once

#include <cstddef>
#include <cstdint>

#include "base/descriptor.h"

namespace hetcomm::shm {

// An empty file in memory, without a name. Its size is sealed, so a mapping of the file never loses
// pages. It takes no room in /dev/shm. `name` shows in /proc/self/maps. -1 and errno on failure.
Descriptor make_memory_file(const char* name, int64_t bytes);

// Reserves the pages of [begin, begin + bytes) in a mapping of such a file, near the calling
// thread. Contents stay. Lack of memory is thus an error here, and no signal at the first touch. 0
// or errno.
int populate(const std::byte* begin, size_t bytes);

}  // namespace hetcomm::shm
