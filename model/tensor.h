// A weight tensor: f32, row-major, in private 64-byte aligned memory. Const once read, so thread-safe.
#ifndef DINGHY_MODEL_TENSOR_H_
#define DINGHY_MODEL_TENSOR_H_

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace dinghy {

struct FreeFloats {
  void operator()(float* p) const { std::free(p); }
};

struct Tensor {
  std::vector<int64_t> shape;
  int64_t size = 0;  // elements: the product of shape
  std::unique_ptr<float[], FreeFloats> data;
};

using TensorMap = std::map<std::string, Tensor, std::less<>>;

}  // namespace dinghy

#endif  // DINGHY_MODEL_TENSOR_H_
