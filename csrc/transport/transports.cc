#include "transport/transports.h"

namespace hetcomm {

Transports::Transports(std::unique_ptr<Transport> main, MakeTransports make,
                       std::function<void(int)> watch)
    : main_(std::move(main)), make_(std::move(make)), watch_(std::move(watch)) {
  if (main_) watch_(main_->event_fd());
}

Transports::~Transports() { over_.clear(); }  // before the rails, which keep their requests

Transport* Transports::over_ip() {
  if (main_ == nullptr || !make_.over_ip) return main_.get();
  if (!over_ip_) {
    auto made = make_.over_ip();
    watch_(made->event_fd());
    over_ip_ = std::move(made);
  }
  return over_ip_.get();
}

Transport* Transports::over(const std::string& interface) {
  if (const auto found = over_.find(interface); found != over_.end()) return found->second.get();
  auto made = make_.over(interface);
  watch_(made->event_fd());
  return (over_[interface] = std::move(made)).get();
}

Transport* Transports::rails(const Nics& nics, uint64_t mark) {
  if (const auto found = rails_.find(nics); found != rails_.end()) return found->second.get();
  std::vector<RailTransport> rails;
  for (const auto& [interface, bandwidth] : nics) rails.push_back({over(interface), bandwidth});
  auto made = make_rails(std::move(rails), mark);
  return (rails_[nics] = std::move(made)).get();
}

bool Transports::progress() {
  bool moved = main_ && main_->progress();
  if (over_ip_) moved |= over_ip_->progress();
  for (const auto& [nics, transport] : rails_) moved |= transport->progress();
  return moved;
}

bool Transports::prepare_to_sleep() {
  bool ready = (!main_ || main_->prepare_to_sleep()) && (!over_ip_ || over_ip_->prepare_to_sleep());
  for (const auto& [nics, transport] : rails_) ready = ready && transport->prepare_to_sleep();
  return ready;
}

}  // namespace hetcomm
