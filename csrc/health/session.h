#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hetcomm {

// One end of a control connection: both ends prove the group's key before either parses a byte of
// the other, and then authenticate every record. Owned by the connection. Not thread-safe.
//
//   connecting end -> greeting: its rank, its challenge, and their seal
//   accepting end  -> its challenge, its proof
//   connecting end -> its proof
//
// So an accepting end spends nothing on a silent connection. A greeting may be a copy of an earlier
// one, so it proves nothing yet. A proof is the HMAC of the end's role, both ranks and both
// challenges, so a proof serves one end of one connection. Each direction then has a key of its
// own. A record carries the HMAC of its number and bytes, so records cannot be forged, repeated,
// left out or sent back.
class Session {
 public:
  static Session accepting(const std::string& group_key, int rank);
  static Session connecting(const std::string& group_key, int rank, int peer);

  // The connecting end sends this first.
  std::string greeting() const;
  // The accepting end has a greeting of the group's key, which may be a copy.
  bool greeted() const { return step_ != Step::greeting; }
  bool proven() const { return step_ == Step::proven; }
  int peer() const { return peer_; }  // -1 until it is proven to an accepting end
  // The bytes that the next step takes.
  size_t awaited() const;
  // Takes these bytes, and returns the answer to send. Throws Error(invalid_argument) if the peer
  // cannot prove the key, or is no other rank of a group of this size.
  std::string advance(std::string_view bytes, int size);

  // Records, once proven. A frame is the body's length, the body and its HMAC.
  static constexpr size_t kFrameBytes = 8 + 32;  // without the body
  std::string seal(const std::string& body);
  // Throws Error(invalid_argument) on another HMAC.
  void check(std::string_view body, std::string_view seal);

 private:
  enum class Step { greeting, answer, proof, proven };  // the next input from the peer

  Session(Step step, const std::string& group_key, int rank, int peer);
  std::string derive_keys_and_prove(int acceptor, int connector, std::string_view challenges);

  Step step_;
  std::string group_key_;
  int rank_, peer_;
  int claimed_ = -1;  // by a greeting
  std::string challenge_;
  std::string outgoing_key_, incoming_key_, expected_;
  uint64_t sent_ = 0, received_ = 0;
};

}  // namespace hetcomm
