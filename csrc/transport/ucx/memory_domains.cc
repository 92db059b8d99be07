#include "transport/ucx/memory_domains.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "transport/ucx/endpoint.h"

namespace hetcomm {
namespace {

constexpr unsigned kDmabufVersion = 114;  // older versions may not know the questions

// One of UCX's memory domains: of an RDMA device, of shared memory, or of a vendor's copies.
struct Domain {
  std::string name;  // "mlx5_0", "cuda_ipc"
  bool network = false, within_host = false;
  bool registers = false;       // the sample's kind of memory
  bool takes_dmabuf = false;    // registers what another domain exports
  bool exports_dmabuf = false;  // for the sample
};

bool can_ask(const UcxLibrary& ucx) {
#define X(symbol) \
  if (ucx.symbol == nullptr) return false;
  HETCOMM_UCT_SYMBOLS(X)
#undef X
  return true;
}

bool exports_dmabuf(const UcxLibrary& ucx, uct_md_h handle, const MemorySample& sample) {
  uct_md_mem_attr_t memory{};
  memory.field_mask = UCT_MD_MEM_ATTR_FIELD_DMABUF_FD;
  memory.dmabuf_fd = UCT_DMABUF_FD_INVALID;
  if (ucx.uct_md_mem_query(handle, sample.data, sample.bytes, &memory) != UCS_OK) return false;
  if (memory.dmabuf_fd == UCT_DMABUF_FD_INVALID) return false;
  close(memory.dmabuf_fd);
  return true;
}

void ask(const UcxLibrary& ucx, uct_md_h handle, const MemorySample& sample, Domain& domain) {
  uct_md_attr_t found{};
  const uint64_t kind = UCS_BIT(ucx_memory_type(sample.memory));
  if (ucx.uct_md_query(handle, &found) != UCS_OK) return;
  domain.registers = (found.cap.flags & UCT_MD_FLAG_REG) && (found.cap.reg_mem_types & kind);
  if (ucx.major_minor >= kDmabufVersion) {
    domain.takes_dmabuf = found.cap.flags & UCT_MD_FLAG_REG_DMABUF;
    domain.exports_dmabuf =
        (found.cap.detect_mem_types & kind) && exports_dmabuf(ucx, handle, sample);
  }
  uct_tl_resource_desc_t* transports = nullptr;
  unsigned count = 0;
  if (ucx.uct_md_query_tl_resources(handle, &transports, &count) != UCS_OK) return;
  for (unsigned i = 0; i < count; ++i) {
    domain.network |= transports[i].dev_type == UCT_DEVICE_TYPE_NET;
    domain.within_host |= transports[i].dev_type == UCT_DEVICE_TYPE_SHM;
  }
  ucx.uct_release_tl_resource_list(transports);
}

void ask_component(const UcxLibrary& ucx, uct_component_h component, const MemorySample& sample,
                   std::vector<Domain>& domains) {
  uct_component_attr_t attributes{};
  attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
  if (ucx.uct_component_query(component, &attributes) != UCS_OK) return;
  std::vector<uct_md_resource_desc_t> resources(attributes.md_resource_count);
  attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
  attributes.md_resources = resources.data();
  if (resources.empty() || ucx.uct_component_query(component, &attributes) != UCS_OK) return;
  for (const uct_md_resource_desc_t& resource : resources) {
    uct_md_config_t* configuration = nullptr;
    uct_md_h handle = nullptr;
    if (ucx.uct_md_config_read(component, nullptr, nullptr, &configuration) != UCS_OK) continue;
    const ucs_status_t status =
        ucx.uct_md_open(component, resource.md_name, configuration, &handle);
    ucx.uct_config_release(configuration);
    if (status != UCS_OK) continue;
    ask(ucx, handle, sample, domains.emplace_back(Domain{.name = resource.md_name}));
    ucx.uct_md_close(handle);
  }
}

std::vector<Domain> ask_all(const UcxLibrary& ucx, const MemorySample& sample) {
  std::vector<Domain> domains;
  uct_component_h* components = nullptr;
  unsigned count = 0;
  if (ucx.uct_query_components(&components, &count) != UCS_OK) return domains;
  for (unsigned i = 0; i < count; ++i) ask_component(ucx, components[i], sample, domains);
  ucx.uct_release_component_list(components);
  return domains;
}

}  // namespace

std::string why_not_direct(const UcxLibrary& ucx, ucp_context_h context, const MemorySample& sample,
                           const std::string& rdma_device) {
  if (sample.memory == MemoryKind::host) return "";
  const std::string kind = std::string(name(sample.memory)) + " memory";
  const std::string library = "UCX " + ucx.version + " (" + ucx.path + ")";
  if (!can_ask(ucx)) {
    return library + " does not tell which memory it reaches";
  }
  ucp_context_attr_t attributes{};
  attributes.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (ucx.ucp_context_query(context, &attributes) != UCS_OK ||
      !(attributes.memory_types & UCS_BIT(ucx_memory_type(sample.memory)))) {
    return library + " knows no " + kind + ": it was built without it, its module does not load, " +
           "or UCX_TLS leaves it out";
  }
  if (rdma_device.empty() && sample.memory == MemoryKind::rocm) {
    return library +
           ": its rocm_ipc does not notice a peer that fails, so that links, which ask "
           "for that, leave it out";
  }
  const std::vector<Domain> domains = ask_all(ucx, sample);
  const bool dmabuf = std::any_of(domains.begin(), domains.end(),
                                  [](const Domain& domain) { return domain.exports_dmabuf; });
  bool found = false, all = true;
  for (const Domain& domain : domains) {
    if (rdma_device.empty()) {
      if (domain.within_host && domain.registers) return "";
    } else if (domain.network && domain.name == rdma_device) {
      found = true;
      all &= domain.registers || (domain.takes_dmabuf && dmabuf);
    }
  }
  if (rdma_device.empty()) return library + " has nothing that carries " + kind + " inside a host";
  if (!found) return library + " does not drive " + rdma_device;
  if (all) return "";
  return rdma_device + " does not register " + kind +
         ": its driver knows no peer memory, and no dmabuf of the device";
}

}  // namespace hetcomm
