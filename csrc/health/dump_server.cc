#include "health/dump_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>
#include <utility>

#include "base/log.h"
#include "base/process_descriptor.h"
#include "base/system_text.h"
#include "health/dump.h"

namespace hetcomm {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMostClients = 4;
constexpr int kMostRefused = 16;        // at one poll
constexpr size_t kLongestRequest = 16;  // bytes
// A client that has not asked, or not read its answer, by then is dropped.
constexpr auto kClientBound = 10s;
// Each poll waits so long at most for a client to read.
constexpr auto kWriteTurn = 20ms;

std::string random_name() {
  std::random_device random;
  return "hetcomm-dump-" + std::to_string(getpid()) + "-" + std::to_string(random()) +
         std::to_string(random());
}

class DumpServer : public Monitor {
 public:
  explicit DumpServer(Executor& executor) : executor_(executor) {
    const std::string name = random_name();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    listener_ = ProcessDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        listen(listener_, kMostClients) != 0) {
      throw Error(Code::transport, system_text("cannot listen for hetcomm dump: ", kReason));
    }
    executor_.watch(listener_);
  }

  void poll() override {
    accept_waiting();
    for (auto& client : clients_) serve(*client);
    std::erase_if(clients_, [](const auto& client) { return client->descriptor < 0; });
  }

  void failed(const Status& status) override {
    log(LogLevel::warning, "hetcomm dump: " + status.text());
    for (auto& client : clients_) close(*client);
    clients_.clear();
  }

 private:
  struct Client {
    ProcessDescriptor descriptor;
    Deadline deadline{kClientBound};
    std::string request, answer;
    std::shared_ptr<Dump> dump;
    bool trace = false;
  };

  void accept_waiting() {
    for (int refused = 0; clients_.size() < kMostClients && refused < kMostRefused;) {
      ProcessDescriptor accepted(
          accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (accepted < 0 && (errno == EINTR || errno == ECONNABORTED)) {
        ++refused;
        continue;
      }
      // Without descriptors the client stays in the queue, and regular polls try again.
      if (accepted < 0) return watch_listener(errno == EAGAIN);
      ucred peer{};
      socklen_t length = sizeof peer;
      if (getsockopt(accepted, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
          (peer.uid != geteuid() && peer.uid != 0)) {
        ++refused;
        if (std::exchange(warned_, true)) continue;
        log(LogLevel::warning,
            "hetcomm dump: expected a process of this user or of root, got "
            "process " +
                std::to_string(peer.pid) + " of user " + std::to_string(peer.uid) +
                "; it is refused");
        continue;
      }
      executor_.watch(accepted);
      clients_.push_back(std::make_unique<Client>());
      clients_.back()->descriptor = std::move(accepted);
    }
    watch_listener(clients_.size() < kMostClients);
  }

  // A listener with clients in its queue would wake the progress thread all the time.
  void watch_listener(bool on) {
    if (on == watched_) return;
    watched_ = on;
    on ? executor_.watch(listener_) : executor_.unwatch(listener_);
  }

  void serve(Client& client) {
    if (!client.dump) read(client);
    if (client.dump && client.answer.empty() && client.dump->complete()) {
      client.answer = client.trace ? client.dump->trace() : client.dump->text();
    }
    if (!client.answer.empty()) write(client);
    if (client.descriptor >= 0 && client.deadline.passed()) close(client);
  }

  void read(Client& client) {
    char bytes[kLongestRequest];
    const ssize_t got = recv(client.descriptor, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return close(client);
    client.request.append(bytes, static_cast<size_t>(got));
    const size_t line = client.request.find('\n');
    if (line == std::string::npos && client.request.size() < kLongestRequest) return;
    client.request.resize(std::min(line, client.request.size()));
    client.trace = client.request == "trace";
    if (!client.trace && client.request != "state") return close(client);
    client.dump = Dump::begin("asked by hetcomm dump", client.trace);
    executor_.unwatch(client.descriptor);  // nothing more is read
  }

  void write(Client& client) {
    const Deadline turn(kWriteTurn);
    while (!client.answer.empty()) {
      const ssize_t sent = send(client.descriptor, client.answer.data(), client.answer.size(),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) {
        pollfd room{client.descriptor, POLLOUT, 0};
        if (turn.passed() || ::poll(&room, 1, static_cast<int>(turn.left_ms().count())) <= 0)
          return;
        continue;
      }
      if (sent <= 0) break;
      client.answer.erase(0, static_cast<size_t>(sent));
    }
    close(client);
  }

  void close(Client& client) {
    if (client.descriptor < 0) return;
    if (!client.dump) executor_.unwatch(client.descriptor);
    client.descriptor = ProcessDescriptor();
  }

  Executor& executor_;
  ProcessDescriptor listener_;
  bool watched_ = true, warned_ = false;
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace

void serve_dumps(Executor& executor) {
  try {
    executor.add(std::make_shared<DumpServer>(executor));
  } catch (const Error& error) {
    log(LogLevel::warning, error.what());
  }
}

}  // namespace hetcomm
