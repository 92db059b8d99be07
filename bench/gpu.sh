#!/usr/bin/env bash
# All that needs a real GPU, in one command and without a network: builds hetcomm into a folder of
# its own, runs the tests and benchmarks there, and writes one JSON. See docs/hardware.md.
#
#   bench/gpu.sh [--wheels FOLDER] [--output FILE] [--only PARTS] [--emulated] ...
#
# PYTHON names the interpreter that has torch; `bench/gpu.sh --help` lists all options.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "${PYTHON:-python3}" -u "$here/gpu/run.py" "$@"
