#include "emulated/bootstrap.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>

#include "emulated/runtime.h"

namespace hetcomm::emulated {

namespace {

constexpr char kTag[8] = {'h', 'e', 't', 'e', 'm', 'u', '0', '1'};
constexpr std::chrono::minutes kRootLives{10};

struct Answer {
  int32_t result;
  char text[252];
};

// Identifies the host as NCCL does: NCCL_HOSTID, else host name and boot.
uint64_t host_hash() {
  if (const char* given = std::getenv("NCCL_HOSTID")) return std::hash<std::string>{}(given);
  char name[65] = {};
  gethostname(name, sizeof name - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return std::hash<std::string>{}(name + boot);
}

class Root {  // collects the members of one communicator and sends each all contacts
 public:
  Root(Socket listener, const Identity& identity)
      : listener_(std::move(listener)), identity_(identity) {}

  void run() {
    Stop stop{.until = std::chrono::steady_clock::now() + kRootLives};
    try {
      std::string wrong;
      while (wrong.empty() && (size_ == 0 || members_.size() < size_)) wrong = admit(stop);
      if (wrong.empty()) wrong = shared_device();
      answer(wrong, stop);
    } catch (const Failure&) {  // members see their connection close
    } catch (const Aborted&) {
    }
  }

 private:
  struct Member {
    Socket socket;
    Introduction introduction;
  };

  std::string admit(const Stop& stop) {  // why a new member cannot join; empty if it can
    Member came{listener_.accept(stop), {}};
    Introduction& introduction = came.introduction;
    if (!came.socket.receive_all(&introduction, sizeof introduction, stop, kGreetingTimeout) ||
        std::memcmp(introduction.magic, identity_.magic, sizeof identity_.magic) != 0) {
      return "";  // a stranger
    }
    if (size_ == 0) size_ = static_cast<size_t>(introduction.size);
    std::string who = "rank " + std::to_string(introduction.rank);
    bool same_size = size_ == static_cast<size_t>(introduction.size);
    bool twice = std::any_of(members_.begin(), members_.end(), [&](const Member& member) {
      return member.introduction.rank == introduction.rank;
    });
    members_.push_back(std::move(came));
    if (!same_size) return who + " expects another number of ranks than the others";
    return twice ? who + " came twice" : "";
  }

  std::string shared_device() const {
    for (size_t i = 0; i < members_.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const Introduction &one = members_[j].introduction, &other = members_[i].introduction;
        if (one.host != other.host || one.device != other.device) continue;
        return "Duplicate GPU detected: ranks " + std::to_string(one.rank) + " and " +
               std::to_string(other.rank) + " both use device " + std::to_string(one.device) +
               " of one host";
      }
    }
    return "";
  }

  void answer(const std::string& wrong, const Stop& stop) {
    Answer answer{wrong.empty() ? ccl_success : ccl_invalid_usage, {}};
    std::snprintf(answer.text, sizeof answer.text, "%s", wrong.c_str());
    std::vector<Contact> contacts(size_);
    if (wrong.empty()) {
      for (const Member& member : members_) {
        contacts[static_cast<size_t>(member.introduction.rank)] = member.introduction.contact;
      }
    }
    for (const Member& member : members_) {
      member.socket.send_all(&answer, sizeof answer, stop);
      if (!wrong.empty()) continue;
      member.socket.send_all(contacts.data(), contacts.size() * sizeof(Contact), stop);
    }
  }

  Socket listener_;
  const Identity identity_;
  std::vector<Member> members_;
  size_t size_ = 0;
};

}  // namespace

UniqueId make_unique_id() {
  Identity identity{};
  std::memcpy(identity.tag, kTag, sizeof kTag);
  std::strncpy(identity.vendor, hetcomm_emulated_vendor(), sizeof identity.vendor - 1);
  if (getrandom(identity.magic, sizeof identity.magic, 0) != sizeof identity.magic) {
    throw Failure{ccl_system_error, "getrandom failed"};
  }
  Interface interface = choose_interface();
  Socket listener = Socket::listen_at(interface.address, 1024);
  identity.root = listener.local();
  inform("Bootstrap: Using " + interface.name + ":" + to_text(interface.address) + "<0>");
  std::thread([root = std::make_shared<Root>(std::move(listener), identity)] {
    root->run();
  }).detach();
  UniqueId id{};
  std::memcpy(id.internal, &identity, sizeof identity);
  return id;
}

Identity read_unique_id(const UniqueId& id) {
  Identity identity;
  std::memcpy(&identity, id.internal, sizeof identity);
  if (std::memcmp(identity.tag, kTag, sizeof kTag) != 0) {
    throw Failure{ccl_invalid_argument, "expected a unique id of ncclGetUniqueId; got other bytes"};
  }
  identity.vendor[sizeof identity.vendor - 1] = '\0';
  if (std::strcmp(identity.vendor, hetcomm_emulated_vendor()) != 0) {
    throw Failure{ccl_invalid_argument,
                  std::string("the unique id is of the ") + identity.vendor +
                      " library, this is the one of " + hetcomm_emulated_vendor() +
                      "; members of one communicator use the same vendor's library"};
  }
  return identity;
}

std::unique_ptr<Mesh> meet(const Identity& identity, int rank, int size, int device,
                           const Stop& stop, in_addr& address) {
  Socket root = Socket::connect_to(identity.root, stop);
  address = interface_named() ? choose_interface().address : root.local().sin_addr;
  Socket listener = Socket::listen_at(address, size);
  Introduction introduction{};
  std::memcpy(introduction.magic, identity.magic, sizeof identity.magic);
  introduction.rank = rank;
  introduction.size = size;
  introduction.host = host_hash();
  introduction.device = device;
  introduction.contact = {listener.local(), place_of(device)};
  root.send_all(&introduction, sizeof introduction, stop);
  Answer answer{};
  std::vector<Contact> contacts(static_cast<size_t>(size));
  if (!root.receive_all(&answer, sizeof answer, stop)) {
    throw Failure{ccl_remote_error, "the process that made the unique id is gone"};
  }
  if (answer.result != ccl_success) throw Failure{answer.result, answer.text};
  if (!root.receive_all(contacts.data(), contacts.size() * sizeof(Contact), stop)) {
    throw Failure{ccl_remote_error, "the process that made the unique id is gone"};
  }
  return std::make_unique<Mesh>(rank, contacts, identity.magic, listener, stop);
}

}  // namespace hetcomm::emulated
