// What `dinghy inspect` and `dinghy validate` print about a bundle: text for people, in aligned columns.
#ifndef DINGHY_SERVER_INSPECT_H_
#define DINGHY_SERVER_INSPECT_H_

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "model/model_options.h"

namespace dinghy {

// Prints name, version, digest and provenance, then sequences, features, tables, layers and outputs, with
// parameters and FLOPs (multiply-adds counted as 2). Checks all but the golden requests. Errors as OpenBundle
// and Model::Create.
absl::Status InspectBundle(const std::string& directory, std::ostream& out, const ModelOptions& options = {});

// Loads the bundle as the server does and prints how its golden requests came out. Errors as LoadModel, with
// nothing printed.
absl::Status ValidateBundle(const std::string& directory, std::ostream& out,
                            const ModelOptions& options = {});

}  // namespace dinghy

#endif  // DINGHY_SERVER_INSPECT_H_
