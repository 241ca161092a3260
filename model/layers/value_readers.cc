#include "model/layers/value_readers.h"

#include <vector>

#include "google/protobuf/message.h"

namespace dinghy {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Whether a string field anywhere in `message` is `name`.
bool Mentions(const Message& message, const std::string& name) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        if ((field->is_repeated() ? reflection.GetRepeatedString(message, field, i)
                                  : reflection.GetString(message, field)) == name) {
          return true;
        }
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        if (Mentions(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                          : reflection.GetMessage(message, field),
                     name)) {
          return true;
        }
      }
    }
  }
  return false;
}

}  // namespace

bool NewestAloneIsRead(const v1::BundleManifest& manifest, const std::string& name) {
  bool read = false;
  for (const v1::Layer& layer : manifest.layers()) {
    if (layer.name() == name) continue;
    if (!Mentions(layer, name)) continue;
    if (!layer.has_pooling() || layer.pooling().method() != v1::Pooling::LAST) return false;
    read = true;
  }
  return read;
}

}  // namespace dinghy
