#pragma once

namespace hetcomm {

class Communicator;

// The communicators of this process, all of which leave before it ends. Thread-safe.
namespace process_exit {
void add(Communicator* communicator);
void remove(Communicator* communicator);
}  // namespace process_exit

// Lets every communicator of this process leave and stops its threads; for process exit.
void shut_down();

}  // namespace hetcomm
