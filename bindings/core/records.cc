#include <pybind11/pybind11.h>

#include <map>
#include <string>

#include "bootstrap/connect.h"
#include "bootstrap/member.h"
#include "bootstrap/sealed_store.h"
#include "core/binding.h"
#include "health/group_state.h"
#include "health/news.h"
#include "health/pace.h"
#include "health/path_rates.h"
#include "health/session.h"
#include "transport/link_offers.h"

namespace py = pybind11;

namespace hetcomm {
namespace {

constexpr int kRanks = 4;  // of the group that the records come from

void answer_greeting(const std::string& bytes) {
  Session session = Session::accepting("key", 0);
  if (bytes.size() >= session.awaited())
    session.advance(bytes.substr(0, session.awaited()), kRanks);
}

void open_value(const std::string& bytes) {
  LocalStore store;
  const Deadline bound(std::chrono::seconds(1));
  store.set("key", bytes, bound);
  SealedStore(store, 0).get("key", bound);
}

// Judges a group whose ranks all tell this state. The clocks of two of them differ.
void judge_state(const std::string& bytes) {
  GroupState state{.places = std::vector<RankPlace>(kRanks),
                   .answers = {},
                   .silent = std::vector<std::string>(kRanks)};
  GroupState::Answer answer{.state = RankState::unpack(bytes, kRanks)};
  for (int rank = 0; rank < kRanks; ++rank) {
    answer.offset = rank < 2 ? 0 : rank - answer.state.now;
    answer.error = rank;
    state.answers.emplace_back(answer);
  }
  diagnosis(state);
  chrome_trace({state});
  slowest_path(state);
  if (const auto found = straggler(state)) found->text(state);
  slow_collective(state, [](Collective, Dtype, int64_t) { return 1; });
}

// What reads the bytes of other ranks in set-up and in health.
using Reader = void (*)(const std::string&);
const std::map<std::string, Reader>& readers() {
  static const auto* all = new std::map<std::string, Reader>{
      {"news", [](const std::string& bytes) { unpack_news(bytes, 1, kRanks); }},
      {"state of a rank", judge_state},
      {"member", [](const std::string& bytes) { Member::unpack(bytes); }},
      {"connect info", [](const std::string& bytes) { ConnectInfo::unpack(bytes); }},
      {"link offers",
       [](const std::string& bytes) {
         const LinkOffers offers = LinkOffers::unpack(bytes, kRanks);
         for (int peer = 0; peer < kRanks; ++peer) static_cast<void>(offers[peer].size());
       }},
      {"link addresses", [](const std::string& bytes) { LinkEnd().add_addresses(bytes); }},
      {"greeting", answer_greeting},
      {"store value", open_value},
  };
  return *all;
}

void bind_records(py::module_& module) {
  module.def("record_kinds", [] {
    py::list kinds;
    for (const auto& [kind, reader] : readers()) kinds.append(kind);
    return kinds;
  });
  module.def(
      "read_record",
      [](const std::string& kind, const std::string& bytes) { readers().at(kind)(bytes); },
      py::arg("kind"), py::arg("bytes"),
      "Reads the bytes of another rank, as set-up and health do; for tests of hostile bytes.");
}

const Binding records_binding(40, bind_records);

}  // namespace
}  // namespace hetcomm
