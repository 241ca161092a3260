// Manifests with random weights, and batches that fit them, for comparing Model with the reference.
//
//   RandomModel model(/*seed=*/1);
//   model.AddTable("item", 20, 6);
//   model.AddId("item", v1::CANDIDATE, "item");
//   *model.AddLayer("tower", {"item"})->mutable_dense() = model.MakeDense("tower", 6, 1, v1::LINEAR);
//   model.AddOutput("click", "tower", v1::Output::SIGMOID);
//   FeatureBatch batch = RandomBatch(model, {.candidates = 7}, /*seed=*/2);
//
// Only what Model reads is filled in: an encoder would refuse these manifests. Not thread-safe.
#ifndef DINGHY_TESTS_TESTING_REFERENCE_RANDOM_MODEL_H_
#define DINGHY_TESTS_TESTING_REFERENCE_RANDOM_MODEL_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "features/feature_batch.h"
#include "model/tensor.h"
#include "proto/bundle.pb.h"

namespace dinghy::reference {

class RandomModel {
 public:
  explicit RandomModel(uint32_t seed) : random_(seed) {}

  v1::BundleManifest manifest;
  TensorMap tensors;

  // Normally distributed, times `scale`; returns the name.
  std::string AddTensor(const std::string& name, const std::vector<int64_t>& shape, double scale);

  void AddSequence(const std::string& name, int max_length, v1::Sequence::Pad pad = v1::Sequence::NONE);
  void AddTable(const std::string& name, int rows, int dim);
  // A name "<sequence>.<field>" makes a sequence feature, whatever `level` is.
  v1::Feature* AddId(const std::string& name, v1::Level level, const std::string& table,
                     v1::IdFeature::Bag bag = v1::IdFeature::SINGLE);
  void AddTimeSince(const std::string& name, const std::string& table);
  void AddNumeric(const std::string& name, v1::Level level);
  void AddVector(const std::string& name, v1::Level level, int dim);

  v1::Layer* AddLayer(const std::string& name, const std::vector<std::string>& inputs);
  void AddOutput(const std::string& name, const std::string& input, v1::Output::Link link);

  // Messages with new random tensors, named after `prefix`.
  v1::Dense MakeDense(const std::string& prefix, int in, int out, v1::Activation activation,
                      bool bias = true);
  v1::LayerNorm MakeNorm(const std::string& prefix, int width);
  v1::BatchNorm MakeBatchNorm(const std::string& prefix, int width, bool affine = true);
  // What `activation` needs beside its name, if anything; alpha as wide as the rows, or one number.
  v1::ActivationParameters MakeParameters(const std::string& prefix, v1::Activation activation, int width,
                                          bool shared_alpha = false, bool norm = true);
  v1::DinScore MakeDin(const std::string& prefix, const std::vector<v1::DinScore::Part>& parts, int width,
                       const std::vector<int>& hidden);
  v1::AdditiveScore MakeAdditive(const std::string& prefix, int query_width, int key_width, int hidden,
                                 v1::Activation activation, bool bias = true);
  v1::BilinearScore MakeBilinear(const std::string& prefix, int query_width, int key_width);
  v1::LatentKeyValue MakeLatent(const std::string& prefix, int query_width, int latent_width,
                                int value_width);
  struct SelfAttentionOptions {
    int width = 0;
    int heads = 1;
    int blocks = 1;
    int positions = 0;  // rows of the table; 0 for none
    v1::SelfAttention::Wiring wiring = v1::SelfAttention::PRE_NORM;
    bool causal = true;
    bool final_norm = false;
    v1::PositionOrigin origin = v1::FROM_NEWEST;
    int first_row = -1;  // -1: not set, as below
    int pad_row = -1;
    // Sinusoidal positions instead of a table.
    v1::SinusoidalPositions::Layout layout = v1::SinusoidalPositions::LAYOUT_UNSPECIFIED;
    bool input_norm = false;
    v1::SelfAttention::Pads pads = v1::SelfAttention::PADS_UNSPECIFIED;
    int window = 0;           // 0: not set, as below
    int key_value_heads = 0;  // 0: as many as heads
    int head_width = 0;       // of queries and keys; 0: width / heads
    int value_width = 0;      // of a head's values; 0: head_width
    int latent = 0;           // width; 0: none
    bool linear = false;      // kernel ELU_PLUS_ONE
    int out_width = 0;        // in wiring BARE; 0: width
    double projection = 1;    // scales the weights of queries and keys
  };
  v1::SelfAttention MakeSelfAttention(const std::string& prefix, const SelfAttentionOptions& options);

 private:
  v1::Feature* AddFeature(const std::string& name, v1::Level level);

  std::mt19937 random_;
};

struct BatchShape {
  int candidates = 0;
  std::vector<int> lengths = {};  // by sequence
};
// Bags hold 0 to 3 ids. The value of a candidate depends on `seed` and its index alone, so that a longer
// batch begins with the shorter one's candidates.
FeatureBatch RandomBatch(const RandomModel& model, const BatchShape& shape, uint32_t seed);

// The batch with candidates order[0], order[1], ... of `batch`.
FeatureBatch PickCandidates(const v1::BundleManifest& manifest, const FeatureBatch& batch,
                            const std::vector<int>& order);

}  // namespace dinghy::reference

#endif  // DINGHY_TESTS_TESTING_REFERENCE_RANDOM_MODEL_H_
