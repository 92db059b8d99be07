#pragma once

#include <string>

namespace hetcomm {

// The job key: a secret that all ranks of a job have from outside the store. Ranks prove it to each
// other, so that no reader of the store can pass for a rank. See docs/security.md.
//
// From HETCOMM_JOB_KEY_FILE or HETCOMM_JOB_KEY; empty if neither is set. Throws
// Error(invalid_argument) on a short key, or on a file that other users may read. Thread-safe.
std::string job_key();

}  // namespace hetcomm
