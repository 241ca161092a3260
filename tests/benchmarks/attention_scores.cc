// What each kind of attention costs, as the literature tabulates it: microseconds per candidate over
// histories of 64 to 512 behaviors at widths of 64 to 256, and how many times scaled dot product attention
// that is.
//
//   attention_scores            # ten seconds
//   attention_scores --quick    # one small size, to see that it runs
//
// A cost is that of the whole layer for 100 candidates of one user, divided by 100: scores, softmax and the
// sum of the values; projections of query, keys and values are layers of their own and not in it.
// Self-attention runs once per user, and its cost per candidate is a hundredth of that. Medians on one thread
// on one CPU, of the time that the thread itself has: what others do meanwhile does not count.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "model/layers/feature_lookup.h"
#include "model/layers/layer.h"
#include "model/layers/layer_scope.h"
#include "model/ops/cpu.h"
#include "model/ops/scratch.h"
#include "tests/benchmarks/pinned_thread.h"
#include "tests/testing/reference/random_model.h"

namespace dinghy::reference {
namespace {

constexpr int kCandidates = 100;
constexpr int kHeads = 8;

struct Kind {
  std::string name;
  // Adds the layer "interest" for this width, over "q" and "h.k" or the narrower "h.shared".
  std::function<void(RandomModel&, int width)> add;
};

v1::TargetAttention& AddAttention(RandomModel& model, const std::string& keys) {
  const std::string query(1, 'q');
  v1::TargetAttention& attention = *model.AddLayer("interest", {})->mutable_target_attention();
  attention.add_query(query);
  attention.add_keys(keys);
  attention.add_values(keys);
  attention.set_normalization(v1::TargetAttention::SOFTMAX);
  attention.set_empty(v1::ZEROS);
  attention.set_scale(0.125f);
  return attention;
}

std::vector<Kind> Kinds() {
  return {
      {"scaled dot", [](RandomModel& m, int) { AddAttention(m, "h.k").mutable_dot(); }},
      {"additive",
       [](RandomModel& m, int width) {
         *AddAttention(m, "h.k").mutable_additive() =
             m.MakeAdditive("additive", width, width, width, v1::TANH);
       }},
      {"bilinear",
       [](RandomModel& m, int width) {
         *AddAttention(m, "h.k").mutable_bilinear() = m.MakeBilinear("bilinear", width, width);
       }},
      {"din 80-40-1",
       [](RandomModel& m, int width) {
         *AddAttention(m, "h.k").mutable_din() = m.MakeDin(
             "din", {v1::DinScore::QUERY, v1::DinScore::KEY, v1::DinScore::DIFFERENCE, v1::DinScore::PRODUCT},
             width, {80, 40});
       }},
      {"multi-head, 8",
       [](RandomModel& m, int) {
         v1::TargetAttention& attention = AddAttention(m, "h.k");
         attention.mutable_dot();
         attention.set_heads(kHeads);
       }},
      {"multi-query, 8",
       [](RandomModel& m, int) {
         v1::TargetAttention& attention = AddAttention(m, "h.shared");
         attention.mutable_dot();
         attention.set_heads(kHeads);
         attention.set_key_value_heads(1);
       }},
      {"latent, 8",
       [](RandomModel& m, int width) {
         v1::TargetAttention& attention = AddAttention(m, "h.shared");
         attention.mutable_dot();
         attention.set_heads(kHeads);
         *attention.mutable_latent() = m.MakeLatent("latent", width, width / kHeads, width);
       }},
      {"linear, 8",
       [](RandomModel& m, int) {
         v1::TargetAttention& attention = AddAttention(m, "h.k");
         attention.mutable_linear();
         attention.set_heads(kHeads);
         attention.set_normalization(v1::TargetAttention::NONE);
       }},
      {"self-attention, 8",
       [](RandomModel& m, int width) {
         *m.AddLayer("interest", {"h.k"})->mutable_self_attention() =
             m.MakeSelfAttention("self", {.width = width, .heads = kHeads});
       }},
  };
}

// Microseconds per candidate of one run, the median of `runs`.
double Measure(const Kind& kind, int width, int length, int runs) {
  RandomModel model(1);
  model.AddSequence("h", length);
  model.AddVector("q", v1::CANDIDATE, width);
  model.AddVector("h.k", v1::SEQUENCE, width);
  model.AddVector("h.shared", v1::SEQUENCE, width / kHeads);
  kind.add(model, width);
  LayerScope scope(model.manifest, model.tensors);
  const absl::StatusOr<FeatureLookup> lookup = FeatureLookup::Create(scope);
  const absl::StatusOr<std::unique_ptr<Layer>> layer = CreateLayer(model.manifest.layers(0), scope);
  if (!lookup.ok() || !layer.ok()) {
    std::cerr << lookup.status() << " " << layer.status() << "\n";
    std::abort();
  }
  const FeatureBatch batch = RandomBatch(model, {.candidates = kCandidates, .lengths = {length}}, 2);
  ops::Scratch scratch;
  std::vector<Value> values(scope.values().size());
  UserPart user;
  const RunContext context{
      .batch = batch, .values = values, .scratch = scratch, .candidates = batch.candidates, .user = &user};
  lookup->RunUser(context, absl::MakeSpan(values));
  lookup->RunCandidates(context, absl::MakeSpan(values));
  std::vector<double> times;
  for (int run = 0; run < runs + 2; ++run) {  // the first two warm up
    ops::Scratch::Scope inner(scratch);
    const std::chrono::nanoseconds begin = ThreadTime();
    user = {};
    (*layer)->Prepare(context, user);
    (*layer)->Run(context);
    times.push_back(std::chrono::duration<double, std::micro>(ThreadTime() - begin).count());
  }
  times.erase(times.begin(), times.begin() + 2);
  std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
  return times[runs / 2] / kCandidates;
}

void PrintTable(int width, const std::vector<int>& lengths, int runs) {
  std::printf("\nwidth %d: us per candidate, and times scaled dot\n%-18s", width, "LENGTH");
  for (const int length : lengths) std::printf("%18d", length);
  std::printf("\n");
  std::vector<double> scaled_dot;
  for (const Kind& kind : Kinds()) {
    std::printf("%-18s", kind.name.c_str());
    for (size_t i = 0; i < lengths.size(); ++i) {
      const double cost = Measure(kind, width, lengths[i], runs);
      if (scaled_dot.size() == i) scaled_dot.push_back(cost);
      std::printf("%10.2f %6.2fx", cost, cost / scaled_dot[i]);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}

int Main(int argc, char** argv) {
  const bool quick = argc == 2 && std::string(argv[1]) == "--quick";
  if (argc > 1 && !quick) {
    std::cerr << "usage: attention_scores [--quick]\n";
    return 2;
  }
  if (const absl::Status status = ops::InitializeCpu(); !status.ok()) {
    std::cerr << status << "\n";
    return 1;
  }
  PinToOneCpu();
  ops::PrepareThread();
  std::printf("%s\n%d candidates a user\n", ops::NumericsDescription().c_str(), kCandidates);
  if (quick) {
    PrintTable(64, {64}, 3);
    return 0;
  }
  for (const int width : {64, 128, 256}) PrintTable(width, {64, 128, 256, 512}, 41);
  return 0;
}

}  // namespace
}  // namespace dinghy::reference

int main(int argc, char** argv) { return dinghy::reference::Main(argc, argv); }
