"""The parts of the virtual machine beside this machine's own files: a kernel, soft-RoCE, and UCX.

They are packages of the distribution, unpacked into a cache folder. Nothing is installed.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import debian

KERNEL = "linux-image-amd64"
# Laid over this machine's files in the guest.
PACKAGES = (
    "busybox-static", "ibverbs-providers", "libucx0", "libibverbs1", "librdmacm1", "libnl-3-200",
    "libnl-route-3-200", "libnuma1",
)  # fmt: skip
MODULES = (
    "virtio_pci", "9pnet_virtio", "9p", "overlay", "veth", "crc32_generic", "rdma_rxe", "rdma_ucm",
    "sch_netem", "sch_ingress", "cls_u32", "act_gact",
)  # fmt: skip
GUEST = Path(__file__).with_name("guest")
READERS: dict[str, Callable[[bytes], bytes]] = {
    ".ko": bytes, ".ko.xz": lzma.decompress, ".ko.gz": gzip.decompress,
}  # fmt: skip


@dataclass(frozen=True)
class Image:
    """The image that qemu boots. `root` is laid over this machine's files."""

    kernel: Path
    ramdisk: Path
    root: Path


def image(download: bool) -> Image:
    """The cached image. Makes it first if `download`. Raises debian.Unavailable."""
    recipe = hashlib.sha256(Path(__file__).read_bytes() + (GUEST / "init").read_bytes())
    absent = "" if download else "`make test-rdma` downloads its kernel (75 MB)"
    folder = debian.cached(f"rdma-{recipe.hexdigest()[:12]}", _make, absent)
    return Image(folder / "kernel", folder / "ramdisk", folder / "root")


def _make(work: Path) -> Path:
    depends = re.search(r"Depends: (linux-image-\S+)", debian.run("apt-cache", "depends", KERNEL))
    if depends is None:
        raise debian.Unavailable(
            f"apt-cache knows no kernel behind {KERNEL}; it needs Debian's packages"
        )
    made, tree = work / "made", work / "kernel"
    for package in debian.download((depends[1], *PACKAGES), work / "packages"):
        is_kernel = package.name.startswith("linux")
        debian.unpack([package], tree if is_kernel else made / "root")
    for folder in ("bin", "sbin", "lib", "lib64"):  # links into usr in the guest's root
        outside = made / "root" / folder
        if outside.exists():
            shutil.copytree(outside, made / "root/usr" / folder, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(outside)
    shutil.copyfile(next((tree / "boot").glob("vmlinuz-*")), made / "kernel")
    names = {"init": (GUEST / "init").read_bytes()}
    names["busybox"] = (made / "root/usr/bin/busybox").read_bytes()
    order = []
    for name, data in load_order(next((tree / "lib/modules").iterdir())):
        names[f"modules/{name}.ko"] = data
        order.append(name)
    names["modules/order"] = "\n".join(order).encode()
    (made / "ramdisk").write_bytes(gzip.compress(archive(names), 1))
    return made


def load_order(folder: Path) -> list[tuple[str, bytes]]:
    """MODULES and their dependencies, in the order of loading."""
    files = {path.name.split(".")[0].replace("-", "_"): path for path in folder.rglob("*.ko*")}
    built_in = {
        Path(line).name.split(".")[0].replace("-", "_")
        for line in (folder / "modules.builtin").read_text().split()
    }
    loaded: dict[str, bytes] = {}

    def load(name: str) -> None:
        if name in loaded or name in built_in:
            return
        if name not in files:
            raise debian.Unavailable(f"the kernel package has no module {name}")
        suffix = "".join(files[name].suffixes[-2:] if files[name].suffix != ".ko" else [".ko"])
        if suffix not in READERS:
            raise debian.Unavailable(f"cannot read modules packed as {suffix}")
        data = READERS[suffix](files[name].read_bytes())
        found = re.search(rb"\0depends=([^\0]*)\0", data)
        for needed in found[1].decode().split(",") if found and found[1] else []:
            load(needed.replace("-", "_"))
        loaded[name] = data

    for name in MODULES:
        load(name.replace("-", "_"))
    return list(loaded.items())


def archive(files: dict[str, bytes]) -> bytes:
    """A ramdisk in the kernel's format, cpio "newc". All files are executable, and their folders
    included."""
    folders = ["dev", "proc", "sys", *{str(Path(name).parent) for name in files} - {"."}]
    entries = [(name, 0o40755, b"") for name in folders]
    entries += [(name, 0o100755, data) for name, data in files.items()]
    parts = []
    for number, (name, mode, data) in enumerate([*entries, ("TRAILER!!!", 0, b"")], start=1):
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields)
        for part in (header + name.encode() + b"\0", data):
            parts.append(part + b"\0" * (-len(part) % 4))
    return b"".join(parts)
