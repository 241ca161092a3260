#include "tests/model/layers/attention_cases.h"

#include <cstdlib>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace dinghy::reference {
namespace {

using Attention = v1::TargetAttention;

constexpr v1::DinScore::Part kQuery = v1::DinScore::QUERY, kKey = v1::DinScore::KEY,
                             kDifference = v1::DinScore::DIFFERENCE, kProduct = v1::DinScore::PRODUCT;
const std::vector<v1::DinScore::Part>& AllParts() {
  static const auto* const parts = new std::vector<v1::DinScore::Part>{kQuery, kKey, kDifference, kProduct};
  return *parts;
}

void SetWindows(Attention& attention, std::vector<uint32_t> sizes, v1::PositionOrigin origin) {
  for (const uint32_t size : sizes) attention.mutable_windows()->add_sizes(size);
  attention.mutable_windows()->set_origin(origin);
}

// An attention MLP whose hidden layer is Dice, as DIN's, or whose last is PReLU, as MultiWindowDIN's.
v1::DinScore DinWithParameters(RandomModel& model, v1::Activation hidden, v1::Activation last) {
  v1::DinScore din = model.MakeDin("din", AllParts(), 9, {16, 5});
  v1::Dense& first = *din.mutable_layers(0);
  first.set_activation(hidden);
  *first.mutable_parameters() = model.MakeParameters("din.0", hidden, 16);
  v1::Dense& score = *din.mutable_layers(2);
  score.set_activation(last);
  *score.mutable_parameters() = model.MakeParameters("din.2", last, 1);
  return din;
}

std::vector<AttentionCase> MakeCases() {
  std::vector<AttentionCase> cases;
  // Scores.
  for (const v1::Activation activation :
       {v1::TANH, v1::LINEAR, v1::RELU, v1::SIGMOID, v1::SILU, v1::GELU_ERF, v1::GELU_TANH}) {
    cases.push_back(
        {"Additive_" + v1::Activation_Name(activation), 9, 13, 6, [activation](RandomModel& m, Attention& a) {
           *a.mutable_additive() = m.MakeAdditive("additive", 9, 13, 21, activation, activation != v1::RELU);
           a.set_normalization(Attention::SOFTMAX);
         }});
  }
  cases.push_back({"Dot", 18, 18, 5, [](RandomModel&, Attention& a) { a.mutable_dot(); }});
  cases.push_back({"Bilinear", 9, 14, 5, [](RandomModel& m, Attention& a) {
                     *a.mutable_bilinear() = m.MakeBilinear("bilinear", 9, 14);
                   }});
  cases.push_back({"DinDice", 9, 9, 6, [](RandomModel& m, Attention& a) {
                     *a.mutable_din() = DinWithParameters(m, v1::DICE, v1::LINEAR);
                   }});
  cases.push_back({"DinPrelu", 9, 9, 6, [](RandomModel& m, Attention& a) {
                     *a.mutable_din() = DinWithParameters(m, v1::LEAKY_RELU, v1::PRELU);
                   }});
  cases.push_back({"DinQueryZeros", 6, 11, 4, [](RandomModel& m, Attention& a) {
                     *a.mutable_din() = m.MakeDin("din", AllParts(), 11, {16, 5});
                     a.mutable_din()->set_query_zeros(5);
                     a.set_normalization(Attention::SOFTMAX);
                   }});
  cases.push_back({"Auto", 9, 9, 7, [](RandomModel& m, Attention& a) {
                     v1::AutoScore& score = *a.mutable_auto_();
                     score.set_max_short(16);
                     *score.mutable_short_history()->mutable_additive() =
                         m.MakeAdditive("short", 9, 9, 12, v1::TANH);
                     score.mutable_short_history()->set_scale(1.3f);
                     score.mutable_long_history()->mutable_dot();
                     score.mutable_long_history()->set_scale(0.4f);
                     a.set_normalization(Attention::SOFTMAX);
                   }});
  cases.push_back({"AutoDin", 9, 9, 7, [](RandomModel& m, Attention& a) {
                     v1::AutoScore& score = *a.mutable_auto_();
                     score.set_max_short(5);
                     *score.mutable_short_history()->mutable_bilinear() = m.MakeBilinear("short", 9, 9);
                     score.mutable_short_history()->set_scale(1);
                     *score.mutable_long_history()->mutable_din() = m.MakeDin("long", AllParts(), 9, {12});
                     score.mutable_long_history()->set_scale(0.9f);
                   }});
  // Normalizations.
  for (const auto normalization : {Attention::SOFTMAX, Attention::SIGMOID_EACH, Attention::SILU_MEAN}) {
    cases.push_back({"Dot_" + Attention::Normalization_Name(normalization), 16, 16, 33,
                     [normalization](RandomModel&, Attention& a) {
                       a.mutable_dot();
                       a.set_normalization(normalization);
                     }});
  }
  // Heads: multi-head, grouped-query, multi-query, linear, latent.
  for (const auto& [name, heads, key_value_heads] :
       {std::tuple{"MultiHead", 6, 6}, std::tuple{"GroupedQuery", 6, 2}, std::tuple{"MultiQuery", 6, 1}}) {
    for (const bool linear : {false, true}) {
      cases.push_back(
          {absl::StrCat(name, linear ? "Linear" : "Dot"), 6 * 5, key_value_heads * 5, key_value_heads * 7,
           [heads = heads, key_value_heads = key_value_heads, linear](RandomModel&, Attention& a) {
             if (linear) {
               a.mutable_linear();
             } else {
               a.mutable_dot();
               a.set_normalization(Attention::SOFTMAX);
             }
             a.set_heads(heads);
             if (heads != key_value_heads) a.set_key_value_heads(key_value_heads);
           }});
    }
  }
  cases.push_back({"Linear", 17, 17, 3, [](RandomModel&, Attention& a) { a.mutable_linear(); }});
  cases.push_back({"Latent", 4 * 5, 11, 11, [](RandomModel& m, Attention& a) {
                     a.mutable_dot();
                     a.set_heads(4);
                     *a.mutable_latent() = m.MakeLatent("latent", 4 * 5, 11, 4 * 3);
                     a.set_normalization(Attention::SOFTMAX);
                   }});
  // Windows.
  cases.push_back({"WindowsFromOldest", 9, 9, 6, [](RandomModel& m, Attention& a) {
                     *a.mutable_din() = DinWithParameters(m, v1::RELU, v1::PRELU);
                     SetWindows(a, {1, 4, 20}, v1::FROM_OLDEST);
                   }});
  cases.push_back({"WindowsFromNewest", 9, 9, 6, [](RandomModel& m, Attention& a) {
                     *a.mutable_din() = DinWithParameters(m, v1::RELU, v1::PRELU);
                     SetWindows(a, {3, 2, 100}, v1::FROM_NEWEST);
                   }});
  cases.push_back({"WindowsOfHeads", 8, 8, 6, [](RandomModel&, Attention& a) {
                     a.mutable_dot();
                     a.set_heads(2);
                     SetWindows(a, {2, 7}, v1::FROM_NEWEST);
                   }});
  cases.push_back({"WindowsOfLatent", 8, 11, 11, [](RandomModel& m, Attention& a) {
                     a.mutable_dot();
                     a.set_heads(2);
                     *a.mutable_latent() = m.MakeLatent("latent", 8, 11, 6);
                     SetWindows(a, {5, 3}, v1::FROM_OLDEST);
                   }});
  // Pads that take part, hardly, and not at all.
  for (const auto& [name, mask, pad] :
       {std::tuple{"MaskFar", -1e9f, v1::Sequence::LEFT}, std::tuple{"MaskNear", -1.0f, v1::Sequence::RIGHT},
        std::tuple{"MaskAbove", 60.0f, v1::Sequence::LEFT}}) {
    cases.push_back({name, 9, 9, 6,
                     [mask = mask](RandomModel& m, Attention& a) {
                       *a.mutable_din() = m.MakeDin("din", AllParts(), 9, {16, 5});
                       a.set_normalization(Attention::SOFTMAX);
                       a.set_mask(mask);
                       a.set_empty(v1::PAD_VALUE);
                     },
                     pad});
  }
  cases.push_back({"MaskOfGroups", 16, 8, 6,
                   [](RandomModel&, Attention& a) {
                     a.mutable_dot();
                     a.set_heads(4);
                     a.set_key_value_heads(2);
                     a.set_normalization(Attention::SOFTMAX);
                     a.set_mask(0);
                     a.set_empty(v1::PAD_VALUE);
                   },
                   v1::Sequence::LEFT});
  cases.push_back({"MaskOfLatent", 8, 11, 11,
                   [](RandomModel& m, Attention& a) {
                     a.mutable_dot();
                     a.set_heads(2);
                     *a.mutable_latent() = m.MakeLatent("latent", 8, 11, 6);
                     a.set_normalization(Attention::SOFTMAX);
                     a.set_mask(-0.5f);
                     a.set_empty(v1::PAD_VALUE);
                   },
                   v1::Sequence::RIGHT});
  cases.push_back({"EmptyLinear", 6, 6, 5,
                   [](RandomModel&, Attention& a) {
                     a.mutable_linear();
                     a.set_heads(1);
                     a.set_empty(v1::PAD_VALUE);
                   },
                   v1::Sequence::RIGHT});
  return cases;
}

}  // namespace

const std::vector<AttentionCase>& AttentionCases() {
  static const auto* const cases = new std::vector<AttentionCase>(MakeCases());
  return *cases;
}

RandomModel MakeAttentionModel(const AttentionCase& attention_case, bool user_query) {
  RandomModel model(13);
  model.AddSequence("purchases", 20);
  model.AddSequence("clicks", kAttentionMaxLength, attention_case.pad);
  model.AddTable("item", 30, 6);
  model.AddTable("category", 9, 3);
  model.AddId("item", v1::CANDIDATE, "item");
  model.AddId("favorite", v1::USER, "item");
  model.AddId("favorite_category", v1::USER, "category");
  model.AddId("clicks.item", v1::SEQUENCE, "item")->mutable_id()->set_pad_row(4);
  model.AddId("clicks.category", v1::SEQUENCE, "category")->mutable_id()->set_pad_row(0);
  model.AddVector("clicks.extra", v1::SEQUENCE, 2);
  const auto add = [&](const std::string& name, const std::vector<std::string>& inputs, int in, int out) {
    *model.AddLayer(name, inputs)->mutable_dense() = model.MakeDense(name, in, out, v1::LINEAR);
  };
  add("query", {user_query ? "favorite" : "item", "favorite_category"}, 9, attention_case.query_width);
  add("keys", {"clicks.item", "clicks.category", "clicks.extra"}, 11, attention_case.key_width);
  add("values", {"clicks.category", "clicks.item"}, 9, attention_case.value_width);
  v1::TargetAttention& attention = *model.AddLayer("interest", {})->mutable_target_attention();
  attention.add_query("query");
  attention.add_keys("keys");
  attention.set_normalization(v1::TargetAttention::NONE);
  attention.set_empty(v1::ZEROS);
  attention.set_scale(0.7f);
  attention_case.set(model, attention);
  attention.add_values(attention.has_latent() ? "keys" : "values");
  int width = attention_case.value_width;
  if (attention.has_heads()) {
    width =
        width /
        static_cast<int>(attention.has_key_value_heads() ? attention.key_value_heads() : attention.heads()) *
        static_cast<int>(attention.heads());
  }
  if (attention.has_latent()) {
    width = static_cast<int>(model.tensors.find(attention.latent().value_up())->second.shape[0]);
  }
  if (attention.has_windows()) width *= attention.windows().sizes_size();
  add("out", {"interest"}, width, 1);
  model.AddOutput("out", "out", v1::Output::RAW);
  return model;
}

v1::TargetAttention& Interest(RandomModel& model) {
  for (v1::Layer& layer : *model.manifest.mutable_layers()) {
    if (layer.name() == "interest") return *layer.mutable_target_attention();
  }
  std::abort();
}

}  // namespace dinghy::reference
