#pragma once

namespace hetcomm {

class Communicator;

// The communicators that live in this process, so that all can leave before it ends. Thread-safe.
namespace process {
void enter(Communicator* communicator);
void exit(Communicator* communicator);
}  // namespace process

// Lets every communicator of this process leave and stops its thread; for process exit.
void shut_down();

}  // namespace hetcomm
