#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "island/island.h"
#include "island/shm/parts.h"
#include "island/shm/stream.h"

namespace hetcomm::shm {

// One kind of call as a sequence of rounds. In a round every member puts what it has for the others
// into a slot of its own, and once all have published theirs, takes what is for it. What goes where
// follows from the pieces alone, so that nothing but data is read from the slots. Owned by a lane;
// one call at a time.
class Exchange {
 public:
  Exchange(int member, int members, int64_t slot_bytes)
      : member_(member), members_(members), slot_bytes_(slot_bytes) {}
  virtual ~Exchange() = default;

  // Lays out a call, which stays alive and unmoved until its rounds are over.
  virtual void prepare(const IslandCall& call) = 0;
  int64_t rounds() const { return rounds_; }
  // How many rounds must have been read before `round` can be published.
  virtual int64_t needs(int64_t round) const {
    (void)round;
    return 0;
  }
  // Bytes at the beginning of a slot beyond which no round of the call writes.
  int64_t extent() const { return extent_; }
  virtual void publish(int64_t round, std::byte* slot) = 0;
  // slots[m] is the slot of member m.
  virtual void read(int64_t round, const std::byte* const* slots) = 0;

 protected:
  // Rounds that carry `bytes` by `width` each; even an empty call has one, to compare descriptors.
  void set_rounds(int64_t bytes, int64_t width) {
    rounds_ = bytes > width ? (bytes + width - 1) / width : 1;
  }
  // `parts` equal parts of a slot, each a whole number of cache lines and so of elements.
  int64_t part_of_slot(int64_t parts) const {
    return slot_bytes_ / (parts > 1 ? parts : 1) / kLine * kLine;
  }

  const int member_;
  const int members_;
  const int64_t slot_bytes_;
  int64_t rounds_ = 1;
  int64_t extent_ = 0;
};

// Target of every member = source of the owner. Round r carries [r * slot, (r + 1) * slot) of each
// owner's pieces.
class AllGather final : public Exchange {
 public:
  AllGather(int member, int members, int64_t slot_bytes);
  void prepare(const IslandCall& call) override;
  void publish(int64_t round, std::byte* slot) override;
  void read(int64_t round, const std::byte* const* slots) override;

 private:
  std::vector<Stream> streams_;  // by owner
};

// Target of `to` = source of `from`. A sender's slot is divided equally among its receivers.
class AllToAll final : public Exchange {
 public:
  AllToAll(int member, int members, int64_t slot_bytes);
  void prepare(const IslandCall& call) override;
  void publish(int64_t round, std::byte* slot) override;
  void read(int64_t round, const std::byte* const* slots) override;

 private:
  int64_t& bytes(int from, int to) { return bytes_[size_t(from) * members_ + to]; }

  std::vector<Stream> outgoing_;  // by receiver; this member's own is the local copy
  std::vector<Stream> incoming_;  // by sender
  std::vector<int64_t> bytes_;    // from x to
  std::vector<int64_t> width_;    // by sender: of one receiver's part of its slot
  std::vector<int64_t> offset_;   // by sender: of this member's part in its slot
};

// One range of a reducing call: `bytes` at the sources of all members, in member order.
void reduce_all(const IslandCall& call, std::byte* target, const std::vector<const void*>& sources,
                int64_t bytes);

// What reduces: combines one range of a stream over all members, in member order whoever does it,
// so that the bits are the same everywhere.
class Reducing : public Exchange {
 public:
  Reducing(int member, int members, int64_t slot_bytes);

 protected:
  // others[m] holds member m's sources of [begin, end); this member's are in user memory.
  void combine(const Stream& stream, int64_t begin, int64_t end, const std::byte* const* others);
  // The same into `out`, instead of the targets.
  void combine(const Stream& stream, int64_t begin, int64_t end, const std::byte* const* others,
               std::byte* out);

  const IslandCall* call_ = nullptr;
  size_t element_bytes_ = 1;
  std::vector<const std::byte*> parts_;  // scratch of read(), by member

 private:
  std::vector<const void*> sources_;
};

// Target of `to` = reduction of the sources of all members. A slot is divided among the owners.
class ReduceScatter final : public Reducing {
 public:
  ReduceScatter(int member, int members, int64_t slot_bytes);
  void prepare(const IslandCall& call) override;
  void publish(int64_t round, std::byte* slot) override;
  void read(int64_t round, const std::byte* const* slots) override;

 private:
  // Where in its slot `from` puts what `owner` reduces: owners but for itself, in order.
  int64_t offset(int from, int owner) const;

  std::vector<Stream> streams_;  // by owner
  std::vector<int> position_;    // by owner: how many owners come before it
  int64_t width_ = 0;
};

// Target of every member = reduction of the sources of all members. Small: everyone publishes
// everything and reduces it, a slot in a round. Large: by chunks, of which member j reduces the
// j-th part; while chunk i is gathered, chunk i + 1 is already published to be reduced. Results
// beyond the caches go past them to targets that are not sources; what is to be gathered is then
// kept.
class AllReduce final : public Reducing {
 public:
  AllReduce(int member, int members, int64_t slot_bytes);
  void prepare(const IslandCall& call) override;
  int64_t needs(int64_t round) const override;
  void publish(int64_t round, std::byte* slot) override;
  void read(int64_t round, const std::byte* const* slots) override;

 private:
  // Rounds: reduce 0, reduce 1, gather 0, reduce 2, gather 1, ... gather last.
  struct Stage {
    bool gathers;
    int64_t chunk;
  };
  Stage stage(int64_t round) const;
  Bounds part(int64_t chunk, int owner) const;
  int64_t offset(int from, int owner) const { return (owner - (owner > from)) * width_; }

  Stream stream_;
  bool small_ = true;
  bool past_caches_ = false;
  std::vector<std::byte> kept_[2];  // by chunk: this member's reduced part, until it is published
  int64_t width_ = 0;               // of the largest part
  int64_t chunk_ = 0;               // bytes
  int64_t chunks_ = 0;
};

}  // namespace hetcomm::shm
