#include "features/behavior/store.h"

#include <cmath>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace dinghy {
namespace {

constexpr size_t kMaxUserIdBytes = 1024;

// proto3 strings must be UTF-8: a record with other bytes could be written and never parsed again.
bool IsUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const int more = lead < 0x80         ? 0
                     : (lead >> 5) == 6  ? 1
                     : (lead >> 4) == 14 ? 2
                     : (lead >> 3) == 30 ? 3
                                         : -1;
    if (more < 0 || i + more >= text.size()) return false;
    uint32_t code = more == 0 ? lead : lead & (0x3F >> more);
    for (int k = 1; k <= more; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next >> 6) != 2) return false;
      code = code << 6 | (next & 0x3F);
    }
    constexpr uint32_t kSmallest[] = {0, 0x80, 0x800, 0x10000};
    if (code < kSmallest[more] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
    i += more + 1;
  }
  return true;
}

absl::Status Bad(const v1::Event& event, absl::string_view what) {
  std::string user = absl::CHexEscape(event.user_id().substr(0, 64));
  if (event.user_id().size() > 64) user += "...";
  return absl::InvalidArgumentError(absl::StrCat("event of user \"", user, "\" at ", event.event_time_ms(),
                                                 " ms, id ", event.event_id(), ": ", what));
}

}  // namespace

absl::Status CheckEvent(const v1::Event& event) {
  if (event.user_id().empty() || event.user_id().size() > kMaxUserIdBytes) {
    return Bad(event, absl::StrCat("user_id: expected 1 to ", kMaxUserIdBytes, " bytes, got ",
                                   event.user_id().size()));
  }
  if (!IsUtf8(event.user_id())) return Bad(event, "user_id: expected UTF-8, got other bytes");
  if (event.event_time_ms() < 0) {
    return Bad(event, absl::StrCat("event_time_ms: expected 0 or more, got ", event.event_time_ms()));
  }
  if (event.item_case() == v1::Event::ITEM_NOT_SET) {
    return Bad(event, "item: expected item_id or item_key, got neither");
  }
  if (event.item_case() == v1::Event::kItemKey) {
    if (event.item_key().empty()) return Bad(event, "item_key: expected a key, got an empty one");
    if (!IsUtf8(event.item_key())) return Bad(event, "item_key: expected UTF-8, got other bytes");
  }
  if (event.action().empty()) return Bad(event, "action: expected a name, got an empty one");
  if (!IsUtf8(event.action())) return Bad(event, "action: expected UTF-8, got other bytes");
  for (const v1::EventValue& value : event.values()) {
    if (value.name().empty()) return Bad(event, "value: expected a name, got an empty one");
    if (!IsUtf8(value.name())) return Bad(event, "name of a value: expected UTF-8, got other bytes");
    const std::string name = absl::StrCat("value \"", value.name(), "\": ");
    switch (value.value_case()) {
      case v1::EventValue::VALUE_NOT_SET:
        return Bad(event, absl::StrCat(name, "expected integer, text or number, got none"));
      case v1::EventValue::kNumber:
        if (!std::isfinite(value.number())) {
          return Bad(event, absl::StrCat(name, "expected a finite number, got ", value.number()));
        }
        break;
      case v1::EventValue::kText:
        if (!IsUtf8(value.text())) return Bad(event, absl::StrCat(name, "expected UTF-8, got other bytes"));
        break;
      case v1::EventValue::kInteger:
        break;
    }
  }
  return absl::OkStatus();
}

}  // namespace dinghy
