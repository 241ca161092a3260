// What the parts of target attention cost: the same attention with parts left out, one after another, request
// by request. So no clock runs inside of it, and a kernel that interleaves its parts can be split as well.
//
//   ASSIGN_OR_RETURN(auto parts, AttentionParts::Create(*loaded->bundle, model_options));
//   parts->Run(batch);                                          // as often as wanted
//   for (const auto& [layer, shares] : parts->Shares()) ...
//
// Not thread-safe.
#ifndef DINGHY_SERVER_BENCH_ATTENTION_PARTS_H_
#define DINGHY_SERVER_BENCH_ATTENTION_PARTS_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "features/feature_batch.h"
#include "model/bundle.h"
#include "model/model.h"
#include "model/model_options.h"
#include "model/ops/scratch.h"

namespace dinghy {

// Of the time of target attention, sum 1. Scores other than `din` have no second GEMM and no activation of
// their own here: all but pooling is their pair GEMM. Nor is pooling split off where heads share it with
// something else (linear and latent attention, windows, auto).
struct AttentionShares {
  double pair_gemm = 0;    // what is left: a candidate's weight, its product with the keys, the last layer
  double second_gemm = 0;  // layers between the first and the last
  double activation = 0;   // of all layers, against none
  double pooling = 0;      // of the values, against values of one column a head
};

class AttentionParts {
 public:
  // Adds tensors of zeros to `bundle`, under names that begin with "bench.", which must outlive this.
  // Errors as Model::Create.
  static absl::StatusOr<std::unique_ptr<AttentionParts>> Create(Bundle& bundle, const ModelOptions& options);

  // Times each form once; `prepare`, which may be empty, is called before each.
  void Run(const FeatureBatch& batch, const std::function<void()>& prepare = {});

  // By index in manifest.layers(), those of kind target_attention; from the medians of all calls of Run,
  // at least one, which it forgets.
  std::map<int, AttentionShares> TakeShares();

 private:
  // The model up to the attention, with something left out.
  struct Form {
    std::unique_ptr<v1::BundleManifest> manifest;
    std::unique_ptr<Model> model = nullptr;
    size_t step = 0;                          // the attention's, of ModelScoreOptions.step_seconds
    double AttentionShares::*part = nullptr;  // what it leaves out beside the form before; null: nothing
    std::vector<double> step_seconds = {};
    std::vector<double> seconds = {};
  };

  AttentionParts() = default;

  absl::Status AddForms(Bundle& bundle, int layer, int width, const ModelOptions& options);

  std::map<int, std::vector<Form>> forms_;  // by index in manifest.layers()
  ops::Scratch scratch_;
  ModelOutputs outputs_;
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_BENCH_ATTENTION_PARTS_H_
