// The JSON header of a safetensors file: which tensors there are, and where.
//
// A reader of just this form of JSON, because a general one would round offsets to doubles, take the last of
// two equal keys, or recurse as deep as a hostile header says. See
// https://github.com/huggingface/safetensors#format.
#ifndef DINGHY_MODEL_SAFETENSORS_HEADER_H_
#define DINGHY_MODEL_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dinghy {

struct TensorEntry {
  std::string name;
  std::string dtype;  // "F32"; not checked
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the end of the header
  int64_t end = 0;
};

// The tensors that `json` lists, in its order; `__metadata__` is checked for its form and dropped. Every
// number is in [0, 2^63); nothing else is checked of offsets and shapes. Errors: DATA_LOSS saying at which
// byte of the header what was expected, or which tensor is named twice or lacks a field.
absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(absl::string_view json);

}  // namespace dinghy

#endif  // DINGHY_MODEL_SAFETENSORS_HEADER_H_
