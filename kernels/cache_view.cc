#include "kernels/cache_view.h"

#include "base/check.h"

namespace latentd {
namespace {

uint8_t* Seat(const CacheLayer& layer, const CacheView& cache, int64_t i) {
  return cache.seats + cache.seat_of[i] * layer.sequence_bytes();
}

PageRange Pages(int64_t rows, int64_t kv_len) {
  LATENTD_CHECK(0 < rows && rows <= kv_len);
  return {.first = (kv_len - rows) / kBlockTokens, .last = (kv_len - 1) / kBlockTokens};
}

}  // namespace

void CheckView(const CacheLayer& layer, const CacheView& cache) {
  const size_t sequences = cache.kv_lens.size();
  LATENTD_CHECK(cache.block_bytes == layer.block_bytes());
  LATENTD_CHECK(cache.cu_q_lens.size() == sequences + 1 && cache.cu_q_lens[0] == 0);
  LATENTD_CHECK(cache.block_table.size() >= sequences * cache.max_blocks);
  for (size_t i = 0; i < sequences; ++i) {
    const int32_t q_len = cache.cu_q_lens[i + 1] - cache.cu_q_lens[i];
    LATENTD_CHECK(q_len >= 0 && q_len <= cache.kv_lens[i]);
    LATENTD_CHECK(cache.kv_lens[i] <= cache.max_blocks * kBlockTokens);
  }
  if (layer.sequence_bytes() > 0) {
    LATENTD_CHECK(cache.seats != nullptr && cache.seat_of.size() == sequences);
  }
  if (layer.own_page) LATENTD_CHECK(cache.first_step_page.size() == sequences + 1);
}

std::vector<int32_t> StepPages(absl::Span<const int32_t> cu_q_lens,
                               absl::Span<const int32_t> kv_lens) {
  std::vector<int32_t> first(kv_lens.size() + 1, 0);
  for (size_t i = 0; i < kv_lens.size(); ++i) {
    const int32_t rows = cu_q_lens[i + 1] - cu_q_lens[i];
    first[i + 1] = first[i];
    if (rows == 0) continue;
    const PageRange pages = Pages(rows, kv_lens[i]);
    first[i + 1] += static_cast<int32_t>(pages.last - pages.first);
  }
  return first;
}

PageRange PagesOfRows(const CacheView& cache, int64_t i) {
  return Pages(cache.cu_q_lens[i + 1] - cache.cu_q_lens[i], cache.kv_lens[i]);
}

uint8_t* OwnPage(const CacheLayer& layer, const CacheView& cache, int64_t i, int64_t page) {
  const PageRange pages = PagesOfRows(cache, i);
  LATENTD_CHECK(pages.first <= page && page <= pages.last);
  if (page == pages.last) return Seat(layer, cache, i) + layer.sink_bytes();
  const int64_t index = cache.first_step_page[i] + page - pages.first;
  return cache.step_pages + index * layer.own_page_bytes();
}

uint16_t* Sinks(const CacheLayer& layer, const CacheView& cache, int64_t i) {
  return reinterpret_cast<uint16_t*>(Seat(layer, cache, i));
}

}  // namespace latentd
