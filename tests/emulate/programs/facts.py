"""Prints, as JSON, the environment of a rank and the facts of NICs under its sysfs root."""

import json
import os
from pathlib import Path

root = Path(os.environ["HETCOMM_SYSFS_ROOT"])
files = {}
for top in ("class/net", "class/infiniband"):
    for directory, _, names in os.walk(root / top, followlinks=True):
        for name in names:
            path = Path(directory) / name
            files[str(path.relative_to(root))] = path.read_text().strip()
print(json.dumps({"environment": dict(os.environ), "files": files}))
