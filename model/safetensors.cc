#include "model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "features/large_block.h"
#include "model/safetensors_header.h"

namespace dinghy {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little endian");

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // as the reference implementation

// The product of `shape`, or -1 where its bytes as floats do not fit in int64.
int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (int64_t dim : shape) {
    if (__builtin_mul_overflow(elements, dim, &elements)) return -1;
  }
  int64_t bytes;
  if (__builtin_mul_overflow(elements, int64_t{sizeof(float)}, &bytes)) return -1;
  return elements;
}

std::optional<DType> FindDType(absl::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8}) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

// What can be wrong with one tensor by itself, the data being `data_bytes` long.
absl::Status CheckEntry(const TensorEntry& entry, int64_t data_bytes) {
  const std::string shape = absl::StrCat("shape [", absl::StrJoin(entry.shape, ", "), "]");
  const std::optional<DType> dtype = FindDType(entry.dtype);
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected dtype F32, F16 or I8, got \"", absl::CEscape(entry.dtype), "\""));
  }
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return absl::DataLossError(absl::StrCat("expected data_offsets within the file's ", data_bytes,
                                            " bytes of data, got [", entry.begin, ", ", entry.end, "]"));
  }
  const int64_t elements = Elements(entry.shape);
  if (elements < 0) return absl::DataLossError(absl::StrCat(shape, " overflows"));
  const int64_t bytes = elements * DTypeBytes(*dtype);
  if (entry.end - entry.begin != bytes) {
    return absl::DataLossError(absl::StrCat("expected ", bytes, " bytes for ", entry.dtype, " of ", shape,
                                            ", got ", entry.end - entry.begin, " by data_offsets [",
                                            entry.begin, ", ", entry.end, "]"));
  }
  return absl::OkStatus();
}

absl::Status CheckFinite(const Tensor& tensor) {
  const auto error = [](const auto& value, int64_t element) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected finite values, got ", value, " at element ", element));
  };
  if (tensor.dtype == DType::kF32) {
    const float* begin = tensor.data.get();
    const float* bad = std::find_if(begin, begin + tensor.size, [](float x) { return !std::isfinite(x); });
    if (bad != begin + tensor.size) return error(*bad, bad - begin);
  } else if (tensor.dtype == DType::kF16) {
    const uint16_t* begin = tensor.f16.get();
    constexpr uint16_t kExponent = 0x7C00;
    const uint16_t* bad =
        std::find_if(begin, begin + tensor.size, [](uint16_t x) { return (x & kExponent) == kExponent; });
    if (bad != begin + tensor.size) {
      return error((*bad & 0x3FF) != 0 ? "nan" : (*bad & 0x8000) != 0 ? "-inf" : "inf", bad - begin);
    }
  }
  return absl::OkStatus();
}

// Memory for tensor.size elements of tensor.dtype in the field of that type; null if there is none.
char* Allocate(Tensor& tensor) {
  switch (tensor.dtype) {
    case DType::kF32:
      tensor.data = AllocateElements<float>(tensor.size);
      return reinterpret_cast<char*>(tensor.data.get());
    case DType::kF16:
      tensor.f16 = AllocateElements<uint16_t>(tensor.size);
      return reinterpret_cast<char*>(tensor.f16.get());
    case DType::kI8:
      tensor.i8 = AllocateElements<int8_t>(tensor.size);
      return reinterpret_cast<char*>(tensor.i8.get());
  }
  return nullptr;
}

// The same error, saying where.
absl::Status Prefixed(absl::string_view prefix, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(prefix, status.message()));
}

}  // namespace

template <typename T>
TensorData<T> AllocateElements(int64_t count) {
  constexpr size_t kReadable = 64;  // bytes behind the last element
  if (count < 0 || count > std::numeric_limits<int64_t>::max() / int64_t{8}) return nullptr;
  const size_t bytes = static_cast<size_t>(count) * sizeof(T);
  void* p = AllocateLargeBlock(bytes + kReadable);
  if (p == nullptr) return nullptr;
  std::memset(static_cast<char*>(p) + bytes, 0, kReadable);
  return TensorData<T>(static_cast<T*>(p));
}

template TensorData<float> AllocateElements(int64_t count);
template TensorData<uint16_t> AllocateElements(int64_t count);
template TensorData<int8_t> AllocateElements(int64_t count);

absl::Status ReadSafetensors(absl::string_view file, uint64_t size, const ReadBytes& read,
                             TensorMap& tensors) {
  const std::string in_file = absl::StrCat(file, ": ");
  if (size < kLengthBytes) {
    return absl::DataLossError(
        absl::StrCat(in_file, "expected at least ", kLengthBytes, " bytes, got ", size));
  }
  uint64_t header_bytes = 0;
  absl::Status status = read(absl::MakeSpan(reinterpret_cast<char*>(&header_bytes), kLengthBytes));
  if (!status.ok()) return status;
  const uint64_t most = std::min(size - kLengthBytes, kMaxHeader);
  if (header_bytes > most) {
    return absl::DataLossError(absl::StrCat(in_file, "expected a header of at most ", most,
                                            " bytes in a file of ", size, ", got a length of ",
                                            header_bytes));
  }
  std::string header(header_bytes, '\0');
  status = read(absl::MakeSpan(header));
  if (!status.ok()) return status;
  absl::StatusOr<std::vector<TensorEntry>> parsed = ParseSafetensorsHeader(header);
  if (!parsed.ok()) return Prefixed(in_file, parsed.status());
  std::vector<TensorEntry>& entries = *parsed;

  const auto data_bytes = static_cast<int64_t>(size - kLengthBytes - header_bytes);
  const auto label = [&](const TensorEntry& entry) {
    return absl::StrCat(in_file, "tensor \"", absl::CEscape(entry.name), "\": ");
  };
  for (const TensorEntry& entry : entries) {
    status = CheckEntry(entry, data_bytes);
    if (!status.ok()) return Prefixed(label(entry), status);
    if (tensors.contains(entry.name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(label(entry), "is in another safetensors file of the bundle too"));
    }
  }
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  // The format allows neither overlaps nor holes.
  int64_t position = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin != position) {
      return absl::DataLossError(absl::StrCat(
          label(entry), entry.begin < position ? "overlaps the tensor before it" : "leaves a hole before it",
          ": expected data_offsets to begin at ", position, ", got ", entry.begin));
    }
    position = entry.end;
  }
  if (position != data_bytes) {
    return absl::DataLossError(
        absl::StrCat(in_file, "expected ", position, " bytes of data, as its header says, got ", data_bytes));
  }

  for (TensorEntry& entry : entries) {
    Tensor tensor;
    tensor.size = Elements(entry.shape);
    tensor.dtype = *FindDType(entry.dtype);
    char* const memory = Allocate(tensor);
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat(label(entry), "no memory for ", entry.end - entry.begin, " bytes"));
    }
    status = read(absl::MakeSpan(memory, static_cast<size_t>(entry.end - entry.begin)));
    if (!status.ok()) return status;
    status = CheckFinite(tensor);
    if (!status.ok()) return Prefixed(label(entry), status);
    tensor.shape = std::move(entry.shape);
    tensors.emplace(std::move(entry.name), std::move(tensor));
  }
  return absl::OkStatus();
}

}  // namespace dinghy
