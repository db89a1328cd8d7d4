#include "server/metrics_page.h"

#include <chrono>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "civetweb.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/listen_address.h"
#include "server/process_metrics.h"

namespace latentd {
namespace {

int Answer(mg_connection* connection, int code, const char* type, const std::string& body) {
  mg_response_header_start(connection, code);
  mg_response_header_add(connection, "Content-Type", type, -1);
  mg_response_header_add(connection, "Content-Length", absl::StrCat(body.size()).c_str(), -1);
  mg_response_header_send(connection);
  mg_write(connection, body.data(), body.size());
  return code;  // tells civetweb that the request is answered
}

int AnswerProbe(mg_connection* connection, const absl::Status& status) {
  const std::string body = status.ok() ? "ok\n" : absl::StrCat(status.message(), "\n");
  return Answer(connection, status.ok() ? 200 : 503, "text/plain; charset=utf-8", body);
}

// Ends the page's threads. civetweb looks whether it shall end every 2 s and when somebody
// connects, so we do.
void Stop(mg_context* context, const std::string& host, int port) {
  std::future<void> stopped = std::async(std::launch::async, [context] { mg_stop(context); });
  while (stopped.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) {
    char error[64];
    if (mg_connection* knock =
            mg_connect_client(host.c_str(), port, /*use_ssl=*/0, error, sizeof(error))) {
      mg_close_connection(knock);
    }
  }
}

}  // namespace

struct MetricsPage::Parts {
  ~Parts() {
    if (context != nullptr) Stop(context, host, port);
    mg_exit_library();
  }

  prometheus::Registry* registry = nullptr;
  Probes probes;
  mg_context* context = nullptr;
  std::string host;  // without the brackets of IPv6
  int port = 0;
  std::string address;
};

absl::StatusOr<std::unique_ptr<MetricsPage>> MetricsPage::Start(const std::string& listen,
                                                                prometheus::Registry* registry,
                                                                Probes probes) {
  mg_init_library(0);
  auto parts = std::make_unique<Parts>();
  parts->registry = registry;
  parts->probes = std::move(probes);
  const char* options[] = {"listening_ports",          listen.c_str(), "num_threads", "2",
                           "enable_directory_listing", "no",           nullptr};
  const mg_callbacks callbacks = {};
  mg_init_data start = {.callbacks = &callbacks, .configuration_options = options};
  char reason[256] = "";
  mg_error_data error = {.text = reason, .text_buffer_size = sizeof(reason)};
  parts->context = mg_start2(&start, &error);
  if (parts->context == nullptr) {
    RETURN_IF_ERROR(CheckListen("--metrics-listen", listen));  // which says the usual reasons
    return absl::InternalError(absl::StrCat("--metrics-listen: no page on ", listen, ": ", reason));
  }
  mg_server_port port = {};
  mg_get_server_ports(parts->context, 1, &port);
  const std::string host = listen.substr(0, listen.rfind(':'));
  parts->host = host.front() == '[' ? host.substr(1, host.size() - 2) : host;
  parts->port = port.port;
  parts->address = absl::StrCat(host, ":", port.port);

  mg_set_request_handler(
      parts->context, "/metrics",
      [](mg_connection* connection, void* data) {
        auto* self = static_cast<Parts*>(data);
        self->probes.before_metrics();
        std::vector<prometheus::MetricFamily> families = self->registry->Collect();
        AppendProcessMetrics(&families);
        return Answer(connection, 200, "text/plain; version=0.0.4; charset=utf-8",
                      prometheus::TextSerializer().Serialize(families));
      },
      parts.get());
  mg_set_request_handler(
      parts->context, "/livez",
      [](mg_connection* connection, void* data) {
        return AnswerProbe(connection, static_cast<Parts*>(data)->probes.live());
      },
      parts.get());
  mg_set_request_handler(
      parts->context, "/readyz",
      [](mg_connection* connection, void* data) {
        return AnswerProbe(connection, static_cast<Parts*>(data)->probes.ready());
      },
      parts.get());
  return std::unique_ptr<MetricsPage>(new MetricsPage(std::move(parts)));
}

MetricsPage::MetricsPage(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
MetricsPage::~MetricsPage() = default;

const std::string& MetricsPage::address() const { return parts_->address; }

}  // namespace latentd
