#include "health/news.h"

#include <cstring>

#include "base/packing.h"

namespace hetcomm {
namespace {

// Bytes of a text. A frame of a control connection has room for several such texts.
constexpr size_t kLongestText = 8 << 10;

bool within_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

// Keeps both ends of a long text, which begins with the cause and ends with the remedy.
std::string shortened(const std::string& text) {
  if (text.size() <= kLongestText) return text;
  size_t head = kLongestText * 3 / 4, tail = text.size() - kLongestText / 4;
  while (head > 0 && within_character(text[head])) --head;
  while (tail < text.size() && within_character(text[tail])) ++tail;
  return text.substr(0, head) + " ... [" + std::to_string(tail - head) + " bytes left out] ... " +
         text.substr(tail);
}

std::string pack(const CallDescriptor& call) {
  return std::string(reinterpret_cast<const char*>(&call), sizeof call);
}

CallDescriptor unpack_call(const std::string& bytes) {
  CallDescriptor call;
  if (bytes.size() != sizeof call) {
    throw Error(Code::invalid_argument, "expected a call of " + std::to_string(sizeof call) +
                                            " bytes, got " + std::to_string(bytes.size()));
  }
  std::memcpy(&call, bytes.data(), sizeof call);
  return call;
}

// A number of bytes, ns or rounds. The sum of two does not overflow.
int64_t unpack_amount(Unpacker& from) {
  const uint64_t number = from.number();
  if (number <= INT64_MAX / 2) return static_cast<int64_t>(number);
  throw Error(Code::invalid_argument,
              "expected a number of bytes, ns or rounds, got " + std::to_string(number));
}

int unpack_rank(Unpacker& from, int size) {
  const uint64_t rank = from.number();
  if (rank < static_cast<uint64_t>(size)) return static_cast<int>(rank);
  throw Error(Code::invalid_argument, "expected a rank of the group, got another number");
}

// A member of an enumeration, whose last is `last`.
template <class Enum>
Enum unpack_member(Unpacker& from, Enum last, const char* what) {
  const uint64_t number = from.number();
  if (number <= static_cast<uint64_t>(last)) return static_cast<Enum>(number);
  throw Error(Code::invalid_argument,
              "expected the " + std::string(what) + ", got " + std::to_string(number));
}

// A rank plus one; 0 for none.
int unpack_peer(Unpacker& from, int size) {
  const uint64_t peer = from.number();
  if (peer <= static_cast<uint64_t>(size)) return static_cast<int>(peer) - 1;
  throw Error(Code::invalid_argument, "expected a rank of the group, got another number");
}

Code unpack_code(uint64_t number) {
  if (number > 0 && number <= static_cast<uint64_t>(Code::peer_failed)) {
    return static_cast<Code>(number);
  }
  throw Error(Code::invalid_argument,
              "expected the code of an error, got " + std::to_string(number));
}

}  // namespace

std::string News::pack() const {
  Packer packer;
  packer.put(static_cast<uint64_t>(kind));
  switch (kind) {
    case Kind::failure:
      packer.put(static_cast<uint64_t>(why.code()))
          .put(static_cast<uint64_t>(why.details().peer + 1))
          .put(shortened(why.details().op))
          .put(shortened(why.details().message));
      break;
    case Kind::stall:
      packer.put(hetcomm::pack(call)).put(shortened(caller));
      break;
    case Kind::goodbye:
      packer.put(sequence).put(rails).put(why.ok() ? "" : shortened(why.details().message));
      break;
    case Kind::refusal:
      packer.put(sequence)
          .put(static_cast<uint64_t>(why.code()))
          .put(shortened(why.details().message));
      break;
    case Kind::figures:
      packer.put(trial);
      for (int64_t number : {round, figures.plain, figures.encoded, figures.work, figures.time}) {
        packer.put(static_cast<uint64_t>(number));
      }
      break;
    case Kind::inquiry:
      packer.put(inquiry.number).put(static_cast<uint64_t>(inquiry.detail));
      packer.put(static_cast<uint64_t>(inquiry.occasion)).put(inquiry.sequence);
      break;
    case Kind::answer:
      packer.put(static_cast<uint64_t>(inquiry.asker)).put(inquiry.number);
      packer.put(static_cast<uint64_t>(rank)).put(part).put(parts).put(text);
      break;
    case Kind::silence:
      packer.put(static_cast<uint64_t>(about)).put(static_cast<uint64_t>(ended));
      break;
    case Kind::rail:
      packer.put(rail.network).put(rail.own).put(rail.other);
      packer.put(shortened(rail.words)).put(rail.left);
      break;
    case Kind::culprit:
      packer.put(sequence)
          .put(static_cast<uint64_t>(why.details().peer + 1))
          .put(shortened(why.details().message));
      break;
  }
  return packer.take();
}

News News::unpack(const std::string& bytes, int origin, int size) {
  Unpacker from(bytes);
  News news;
  news.kind = static_cast<Kind>(from.number());
  Status::Details details{};
  details.rank = details.peer = origin;
  switch (news.kind) {
    case Kind::failure:
      details.code = unpack_code(from.number());
      details.peer = unpack_peer(from, size);
      details.op = from.text();
      details.message = from.text();
      break;
    case Kind::stall:
      news.call = unpack_call(from.text());
      news.caller = from.text();
      break;
    case Kind::goodbye:
      news.sequence = from.number();
      news.rails = from.number();
      details.code = Code::invalid_argument;
      details.message = from.text();
      break;
    case Kind::refusal:
      news.sequence = from.number();
      details.code = unpack_code(from.number());
      details.message = from.text();
      break;
    case News::Kind::figures:
      news.trial = from.text();
      for (int64_t* number : {&news.round, &news.figures.plain, &news.figures.encoded,
                              &news.figures.work, &news.figures.time}) {
        *number = unpack_amount(from);
      }
      break;
    case Kind::inquiry:
      news.inquiry.asker = origin;
      news.inquiry.number = from.number();
      news.inquiry.detail = unpack_member(from, Inquiry::Detail::pace, "detail of an inquiry");
      news.inquiry.occasion =
          unpack_member(from, Inquiry::Occasion::timeout, "occasion of an inquiry");
      news.inquiry.sequence = from.number();
      break;
    case Kind::answer:
      news.inquiry.asker = unpack_rank(from, size);
      news.inquiry.number = from.number();
      news.rank = unpack_rank(from, size);
      news.part = from.number();
      news.parts = from.number();
      news.text = from.text();
      if (news.part >= news.parts || news.parts > kMostParts) {
        throw Error(
            Code::invalid_argument,
            "expected a part of at most " + std::to_string(kMostParts) + ", got another number");
      }
      break;
    case Kind::silence:
      news.about = unpack_rank(from, size);
      news.ended = from.number() != 0;
      break;
    case Kind::rail:
      news.rail = {from.text(), from.text(), from.text(), from.text(), from.text()};
      break;
    case Kind::culprit:
      news.sequence = from.number();
      details.code = Code::timeout;
      details.peer = unpack_peer(from, size);
      details.message = from.text();
      break;
    default:
      throw Error(Code::invalid_argument, "expected a kind of news from 0 to 9, got another");
  }
  from.end();
  const bool refused = news.kind == Kind::goodbye && !details.message.empty();
  if (refused || news.kind == Kind::failure || news.kind == Kind::refusal ||
      news.kind == Kind::culprit) {
    news.why = Status(std::move(details));
  }
  return news;
}

}  // namespace hetcomm
