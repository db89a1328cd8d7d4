#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/params.h"

namespace latentd {

// Aborts unless the parts of a step's view have the sizes that CacheView promises.
void CheckView(const CacheLayer& layer, const CacheView& cache);

// Where the parts of a step's CacheView lie that sequences keep beside their blocks. Pure
// functions; i is an index into the step's sequences.

// CacheView::first_step_page of a step; the last entry is the number of pages that step_pages must
// hold. A sequence needs one for each page that its rows touch but the last.
std::vector<int32_t> StepPages(absl::Span<const int32_t> cu_q_lens,
                               absl::Span<const int32_t> kv_lens);

// The pages (position / 64) that the rows of sequence i touch: [first, last]. It must have rows.
struct PageRange {
  int64_t first = 0;
  int64_t last = 0;
};
PageRange PagesOfRows(const CacheView& cache, int64_t i);

// The own page `page` of sequence i, which its rows must touch: the last one in the seat, the
// others in step_pages. A block of layer.OwnPageLayer().
uint8_t* OwnPage(const CacheLayer& layer, const CacheView& cache, int64_t i, int64_t page);

// The exact sinks of sequence i: K [sinks][sink_dims] fp16, then V likewise.
uint16_t* Sinks(const CacheLayer& layer, const CacheView& cache, int64_t i);

}  // namespace latentd
