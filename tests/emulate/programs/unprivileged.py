"""Runs `run` by itself, with `hetcomm` as a bare package, as an unprivileged user would."""

import json
import os
import sys
import types

package = types.ModuleType("hetcomm")
package.__path__ = [sys.argv[1]]
sys.modules["hetcomm"] = package

from hetcomm.emulate import Cluster, ClusterError, Host, Nic, run  # noqa: E402

nics = (Nic(rate_out=100_000_000, rate_in=100_000_000),)
cluster = Cluster((Host("red0", 1, nics), Host("blue0", 1, nics)))
try:
    result = run(cluster, [sys.executable, *sys.argv[2:]], timeout=60, stdout=sys.stderr)
except ClusterError as error:
    print(json.dumps({"refused": str(error), "uid": os.getuid()}))
else:
    print(json.dumps({"uid": os.getuid(), **result.as_json()}))
