#pragma once

namespace hetcomm {

class Communicator;

// The communicators of this process. All leave before the process ends. Thread-safe.
namespace process_exit {
void add(Communicator* communicator);
void remove(Communicator* communicator);
}  // namespace process_exit

// All communicators of this process leave, and its threads end; for process exit.
void shut_down();

}  // namespace hetcomm
