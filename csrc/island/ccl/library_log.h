#pragma once

#include <string>

namespace hetcomm {

// Reads the log of a collective library during set-up: nothing else tells which network the library
// took. While an object exists, NCCL_DEBUG and NCCL_DEBUG_FILE send the log to memory. If the user
// has set one of these variables, the log is the user's and the network is not known. A library
// reads them at its first call, so make an object before. Thread-safe.
class LibraryLog {
 public:
  LibraryLog();
  ~LibraryLog();
  LibraryLog(const LibraryLog&) = delete;
  LibraryLog& operator=(const LibraryLog&) = delete;

  struct Network {
    std::string name;     // "IB", "Socket"; empty: not known
    std::string devices;  // of the network, "[0]mlx5_0:1/RoCE"; empty: not known

    // What the library did not take: the wanted network, or else some of its wanted devices
    // ("=mlx5_1,mlx5_3"). Empty if nothing is missing, nothing is wanted, or the log does not tell.
    std::string lacks(const std::string& wanted, const std::string& wanted_devices) const;
  };
  // The network of the latest communicator.
  Network network();
  // Whether the library, which has made a communicator, has written nothing at all: somebody else
  // called it first in this process, so it read its variables before. False if the log is the
  // user's.
  bool silent();
};

}  // namespace hetcomm
