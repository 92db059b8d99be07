#include "island/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/config.h"
#include "base/status.h"
#include "base/system_text.h"
#include "island/shm/memory_file.h"

namespace hetcomm::shm {
namespace {

constexpr uint64_t kMagic = 0x316d687363746568;  // "hetcshm1"
constexpr uint32_t kLayout = 6;

struct alignas(128) SegmentHeader {
  uint64_t magic;
  uint32_t layout;
  Shape shape;
  std::atomic<uint64_t> poisoned;  // member + 1; above 32 bits, the awaited member + 1
};

size_t slot_stride(const Shape& shape) { return sizeof(SlotHeader) + shape.slot_bytes; }

size_t lanes_offset(const Shape& shape) {
  return sizeof(SegmentHeader) + shape.members * sizeof(MemberState);
}

size_t slots_offset(const Shape& shape) {
  return lanes_offset(shape) + size_t{shape.lanes} * shape.members * sizeof(LaneState);
}

size_t segment_bytes(const Shape& shape) {
  return slots_offset(shape) +
         size_t{shape.lanes} * shape.members * shape.depth * slot_stride(shape);
}

bool plausible(const Shape& shape) {
  auto within = [](uint64_t value, uint64_t most) { return value >= 1 && value <= most; };
  return within(shape.members, 4096) && within(shape.lanes, 256) && within(shape.depth, 64) &&
         within(shape.slot_bytes, uint64_t{1} << 30) && shape.slot_bytes % 64 == 0;
}

Error unusable(const std::string& expected, const std::string& got) {
  return Error(Code::transport, "shared memory of this host's ranks: expected " + expected +
                                    "; got " + got + "; run the same hetcomm on all ranks");
}

std::string remedy(int reason) {
  if (reason == EFBIG) return "raise the limit of file sizes (ulimit -f)";
  if (reason == EMFILE || reason == ENFILE) return "raise the descriptor limit (ulimit -n)";
  if (reason == EPERM || reason == EACCES || reason == ENOSYS) {
    return "permit memfd_create() and madvise(), which a seccomp filter may refuse";
  }
  return "free memory or raise the limit of the control group";
}

Error no_memory(uint64_t bytes, int reason) {
  return Error(Code::vendor,
               "shared memory: expected " + format_bytes(static_cast<int64_t>(bytes)) +
                   " of memory; got: " + std::strerror(reason) + "; " + remedy(reason));
}

}  // namespace

Descriptor Segment::create(const Shape& shape) {
  if (!plausible(shape)) {
    throw Error(
        Code::invalid_argument,
        "shared memory: expected 1 to 4096 members, 1 to 256 lanes and slots of 64 bytes to "
        "1 GiB; got " +
            std::to_string(shape.members) + " members, " + std::to_string(shape.lanes) +
            " lanes and slots of " + std::to_string(shape.slot_bytes) + " bytes");
  }
  const size_t bytes = segment_bytes(shape);
  Descriptor file = make_memory_file("hetcomm-island", static_cast<int64_t>(bytes));
  if (file < 0) throw no_memory(bytes, errno);
  int error;  // all members touch this part in set-up
  do {
    error = posix_fallocate(file, 0, static_cast<off_t>(slots_offset(shape)));
  } while (error == EINTR);
  if (error != 0) throw no_memory(slots_offset(shape), error);
  SegmentHeader header{};
  header.magic = kMagic;
  header.layout = kLayout;
  header.shape = shape;
  if (pwrite(file, &header, sizeof header, 0) != sizeof header) throw no_memory(bytes, errno);
  return file;
}

Segment::Segment(int file) {
  struct stat found{};
  if (fstat(file, &found) != 0) {
    const std::string why = system_text(kReason);
    throw unusable("a file", why);
  }
  if (found.st_uid != geteuid()) {
    throw unusable("an owner of uid " + std::to_string(geteuid()),
                   "uid " + std::to_string(found.st_uid));
  }
  SegmentHeader header{};
  if (pread(file, &header, sizeof header, 0) != sizeof header || header.magic != kMagic) {
    throw unusable("a hetcomm segment", "something else");
  }
  if (header.layout != kLayout) {
    throw unusable("layout " + std::to_string(kLayout), std::to_string(header.layout));
  }
  shape_ = header.shape;
  const int seals = fcntl(file, F_GET_SEALS);
  if (!plausible(shape_) || segment_bytes(shape_) != static_cast<size_t>(found.st_size) ||
      (seals & F_SEAL_SHRINK) == 0) {
    throw unusable("a fixed size that fits its shape", std::to_string(found.st_size) + " bytes");
  }
  bytes_ = segment_bytes(shape_);
  void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) {
    const std::string why = system_text(kReason);
    throw unusable(format_bytes(static_cast<int64_t>(bytes_)) + " to map", why);
  }
  base_ = static_cast<std::byte*>(mapped);
}

Segment::~Segment() { munmap(base_, bytes_); }

MemberState& Segment::member(int member) const {
  return reinterpret_cast<MemberState*>(base_ + sizeof(SegmentHeader))[member];
}

LaneState& Segment::lane(int lane, int member) const {
  auto* states = reinterpret_cast<LaneState*>(base_ + lanes_offset(shape_));
  return states[size_t(lane) * shape_.members + member];
}

SlotHeader& Segment::header(int lane, int member, uint64_t round) const {
  const size_t ring = (size_t(lane) * shape_.members + member) * shape_.depth;
  return *reinterpret_cast<SlotHeader*>(base_ + slots_offset(shape_) +
                                        (ring + round % shape_.depth) * slot_stride(shape_));
}

std::byte* Segment::data(int lane, int member, uint64_t round) const {
  return reinterpret_cast<std::byte*>(&header(lane, member, round) + 1);
}

Status Segment::reserve(int lane, int member, int64_t bytes) const {
  for (uint32_t slot = 0; slot < shape_.depth; ++slot) {
    const auto* begin = reinterpret_cast<const std::byte*>(&header(lane, member, slot));
    const size_t length = sizeof(SlotHeader) + static_cast<size_t>(bytes);
    if (const int error = populate(begin, length); error != 0) {
      return no_memory(length, error).status();
    }
  }
  return Status();
}

Segment::Poison Segment::poisoned() const {
  const uint64_t value =
      reinterpret_cast<SegmentHeader*>(base_)->poisoned.load(std::memory_order_acquire);
  const auto member = [this](uint64_t next) {
    return next <= shape_.members ? static_cast<int>(next) - 1 : -1;
  };
  return {member(value & UINT32_MAX), member(value >> 32)};
}

void Segment::poison(int member, int awaited) {
  const auto next = [](int number) { return static_cast<uint64_t>(number + 1); };
  uint64_t none = 0;
  reinterpret_cast<SegmentHeader*>(base_)->poisoned.compare_exchange_strong(
      none, next(member) | next(awaited) << 32);
}

}  // namespace hetcomm::shm
