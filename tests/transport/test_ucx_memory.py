"""The ucx transport's answers about a device's memory.

It asks libraries that answer as UCX does on machines with GPUs and RDMA devices. Each case runs in
a process of its own, because a process keeps the first UCX it loads.
"""

import os
import pathlib
import subprocess
import sys

import libucx
import pytest

from hetcomm import _core
from hetcomm._core import MemoryKind

LIBRARIES = pathlib.Path(libucx.__file__).parent
# The library has the wheel's functions except those that describe memory. The wheel is loaded
# first, so that it keeps its own functions. A domain is a component of its own: "name type(NET,
# SHM, ACC) registers takes exports".
SOURCE = r"""
#include <string.h>
#include <unistd.h>
#include <ucp/api/ucp.h>
#include <uct/api/uct.h>

#define CUDA UCS_BIT(UCS_MEMORY_TYPE_CUDA)
struct domain { const char *name; uct_device_type_t type; uint64_t registers; int takes, exports; };
static struct domain domains[] = { DOMAINS };
enum { COUNT = sizeof domains / sizeof *domains };
static uct_component_h components[COUNT];
static int open_domains = 0;

ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t *attributes) {
  attributes->memory_types = TYPES;
  return UCS_OK;
}
ucs_status_t uct_query_components(uct_component_h **found, unsigned *count) {
  for (int i = 0; i < COUNT; ++i) components[i] = (uct_component_h)&domains[i];
  *found = components, *count = COUNT;
  return UCS_OK;
}
void uct_release_component_list(uct_component_h *found) { if (open_domains) _exit(9); }
ucs_status_t uct_component_query(uct_component_h component, uct_component_attr_t *attributes) {
  attributes->md_resource_count = 1;
  if (attributes->field_mask & UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES) {
    strcpy(attributes->md_resources[0].md_name, ((struct domain *)component)->name);
  }
  return UCS_OK;
}
ucs_status_t uct_md_config_read(uct_component_h component, const char *prefix, const char *file,
                                uct_md_config_t **configuration) {
  *configuration = (uct_md_config_t *)component;
  return UCS_OK;
}
void uct_config_release(void *configuration) {}
ucs_status_t uct_md_open(uct_component_h component, const char *name, const uct_md_config_t *with,
                         uct_md_h *handle) {
  if (!strcmp(name, "broken")) return UCS_ERR_NO_DEVICE;
  ++open_domains;
  *handle = (uct_md_h)component;
  return UCS_OK;
}
void uct_md_close(uct_md_h handle) { --open_domains; }
ucs_status_t uct_md_query(uct_md_h handle, uct_md_attr_t *attributes) {
  struct domain *domain = (struct domain *)handle;
  attributes->cap.flags = UCT_MD_FLAG_REG | (domain->takes ? UCT_MD_FLAG_REG_DMABUF : 0);
  attributes->cap.reg_mem_types = UCS_BIT(UCS_MEMORY_TYPE_HOST) | domain->registers;
  attributes->cap.detect_mem_types = domain->type == UCT_DEVICE_TYPE_ACC ? CUDA : 0;
  return UCS_OK;
}
ucs_status_t uct_md_mem_query(uct_md_h handle, const void *address, size_t length,
                              uct_md_mem_attr_t *attributes) {
  if (((struct domain *)handle)->exports) attributes->dmabuf_fd = dup(0);
  return UCS_OK;
}
ucs_status_t uct_md_query_tl_resources(uct_md_h handle, uct_tl_resource_desc_t **found,
                                       unsigned *count) {
  static uct_tl_resource_desc_t resource;
  resource.dev_type = ((struct domain *)handle)->type;
  *found = &resource, *count = 1;
  return UCS_OK;
}
void uct_release_tl_resource_list(uct_tl_resource_desc_t *found) {}
"""
PROGRAM = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
from hetcomm import _core
transport = _core.make_transport("ucx")
for question in sys.argv[2:]:
    kind, device = question.split(":")
    print(transport.why_not_direct(_core.MemoryKind.__members__[kind], device) or "direct")
"""
NIC = '{"mlx5_0", UCT_DEVICE_TYPE_NET, %s, %d, 0}'
COPY = '{"cuda_cpy", UCT_DEVICE_TYPE_ACC, CUDA, 0, %d}'
IPC = '{"cuda_ipc", UCT_DEVICE_TYPE_SHM, CUDA, 0, 0}'
SHM = '{"posix", UCT_DEVICE_TYPE_SHM, 0, 0, 0}'
KNOWN = "UCS_BIT(UCS_MEMORY_TYPE_HOST) | CUDA"


def ask(
    folder: pathlib.Path, domains: list[str], questions: list[str], types: str = KNOWN
) -> list[str]:
    path = folder / "libucp_of_test.so"
    text = SOURCE.replace("DOMAINS", ", ".join(domains)).replace("TYPES;", f"{types};")
    real = LIBRARIES / "lib" / "libucp.so.0"
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-I{LIBRARIES / 'include'}", "-x", "c", "-", "-x", "none",
         "-Wl,--no-as-needed", str(real), f"-Wl,-rpath,{real.parent}", "-o", str(path)],
        input=text, text=True, check=True, timeout=60,
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, str(real), *questions],
        env={**os.environ, "HETCOMM_UCX_LIBRARY": str(path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


INSIDE, RDMA = "cuda:", "cuda:mlx5_0"


@pytest.mark.parametrize(
    ("domains", "inside", "over_rdma"),
    [
        ([SHM, COPY % 0, IPC, NIC % ("CUDA", 0)], "direct", "direct"),  # peer memory
        ([SHM, COPY % 1, NIC % ("0", 1)], "nothing that carries CUDA memory", "direct"),  # dmabuf
        ([COPY % 0, IPC, NIC % ("0", 1)], "direct", "does not register CUDA memory"),
        ([COPY % 1, IPC, NIC % ("0", 0)], "direct", "does not register CUDA memory"),
        ([COPY % 1, SHM], "nothing that carries CUDA memory inside a host", "does not drive mlx5"),
        (['{"broken", UCT_DEVICE_TYPE_SHM, CUDA, 0, 0}'], "nothing that carries", "does not drive"),
        # Another domain of the same device, without a network, does not count.
        ([NIC % ("CUDA", 0), '{"mlx5_0", UCT_DEVICE_TYPE_SHM, 0, 0, 0}'], "nothing", "direct"),
    ],
)
def test_capabilities_decide_direct_memory(
    tmp_path: pathlib.Path, domains: list[str], inside: str, over_rdma: str
) -> None:
    answers = ask(tmp_path, domains, [INSIDE, RDMA])
    assert inside in answers[0] and over_rdma in answers[1], answers


def test_only_the_requested_memory_kind_counts(tmp_path: pathlib.Path) -> None:
    domains = [IPC, NIC % ("CUDA", 0)]
    answers = ask(tmp_path, domains, ["rocm:", "host:", "host:mlx5_0"])
    assert "knows no ROCm memory" in answers[0] and answers[1:] == ["direct"] * 2
    (answer,) = ask(tmp_path, domains, [INSIDE], "UCS_BIT(UCS_MEMORY_TYPE_HOST)")
    assert "knows no CUDA memory" in answer and "UCX_TLS" in answer and "libucp_of_test" in answer


def test_this_machine_gives_a_reason() -> None:
    transport = _core.make_transport("ucx")
    for memory, name in ((MemoryKind.cuda, "CUDA"), (MemoryKind.rocm, "ROCm")):
        why = transport.why_not_direct(memory, "no_such_device")
        assert name in why or "no_such_device" in why
    assert transport.why_not_direct(MemoryKind.host) == ""
