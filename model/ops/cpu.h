// The instruction set in use, and the identity of the arithmetic.
//
// ONEDNN_MAX_CPU_ISA caps oneDNN and our own vector code alike.
#ifndef DINGHY_MODEL_OPS_CPU_H_
#define DINGHY_MODEL_OPS_CPU_H_

#include <string>

#include "absl/status/status.h"

namespace dinghy::ops {

// Reads the cap and limits Highway's targets to it. Call once at the start of main, before any other thread
// runs. INVALID_ARGUMENT for an unknown value of ONEDNN_MAX_CPU_ISA. Without the call there is no cap on our
// vector code.
absl::Status InitializeCpu();

// Every thread that creates or runs a primitive calls this first: one OpenMP thread, default MXCSR.
void PrepareThread();

// min(affinity, cgroup quota), at least 1.
int CpuBudget();

// CPU model and effective ISA. One line, readable.
std::string CpuDescription();

// Whether this CPU adds vectors in units of their own, beside its fused multiply-adds: AMD's do, Intel's take
// turns.
bool AddsBesideProducts();

// What decides the bits beside the bundle and the request: compiler and flags, kernel revision, oneDNN
// version, CPU model, effective ISA, Highway target. One line, readable.
std::string NumericsDescription();

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_CPU_H_
