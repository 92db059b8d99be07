#pragma once

#include <ucp/api/ucp.h>
#include <uct/api/uct.h>

#include <string>

namespace hetcomm {

// clang-format off
#define HETCOMM_UCX_SYMBOLS(X) \
  X(ucp_get_version) \
  X(ucp_init_version) \
  X(ucp_cleanup) \
  X(ucp_config_read) \
  X(ucp_config_modify) \
  X(ucp_config_release) \
  X(ucp_worker_create) \
  X(ucp_worker_destroy) \
  X(ucp_worker_query) \
  X(ucp_worker_release_address) \
  X(ucp_worker_progress) \
  X(ucp_worker_get_efd) \
  X(ucp_worker_arm) \
  X(ucp_ep_create) \
  X(ucp_ep_close_nbx) \
  X(ucp_ep_flush_nbx) \
  X(ucp_ep_query) \
  X(ucp_ep_print_info) \
  X(ucp_tag_send_nbx) \
  X(ucp_tag_recv_nbx) \
  X(ucp_tag_probe_nb) \
  X(ucp_tag_msg_recv_nbx) \
  X(ucp_request_check_status) \
  X(ucp_request_cancel) \
  X(ucp_request_free) \
  X(ucs_status_string)

// These functions tell which memory UCX reaches. Their library, libuct, comes with libucp.
#define HETCOMM_UCT_SYMBOLS(X) \
  X(ucp_context_query) \
  X(uct_query_components) \
  X(uct_release_component_list) \
  X(uct_component_query) \
  X(uct_md_config_read) \
  X(uct_config_release) \
  X(uct_md_open) \
  X(uct_md_close) \
  X(uct_md_query) \
  X(uct_md_mem_query) \
  X(uct_md_query_tl_resources) \
  X(uct_release_tl_resource_list)
// clang-format on

// The functions of the one libucp of this process, called as `ucx.ucp_init_version(...)`. Made at
// first use and kept until the process ends. Thread-safe.
struct UcxLibrary {
#define X(symbol) decltype(&::symbol) symbol = nullptr;
  HETCOMM_UCX_SYMBOLS(X)
  HETCOMM_UCT_SYMBOLS(X)  // null if the library lacks the function
#undef X
  std::string version;       // "1.22.0"
  std::string path;          // of the file that was loaded
  unsigned major_minor = 0;  // 1.22 is 122
  bool drives_rdma = false;  // the library has its InfiniBand and RoCE module
};

// Throws Error(vendor): expected, got, remedy. A later call tries again.
const UcxLibrary& ucx_library();

}  // namespace hetcomm
