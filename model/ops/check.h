// CHECK for what must hold inside model/ops: a failed one is a bug in this program, so it ends the process.
#ifndef DINGHY_MODEL_OPS_CHECK_H_
#define DINGHY_MODEL_OPS_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define DINGHY_OPS_CHECK(condition)                                                      \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

#endif  // DINGHY_MODEL_OPS_CHECK_H_
