// What it costs to turn ids into rows of embedding tables that do not fit in the caches: 100 features x 500
// candidates, 10^7 rows, ids drawn uniformly.
//
//   lookup                             # a minute, 3 GB
//   lookup --width 64 --rounds 41
//   lookup --rows 5000 --rounds 3      # to see that it runs, and that the rows are right
//
// Two ways side by side, in turns. Plain: a standard hash map, and then one row a call, both in ordinary
// pages. Dinghy's: Vocabulary, which looks ids up in batches, and GatherRows, which fetches rows ahead of
// their copy; both in huge pages where the kernel gives them. Medians on one thread on one CPU, of the time
// that the thread itself has. All features read one vocabulary and one table, so that it fits in the memory
// of a small machine.
//
// Exits with 1 where the two do not find the same rows, bit for bit.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "features/vocabulary.h"
#include "model/ops/cpu.h"
#include "model/ops/gather.h"
#include "model/safetensors.h"
#include "tests/benchmarks/pinned_thread.h"

namespace dinghy {
namespace {

constexpr int kFeatures = 100;
constexpr int kCandidates = 500;
constexpr int kIds = kFeatures * kCandidates;  // of a request

struct Options {
  int rows = 10'000'000;
  int width = 16;
  int rounds = 21;
};

struct Times {
  double plain = 0;  // ms a request
  double ours = 0;
};

double MedianMs(std::vector<std::chrono::nanoseconds>& times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return std::chrono::duration<double, std::milli>(times[times.size() / 2]).count();
}

// Calls `prepare`, which is not timed, before each of the two, in turns.
Times InTurns(int rounds, const std::function<void()>& prepare, const std::function<void()>& plain,
              const std::function<void()>& ours) {
  std::vector<std::chrono::nanoseconds> times[2];
  for (int round = 0; round < rounds; ++round) {
    for (const int way : {0, 1}) {
      prepare();
      const std::chrono::nanoseconds begin = ThreadTime();
      way == 0 ? plain() : ours();
      times[way].push_back(ThreadTime() - begin);
    }
  }
  return {.plain = MedianMs(times[0]), .ours = MedianMs(times[1])};
}

void Print(const std::string& what, const Times& times) {
  const double ns = 1e6 / kIds;
  std::printf("%-24s%8.2f ms %6.1f ns%12.2f ms %6.1f ns%8.1fx\n", what.c_str(), times.plain, times.plain * ns,
              times.ours, times.ours * ns, times.plain / times.ours);
  std::fflush(stdout);
}

[[noreturn]] void Fail(const std::string& message) {
  std::cerr << "lookup: " << message << "\n";
  std::exit(1);
}

// A vocabulary file of `tokens`: token i is row i.
std::unique_ptr<Vocabulary> MakeVocabulary(v1::IdFeature::Type type, const std::vector<std::string>& tokens) {
  v1::IdFeature feature;
  feature.set_type(type);
  feature.set_oov_row(0);
  feature.set_unknown(v1::OOV_ROW);
  if (type == v1::IdFeature::INT64) feature.set_negative(v1::OOV_ROW);
  feature.mutable_file()->set_path("tokens");
  feature.mutable_file()->set_first_row(0);
  FileContents files;
  for (const std::string& token : tokens) absl::StrAppend(&files["tokens"], token, "\n");
  absl::StatusOr<std::unique_ptr<Vocabulary>> vocabulary = Vocabulary::Create(feature, files);
  if (!vocabulary.ok()) Fail(std::string(vocabulary.status().message()));
  return *std::move(vocabulary);
}

// Times look-ups of ids that are all known. `Id` is what a request holds, `Key` what the map has, and
// `to_view(ids)` what Vocabulary reads.
template <typename Key, typename Id, typename ToView>
Times MeasureLookUp(const Options& options, const Vocabulary& vocabulary, const std::vector<Id>& known,
                    const ToView& to_view) {
  std::unordered_map<Key, int32_t> map;
  map.reserve(known.size());
  for (size_t i = 0; i < known.size(); ++i) map.emplace(known[i], static_cast<int32_t>(i));
  std::mt19937 random(1);
  std::uniform_int_distribution<size_t> row(0, known.size() - 1);
  std::vector<Id> ids(kIds);
  auto view = to_view(ids);
  std::vector<int32_t> want(kIds);
  std::vector<Vocabulary::Found> found(kIds);
  const auto plain = [&] {
    for (int i = 0; i < kIds; ++i) want[i] = map.find(ids[i])->second;
  };
  const auto ours = [&] {
    for (int f = 0; f < kIds; f += kCandidates) {
      vocabulary.Find(absl::MakeConstSpan(view).subspan(f, kCandidates), &found[f]);
    }
  };
  const auto prepare = [&] {
    for (Id& id : ids) id = known[row(random)];
    view = to_view(ids);
  };
  const Times times = InTurns(options.rounds, prepare, plain, ours);
  plain();
  for (int i = 0; i < kIds; ++i) {
    if (!found[i].known || found[i].row != want[i]) {
      Fail(absl::StrCat("id ", ids[i], ": expected row ", want[i], ", got ", found[i].row));
    }
  }
  return times;
}

Times MeasureIntegers(const Options& options) {
  std::mt19937_64 random(2);
  std::vector<int64_t> known;
  std::vector<std::string> tokens;
  for (int i = 0; i < options.rows; ++i) {
    known.push_back(static_cast<int64_t>(random() >> 33 << 31 | i));  // each once
    tokens.push_back(std::to_string(known.back()));
  }
  const std::unique_ptr<Vocabulary> vocabulary = MakeVocabulary(v1::IdFeature::INT64, tokens);
  tokens = {};
  return MeasureLookUp<int64_t>(options, *vocabulary, known,
                                [](const std::vector<int64_t>& ids) { return ids; });
}

Times MeasureTexts(const Options& options) {
  std::vector<std::string> known;
  for (int i = 0; i < options.rows; ++i) known.push_back(absl::StrCat("item:", 1'000'000'000 + i));
  std::shuffle(known.begin(), known.end(), std::mt19937(3));
  const std::unique_ptr<Vocabulary> vocabulary = MakeVocabulary(v1::IdFeature::STRING, known);
  return MeasureLookUp<std::string_view>(options, *vocabulary, known,
                                         [](const std::vector<std::string>& ids) {
                                           std::vector<const std::string*> pointers;
                                           for (const std::string& id : ids) pointers.push_back(&id);
                                           return pointers;
                                         });
}

// Random small integers, in huge pages where the kernel gives them.
template <typename T>
TensorData<T> MakeElements(int64_t count) {
  TensorData<T> elements = AllocateElements<T>(count);
  if (elements == nullptr) Fail(absl::StrCat("there is no memory for ", count, " elements"));
  std::minstd_rand random(4);
  for (int64_t i = 0; i < count; ++i) elements[i] = static_cast<T>(random() % 127);
  return elements;
}

// `floats`: the values of `table`, in ordinary pages, [rows, width].
Times MeasureGather(const Options& options, const ops::EmbeddingTable& table,
                    const std::vector<float>& floats) {
  std::mt19937 random(5);
  std::uniform_int_distribution<int32_t> row(0, options.rows - 1);
  std::vector<int32_t> ids(kIds);
  const int64_t width = options.width;
  const int64_t stride = width * kFeatures;
  std::vector<float> want(kCandidates * stride), got = want;
  const auto plain = [&] {
    for (int f = 0; f < kFeatures; ++f) {
      for (int c = 0; c < kCandidates; ++c) {
        std::copy_n(&floats[ids[f * kCandidates + c] * width], width, &want[c * stride + f * width]);
      }
    }
  };
  const auto ours = [&] {
    for (int f = 0; f < kFeatures; ++f) {
      ops::GatherRows(table, &ids[f * kCandidates],
                      {.data = &got[f * width], .rows = kCandidates, .stride = stride});
    }
  };
  const Times times = InTurns(
      options.rounds, [&] { std::generate(ids.begin(), ids.end(), [&] { return row(random); }); }, plain,
      ours);
  plain();
  if (std::memcmp(want.data(), got.data(), want.size() * sizeof(float)) != 0) {
    Fail("expected the rows that were copied one by one, got others");
  }
  return times;
}

int Main(int argc, char** argv) {
  CLI::App app("Times look-ups of ids and rows in tables beyond the caches.");
  Options options;
  app.add_option("--rows", options.rows, "of the vocabulary and the table")
      ->check(CLI::Range(1, 100'000'000));
  app.add_option("--width", options.width, "numbers in a row")->check(CLI::Range(1, 1024));
  app.add_option("--rounds", options.rounds, "requests each way, of which the median counts")
      ->check(CLI::Range(1, 10'000));
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = ops::InitializeCpu(); !status.ok()) Fail(std::string(status.message()));
  PinToOneCpu();
  std::printf("%s\n%d rows of %d numbers; %d features x %d candidates\n%-24s%21s%24s\n",
              ops::NumericsDescription().c_str(), options.rows, options.width, kFeatures, kCandidates,
              "A REQUEST, AND AN ID", "plain", "dinghy");

  const Times integers = MeasureIntegers(options);
  Print("look-up, integers", integers);
  Print("look-up, texts", MeasureTexts(options));
  const int64_t count = int64_t{options.rows} * options.width;
  std::vector<float> floats(count);
  ops::EmbeddingTable table{.rows = options.rows, .width = options.width};
  {
    const TensorData<float> elements = MakeElements<float>(count);
    std::copy_n(elements.get(), count, floats.begin());
    table.f32 = elements.get();
    const Times gather = MeasureGather(options, table, floats);
    Print("gather, F32", gather);
    Print("integers to F32 rows",
          {.plain = integers.plain + gather.plain, .ours = integers.ours + gather.ours});
    table.f32 = nullptr;
  }
  {
    const TensorData<uint16_t> elements = MakeElements<uint16_t>(count);
    constexpr float kSmallest = 1.0f / (1 << 24);  // what integers below 1024 are multiples of, as F16's bits
    for (int64_t i = 0; i < count; ++i) floats[i] = static_cast<float>(elements[i]) * kSmallest;
    table.f16 = elements.get();
    Print("gather, F16", MeasureGather(options, table, floats));
    table.f16 = nullptr;
  }
  const TensorData<int8_t> elements = MakeElements<int8_t>(count);
  const TensorData<float> scale = MakeElements<float>(options.rows);
  for (int64_t i = 0; i < count; ++i) floats[i] = static_cast<float>(elements[i]) * scale[i / options.width];
  table.i8 = elements.get();
  table.scale = scale.get();
  Print("gather, I8", MeasureGather(options, table, floats));
  return 0;
}

}  // namespace
}  // namespace dinghy

int main(int argc, char** argv) { return dinghy::Main(argc, argv); }
