#include "kernels/cpu/embed.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/kernels/cpu/random_weight.h"

namespace latentd {
namespace {

TEST(CpuEmbed, IsTheReference) {
  const auto reference = CreateReferenceOps();
  ThreadPool pool(2);
  for (DType dtype : kAllDTypes) {
    const RandomWeight table(dtype, 20, 256, 1), position_table(DType::kF32, 30, 256, 2);
    std::vector<int32_t> ids, positions;
    for (int t = 0; t < 18; ++t) {
      ids.push_back(t * 7 % 20);
      positions.push_back(t * 11 % 30);
    }
    for (bool with_positions : {false, true}) {
      std::vector<float> want(18 * 256), out(18 * 256);
      EmbedParams p{.token_ids = ids,
                    .positions = positions,
                    .table = table.view(),
                    .position_table = with_positions ? &position_table.view() : nullptr,
                    .out = want.data()};
      reference->Embed(p);
      p.out = out.data();
      CpuEmbed(pool, p);
      EXPECT_EQ(out, want) << Info(dtype).name;
    }
  }
}

}  // namespace
}  // namespace latentd
