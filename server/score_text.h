// A ScoreResponse as a table for people.
#ifndef DINGHY_SERVER_SCORE_TEXT_H_
#define DINGHY_SERVER_SCORE_TEXT_H_

#include <string>

#include "proto/scoring.pb.h"

namespace dinghy {

// Candidates by falling first output, then, for the best of them, the behaviors that drew their attention.
// `item_feature` is the candidate column with the item ids, as BundleManifest says.
std::string ScoreText(const v1::ScoreRequest& request, const v1::ScoreResponse& response,
                      const std::string& item_feature);

}  // namespace dinghy

#endif  // DINGHY_SERVER_SCORE_TEXT_H_
