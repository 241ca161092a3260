// Reads the weights of a safetensors file, trusting none of its lengths and offsets.
//
//   TensorMap tensors;
//   absl::Status status = ReadSafetensors("weights.safetensors", size, read, tensors);
//
// In one pass from front to back, each tensor straight into its own memory, so that a file is hashed as it is
// read and is never held twice.
#ifndef DINGHY_MODEL_SAFETENSORS_H_
#define DINGHY_MODEL_SAFETENSORS_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/tensor.h"

namespace dinghy {

// Fills `bytes` with the next bytes of the file, or fails.
using ReadBytes = std::function<absl::Status(absl::Span<char> bytes)>;

// `count` elements (T: float, uint16_t or int8_t), not initialised, 64-byte aligned, with at least 64
// readable bytes behind them (set to zero), so that vector code may read past the end; in huge pages where they
// are large. Null if there is no memory.
template <typename T>
TensorData<T> AllocateElements(int64_t count);

// Adds the tensors of a file of `size` bytes to `tensors`. `file` is its name in errors. Errors: DATA_LOSS
// where the file is truncated, its header is no JSON of the right form, or a tensor's offsets overlap
// another's, leave a hole, lie beyond the end, or do not fit its shape; INVALID_ARGUMENT for a dtype other
// than F32, F16 and I8, a value that is NaN or infinite, or a name that `tensors` has already. After an error
// `tensors` may hold some of the file's tensors.
absl::Status ReadSafetensors(absl::string_view file, uint64_t size, const ReadBytes& read,
                             TensorMap& tensors);

}  // namespace dinghy

#endif  // DINGHY_MODEL_SAFETENSORS_H_
