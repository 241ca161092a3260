// What a model is built with beside its bundle.
#ifndef DINGHY_MODEL_MODEL_OPTIONS_H_
#define DINGHY_MODEL_MODEL_OPTIONS_H_

namespace dinghy {

struct ModelOptions {
  // False: products through oneDNN's primitives alone, which the fused kernels are checked against. Part of
  // numerics_id, as every choice is.
  bool fused_kernels = true;
  // A bundle in bf16 loads on a CPU without it as well, and is computed slowly, with factors rounded the same.
  bool allow_emulation = false;
};

}  // namespace dinghy

#endif  // DINGHY_MODEL_MODEL_OPTIONS_H_
