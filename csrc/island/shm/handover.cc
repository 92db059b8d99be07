#include "island/shm/handover.h"

#include <dirent.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <map>

#include "base/config.h"
#include "base/fork.h"
#include "base/status.h"
#include "base/system_text.h"

namespace hetcomm::shm {
namespace {

const std::string kFolder = "/dev/shm/";
const std::string kPrefix = "hetcomm-";
constexpr int kBacklog = 4096;  // members of the largest island
// Connections that one serve() accepts. Anybody on the host may connect without end.
constexpr int kMostServed = 256;
// Between bind() and listen() a socket refuses connections, like the socket of a dead process.
constexpr std::time_t kSecondsToListen = 60;

struct Offers {
  MutexAcrossFork mutex;
  std::map<std::string, std::shared_ptr<Handover>> by_name;
};

Offers& offers() {
  static auto* all = new Offers;
  return *all;
}

struct Address {
  sockaddr_un address{};
  socklen_t bytes;

  // A path, or an abstract name, whose first byte is 0.
  explicit Address(const std::string& name) {
    address.sun_family = AF_UNIX;
    const size_t length = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path, name.data(), length);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  }
  operator const sockaddr*() const { return reinterpret_cast<const sockaddr*>(&address); }
};

std::string abstract(const std::string& name) { return std::string(1, '\0') + name; }

Error refused(const char* step) {
  return Error(Code::vendor, system_text("shared memory: ", step, ": ", kReason,
                                         errno == EMFILE ? "; raise ulimit -n" : ""));
}

// -1 and errno on failure.
Descriptor listen_at(const std::string& name) {
  Descriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const Address address(name);
  if (listener >= 0 &&
      (bind(listener, address, address.bytes) != 0 || listen(listener, kBacklog) != 0)) {
    const int reason = errno;
    listener = Descriptor();
    errno = reason;
  }
  return listener;
}

bool connect_to(const Descriptor& socket, const std::string& name) {
  const Address address(name);
  int result;
  do {
    result = connect(socket, address, address.bytes);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

std::string random_name() {
  unsigned char random[16];
  if (getrandom(random, sizeof random, 0) != sizeof random) throw refused("no random name");
  std::string name = kPrefix;
  for (unsigned char byte : random) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

// Removes the sockets of processes that were killed during an offer.
void remove_orphans() {
  DIR* folder = opendir(kFolder.c_str());
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    const std::string path = kFolder + entry->d_name;
    struct stat found{};
    const bool old = std::string(entry->d_name).starts_with(kPrefix) &&
                     lstat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode) &&
                     found.st_uid == geteuid() &&
                     found.st_mtime + kSecondsToListen < std::time(nullptr);
    if (!old) continue;
    const Descriptor probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (probe >= 0 && !connect_to(probe, path) && errno == ECONNREFUSED) unlink(path.c_str());
  }
  closedir(folder);
}

// One byte, with the descriptor beside it.
struct Message {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char beside[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};

  Message() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = beside;
    header.msg_controllen = sizeof beside;
  }
};

bool of_this_user(int connection) {
  ucred peer{};
  socklen_t bytes = sizeof peer;
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
         peer.uid == geteuid();
}

void give(int connection, int memory) {
  if (!of_this_user(connection)) return;
  Message message;
  cmsghdr* beside = CMSG_FIRSTHDR(&message.header);
  beside->cmsg_level = SOL_SOCKET;
  beside->cmsg_type = SCM_RIGHTS;
  beside->cmsg_len = CMSG_LEN(sizeof memory);
  std::memcpy(CMSG_DATA(beside), &memory, sizeof memory);
  sendmsg(connection, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void serve_from(const Descriptor& listener, int memory) {
  for (int served = 0; listener >= 0 && served < kMostServed; ++served) {
    const Descriptor connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (connection >= 0) {
      give(connection, memory);
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR && errno != ECONNABORTED) {
      throw refused("cannot be given to the other ranks of this host");
    }
  }
}

Error late(int maker, const Deadline& deadline) {
  return Error(Status(Code::timeout,
                      "shared memory of " + host_name() + ": expected rank " +
                          std::to_string(maker) + " to give it within " +
                          format_seconds(deadline.timeout()) + "; check that the rank is alive",
                      -1, maker));
}

Error gone(int maker, const std::string& why) {
  return Error(Status(Code::peer_failed,
                      "shared memory of " + host_name() + ": rank " + std::to_string(maker) +
                          " does not offer it any more (" + why +
                          "): that rank has ended or failed, or does not share this host's network "
                          "namespace, or /dev/shm where HETCOMM_HOST_ID is set",
                      -1, maker));
}

void bound_waits(const Descriptor& socket, const Deadline& deadline) {
  const auto left = std::max<int64_t>(
      1, std::chrono::duration_cast<std::chrono::microseconds>(deadline.left()).count());
  const timeval bound{left / 1000000, left % 1000000};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound);
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof bound);
}

}  // namespace

Handover::Handover(Descriptor memory, const std::string& name, bool across_namespaces)
    : memory_(std::move(memory)), path_(across_namespaces ? kFolder + name : "") {
  abstract_ = listen_at(abstract(name));
  if (abstract_ < 0) throw refused("no abstract Unix socket");
  if (!across_namespaces) return;
  remove_orphans();
  // If this fails, members of this network namespace still connect; the others report an error.
  in_folder_ = listen_at(path_);
}

Handover::~Handover() {
  if (in_folder_ >= 0) unlink(path_.c_str());
}

std::string Handover::offer(Descriptor memory, bool across_namespaces) {
  const std::string name = random_name();
  std::shared_ptr<Handover> made(new Handover(std::move(memory), name, across_namespaces));
  std::lock_guard lock(offers().mutex);
  offers().by_name[name] = made;
  return name;
}

void Handover::withdraw(const std::string& name) {
  std::shared_ptr<Handover> last;  // closed without the lock
  std::lock_guard lock(offers().mutex);
  if (auto found = offers().by_name.extract(name)) last = std::move(found.mapped());
}

std::shared_ptr<Handover> Handover::find(const std::string& name) {
  std::lock_guard lock(offers().mutex);
  const auto found = offers().by_name.find(name);
  return found == offers().by_name.end() ? nullptr : found->second;
}

void Handover::serve() {
  serve_from(abstract_, memory_);
  serve_from(in_folder_, memory_);
}

Descriptor Handover::take(const std::string& name, int maker, const Deadline& deadline) {
  if (!name.starts_with(kPrefix) || name.find('/') != std::string::npos) {
    throw Error(Code::transport, "shared memory: expected a name that a rank offers; got \"" +
                                     name + "\"; run the same hetcomm on all ranks of a host");
  }
  const Descriptor connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connection < 0) throw refused("no Unix socket");
  bound_waits(connection, deadline);
  if (!connect_to(connection, abstract(name))) {
    if (errno == EAGAIN) throw late(maker, deadline);  // the queue of the socket stays full
    const std::string why = system_text(kReason);
    if (!connect_to(connection, kFolder + name)) throw gone(maker, why);
  }
  if (!of_this_user(connection)) throw gone(maker, "another user's process offers it");
  Message message;
  ssize_t got;
  do {
    bound_waits(connection, deadline);
    got = recvmsg(connection, &message.header, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR && !deadline.passed());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) throw late(maker, deadline);
  if (got <= 0) throw gone(maker, got < 0 ? system_text(kReason) : "it refused");
  const cmsghdr* beside = CMSG_FIRSTHDR(&message.header);
  if (beside == nullptr || beside->cmsg_type != SCM_RIGHTS) {
    throw Error(Code::transport, "shared memory: no descriptor came; raise ulimit -n");
  }
  int memory;
  std::memcpy(&memory, CMSG_DATA(beside), sizeof memory);
  return Descriptor(memory);
}

}  // namespace hetcomm::shm
