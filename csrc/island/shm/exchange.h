#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "island/island.h"
#include "island/shm/parts.h"
#include "island/shm/piece_list.h"

namespace hetcomm::shm {

// One kind of call as a sequence of rounds. In a round every member writes its data for the other
// members into its own slot. Once all have published, it reads its data from their slots. The
// layout of slots follows from the pieces alone, so slots hold nothing but data. Owned by a lane;
// one call at a time.
class Exchange {
 public:
  Exchange(int member, int members, int64_t slot_bytes)
      : member_(member), members_(members), slot_bytes_(slot_bytes) {}
  virtual ~Exchange() = default;

  // Lays out a call, which stays alive and unmoved until its rounds are over.
  virtual void prepare(const IslandCall& call) = 0;
  int64_t rounds() const { return rounds_; }
  // Rounds that must have been read before `round` can be published.
  virtual int64_t needs(int64_t round) const {
    (void)round;
    return 0;
  }
  // No round of the call writes beyond this many bytes of a slot.
  int64_t extent() const { return extent_; }
  virtual void publish(int64_t round, std::byte* slot) = 0;
  // slots[m] is the slot of member m.
  virtual void read(int64_t round, const std::byte* const* slots) = 0;

 protected:
  // Rounds for `bytes` in parts of `width`. An empty call has one round, to compare descriptors.
  void set_rounds(int64_t bytes, int64_t width) {
    rounds_ = bytes > width ? (bytes + width - 1) / width : 1;
  }
  // The size of `parts` equal parts of a slot: whole cache lines and so whole elements.
  int64_t part_of_slot(int64_t parts) const {
    return slot_bytes_ / (parts > 1 ? parts : 1) / kLine * kLine;
  }

  const int member_;
  const int members_;
  const int64_t slot_bytes_;
  int64_t rounds_ = 1;
  int64_t extent_ = 0;
};

// Target of every member = source of the owner. Round r moves [r * slot, (r + 1) * slot) of each
// owner's pieces.
class AllGather final : public Exchange {
 public:
  AllGather(int member, int members, int64_t slot_bytes);
  void prepare(const IslandCall& call) override;
  void publish(int64_t round, std::byte* slot) override;
  void read(int64_t round, const std::byte* const* slots) override;

 private:
  std::vector<PieceList> by_owner_;
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

  std::vector<PieceList> outgoing_;  // by receiver; this member's entry is a local copy
  std::vector<PieceList> incoming_;  // by sender
  std::vector<int64_t> bytes_;       // from x to
  std::vector<int64_t> width_;       // by sender: bytes of its slot for each receiver
  std::vector<int64_t> offset_;      // by sender: where its slot holds this member's part
};

// Reduces `bytes` at the sources of all members into `target`, in member order.
void reduce_all(const IslandCall& call, std::byte* target, const std::vector<const void*>& sources,
                int64_t bytes);

// Calls that reduce. Members are combined in member order, whichever member does it, so the bits
// are the same everywhere.
class Reducing : public Exchange {
 public:
  Reducing(int member, int members, int64_t slot_bytes);

 protected:
  // Reduces [begin, end) of `list`. others[m] holds member m's sources of that range; this member's
  // are in user memory. Results go to target(piece, offset in the piece, offset from begin).
  template <typename Target>
  void combine(const PieceList& list, int64_t begin, int64_t end, const std::byte* const* others,
               Target target);

  const IslandCall* call_ = nullptr;
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
  // Where the slot of `from` holds the part for `owner`. Parts are in the order of owners, without
  // one for `from` itself.
  int64_t offset(int from, int owner) const;

  std::vector<PieceList> by_owner_;
  std::vector<int> position_;  // by owner: how many owners come before it
  int64_t width_ = 0;
};

// Target of every member = reduction of the sources of all members. In a small call every member
// publishes everything and reduces everything, a slot in a round. A large call goes by chunks, and
// member j reduces the j-th part of each chunk. While members gather chunk i, chunk i + 1 is
// already published for reduction. Large results go past the caches to targets that are not
// sources. A member then keeps a copy of its reduced part until it publishes the part.
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

  PieceList pieces_;
  bool small_ = true;
  bool past_caches_ = false;
  std::vector<std::byte> kept_[2];  // of two chunks: this member's reduced part, until published
  int64_t width_ = 0;               // of the largest part
  int64_t chunk_ = 0;               // bytes
  int64_t chunks_ = 0;
};

}  // namespace hetcomm::shm
