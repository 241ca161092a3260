// The files of a bundle that features read, vocabularies and the item catalog: their bytes by file name. They
// come from whoever checked the bundle, so that what is used is what was checked.
#ifndef DINGHY_FEATURES_FILE_CONTENTS_H_
#define DINGHY_FEATURES_FILE_CONTENTS_H_

#include <map>
#include <string>

namespace dinghy {

using FileContents = std::map<std::string, std::string>;

}  // namespace dinghy

#endif  // DINGHY_FEATURES_FILE_CONTENTS_H_
