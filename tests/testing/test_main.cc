// main for tests that run arithmetic: the instruction set is capped before the first test, as the server does
// it.
#include <gtest/gtest.h>

#include <iostream>

#include "model/ops/cpu.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const absl::Status status = dinghy::ops::InitializeCpu(); !status.ok()) {
    std::cerr << status << "\n";
    return 1;
  }
  dinghy::ops::PrepareThread();
  return RUN_ALL_TESTS();
}
