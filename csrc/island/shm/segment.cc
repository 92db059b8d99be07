#include "island/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/config.h"
#include "base/status.h"

namespace hetcomm::shm {
namespace {

constexpr uint64_t kMagic = 0x316d687363746568;  // "hetcshm1"
constexpr uint32_t kLayout = 4;
constexpr const char* kFolder = "/dev/shm";

struct alignas(128) SegmentHeader {
  uint64_t magic;
  uint32_t layout;
  Shape shape;
  std::atomic<uint64_t> poisoned;  // member + 1
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

std::string path_of(const std::string& name) { return std::string(kFolder) + "/" + name; }

std::string random_name() {
  unsigned char random[16];
  if (getrandom(random, sizeof random, 0) != sizeof random) {
    throw Error(Code::vendor, std::string("no random name for shared memory: getrandom: ") +
                                  std::strerror(errno));
  }
  std::string name = "hetcomm-";
  for (unsigned char byte : random) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

Error unusable(const std::string& name, const std::string& expected, const std::string& got) {
  return Error(Code::transport, "shared memory " + path_of(name) + ": expected " + expected +
                                    "; got " + got +
                                    "; all ranks of a host must run the same hetcomm and see the "
                                    "same /dev/shm");
}

class File {
 public:
  File(const std::string& path, int flags) : descriptor_(open(path.c_str(), flags, 0600)) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  operator int() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

std::string Segment::create(const Shape& shape) {
  if (!plausible(shape)) {
    throw Error(
        Code::invalid_argument,
        "shared memory: expected 1 to 4096 members, 1 to 256 lanes and slots of 64 bytes to "
        "1 GiB; got " +
            std::to_string(shape.members) + " members, " + std::to_string(shape.lanes) +
            " lanes and slots of " + std::to_string(shape.slot_bytes) + " bytes");
  }
  const std::string name = random_name();
  File file(path_of(name), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) {
    throw Error(Code::vendor, std::string("shared memory: expected a writable ") + kFolder +
                                  "; got: " + std::strerror(errno) + "; mount a tmpfs there");
  }
  const size_t bytes = segment_bytes(shape);
  int error;  // reserving all of it now turns a SIGBUS on first touch into a message
  do {
    error = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error != 0) {
    struct statvfs space{};
    fstatvfs(file, &space);
    remove(name);
    throw Error(Code::vendor,
                "shared memory: expected " + format_bytes(static_cast<int64_t>(bytes)) +
                    " free in " + kFolder + ", got " +
                    format_bytes(static_cast<int64_t>(space.f_bavail * space.f_frsize)) + " (" +
                    std::strerror(error) +
                    "); enlarge it (docker --shm-size) or lower HETCOMM_SHM_SLOT");
  }
  SegmentHeader header{};
  header.magic = kMagic;
  header.layout = kLayout;
  header.shape = shape;
  if (pwrite(file, &header, sizeof header, 0) != sizeof header) {
    const int reason = errno;
    remove(name);
    throw Error(Code::vendor, "shared memory " + path_of(name) + ": " + std::strerror(reason));
  }
  return name;
}

void Segment::remove(const std::string& name) { unlink(path_of(name).c_str()); }

Segment::Segment(const std::string& name) {
  if (name.empty() || name.find('/') != std::string::npos) {
    throw unusable(name, "a name without slashes", "\"" + name + "\"");
  }
  File file(path_of(name), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) throw unusable(name, "a segment that can be opened", std::strerror(errno));
  struct stat found{};
  if (fstat(file, &found) != 0) throw unusable(name, "a file", std::strerror(errno));
  if (found.st_uid != geteuid()) {
    throw unusable(name, "an owner of uid " + std::to_string(geteuid()),
                   "uid " + std::to_string(found.st_uid));
  }
  SegmentHeader header{};
  if (pread(file, &header, sizeof header, 0) != sizeof header || header.magic != kMagic) {
    throw unusable(name, "a hetcomm segment", "something else");
  }
  if (header.layout != kLayout) {
    throw unusable(name, "layout " + std::to_string(kLayout), std::to_string(header.layout));
  }
  shape_ = header.shape;
  if (!plausible(shape_) || segment_bytes(shape_) != static_cast<size_t>(found.st_size)) {
    throw unusable(name, "a size that fits its shape", std::to_string(found.st_size) + " bytes");
  }
  bytes_ = segment_bytes(shape_);
  void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (mapped == MAP_FAILED) {
    throw unusable(name, format_bytes(static_cast<int64_t>(bytes_)) + " to map",
                   std::strerror(errno));
  }
  base_ = static_cast<std::byte*>(mapped);
}

Segment::~Segment() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

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

int Segment::poisoned_by() const {
  const uint64_t poisoned =
      reinterpret_cast<SegmentHeader*>(base_)->poisoned.load(std::memory_order_acquire);
  return poisoned >= 1 && poisoned <= shape_.members ? static_cast<int>(poisoned) - 1 : -1;
}

void Segment::poison(int member) {
  uint64_t none = 0;
  reinterpret_cast<SegmentHeader*>(base_)->poisoned.compare_exchange_strong(none,
                                                                            uint64_t(member) + 1);
}

}  // namespace hetcomm::shm
