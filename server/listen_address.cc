#include "server/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace latentd {
namespace {

// As gRPC binds: a port whose last connections are still closing is free, one with a listener is
// not.
bool CanBind(const addrinfo& address) {
  const int fd = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool bound = bind(fd, address.ai_addr, address.ai_addrlen) == 0;
  close(fd);
  return bound;
}

}  // namespace

absl::Status CheckListen(absl::string_view flag, const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == address.npos || colon == 0) return CannotListen(flag, address);
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) {
    return CannotListen(flag, address);
  }
  bool can = false;  // on one of them: so does gRPC
  for (const addrinfo* a = found; a != nullptr && !can; a = a->ai_next) can = CanBind(*a);
  freeaddrinfo(found);
  return can ? absl::OkStatus() : CannotListen(flag, address);
}

absl::Status CannotListen(absl::string_view flag, absl::string_view address) {
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": cannot listen on ", address,
                   ": the port is taken, or the address is not of this host"));
}

}  // namespace latentd
