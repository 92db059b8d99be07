#include <bit>
#include <charconv>

#include "codec/rows.h"

namespace hetcomm {
namespace {

struct ScaleType {
  const char* name;
  Dtype dtype;
  const char* type;  // of device/kernels/numbers.cuh
};
// float16 is none: scales of gradients lie below its normal numbers.
constexpr ScaleType kFloat32{"fp32", Dtype::float32, "Float32"};
constexpr ScaleType kBfloat16{"bf16", Dtype::bfloat16, "Bfloat16"};

const ScaleType* find(const std::string& name) {
  for (const ScaleType* row : {&kFloat32, &kBfloat16}) {
    if (name == row->name) return row;
  }
  return nullptr;
}

const ScaleType& scale_row(Dtype dtype) { return dtype == Dtype::float32 ? kFloat32 : kBfloat16; }

// 0 if the text is no number of elements that a group may have.
int group_of(const std::string& text) {
  int group = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, group);
  if (error != std::errc() || stop != end || group < 32 || group > 2048) return 0;
  if (text != std::to_string(group)) return 0;  // "064"
  return std::has_single_bit(static_cast<unsigned>(group)) ? group : 0;
}

}  // namespace

std::optional<Quantisation> grouping(int bits, const std::string& parameter) {
  Quantisation found{bits};
  if (const ScaleType* const alone = find(parameter)) {
    found.scale = alone->dtype;
    return found;
  }
  const size_t colon = parameter.find(':');
  found.group = group_of(parameter.substr(0, colon));
  if (found.group == 0) return std::nullopt;
  if (colon == std::string::npos) return found;
  const ScaleType* const scale = find(parameter.substr(colon + 1));
  if (!scale) return std::nullopt;
  found.scale = scale->dtype;
  return found;
}

// Leaves out what is usual, unless all is.
std::string spelled_grouping(const std::string& parameter) {
  const std::optional<Quantisation> found = grouping(8, parameter);
  if (!found) return parameter;
  const bool usual_group = found->group == Quantisation().group;
  const std::string group = std::to_string(found->group), scale = scale_row(found->scale).name;
  if (found->scale == Quantisation().scale) return usual_group ? kUsualGrouping : group;
  return usual_group ? scale : group + ":" + scale;
}

const char* scale_type(const Quantisation& quantisation) {
  return scale_row(quantisation.scale).type;
}

}  // namespace hetcomm
