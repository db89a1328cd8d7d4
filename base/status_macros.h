#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// RETURN_IF_ERROR(expr): returns the Status of `expr` from the enclosing function unless it is OK.
#define RETURN_IF_ERROR(expr)                        \
  do {                                               \
    ::absl::Status latentd_status = (expr);          \
    if (!latentd_status.ok()) return latentd_status; \
  } while (false)

// ASSIGN_OR_RETURN(lhs, expr): assigns the value of a StatusOr, or returns its Status. A type with
// a comma in it needs an alias.
#define ASSIGN_OR_RETURN(lhs, expr) \
  LATENTD_ASSIGN_OR_RETURN_(LATENTD_CONCAT_(latentd_or_, __LINE__), lhs, expr)

#define LATENTD_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return std::move(tmp).status();  \
  lhs = *std::move(tmp)

#define LATENTD_CONCAT_(a, b) LATENTD_CONCAT_INNER_(a, b)
#define LATENTD_CONCAT_INNER_(a, b) a##b
