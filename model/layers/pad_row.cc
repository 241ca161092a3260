#include "model/layers/pad_row.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "features/feature_batch.h"

namespace dinghy {
namespace {

std::vector<int> InputsOf(const v1::Layer& message, const LayerScope& scope) {
  std::vector<int> out;
  const auto add = [&](const auto& names) {
    for (const std::string& name : names) out.push_back(scope.FindValue(name));
  };
  add(message.inputs());
  for (const v1::InputList& term : message.add().terms()) add(term.inputs());
  for (const v1::InputList& term : message.multiply().terms()) add(term.inputs());
  add(message.dot().left());
  add(message.dot().right());
  return out;
}

}  // namespace

void FindPadRow(const v1::Layer& message, const Layer& layer, LayerScope& scope) {
  const ValueInfo& info = layer.info();
  if (info.level != v1::SEQUENCE) return;
  const int value = static_cast<int>(scope.values().size()) - 1;
  if (message.has_self_attention()) {
    const absl::Span<const float> row = layer.PadRow();
    if (!row.empty()) scope.SetPadRow(value, std::vector<float>(row.begin(), row.end()));
    return;
  }
  // A request with one behavior, the pad one.
  FeatureBatch batch;
  batch.sequence_lengths.resize(scope.manifest().sequences_size());
  batch.sequence_lengths[info.sequence] = 1;
  batch.full_lengths = batch.sequence_lengths;
  std::vector<Value> values(scope.values().size());
  for (const int input : InputsOf(message, scope)) {
    const std::vector<float>* row = scope.PadRow(input);
    if (row == nullptr) return;
    values[input] = {row->data(), 1, static_cast<int64_t>(row->size())};
  }
  ops::Scratch scratch;
  UserPart part;
  RunContext context{.batch = batch, .values = values, .scratch = scratch};
  layer.Prepare(context, part);
  context.user = &part;
  const Value result = layer.Run(context);
  scope.SetPadRow(value, std::vector<float>(result.data, result.data + info.width));
}

std::string WhyNoPadRow(int value, const LayerScope& scope) {
  const ValueInfo& info = scope.values()[value];
  if (info.level != v1::SEQUENCE) return absl::StrCat("which is of ", scope.Where(info.level, info.sequence));
  const v1::BundleManifest& manifest = scope.manifest();
  if (manifest.sequences(info.sequence).pad() == v1::Sequence::NONE) {
    return absl::StrCat("whose ", scope.Where(info.level, info.sequence), " has pad NONE");
  }
  if (value < manifest.features_size()) return "a time, which pad behaviors do not have";
  const v1::Layer& layer = manifest.layers(value - manifest.features_size());
  if (layer.has_self_attention()) return "whose pads are MASKED";
  for (const int input : InputsOf(layer, scope)) {
    if (scope.PadRow(input) != nullptr) continue;
    return absl::StrCat("which reads \"", scope.values()[input].name, "\", ", WhyNoPadRow(input, scope));
  }
  return "";
}

}  // namespace dinghy
