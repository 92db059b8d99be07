#pragma once

#include <string>

namespace hetcomm {

// Reads what a collective library logs while a communicator is made: nothing else tells which
// network it took. While an object lives, NCCL_DEBUG and NCCL_DEBUG_FILE send the log to memory;
// where the user has set one of them it goes where he wants, and nothing is known. A library reads
// them at its first call, so an object must be there by then. Thread-safe.
class LibraryLog {
 public:
  LibraryLog();
  ~LibraryLog();
  LibraryLog(const LibraryLog&) = delete;
  LibraryLog& operator=(const LibraryLog&) = delete;

  struct Network {
    std::string name;     // "IB", "Socket"; empty: not known
    std::string devices;  // what the library found for it, "[0]mlx5_0:1/RoCE"; empty likewise

    // What of this the library did not take, as far as that is known: a name, and the devices as in
    // "=mlx5_1,mlx5_3"; either may be empty.
    std::string lacks(const std::string& wanted, const std::string& wanted_devices) const;
  };
  // What the communicator took that was made last.
  Network network();
};

}  // namespace hetcomm
