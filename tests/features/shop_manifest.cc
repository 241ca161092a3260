#include "tests/features/shop_manifest.h"

#include <google/protobuf/text_format.h>

#include <cstdio>
#include <cstdlib>

#include "proto/behavior.pb.h"
#include "proto/catalog.pb.h"

namespace dinghy {
namespace {

constexpr char kManifest[] = R"pb(
  name: "shop"
  item_feature: "item"
  sequences { name: "clicks" actions: "click" max_length: 3 keep: NEWEST pad: NONE }
  sequences { name: "buys" actions: "purchase" max_length: 2 keep: OLDEST pad: NONE }
  tables { name: "item" tensor: "item.weight" dim: 4 }
  tables { name: "category" tensor: "category.weight" dim: 4 }
  tables { name: "tag" tensor: "tag.weight" dim: 4 }
  tables { name: "segment" tensor: "segment.weight" dim: 4 }
  tables { name: "time" tensor: "time.weight" dim: 4 }
  features {
    name: "item"
    level: CANDIDATE
    from: REQUEST
    table: "item"
    id {
      type: INT64
      bag: SINGLE
      identity { rows: 100 }
      pad_row: 0
      oov_row: 1
      unknown: OOV_ROW
      negative: PAD_ROW
    }
  }
  features {
    name: "category"
    level: CANDIDATE
    from: CATALOG
    table: "category"
    missing_id: OOV_ROW
    id {
      type: INT64
      bag: SINGLE
      identity { rows: 10 }
      oov_row: 1
      unknown: OOV_ROW
      negative: REFUSE
    }
  }
  features {
    name: "price"
    level: CANDIDATE
    from: CATALOG
    numeric { mean: 10 stddev: 4 }
  }
  features {
    name: "tags"
    level: CANDIDATE
    from: REQUEST
    table: "tag"
    missing_id: PAD_ROW
    id {
      type: STRING
      bag: BAG_MEAN
      file { path: "tags.txt" first_row: 2 }
      pad_row: 0
      oov_row: 1
      unknown: OOV_ROW
    }
  }
  features {
    name: "picture"
    level: CANDIDATE
    from: REQUEST
    missing: 0.5
    vector { dim: 2 }
  }
  features {
    name: "age"
    level: USER
    from: REQUEST
    numeric { mean: 40 stddev: 8 }
  }
  features {
    name: "segment"
    level: USER
    from: REQUEST
    table: "segment"
    id {
      type: STRING
      bag: SINGLE
      file { path: "segments.txt" first_row: 1 }
      unknown: REFUSE
    }
  }
  features {
    name: "clicks.item"
    level: SEQUENCE
    sequence: "clicks"
    from: EVENT
    table: "item"
    id {
      type: INT64
      bag: SINGLE
      identity { rows: 100 }
      pad_row: 0
      oov_row: 1
      unknown: OOV_ROW
      negative: PAD_ROW
    }
  }
  features {
    name: "clicks.category"
    level: SEQUENCE
    sequence: "clicks"
    from: CATALOG
    table: "category"
    missing_id: OOV_ROW
    id {
      type: INT64
      bag: SINGLE
      identity { rows: 10 }
      oov_row: 1
      unknown: OOV_ROW
      negative: OOV_ROW
    }
  }
  features {
    name: "clicks.rating"
    level: SEQUENCE
    sequence: "clicks"
    from: EVENT
    missing: 3
    numeric { mean: 1 stddev: 2 }
  }
  features {
    name: "clicks.age"
    level: SEQUENCE
    sequence: "clicks"
    from: EVENT
    table: "time"
    time_since { boundaries_ms: 10 boundaries_ms: 100 boundaries_ms: 1000 first_row: 2 }
  }
  features {
    name: "buys.item"
    level: SEQUENCE
    sequence: "buys"
    from: EVENT
    table: "item"
    id {
      type: INT64
      bag: SINGLE
      identity { rows: 100 }
      pad_row: 0
      oov_row: 1
      unknown: OOV_ROW
      negative: PAD_ROW
    }
  }
)pb";

constexpr char kCatalog[] = R"({"columns": [
    {"feature": "item", "ints": {"values": ["11", "12", "13"]}},
    {"feature": "category", "ints": {"values": ["5", "77", "6"]}},
    {"feature": "price", "floats": {"values": [10, 14, 8]}}]})";

constexpr char kRequest[] = R"pb(
  request_time_ms: 2000
  user {
    feature: "age"
    floats { values: 48 }
  }
  context {
    feature: "segment"
    strings { values: "new" }
  }
  candidates {
    feature: "item"
    ints { values: [ 11, 12, 13 ] }
  }
  candidates {
    feature: "tags"
    strings { values: [ "red", "blue", "red" ] }
    lengths: [ 2, 0, 1 ]
  }
  candidates {
    feature: "picture"
    floats { values: [ 1, 2, 3, 4, 5, 6 ] }
    lengths: [ 2, 2, 2 ]
  }
  sequences {
    sequence: "clicks"
    event_time_ms: [ 500, 1000, 1900, 1999 ]
    columns {
      feature: "item"
      ints { values: [ 21, 11, 12, 13 ] }
    }
    columns {
      feature: "rating"
      floats { values: [ 1, 2, 3, 4 ] }
    }
  }
  sequences {
    sequence: "buys"
    columns {
      feature: "item"
      ints { values: [ 12 ] }
    }
  }
)pb";

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::abort();
}

}  // namespace

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  if (!google::protobuf::TextFormat::ParseFromString(text, &message)) Die("cannot parse " + text);
  return message;
}
template v1::BundleManifest Parse(const std::string& text);
template v1::Catalog Parse(const std::string& text);
template v1::Event Parse(const std::string& text);
template v1::Feature Parse(const std::string& text);
template v1::IdFeature Parse(const std::string& text);
template v1::ScoreRequest Parse(const std::string& text);
template v1::SequenceData Parse(const std::string& text);
template v1::Column Parse(const std::string& text);

ShopManifest::ShopManifest() : manifest(Parse<v1::BundleManifest>(kManifest)) {
  files["tags.txt"] = "red\ngreen\nblue\n";
  files["segments.txt"] = "new\nold\n";
  files["catalog.json"] = kCatalog;
}

absl::StatusOr<std::unique_ptr<RequestEncoder>> ShopManifest::CreateEncoder() const {
  return RequestEncoder::Create(manifest, files, table_rows, options);
}

v1::Feature& ShopManifest::feature(const std::string& name) {
  return *manifest.mutable_features(feature_index(name));
}

int ShopManifest::feature_index(const std::string& name) const {
  for (int i = 0; i < manifest.features_size(); ++i) {
    if (manifest.features(i).name() == name) return i;
  }
  Die("no feature " + name);
}

v1::ScoreRequest MakeShopRequest() { return Parse<v1::ScoreRequest>(kRequest); }

v1::Column& FindColumn(google::protobuf::RepeatedPtrField<v1::Column>& columns, const std::string& name) {
  for (v1::Column& column : columns) {
    if (column.feature() == name) return column;
  }
  Die("no column " + name);
}

void RemoveColumn(google::protobuf::RepeatedPtrField<v1::Column>& columns, const std::string& name) {
  for (int i = 0; i < columns.size(); ++i) {
    if (columns[i].feature() == name) {
      columns.DeleteSubrange(i, 1);
      return;
    }
  }
  Die("no column " + name);
}

}  // namespace dinghy
