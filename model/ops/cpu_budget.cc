#include "model/ops/cpu_budget.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "model/ops/cpu.h"

namespace dinghy::ops {
namespace {

std::optional<double> ReadNumber(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string word;
  double value = 0;
  if (!(file >> word) || !absl::SimpleAtod(word, &value)) return std::nullopt;
  return value;
}

std::optional<double> Ratio(std::optional<double> quota, std::optional<double> period) {
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;  // -1 is "no limit" in version 1
  return *quota / *period;
}

// Version 2: "cpu.max" holds "QUOTA PERIOD" or "max PERIOD".
std::optional<double> LimitV2(const std::filesystem::path& group) {
  std::ifstream file(group / "cpu.max");
  std::string quota, period;
  double quota_value = 0, period_value = 0;
  if (!(file >> quota >> period) || !absl::SimpleAtod(quota, &quota_value) ||
      !absl::SimpleAtod(period, &period_value)) {
    return std::nullopt;
  }
  return Ratio(quota_value, period_value);
}

std::optional<double> LimitV1(const std::filesystem::path& group) {
  return Ratio(ReadNumber(group / "cpu.cfs_quota_us"), ReadNumber(group / "cpu.cfs_period_us"));
}

std::optional<double> Least(std::optional<double> a, std::optional<double> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

// From the group up to the top. Inside a container the path may name a group of the host that is not mounted;
// the top is then the container's own.
template <class Limit>
std::optional<double> LeastOnTheWayUp(const std::filesystem::path& top, const std::string& group,
                                      Limit limit) {
  std::optional<double> least = limit(top);
  std::filesystem::path path = top;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(group, '/', absl::SkipEmpty()))) {
    if (part == "..") break;
    path /= part;
    least = Least(least, limit(path));
  }
  return least;
}

}  // namespace

std::optional<double> CgroupCpuLimit(const std::filesystem::path& root) {
  std::optional<double> least;
  const std::filesystem::path mount = root / "sys/fs/cgroup";
  std::ifstream file(root / "proc/self/cgroup");
  // ID:CONTROLLERS:PATH; version 2 has the ID 0 and no controllers.
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[0] == "0" && fields[1].empty()) {
      least = Least(least, LeastOnTheWayUp(mount, fields[2], LimitV2));
      continue;
    }
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    if (std::find(controllers.begin(), controllers.end(), "cpu") == controllers.end()) continue;
    const std::filesystem::path own = mount / fields[1];
    std::error_code ignored;
    least = Least(least, LeastOnTheWayUp(std::filesystem::exists(own, ignored) ? own : mount / "cpu",
                                         fields[2], LimitV1));
  }
  return least;
}

int CpuBudget() {
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cpus = CPU_COUNT(&set);
  // Rounded down: a worker that is throttled half of the time delays every request that it holds.
  if (const std::optional<double> limit = CgroupCpuLimit("/")) {
    cpus = std::min(cpus, static_cast<int>(std::min(*limit, 1e6)));
  }
  return std::max(cpus, 1);
}

}  // namespace dinghy::ops
