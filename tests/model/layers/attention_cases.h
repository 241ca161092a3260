// A random model for each kind of target attention: every score, normalization, head layout, latent, windows
// and mask, with widths, heads and hidden sizes that all differ. Shared by the tests that go through all of
// them.
#ifndef DINGHY_TESTS_MODEL_LAYERS_ATTENTION_CASES_H_
#define DINGHY_TESTS_MODEL_LAYERS_ATTENTION_CASES_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/testing/reference/random_model.h"

namespace dinghy::reference {

inline constexpr int kAttentionMaxLength = 70;  // of "clicks", the second of two sequences

struct AttentionCase {
  std::string name;
  int query_width = 0;
  int key_width = 0;
  int value_width = 0;
  // The score and all that does not keep its default: normalization NONE, empty ZEROS, scale 0.7.
  std::function<void(RandomModel&, v1::TargetAttention&)> set;
  v1::Sequence::Pad pad = v1::Sequence::NONE;
};

// ctest shows parameters beside the names.
inline void PrintTo(const AttentionCase& attention_case, std::ostream* out) { *out << attention_case.name; }

const std::vector<AttentionCase>& AttentionCases();

// Layer "interest" over "clicks", with output "out"; its query is a candidate's and a user's feature, or, for
// `user_query`, the user's alone.
RandomModel MakeAttentionModel(const AttentionCase& attention_case, bool user_query = false);

// The attention of a model of MakeAttentionModel.
v1::TargetAttention& Interest(RandomModel& model);

}  // namespace dinghy::reference

#endif  // DINGHY_TESTS_MODEL_LAYERS_ATTENTION_CASES_H_
