#include "health/news.h"

#include <algorithm>
#include <cstring>
#include <utility>

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

// The bytes of a record, and the rank and the group that the record comes from.
struct NewsUnpacker : Unpacker {
  int origin, group_size;

  // A number of bytes, ns, rounds or calls. Sums of the parts of 32 children do not overflow.
  int64_t amount() {
    const uint64_t value = number();
    if (value <= INT64_MAX / 64) return static_cast<int64_t>(value);
    throw Error(Code::invalid_argument,
                "expected a number of bytes, ns, rounds or calls, got " + std::to_string(value));
  }
  int rank() { return member_rank(number()); }
  int member_rank(uint64_t rank) const {
    if (rank < static_cast<uint64_t>(group_size)) return static_cast<int>(rank);
    throw Error(Code::invalid_argument, "expected a rank of the group, got another number");
  }
  // A rank plus one; 0 for none.
  int peer() {
    const uint64_t peer = number();
    if (peer <= static_cast<uint64_t>(group_size)) return static_cast<int>(peer) - 1;
    throw Error(Code::invalid_argument, "expected a rank of the group, got another number");
  }
  // A member of an enumeration, whose last is `last`.
  template <class Enum>
  Enum member(Enum last, const char* what) {
    const uint64_t value = number();
    if (value <= static_cast<uint64_t>(last)) return static_cast<Enum>(value);
    throw Error(Code::invalid_argument,
                "expected the " + std::string(what) + ", got " + std::to_string(value));
  }
  Code code() {
    const uint64_t value = number();
    if (value > 0 && value <= static_cast<uint64_t>(Code::peer_failed)) {
      return static_cast<Code>(value);
    }
    throw Error(Code::invalid_argument,
                "expected the code of an error, got " + std::to_string(value));
  }
};

// Each kind of news has a put() and a get(), with the same order of values.

void put(Packer& to, const FailureNews& news) {
  const Status::Details& why = news.why.details();
  to.put(static_cast<uint64_t>(why.code)).put(static_cast<uint64_t>(why.peer + 1));
  to.put(shortened(why.op)).put(shortened(why.message));
  // A bit for each rank, because a frame has no room for the numbers of thousands.
  std::string failed;
  for (int rank : why.failed) {
    failed.resize(std::max<size_t>(failed.size(), rank / 8 + 1));
    failed[rank / 8] = static_cast<char>(failed[rank / 8] | 1 << rank % 8);
  }
  to.put(failed);
}

void get(NewsUnpacker& from, FailureNews& news) {
  Status::Details why{};
  why.rank = from.origin;
  why.code = from.code();
  why.peer = from.peer();
  why.op = from.text();
  why.message = from.text();
  const std::string failed = from.text();
  for (size_t rank = 0; rank < 8 * failed.size(); ++rank) {
    if ((failed[rank / 8] >> rank % 8 & 1) != 0) why.failed.push_back(from.member_rank(rank));
  }
  news.why = Status(std::move(why));
}

void put(Packer& to, const StallNews& news) {
  to.put(std::string(reinterpret_cast<const char*>(&news.call), sizeof news.call));
  to.put(shortened(news.caller));
}

void get(NewsUnpacker& from, StallNews& news) {
  const std::string bytes = from.text();
  if (bytes.size() != sizeof news.call) {
    throw Error(Code::invalid_argument, "expected a call of " + std::to_string(sizeof news.call) +
                                            " bytes, got " + std::to_string(bytes.size()));
  }
  std::memcpy(&news.call, bytes.data(), sizeof news.call);
  news.caller = from.text();
}

void put(Packer& to, const GoodbyeNews& news) {
  to.put(news.calls).put(news.rails).put(shortened(news.refusal));
}

void get(NewsUnpacker& from, GoodbyeNews& news) {
  news.calls = from.number();
  news.rails = from.number();
  news.refusal = from.text();
}

void put(Packer& to, const RefusalNews& news) {
  to.put(news.sequence).put(static_cast<uint64_t>(news.why.code()));
  to.put(shortened(news.why.details().message));
}

void get(NewsUnpacker& from, RefusalNews& news) {
  Status::Details why{};
  why.rank = why.peer = from.origin;
  news.sequence = from.number();
  why.code = from.code();
  why.message = from.text();
  news.why = Status(std::move(why));
}

void put(Packer& to, const FiguresNews& news) {
  const CodecFigures& figures = news.figures;
  to.put(news.trial);
  for (int64_t number : {news.round, figures.plain, figures.encoded, figures.work, figures.time}) {
    to.put(static_cast<uint64_t>(number));
  }
}

void get(NewsUnpacker& from, FiguresNews& news) {
  CodecFigures& figures = news.figures;
  news.trial = from.text();
  for (int64_t* number :
       {&news.round, &figures.plain, &figures.encoded, &figures.work, &figures.time}) {
    *number = from.amount();
  }
}

void put(Packer& to, const Inquiry& news) {
  to.put(news.number).put(static_cast<uint64_t>(news.detail));
  to.put(static_cast<uint64_t>(news.occasion)).put(news.sequence);
}

void get(NewsUnpacker& from, Inquiry& news) {
  news.asker = from.origin;
  news.number = from.number();
  news.detail = from.member(Inquiry::Detail::presence, "detail of an inquiry");
  news.occasion = from.member(Inquiry::Occasion::timeout, "occasion of an inquiry");
  news.sequence = from.number();
}

void put(Packer& to, const AnswerNews& news) {
  to.put(static_cast<uint64_t>(news.asker)).put(news.number);
  to.put(static_cast<uint64_t>(news.rank)).put(news.part).put(news.parts).put(news.text);
}

void get(NewsUnpacker& from, AnswerNews& news) {
  news.asker = from.rank();
  news.number = from.number();
  news.rank = from.rank();
  news.part = from.number();
  news.parts = from.number();
  news.text = from.text();
  if (news.part < news.parts && news.parts <= kMostParts) return;
  throw Error(Code::invalid_argument,
              "expected a part of at most " + std::to_string(kMostParts) + ", got another number");
}

void put(Packer& to, const SilenceNews& news) {
  to.put(static_cast<uint64_t>(news.rank)).put(static_cast<uint64_t>(news.ended));
}

void get(NewsUnpacker& from, SilenceNews& news) {
  news.rank = from.rank();
  news.ended = from.number() != 0;
}

void put(Packer& to, const RailEnds& news) {
  to.put(news.network).put(news.own).put(news.other);
  to.put(shortened(news.words)).put(news.left);
}

void get(NewsUnpacker& from, RailEnds& news) {
  news = {from.text(), from.text(), from.text(), from.text(), from.text()};
}

void put(Packer& to, const CulpritNews& news) {
  const Status::Details& why = news.why.details();
  to.put(news.sequence).put(static_cast<uint64_t>(why.peer + 1)).put(shortened(why.message));
}

void get(NewsUnpacker& from, CulpritNews& news) {
  Status::Details why{};
  why.code = Code::timeout;
  why.rank = from.origin;
  news.sequence = from.number();
  why.peer = from.peer();
  why.message = from.text();
  news.why = Status(std::move(why));
}

void put(Packer& to, const FirstCallNews& news) {
  to.put(static_cast<uint64_t>(news.rail)).put(static_cast<uint64_t>(news.call));
}

void get(NewsUnpacker& from, FirstCallNews& news) {
  news.rail = from.amount();
  news.call = from.amount();
}

void put(Packer& to, const LossNews& news) {
  to.put(static_cast<uint64_t>(news.rank)).put(news.silence);
}

void get(NewsUnpacker& from, LossNews& news) {
  news.rank = from.rank();
  news.silence = static_cast<uint64_t>(from.amount());
}

// The number of a kind is its place among the alternatives of News.
template <size_t... kinds>
News get_kind(uint64_t kind, NewsUnpacker& from, std::index_sequence<kinds...>) {
  News news;
  const bool known = ((kind == kinds && (get(from, news.emplace<kinds>()), true)) || ...);
  if (known) return news;
  throw Error(Code::invalid_argument, "expected a kind of news below " +
                                          std::to_string(sizeof...(kinds)) + ", got " +
                                          std::to_string(kind));
}

}  // namespace

std::string pack(const News& news) {
  Packer to;
  to.put(static_cast<uint64_t>(news.index()));
  std::visit([&](const auto& one) { put(to, one); }, news);
  return to.take();
}

News unpack_news(const std::string& bytes, int origin, int size) {
  NewsUnpacker from{Unpacker(bytes), origin, size};
  const uint64_t kind = from.number();
  News news = get_kind(kind, from, std::make_index_sequence<std::variant_size_v<News>>());
  from.end();
  return news;
}

}  // namespace hetcomm
