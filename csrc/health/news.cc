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
      packer.put(hetcomm::pack(call));
      break;
    case Kind::goodbye:
      packer.put(sequence).put(why.ok() ? "" : shortened(why.details().message));
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
    case Kind::failure: {
      details.code = unpack_code(from.number());
      const uint64_t peer = from.number();
      if (peer > static_cast<uint64_t>(size)) {
        throw Error(Code::invalid_argument, "expected a rank of the group, got another number");
      }
      details.peer = static_cast<int>(peer) - 1;
      details.op = from.text();
      details.message = from.text();
      break;
    }
    case Kind::stall:
      news.call = unpack_call(from.text());
      break;
    case Kind::goodbye:
      news.sequence = from.number();
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
    default:
      throw Error(Code::invalid_argument, "expected a kind of news from 0 to 4, got another");
  }
  from.end();
  const bool refused = news.kind == Kind::goodbye && !details.message.empty();
  if (refused || news.kind == Kind::failure || news.kind == Kind::refusal) {
    news.why = Status(std::move(details));
  }
  return news;
}

}  // namespace hetcomm
