#pragma once

#include <list>
#include <memory>

#include "transport/loopback/inbox.h"
#include "transport/transport.h"

namespace hetcomm::loopback {

// A long message that no receive has taken yet.
struct PendingSend {
  std::shared_ptr<Message> message;
  Request* request;
  int peer;
  const Link* link;
};

// The sending side of a transport, shared with its links. Used under the executor's lock.
struct Sender {
  std::shared_ptr<Inbox> inbox = std::make_shared<Inbox>();
  std::list<PendingSend> pending;
  bool transport_gone = false;

  bool reap();  // completes sends whose messages have ended; whether there were any
  void cancel(const Link* link, const Status& status);  // the pending sends of a link
};

std::unique_ptr<Link> make_link(std::shared_ptr<Sender> sender, std::shared_ptr<Inbox> to,
                                int peer);

}  // namespace hetcomm::loopback
