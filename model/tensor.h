// A weight tensor: row-major, in private 64-byte aligned memory. Const once read, so thread-safe.
#ifndef DINGHY_MODEL_TENSOR_H_
#define DINGHY_MODEL_TENSOR_H_

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace dinghy {

struct FreeMemory {
  void operator()(void* p) const { std::free(p); }
};
template <typename T>
using TensorData = std::unique_ptr<T[], FreeMemory>;

enum class DType { kF32, kF16, kI8 };

// As safetensors names it, and bytes an element.
inline const char* DTypeName(DType dtype) {
  return dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "I8";
}
inline int64_t DTypeBytes(DType dtype) { return dtype == DType::kF32 ? 4 : dtype == DType::kF16 ? 2 : 1; }

struct Tensor {
  std::vector<int64_t> shape;
  int64_t size = 0;  // elements: the product of shape
  DType dtype = DType::kF32;
  // That of dtype is set; only embedding tables may have another than F32.
  TensorData<float> data;
  TensorData<uint16_t> f16;  // the bits of IEEE 754 binary16
  TensorData<int8_t> i8;
};

using TensorMap = std::map<std::string, Tensor, std::less<>>;

}  // namespace dinghy

#endif  // DINGHY_MODEL_TENSOR_H_
