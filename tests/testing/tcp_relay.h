#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "base/mutex.h"

namespace latentd {

// Forwards TCP connections to a server on this host, until told to misbehave. Thread-safe.
class TcpRelay {
 public:
  explicit TcpRelay(const std::string& target);  // HOST:PORT
  ~TcpRelay();

  const std::string& address() const { return address_; }

  // Ends every connection with a RST to both sides; later ones work.
  void Reset();

  // From now on nothing is forwarded, and nothing is closed: the peers see a network that is gone.
  void Freeze();

 private:
  struct Connection {
    int client = -1;
    int server = -1;
  };
  void Run();

  const std::string target_;
  std::string address_;
  int listener_ = -1;
  int wake_ = -1;  // an eventfd: the flags below changed

  Mutex mu_;
  bool reset_ ABSL_GUARDED_BY(mu_) = false;
  bool frozen_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  std::vector<Connection> connections_;  // the thread's
  std::thread thread_;
};

}  // namespace latentd
