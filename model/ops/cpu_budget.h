// The CPU limit that a container sets through its control group.
#ifndef DINGHY_MODEL_OPS_CPU_BUDGET_H_
#define DINGHY_MODEL_OPS_CPU_BUDGET_H_

#include <filesystem>
#include <optional>

namespace dinghy::ops {

// CPUs that the control groups of this process grant, e.g. 1.5; none if there is no limit. Reads
// proc/self/cgroup and sys/fs/cgroup below `root`, both versions; the least limit on the way to the top
// counts.
std::optional<double> CgroupCpuLimit(const std::filesystem::path& root);

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_CPU_BUDGET_H_
