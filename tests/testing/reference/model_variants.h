// The five reference models in small, and one of everything that works row by row, with random weights: two
// sequences, two outputs, all kinds of features.
#ifndef DINGHY_TESTS_TESTING_REFERENCE_MODEL_VARIANTS_H_
#define DINGHY_TESTS_TESTING_REFERENCE_MODEL_VARIANTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/reference/random_model.h"

namespace dinghy::reference {

// kDinDice is kDin with Dice, PReLU and other activations, batch norms before them, inner products and a
// calibrated output.
enum class Variant { kNoHistory, kMeanPooling, kSasrec, kDin, kDinSasrec, kDinDice };

inline const std::vector<Variant>& AllVariants() {
  static const auto* const all =
      new std::vector<Variant>{Variant::kNoHistory, Variant::kMeanPooling, Variant::kSasrec,
                               Variant::kDin,       Variant::kDinSasrec,   Variant::kDinDice};
  return *all;
}

std::string VariantName(Variant variant);

inline constexpr int kVariantMaxLength = 66;  // of both sequences

struct VariantOptions {
  int width = 12;  // of a behavior and a candidate; even, at least 8
  std::vector<int> attention = {16, 9};
  std::vector<int> tower = {33, 10};
  bool softmax = false;
};

// Sequences "clicks" and "purchases"; layers "clicks.history", "clicks.interest" and so on, as far as the
// variant has them, "tower", "click" and "purchase"; outputs "click" (sigmoid) and "purchase" (raw).
RandomModel MakeVariant(Variant variant, const VariantOptions& options, uint32_t seed);

}  // namespace dinghy::reference

#endif  // DINGHY_TESTS_TESTING_REFERENCE_MODEL_VARIANTS_H_
