#include "health/session.h"

#include "base/packing.h"
#include "base/sha256.h"
#include "base/status.h"

namespace hetcomm {
namespace {

constexpr size_t kChallengeBytes = 32;
constexpr size_t kGreetingBytes = sizeof(uint64_t) + kChallengeBytes + kDigestBytes;

std::string number(uint64_t value) { return Packer().put(value).take(); }

[[noreturn]] void refuse() {
  throw Error(Code::invalid_argument,
              "expected a proof of this group's key, which every rank of the group can give; got "
              "another");
}

std::string greeting_seal(const std::string& group_key, int acceptor, std::string_view head) {
  const std::string to = number(static_cast<uint64_t>(acceptor));
  return hmac_sha256(group_key, ("greeting" + to).append(head));
}

std::string record_seal(const std::string& key, uint64_t count, std::string_view body) {
  return hmac_sha256(key, number(count).append(body));
}

}  // namespace

Session::Session(Step step, const std::string& group_key, int rank, int peer)
    : step_(step), group_key_(group_key), rank_(rank), peer_(peer) {}

Session Session::accepting(const std::string& group_key, int rank) {
  return Session(Step::greeting, group_key, rank, -1);
}

Session Session::connecting(const std::string& group_key, int rank, int peer) {
  Session session(Step::answer, group_key, rank, peer);
  session.challenge_ = random_bytes(kChallengeBytes);
  return session;
}

std::string Session::greeting() const {
  const std::string head = number(static_cast<uint64_t>(rank_)) + challenge_;
  return head + greeting_seal(group_key_, peer_, head);
}

size_t Session::awaited() const {
  switch (step_) {
    case Step::greeting:
      return kGreetingBytes;
    case Step::answer:
      return kChallengeBytes + kDigestBytes;
    case Step::proof:
      return kDigestBytes;
    case Step::proven:
      break;
  }
  return 0;
}

// Returns this end's proof.
std::string Session::derive_keys_and_prove(int acceptor, int connector,
                                           std::string_view challenges) {
  const std::string context = number(static_cast<uint64_t>(acceptor)) +
                              number(static_cast<uint64_t>(connector)) + std::string(challenges);
  const auto key = [&](const char* purpose) { return hmac_sha256(group_key_, purpose + context); };
  const bool accepts = acceptor == rank_;
  outgoing_key_ = key(accepts ? "records of acceptor" : "records of connector");
  incoming_key_ = key(accepts ? "records of connector" : "records of acceptor");
  expected_ = key(accepts ? "proof of connector" : "proof of acceptor");
  return key(accepts ? "proof of acceptor" : "proof of connector");
}

std::string Session::advance(std::string_view bytes, int size) {
  switch (step_) {
    case Step::greeting: {
      const std::string head(bytes.substr(0, sizeof(uint64_t) + kChallengeBytes));
      const uint64_t claimed = Unpacker(head).number();
      if (claimed >= static_cast<uint64_t>(size) || static_cast<int>(claimed) == rank_) refuse();
      if (!equal_in_constant_time(bytes.substr(head.size()),
                                  greeting_seal(group_key_, rank_, head))) {
        refuse();
      }
      claimed_ = static_cast<int>(claimed);
      challenge_ = random_bytes(kChallengeBytes);
      step_ = Step::proof;
      return challenge_ +
             derive_keys_and_prove(rank_, claimed_, challenge_ + head.substr(sizeof(uint64_t)));
    }
    case Step::answer: {
      const std::string theirs(bytes.substr(0, kChallengeBytes));
      const std::string proof = derive_keys_and_prove(peer_, rank_, theirs + challenge_);
      if (!equal_in_constant_time(bytes.substr(kChallengeBytes), expected_)) refuse();
      step_ = Step::proven;
      return proof;
    }
    case Step::proof:
      if (!equal_in_constant_time(bytes, expected_)) refuse();
      peer_ = claimed_;
      step_ = Step::proven;
      return "";
    case Step::proven:
      break;
  }
  return "";
}

std::string Session::seal(const std::string& body) {
  return Packer().put(body).take() + record_seal(outgoing_key_, sent_++, body);
}

void Session::check(std::string_view body, std::string_view seal) {
  if (!equal_in_constant_time(seal, record_seal(incoming_key_, received_, body))) {
    throw Error(Code::invalid_argument, "expected the seal of its record " +
                                            std::to_string(received_) +
                                            ", got another: the bytes were changed on their way");
  }
  ++received_;
}

}  // namespace hetcomm
