// What a pad behavior has as a layer's value. Trainers compute each pad behavior like any other; here it is a
// constant, found once when the model is loaded, and only real behaviors are computed.
#ifndef DINGHY_MODEL_LAYERS_PAD_ROW_H_
#define DINGHY_MODEL_LAYERS_PAD_ROW_H_

#include <string>

#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "proto/bundle.pb.h"

namespace dinghy {

// Keeps the pad row of `layer`, whose message is `message` and whose value is the scope's last, where it has
// one: it stands at a padded sequence and says so itself, or works row by row on inputs that have one.
void FindPadRow(const v1::Layer& message, const Layer& layer, LayerScope& scope);

// Why the scope has no pad row of that value, as the end of an error: `a time, which pad behaviors do not
// have`.
std::string WhyNoPadRow(int value, const LayerScope& scope);

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_PAD_ROW_H_
