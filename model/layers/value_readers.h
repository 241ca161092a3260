// Who reads a layer's value: what nobody reads need not be computed.
#ifndef DINGHY_MODEL_LAYERS_VALUE_READERS_H_
#define DINGHY_MODEL_LAYERS_VALUE_READERS_H_

#include <string>

#include "proto/bundle.pb.h"

namespace dinghy {

// Whether all that is read of the value of that name, at sequence level, is its newest row: by pooling LAST,
// and by nothing else. Any other string of a layer that is equal to the name counts as a reader, so that a
// kind of layer that is new cannot be overlooked.
bool NewestAloneIsRead(const v1::BundleManifest& manifest, const std::string& name);

}  // namespace dinghy

#endif  // DINGHY_MODEL_LAYERS_VALUE_READERS_H_
