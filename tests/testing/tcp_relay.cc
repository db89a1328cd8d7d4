#include "tests/testing/tcp_relay.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace latentd {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

int ConnectTo(const std::string& target) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(std::stoi(target.substr(target.rfind(':') + 1)));
  LATENTD_CHECK(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  return fd;
}

// Closing with a linger of 0 sends a RST.
void ResetAndClose(int fd) {
  const linger none = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  close(fd);
}

// Forwards what is there; false when the connection is over.
bool Forward(int from, int to) {
  char buffer[65536];
  const ssize_t size = recv(from, buffer, sizeof(buffer), 0);
  return size > 0 && send(to, buffer, size, MSG_NOSIGNAL) == size;
}

}  // namespace

TcpRelay::TcpRelay(const std::string& target) : target_(target) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  LATENTD_CHECK(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  LATENTD_CHECK(listen(listener_, 64) == 0);
  socklen_t size = sizeof(address);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  wake_ = eventfd(0, EFD_CLOEXEC);
  thread_ = std::thread([this] { Run(); });
}

TcpRelay::~TcpRelay() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  eventfd_write(wake_, 1);
  thread_.join();
  for (const Connection& c : connections_) {
    close(c.client);
    close(c.server);
  }
  close(listener_);
  close(wake_);
}

void TcpRelay::Reset() {
  {
    MutexLock lock(&mu_);
    reset_ = true;
  }
  eventfd_write(wake_, 1);
}

void TcpRelay::Freeze() {
  {
    MutexLock lock(&mu_);
    frozen_ = true;
  }
  eventfd_write(wake_, 1);
}

void TcpRelay::Run() {
  bool frozen = false;
  for (;;) {
    std::vector<pollfd> fds = {{wake_, POLLIN, 0}};
    if (!frozen) {
      fds.push_back({listener_, POLLIN, 0});
      for (const Connection& c : connections_) {
        fds.push_back({c.client, POLLIN, 0});
        fds.push_back({c.server, POLLIN, 0});
      }
    }
    poll(fds.data(), fds.size(), -1);
    bool reset = false;
    if (fds[0].revents != 0) {
      eventfd_t count;
      eventfd_read(wake_, &count);
      MutexLock lock(&mu_);
      if (stopping_) return;
      frozen = frozen_;
      std::swap(reset, reset_);
    }
    if (frozen) continue;
    std::vector<Connection> open;
    for (size_t i = 0; i < connections_.size(); ++i) {
      const Connection& c = connections_[i];
      const bool from_client = fds[2 + 2 * i].revents != 0,
                 from_server = fds[3 + 2 * i].revents != 0;
      if (reset || (from_client && !Forward(c.client, c.server)) ||
          (from_server && !Forward(c.server, c.client))) {
        ResetAndClose(c.client);
        ResetAndClose(c.server);
      } else {
        open.push_back(c);
      }
    }
    connections_ = std::move(open);
    if (fds[1].revents != 0) {
      const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client >= 0) connections_.push_back({client, ConnectTo(target_)});
    }
  }
}

}  // namespace latentd
