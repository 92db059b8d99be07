#include "base/config.h"
#include "island/ccl/ccl.h"

namespace hetcomm {
namespace {

constexpr int64_t kMostCtas = 256;

int ctas(const char* variable) { return static_cast<int>(setting(variable, 0, 1, kMostCtas)); }

bool chosen(const char* variable, bool otherwise) {
  return setting(variable, otherwise ? 1 : 0, 0, 1) == 1;
}

}  // namespace

void read_ccl_settings(CclOptions& options) {
  options.min_ctas = ctas("HETCOMM_CCL_MIN_CTAS");
  options.max_ctas = ctas("HETCOMM_CCL_MAX_CTAS");
  options.split_share = chosen("HETCOMM_CCL_SPLIT_SHARE", options.split_share);
  options.blocking = chosen("HETCOMM_CCL_BLOCKING", options.blocking);
  // Without it the first collectives connect as they are called, which must not hold up the host.
  if (environment_variable("NCCL_RUNTIME_CONNECT").value_or("0") != "0") options.blocking = false;
  if (options.min_ctas > 0 && options.max_ctas > 0 && options.min_ctas > options.max_ctas) {
    throw Error(Code::invalid_argument,
                "HETCOMM_CCL_MIN_CTAS: expected at most HETCOMM_CCL_MAX_CTAS, which is " +
                    std::to_string(options.max_ctas) + "; got " + std::to_string(options.min_ctas) +
                    "; correct or unset one of them");
  }
}

std::string describe_ccl_settings(const CclOptions& options) {
  auto number = [](int value) { return value > 0 ? std::to_string(value) : "unset"; };
  return "HETCOMM_CCL_MIN_CTAS=" + number(options.min_ctas) +
         " HETCOMM_CCL_MAX_CTAS=" + number(options.max_ctas) +
         " HETCOMM_CCL_SPLIT_SHARE=" + (options.split_share ? "1" : "0") +
         " HETCOMM_CCL_BLOCKING=" + (options.blocking ? "1" : "0");
}

}  // namespace hetcomm
