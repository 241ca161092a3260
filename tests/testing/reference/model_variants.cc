#include "tests/testing/reference/model_variants.h"

#include "absl/strings/str_cat.h"

namespace dinghy::reference {
namespace {

constexpr int kUserWidth = 1 + 3 + 2;  // age, segments, profile
constexpr int kTagWidth = 3;

void AddFeatures(RandomModel& model, int width) {
  model.AddTable("item", 50, width - 4);
  model.AddTable("category", 8, 4);
  model.AddTable("time", 6, 5);
  model.AddTable("tag", 9, kTagWidth);
  model.AddNumeric("age", v1::USER);
  model.AddId("segments", v1::USER, "tag", v1::IdFeature::BAG_MEAN);
  model.AddId("item", v1::CANDIDATE, "item");
  model.AddId("category", v1::CANDIDATE, "category");
  model.AddId("tags", v1::CANDIDATE, "tag", v1::IdFeature::BAG_SUM);
  model.AddNumeric("price", v1::CANDIDATE);
  for (const std::string sequence : {"clicks", "purchases"}) {
    model.AddSequence(sequence, kVariantMaxLength);
    model.AddId(sequence + ".item", v1::SEQUENCE, "item");
    model.AddId(sequence + ".category", v1::SEQUENCE, "category");
    model.AddTimeSince(sequence + ".time", "time");
  }
  model.AddVector("profile", v1::USER, 2);
}

// item and category plus the projected time: as wide as a candidate.
void AddBehaviors(RandomModel& model, const std::string& sequence, int width) {
  *model.AddLayer(sequence + ".time_projection", {sequence + ".time"})->mutable_dense() =
      model.MakeDense(sequence + ".time_projection", 5, width, v1::LINEAR);
  v1::Add& add = *model.AddLayer(sequence + ".behaviors", {})->mutable_add();
  v1::InputList& term = *add.add_terms();
  term.add_inputs(sequence + ".item");
  term.add_inputs(sequence + ".category");
  add.add_terms()->add_inputs(sequence + ".time_projection");
}

void AddTargetAttention(RandomModel& model, const std::string& sequence, const std::string& keys,
                        const VariantOptions& options) {
  v1::TargetAttention& attention = *model.AddLayer(sequence + ".interest", {})->mutable_target_attention();
  attention.add_query("item");
  attention.add_query("category");
  attention.add_keys(keys);
  attention.add_values(keys);
  *attention.mutable_din() =
      model.MakeDin(sequence + ".din",
                    {v1::DinScore::QUERY, v1::DinScore::KEY, v1::DinScore::DIFFERENCE, v1::DinScore::PRODUCT},
                    options.width, options.attention);
  attention.set_normalization(options.softmax ? v1::TargetAttention::SOFTMAX : v1::TargetAttention::NONE);
  attention.set_empty(v1::ZEROS);
  attention.set_scale(options.softmax ? 1.0f : 0.25f);
}

// The layer that sums up one sequence, `width` wide.
std::string AddInterest(RandomModel& model, Variant variant, const std::string& sequence,
                        const VariantOptions& options) {
  AddBehaviors(model, sequence, options.width);
  std::string rows = sequence + ".behaviors";
  if (variant == Variant::kSasrec || variant == Variant::kDinSasrec) {
    const bool clicks = sequence == "clicks";
    *model.AddLayer(sequence + ".history", {rows})->mutable_self_attention() = model.MakeSelfAttention(
        sequence + ".history",
        {.width = options.width,
         .heads = 2,
         .blocks = clicks ? 2 : 1,
         .positions = kVariantMaxLength,
         .wiring = clicks ? v1::SelfAttention::PRE_NORM : v1::SelfAttention::SASREC_ORIGINAL,
         .causal = clicks,
         .final_norm = true});
    rows = sequence + ".history";
  }
  const std::string name = sequence + ".interest";
  if (variant != Variant::kMeanPooling && variant != Variant::kSasrec) {
    AddTargetAttention(model, sequence, rows, options);
  } else {
    model.AddLayer(name, {rows})
        ->mutable_pooling()
        ->set_method(variant == Variant::kSasrec ? v1::Pooling::LAST : v1::Pooling::MEAN);
  }
  return name;
}

// Gives a dense layer an activation with its parameters and, in layers of more than one column, a batch norm.
void Replace(RandomModel& model, v1::Dense& dense, v1::Activation activation, bool shared_alpha) {
  const int width = static_cast<int>(model.tensors.at(dense.weight()).shape[0]);
  const std::string prefix = dense.weight();
  if (width > 1) *dense.mutable_norm() = model.MakeBatchNorm(prefix + ".bn", width, !shared_alpha);
  dense.set_activation(activation);
  *dense.mutable_parameters() = model.MakeParameters(prefix, activation, width, shared_alpha);
}

void ReplaceAll(RandomModel& model, google::protobuf::RepeatedPtrField<v1::Dense>& layers) {
  constexpr v1::Activation kKinds[] = {v1::DICE, v1::PRELU};
  for (int i = 0; i < layers.size(); ++i) Replace(model, layers[i], kKinds[i % 2], i % 2 == 1);
}

}  // namespace

std::string VariantName(Variant variant) {
  switch (variant) {
    case Variant::kNoHistory:
      return "no_history";
    case Variant::kMeanPooling:
      return "mean_pooling";
    case Variant::kSasrec:
      return "sasrec";
    case Variant::kDin:
      return "din";
    case Variant::kDinSasrec:
      return "din_sasrec";
    case Variant::kDinDice:
      return "din_dice";
  }
  return "";
}

RandomModel MakeVariant(Variant variant, const VariantOptions& options, uint32_t seed) {
  RandomModel model(seed);
  AddFeatures(model, options.width);
  std::vector<std::string> inputs = {"age", "segments", "item", "category", "tags", "price", "profile"};
  int width = kUserWidth + options.width + kTagWidth + 1;
  if (variant != Variant::kNoHistory) {
    for (const std::string sequence : {"clicks", "purchases"}) {
      const std::string interest = AddInterest(model, variant, sequence, options);
      v1::Multiply& multiply = *model.AddLayer(sequence + ".match", {})->mutable_multiply();
      multiply.add_terms()->add_inputs(interest);
      v1::InputList& candidate = *multiply.add_terms();
      candidate.add_inputs("item");
      candidate.add_inputs("category");
      inputs.push_back(interest);
      inputs.push_back(sequence + ".match");
      width += 2 * options.width;
      if (variant != Variant::kDinDice) continue;
      v1::Layer* const attention = model.manifest.mutable_layers(model.manifest.layers_size() - 2);
      ReplaceAll(model, *attention->mutable_target_attention()->mutable_din()->mutable_layers());
      v1::Dot& dot = *model.AddLayer(sequence + ".affinity", {})->mutable_dot();
      dot.add_left(interest);
      *dot.mutable_right() = candidate.inputs();
      *model.AddLayer(sequence + ".normed", {sequence + ".affinity", "age"})->mutable_batch_norm() =
          model.MakeBatchNorm(sequence + ".normed", 2);
      inputs.push_back(sequence + ".normed");
      width += 2;
    }
  }
  v1::Mlp& mlp = *model.AddLayer("tower", inputs)->mutable_mlp();
  for (const int out : options.tower) {
    *mlp.add_layers() = model.MakeDense(absl::StrCat("tower.", mlp.layers_size()), width, out,
                                        mlp.layers_size() == 0 ? v1::SILU : v1::RELU);
    width = out;
  }
  if (variant == Variant::kDinDice) ReplaceAll(model, *mlp.mutable_layers());
  for (const std::string name : {"click", "purchase"}) {
    *model.AddLayer(name, {"tower"})->mutable_dense() = model.MakeDense(name, width, 1, v1::LINEAR);
    model.AddOutput(name, name, name == "click" ? v1::Output::SIGMOID : v1::Output::RAW);
  }
  if (variant == Variant::kDinDice) {
    v1::Platt& platt = *model.manifest.mutable_outputs(0)->mutable_platt();
    platt.set_slope(0.7);
    platt.set_intercept(-1.2);
  }
  return model;
}

}  // namespace dinghy::reference
