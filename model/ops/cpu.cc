#include "model/ops/cpu.h"

#include <omp.h>

#include <array>
#include <cstdlib>
#include <dnnl.hpp>
#include <fstream>
#include <map>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "hwy/targets.h"
#include "model/ops/bf16.h"
#include "model/ops/vector_math.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace dinghy::ops {
namespace {

// Raise by hand whenever a change of the arithmetic here or in model/layers changes bits.
constexpr int kKernelRevision = 7;

// What oneDNN 2.6 and 3.x accept, and the most that Highway may use under it.
enum class VectorCap { kBaseline, kAvx2, kNone };
struct IsaName {
  absl::string_view name;
  VectorCap cap;
};
constexpr std::array kIsaNames = {
    IsaName{"SSE41", VectorCap::kBaseline},
    IsaName{"AVX", VectorCap::kBaseline},
    IsaName{"AVX2", VectorCap::kAvx2},
    IsaName{"AVX2_VNNI", VectorCap::kAvx2},
    IsaName{"AVX2_VNNI_2", VectorCap::kAvx2},
    IsaName{"AVX512_CORE", VectorCap::kNone},
    IsaName{"AVX512_CORE_VNNI", VectorCap::kNone},
    IsaName{"AVX512_CORE_BF16", VectorCap::kNone},
    IsaName{"AVX512_CORE_FP16", VectorCap::kNone},
    IsaName{"AVX512_CORE_AMX", VectorCap::kNone},
    IsaName{"AVX512_CORE_AMX_FP16", VectorCap::kNone},
    IsaName{"AVX10_1_512", VectorCap::kNone},
    IsaName{"AVX10_1_512_AMX", VectorCap::kNone},
    IsaName{"AVX10_1_512_AMX_FP16", VectorCap::kNone},
    IsaName{"ALL", VectorCap::kNone},
    IsaName{"DEFAULT", VectorCap::kNone},
};

std::string EffectiveIsa() {
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  switch (isa) {
    case dnnl::cpu_isa::sse41:
      return "SSE41";
    case dnnl::cpu_isa::avx:
      return "AVX";
    case dnnl::cpu_isa::avx2:
      return "AVX2";
    case dnnl::cpu_isa::avx2_vnni:
      return "AVX2_VNNI";
    case dnnl::cpu_isa::avx512_core:
      return "AVX512_CORE";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "AVX512_CORE_VNNI";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "AVX512_CORE_BF16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "AVX512_CORE_AMX";
    default:
      return absl::StrCat("isa ", static_cast<int>(isa));
  }
}

// The name alone says too little: a virtual machine may hide the model behind it.
std::string CpuModel() {
  std::map<std::string, std::string> fields;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && !line.empty();) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    fields[std::string(absl::StripAsciiWhitespace(line.substr(0, colon)))] =
        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return absl::StrCat(fields["vendor_id"], " ", fields["model name"], " (", fields["cpu family"], "/",
                      fields["model"], "/", fields["stepping"], ")");
}

}  // namespace

absl::Status InitializeCpu() {
  const char* value = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (value != nullptr && *value != '\0') {
    const std::string name = absl::AsciiStrToUpper(value);
    const IsaName* found = nullptr;
    for (const IsaName& isa : kIsaNames) {
      if (isa.name == name) found = &isa;
    }
    if (found == nullptr) {
      // oneDNN would ignore it, and run without the cap that was meant.
      return absl::InvalidArgumentError(absl::StrCat(
          "ONEDNN_MAX_CPU_ISA: expected one of ",
          absl::StrJoin(kIsaNames, ", ",
                        [](std::string* out, const IsaName& isa) { absl::StrAppend(out, isa.name); }),
          "; got \"", value, "\""));
    }
    // Highway numbers better targets lower.
    if (found->cap == VectorCap::kAvx2) hwy::DisableTargets(HWY_AVX2 - 1);
    if (found->cap == VectorCap::kBaseline) hwy::DisableTargets((HWY_AVX2 << 1) - 1);
  }
  return absl::OkStatus();
}

void PrepareThread() {
  omp_set_num_threads(1);
#ifdef __x86_64__
  _mm_setcsr(0x1f80);  // all exceptions masked, round to nearest, denormals kept
#endif
}

// oneDNN's instruction sets are bit masks in which a better one holds the lesser ones' bits.
bool HasBf16() {
  constexpr auto kBf16 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kBf16) == kBf16;
}

bool AddsBesideProducts() {
#ifdef __x86_64__
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

std::string CpuDescription() { return absl::StrCat(CpuModel(), "; isa ", EffectiveIsa()); }

std::string NumericsDescription() {
  const dnnl_version_t* version = dnnl_version();
  return absl::StrCat("compiler ", __VERSION__, " [", DINGHY_COMPILE_FLAGS, "]; kernels ", kKernelRevision,
                      "; oneDNN ", version->major, ".", version->minor, ".", version->patch, " ",
                      version->hash == nullptr ? "" : version->hash, "; cpu ", CpuDescription(), "; vectors ",
                      VectorTarget());
}

}  // namespace dinghy::ops
