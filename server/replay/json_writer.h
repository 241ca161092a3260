// Writes JSON, indented, keys in the order given.
//
//   JsonWriter json;
//   json.BeginObject().Field("requests", count).BeginArray("errors").EndArray().EndObject();
//   std::cout << json.ToString();
#ifndef DINGHY_SERVER_REPLAY_JSON_WRITER_H_
#define DINGHY_SERVER_REPLAY_JSON_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace dinghy {

// The caller keeps begins and ends in pairs, names everything inside an object and nothing inside an array.
class JsonWriter {
 public:
  JsonWriter& BeginObject(const std::string& name = "") { return Begin(name, '{'); }
  JsonWriter& EndObject() { return End('}'); }
  JsonWriter& BeginArray(const std::string& name = "") { return Begin(name, '['); }
  JsonWriter& EndArray() { return End(']'); }

  JsonWriter& Field(const std::string& name, const std::string& value);
  JsonWriter& Field(const std::string& name, const char* value) { return Field(name, std::string(value)); }
  JsonWriter& Field(const std::string& name, bool value);
  JsonWriter& Field(const std::string& name, int64_t value);
  JsonWriter& Field(const std::string& name, double value);  // null if not finite
  JsonWriter& Field(const std::string& name, std::optional<double> value);

  // Ends with a line break.
  std::string ToString() const { return text_ + "\n"; }

 private:
  JsonWriter& Begin(const std::string& name, char bracket);
  JsonWriter& End(char bracket);
  JsonWriter& Put(const std::string& name, const std::string& json);
  void Start(const std::string& name);

  std::string text_;
  size_t depth_ = 0;
  bool first_ = true;  // nothing stands in the innermost object or array yet
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_REPLAY_JSON_WRITER_H_
