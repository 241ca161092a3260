// main of the tests that run under more than one instruction set: as `dinghy` does, it lets
// ONEDNN_MAX_CPU_ISA cap our vector code too.
#include <gtest/gtest.h>

#include <cstdio>

#include "model/ops/cpu.h"

int main(int argc, char** argv) {
  if (const absl::Status status = dinghy::ops::InitializeCpu(); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  dinghy::ops::PrepareThread();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
