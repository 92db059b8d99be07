#include "base/settings.h"

namespace hetcomm {

const std::vector<Setting>& settings() {
  static const auto* table = new std::vector<Setting>{
      {"HETCOMM_SOCKET_IFNAME", "interfaces or RDMA ports to use, comma-separated",
       "every usable one; RDMA comes first, then the fastest pair of NICs that joins two hosts; "
       "messages use several of Ethernet together where hosts share their networks"},
      {"HETCOMM_SELECT",
       "which algorithm serves which collective and size, see "
       "[docs/algorithms.md](docs/algorithms.md); equal on every rank",
       "the cost model chooses"},
      {"HETCOMM_PROFILE",
       "a file of `hetcomm tune`, by which plans are priced, see "
       "[docs/tuning.md](docs/tuning.md); equal on every rank",
       "constants"},
      {"HETCOMM_DETERMINISTIC",
       "`1`: no speed that a run finds of links or processors decides how it adds up, "
       "and NCCL leaves NVLink SHARP out; equal on every rank",
       "`0`"},
      {"HETCOMM_BRIDGE_CODEC",
       "how messages of 16 KiB and more between hosts are encoded: `none`, `lossless`, `auto` "
       "(`lossless` where the cost model predicts a gain), or a lossy codec such as `int8` for "
       "sums; `cluster=int8,host=bf16` names a codec for groups on one host, too; see "
       "[docs/codecs.md](docs/codecs.md); equal on every rank",
       "`auto`"},
      {"HETCOMM_UCX_LIBRARY", "path of `libucp.so.0` (UCX 1.12 or newer)",
       "one already loaded, then the `libucx` wheel's, then the system's; the system's "
       "first where only it drives the RDMA devices"},
      {"HETCOMM_UCX_SOURCES",
       "addresses and prefixes that may connect to UCX's TCP ports besides those of the ranks' "
       "hosts, comma-separated: `10.0.0.0/8`, or `any`; needed where addresses change on the way "
       "between hosts (NAT), see [docs/security.md](docs/security.md#ucxs-tcp-ports)",
       "none"},
      {"HETCOMM_CUDA_LIBRARY, HETCOMM_HIP_LIBRARY",
       "path of `libcudart.so` (CUDA 11.8 or newer), `libamdhip64.so` (HIP 6.0 or "
       "newer); `hetcomm/vendors.toml` names the variables of all libraries of a vendor",
       "the one already loaded, of several torch's (an error if none is); then the "
       "wheels', then the system's"},
      {"HETCOMM_CCL",
       "how NCCL or RCCL is used, comma-separated. `min_ctas=N`, `max_ctas=N`: least and "
       "most blocks of a GPU for a call, 1 to 256. `blocking=0`: calls never wait for a "
       "peer, and each costs a thread. Equal on the ranks of an island",
       "the library's choice, `blocking=1`"},
      {"HETCOMM_POOL_BYTES",
       "idle device memory, and idle pinned memory, that is kept for reuse between "
       "communicators",
       "`512M`"},
      {"HETCOMM_SHM_SLOT",
       "bytes of one slot of shared memory (`64k`), read by the first rank of an island; "
       "slots take memory as calls use them, and none of `/dev/shm`",
       "at most 128k; all slots of an island together 64 MiB"},
      {"HETCOMM_ISA",
       "`baseline` or, on x86, `avx2` or `avx512` for reductions; the bits do not depend on it",
       "the best the processor has"},
      {"HETCOMM_DEFAULT",
       "`cpu,cuda`: for these types of devices hetcomm is the backend of programs that "
       "name none, see [docs/torch.md](docs/torch.md#without-a-name)",
       "torch's default"},
      {"HETCOMM_RECORDER",
       "operations of each group that the flight recorder keeps, at most 64k; `0` records "
       "nothing, see [docs/diagnosis.md](docs/diagnosis.md)",
       "`128`"},
      {"HETCOMM_WATCH",
       "seconds after which rank 0 of a group looks again for ranks that come late and for slow "
       "paths, see [docs/diagnosis.md](docs/diagnosis.md#warnings); `0`: never",
       "`60`"},
      {"HETCOMM_METRICS",
       "a folder in which each process keeps a file of counters for Prometheus, see "
       "[docs/diagnosis.md](docs/diagnosis.md#counters)",
       "no file"},
      {"HETCOMM_DUMP",
       "a folder in which a rank of a failed group writes the state of all ranks and a trace of "
       "their last steps, see [docs/diagnosis.md](docs/diagnosis.md)",
       "the state goes to the log"},
      {"HETCOMM_PEER_TIMEOUT",
       "seconds: a rank whose host or network gives no sign of life for so long has failed; of a "
       "rank whose process gives none, such as one in a debugger, hetcomm warns. See "
       "[docs/errors.md](docs/errors.md)",
       "`2`"},
      {"HETCOMM_LIBRARY_TIMEOUT",
       "seconds: a process ends so long after its longest timeout if a thread stands still in a "
       "device's driver or UCX; `0`: never. See [docs/errors.md](docs/errors.md)",
       "`300`"},
      {"HETCOMM_JOB_KEY_FILE, HETCOMM_JOB_KEY",
       "a file with the job key (mode 600, see `hetcomm key`), or the key itself: ranks prove it "
       "to each other, see [docs/security.md](docs/security.md); equal on every rank",
       "none: who reaches the job's store can pass for a rank; `hetcomm emulate` makes one"},
      {"HETCOMM_LOG_LEVEL", "`error`, `warning`, `info` or `debug`, to standard error",
       "`warning`"},
      {"HETCOMM_HOST_ID", "identity of the host; ranks with equal values share memory",
       "boot id, host name, network namespace and `/dev/shm`"},
      {"HETCOMM_VENDOR",
       "whose memory the rank's tensors are: `nvidia`, `amd` or `cpu`; CPU ranks with "
       "another label form an island apart",
       "`cpu` for `backend=\"cpu:hetcomm\"`, else by torch: `nvidia` or `amd` where it "
       "has GPUs, `cpu` elsewhere"},
      {"HETCOMM_DEVICE", "which of the vendor's devices",
       "torch's current one; `LOCAL_RANK` without torch"},
      {"HETCOMM_DIRECT",
       "`0`: messages of device memory pass through host memory, whatever UCX could",
       "direct inside a host and over RDMA, where UCX can"},
      {"HETCOMM_DIRECT_BYTES",
       "inside a host, messages of device memory with fewer bytes pass through host memory",
       "2097152 (2 MiB): on one H100, direct messages of 4 MiB were faster, of 1 MiB slower"},
      {"HETCOMM_KERNELS", "`0`: the host reduces and encodes what lies in device memory",
       "the device does, where its kernels can be compiled"},
      {"HETCOMM_KERNEL_CACHE",
       "folder of compiled kernels, so that the next process compiles none; `0`: none are kept",
       "`$XDG_CACHE_HOME/hetcomm/kernels`, or `~/.cache/hetcomm/kernels`"},
      {"HETCOMM_ISLAND",
       "label of this rank: ranks of one vendor and label are one island (CPU ranks: of "
       "one host)",
       "by network"},
      {"HETCOMM_ZONE",
       "zones of this host, the widest first, such as `paris@1gbit/rack3`: hosts behind a shared "
       "uplink, with its rate where this is known. Plans then send less over it, see "
       "[docs/zones.md](docs/zones.md)",
       "none"},
      {"HETCOMM_SYSFS_ROOT",
       "a tree in the layout of `/sys` to read NICs from, for recorded and emulated "
       "machines; its file `addresses` replaces this machine's IP addresses",
       "`/sys`"},
  };
  return *table;
}

}  // namespace hetcomm
