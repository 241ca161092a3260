#include "model/ops/cpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "model/ops/cpu_budget.h"
#include "model/ops/vector_math.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace dinghy::ops {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Cap() {
  const char* value = std::getenv("ONEDNN_MAX_CPU_ISA");
  return value == nullptr ? "" : value;
}

TEST(CpuTest, AnUnknownCapIsAnError) {
  const std::string before = Cap();
  setenv("ONEDNN_MAX_CPU_ISA", "AVX3", 1);
  const absl::Status status = InitializeCpu();
  if (before.empty()) {
    unsetenv("ONEDNN_MAX_CPU_ISA");
  } else {
    setenv("ONEDNN_MAX_CPU_ISA", before.c_str(), 1);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("AVX512_CORE"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("got \"AVX3\""));
}

#ifdef __x86_64__
TEST(CpuTest, TheCapHoldsForOurVectorCode) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd");
  if (Cap() == "SSE41") {
    EXPECT_THAT(VectorTarget(), Not(AnyOf("AVX2", "AVX3")));
  } else if (Cap() == "AVX2") {
    EXPECT_NE(VectorTarget(), "AVX3");
    EXPECT_EQ(VectorTarget() == "AVX2", avx2);
  } else if (Cap().empty()) {
    EXPECT_EQ(VectorTarget() == "AVX3", avx512);
  }
}

TEST(CpuTest, PrepareThreadKeepsDenormalsAndOneOpenMpThread) {
  omp_set_num_threads(2);
  _mm_setcsr(_mm_getcsr() | 0x8040);  // flush to zero, denormals are zero
  PrepareThread();
  EXPECT_EQ(omp_get_max_threads(), 1);
  volatile float smallest = 1e-38f;
  EXPECT_GT(smallest / 1024, 0.0f);
}
#endif

TEST(CpuTest, TheDescriptionNamesWhatDecidesTheBits) {
  const std::string text = NumericsDescription();
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_THAT(text, HasSubstr("compiler "));
  EXPECT_THAT(text, HasSubstr("-ffp-contract=off"));
  EXPECT_THAT(text, HasSubstr("kernels "));
  EXPECT_THAT(text, HasSubstr("oneDNN "));
  EXPECT_THAT(text, HasSubstr("vectors " + VectorTarget()));
  if (Cap() == "AVX2") {
    EXPECT_THAT(text, HasSubstr("isa AVX2;"));
  }
  EXPECT_EQ(text, NumericsDescription());
}

TEST(CpuTest, TheBudgetIsPositive) { EXPECT_GE(CpuBudget(), 1); }

class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest() {
    root_ = std::filesystem::path(::testing::TempDir()) /
            ("cgroup_" + Cap() + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(root_);
  }
  ~CgroupTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  std::filesystem::path root_;
};

TEST_F(CgroupTest, NoneWithoutControlGroups) { EXPECT_EQ(CgroupCpuLimit(root_), std::nullopt); }

TEST_F(CgroupTest, Version2) {
  Write("proc/self/cgroup", "0::/kube/pod/container\n");
  Write("sys/fs/cgroup/kube/pod/cpu.max", "250000 100000\n");
  Write("sys/fs/cgroup/kube/pod/container/cpu.max", "max 100000\n");
  EXPECT_EQ(CgroupCpuLimit(root_), 2.5);
  Write("sys/fs/cgroup/kube/pod/container/cpu.max", "150000 100000\n");
  EXPECT_EQ(CgroupCpuLimit(root_), 1.5);
}

TEST_F(CgroupTest, Version2WithoutALimit) {
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(CgroupCpuLimit(root_), std::nullopt);
}

TEST_F(CgroupTest, Version2InsideAContainerThatSeesThePathOfItsHost) {
  Write("proc/self/cgroup", "0::/../../elsewhere\n");
  Write("sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(CgroupCpuLimit(root_), 3.0);
}

TEST_F(CgroupTest, Version1) {
  Write("proc/self/cgroup", "5:memory:/docker/a\n4:cpu,cpuacct:/docker/a\n0::/docker/a\n");
  Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CgroupCpuLimit(root_), std::nullopt);
  Write("sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_quota_us", "50000\n");
  Write("sys/fs/cgroup/cpu,cpuacct/docker/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CgroupCpuLimit(root_), 0.5);
}

TEST_F(CgroupTest, NonsenseIsNoLimit) {
  Write("proc/self/cgroup", "0::/\nnonsense\n\n");
  for (const char* text : {"", "100000", "many 100000", "100000 0", "-5 100000"}) {
    Write("sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(CgroupCpuLimit(root_), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace dinghy::ops
