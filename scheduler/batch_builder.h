#pragma once

#include "engine/batch.h"
#include "scheduler/scheduler.h"

namespace latentd {

// The batch of a planned step: self-contained, in the plan's order, one sample for each sequence
// whose last token is computed. Blocks for all of the rows are in the sequences already.
Batch BuildBatch(const StepPlan& plan);

}  // namespace latentd
