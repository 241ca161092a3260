#include "features/behavior/ingest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "features/behavior/memory_store.h"

namespace dinghy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Outcome {
  absl::Status status;
  IngestCounts counts;
  std::vector<v1::Event> events;  // as they reached the store
  std::vector<size_t> batches;
  std::vector<std::string> bad;
};

Outcome Ingest(const std::string& text, IngestOptions options = {}, const std::string& name = "events") {
  Outcome outcome;
  auto store = NewMemoryStore();
  std::istringstream stream(text);
  options.on_bad_line = [&](const absl::Status& status) { outcome.bad.emplace_back(status.message()); };
  outcome.status = IngestStream(
      stream, name, options,
      [&](absl::Span<const v1::Event> events) {
        outcome.batches.push_back(events.size());
        outcome.events.insert(outcome.events.end(), events.begin(), events.end());
        return store->Append(events);
      },
      outcome.counts);
  return outcome;
}

std::string Message(const Outcome& outcome) { return std::string(outcome.status.message()); }

constexpr char kHeader[] = "user_id\tevent_time_ms\titem_id\taction\n";

TEST(IngestTest, ReadsJsonLines) {
  const Outcome outcome = Ingest(
      "{\"userId\":\"a\",\"eventTimeMs\":\"5\",\"eventId\":\"6\",\"itemId\":\"7\",\"action\":\"click\"}\r\n"
      "\n"
      "{\"user_id\":\"b\",\"event_time_ms\":1,\"item_key\":\"k\",\"action\":\"buy\","
      "\"values\":[{\"name\":\"price\",\"number\":2.5}]}");
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.counts.read, 2);
  EXPECT_EQ(outcome.counts.appended, 2);
  ASSERT_EQ(outcome.events.size(), 2u);
  EXPECT_EQ(outcome.events[0].event_id(), 6u);
  EXPECT_EQ(outcome.events[1].item_key(), "k");
  EXPECT_EQ(outcome.events[1].values(0).number(), 2.5f);
}

TEST(IngestTest, ReadsTsvWithColumnsInAnyOrder) {
  const Outcome outcome = Ingest(
      "\xEF\xBB\xBF"
      "action\titem_key\titem_id\tuser_id\tevent_time_ms\tprice:float\tdwell:int\tcolor:string\tingest_time_"
      "ms\n"
      "click\t\t7\ta\t100\t1.5\t-3\tred\t9\n"
      "\n"
      "buy\tshoe\t\tb\t200\t\t\t\t\r\n");
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  ASSERT_EQ(outcome.events.size(), 2u);
  const v1::Event& first = outcome.events[0];
  EXPECT_EQ(first.ShortDebugString(),
            "user_id: \"a\" event_time_ms: 100 event_id: " + std::to_string(first.event_id()) +
                " item_id: 7 action: \"click\" values { name: \"price\" number: 1.5 } "
                "values { name: \"dwell\" integer: -3 } values { name: \"color\" text: \"red\" } "
                "ingest_time_ms: 9");
  const v1::Event& second = outcome.events[1];
  EXPECT_EQ(second.item_key(), "shoe");
  EXPECT_EQ(second.event_id() >> 28, 1u);  // the number of its row
  EXPECT_EQ(second.values_size(), 0);
}

TEST(IngestTest, TakesEventIdsWhereThereAre) {
  const Outcome outcome =
      Ingest("user_id\tevent_time_ms\tevent_id\titem_id\taction\na\t1\t18446744073709551615\t1\tclick\n");
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.events[0].event_id(), 18446744073709551615u);
}

TEST(IngestTest, RowsOfOneMillisecondAreDifferentEventsAndAgainTheyAreDuplicates) {
  auto store = NewMemoryStore();
  const auto append = [&](absl::Span<const v1::Event> events) { return store->Append(events); };
  for (int run = 0; run < 2; ++run) {
    std::istringstream stream(std::string(kHeader) + "a\t1\t10\tclick\na\t1\t11\tclick\n");
    IngestCounts counts;
    ASSERT_TRUE(IngestStream(stream, "x.tsv", {}, append, counts).ok());
    EXPECT_EQ(counts.read, 2);
    EXPECT_EQ(counts.appended, run == 0 ? 2 : 0);
    EXPECT_EQ(counts.duplicates, run == 0 ? 0 : 2);
  }
}

TEST(IngestTest, JsonLinesOfOneMillisecondAreDifferentEventsAndAgainTheyAreDuplicates) {
  auto store = NewMemoryStore();
  std::vector<uint64_t> ids;
  const auto append = [&](absl::Span<const v1::Event> events) {
    for (const v1::Event& event : events) ids.push_back(event.event_id());
    return store->Append(events);
  };
  for (int run = 0; run < 2; ++run) {
    std::istringstream stream(
        "{\"userId\":\"a\",\"eventTimeMs\":1,\"itemId\":10,\"action\":\"click\"}\n"
        "{\"userId\":\"a\",\"eventTimeMs\":1,\"itemId\":11,\"action\":\"click\"}\n"
        "{\"user_id\":\"a\",\"event_time_ms\":0,\"event_id\":0,\"item_id\":12,\"action\":\"click\"}\n");
    IngestCounts counts;
    const absl::Status status = IngestStream(stream, "x.jsonl", {}, append, counts);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(counts.appended, run == 0 ? 3 : 0);
    EXPECT_EQ(counts.duplicates, run == 0 ? 0 : 3);
  }
  ASSERT_EQ(ids.size(), 6u);
  EXPECT_EQ(ids[0] >> 28, 0u);
  EXPECT_EQ(ids[1] >> 28, 1u);
  EXPECT_THAT(ids, ElementsAre(ids[0], ids[1], 0, ids[0], ids[1], 0));  // what is said to be 0 stays 0
}

// Every file begins at row 0; what stands there is another event all the same.
TEST(IngestTest, RowsOfTwoFilesAreDifferentEvents) {
  const std::string json =
      "{\"userId\":\"a\",\"eventTimeMs\":1,\"itemId\":12,\"action\":\"click\"}\n"
      "{\"userId\":\"a\",\"eventTimeMs\":1,\"itemId\":10,\"action\":\"buy\"}\n";
  const std::pair<std::string, std::string> files[] = {
      {"one.tsv", std::string(kHeader) + "a\t1\t10\tclick\na\t1\t11\tclick\n"},
      {"two.tsv", std::string(kHeader) + "a\t1\t11\tclick\na\t1\t10\tclick\n"},
      {"three.jsonl", json}};
  auto store = NewMemoryStore();
  const auto append = [&](absl::Span<const v1::Event> events) { return store->Append(events); };
  for (int run = 0; run < 2; ++run) {
    for (const auto& [name, text] : files) {
      std::istringstream stream(text);
      IngestCounts counts;
      ASSERT_TRUE(IngestStream(stream, name, {}, append, counts).ok());
      EXPECT_EQ(counts.appended, run == 0 ? 2 : 0) << name;
      EXPECT_EQ(counts.duplicates, run == 0 ? 0 : 2) << name;
    }
  }
  EventList events;
  const absl::Status fetched = store->Fetch("a", v1::HistoryQuery(), events);
  ASSERT_TRUE(fetched.ok()) << fetched;
  ASSERT_EQ(events.size(), 6);
  // Events of one millisecond come by their rows.
  for (int i = 0; i < 6; ++i) EXPECT_EQ(events[i].event_id() >> 28, static_cast<uint64_t>(i / 3));
}

// The same event in the other format, or with its fields in another order, has the same id.
TEST(IngestTest, TheIdOfAnEventIsThatOfItsContent) {
  const Outcome tsv = Ingest(std::string(kHeader) + "a\t1\t10\tclick\n");
  const Outcome json =
      Ingest("{\"action\": \"click\", \"item_id\": \"10\", \"event_time_ms\": 1, \"user_id\": \"a\"}");
  ASSERT_EQ(tsv.events.size(), 1u);
  ASSERT_EQ(json.events.size(), 1u);
  EXPECT_EQ(tsv.events[0].event_id(), json.events[0].event_id());
  EXPECT_NE(tsv.events[0].event_id(), 0u);
}

TEST(IngestTest, AJsonLineNeedsATime) {
  const Outcome outcome = Ingest("{\"userId\":\"a\",\"itemId\":10,\"action\":\"click\"}\n");
  EXPECT_EQ(Message(outcome), "events:1: event_time_ms: expected milliseconds since the epoch, got none");
  EXPECT_TRUE(outcome.events.empty());
}

TEST(IngestTest, AppendsInBatches) {
  std::string text = kHeader;
  for (int i = 0; i < 7; ++i) absl::StrAppend(&text, "a\t", i, "\t1\tclick\n");
  const Outcome outcome = Ingest(text, {.batch_size = 3});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.batches, ElementsAre(3, 3, 1));
  EXPECT_EQ(outcome.counts.appended, 7);
}

TEST(IngestTest, ABadLineEndsTheRunAfterStoringWhatCameBefore) {
  const Outcome outcome = Ingest(std::string(kHeader) + "a\t1\t1\tclick\na\tx\t1\tclick\na\t3\t1\tclick\n");
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(outcome),
            "events:3: column \"event_time_ms\": expected milliseconds since the epoch, got \"x\"");
  EXPECT_EQ(outcome.counts.read, 1);
  EXPECT_EQ(outcome.counts.appended, 1);
}

TEST(IngestTest, SkipsBadLinesWhereAskedAndTellsOfEach) {
  IngestOptions options;
  options.skip_bad = true;
  options.max_line_bytes = 60;
  const Outcome outcome = Ingest(
      std::string(kHeader) + "a\t1\t1\tclick\na\t2\nb\t3\t1\t\n" + std::string(99, 'x') + "\na\t4\t1\tclick",
      options);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.counts.appended, 2);
  EXPECT_EQ(outcome.counts.bad_lines, 3);
  ASSERT_EQ(outcome.bad.size(), 3u);
  EXPECT_EQ(outcome.bad[0], "events:3: expected 4 columns, got 2");
  EXPECT_THAT(outcome.bad[1], HasSubstr("events:4: event of user \"b\" at 3 ms, id 2: action"));
  EXPECT_EQ(outcome.bad[2], "events:5: expected a line of at most 60 bytes, got a longer one");
  EXPECT_EQ(outcome.events[1].event_id() >> 28, 4u);  // bad rows keep their numbers
}

TEST(IngestTest, NamesTheFaultOfARow) {
  const auto message = [](const std::string& columns, const std::string& row) {
    return Message(Ingest(columns + "\n" + row + "\n"));
  };
  const std::string columns = "user_id\tevent_time_ms\taction\titem_id\titem_key\tx:int\ty:float\tevent_id";
  EXPECT_THAT(message(columns, "a\t1\tclick\t1\tk\t\t\t"),
              HasSubstr("column \"item_key\": expected nothing beside"));
  EXPECT_THAT(message(columns, "a\t1\tclick\t\t\t\t\t"), HasSubstr("item: expected item_id or item_key"));
  EXPECT_THAT(message(columns, "a\t1\tclick\t1.5\t\t\t\t"),
              HasSubstr("column \"item_id\": expected an integer, got \"1.5\""));
  EXPECT_THAT(message(columns, "a\t1\tclick\t1\t\tz\t\t"),
              HasSubstr("column \"x\": expected an integer, got \"z\""));
  EXPECT_THAT(message(columns, "a\t1\tclick\t1\t\t\tnan\t"),
              HasSubstr("column \"y\": expected a finite number"));
  EXPECT_THAT(message(columns, "a\t1\tclick\t1\t\t\t\t-1"),
              HasSubstr("column \"event_id\": expected an integer of 0"));
  EXPECT_THAT(message(columns, "a\t-1\tclick\t1\t\t\t\t"),
              HasSubstr("event_time_ms: expected 0 or more, got -1"));
  EXPECT_THAT(message(columns, "a\t99999999999999999999\tclick\t1\t\t\t\t"), HasSubstr("event_time_ms"));
  EXPECT_THAT(message(columns, "\xFF\t1\tclick\t1\t\t\t\t"), HasSubstr("user_id: expected UTF-8"));
}

TEST(IngestTest, NamesTheFaultOfAHeaderAndNeverSkipsIt) {
  IngestOptions skip;
  skip.skip_bad = true;
  const auto message = [&](const std::string& columns) {
    const Outcome outcome = Ingest(columns + "\na\t1\t1\tclick\n", skip);
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
    return Message(outcome);
  };
  EXPECT_THAT(message("user\tevent_time_ms\titem_id\taction"),
              HasSubstr("events:1: header: expected user_id"));
  EXPECT_THAT(message("event_time_ms\titem_id\taction"), HasSubstr("column \"user_id\" is missing"));
  EXPECT_THAT(message("user_id\tevent_time_ms\taction"), HasSubstr("\"item_id\" or \"item_key\""));
  EXPECT_THAT(message("user_id\tuser_id\tevent_time_ms\titem_id\taction"), HasSubstr("stands there twice"));
  EXPECT_THAT(message("user_id\t:int\tevent_time_ms\titem_id\taction"), HasSubstr("has no name"));
}

TEST(IngestTest, NamesTheLineOfBadJson) {
  const std::string good = "{\"userId\":\"a\",\"eventTimeMs\":1,\"itemId\":1,\"action\":\"c\"}\n";
  EXPECT_THAT(Message(Ingest(good + "{\"userId\":\"a\",\"item\":1}\n")),
              HasSubstr("events:2: expected the protobuf"));
  EXPECT_THAT(Message(Ingest(good + good + "{\"userId\":\"a\"")), HasSubstr("events:3: "));
}

TEST(IngestTest, TellsTheFormatByNameThenByTheFirstLine) {
  EXPECT_THAT(Message(Ingest("user_id\n", {}, "x.jsonl")),
              HasSubstr("x.jsonl:1: expected the protobuf JSON"));
  EXPECT_THAT(Message(Ingest("{}\n", {}, "x.tsv")), HasSubstr("x.tsv:1: header"));
  EXPECT_THAT(Message(Ingest("{}\n", {}, "x")), HasSubstr("x:1: event_time_ms: expected"));
  EXPECT_THAT(Message(Ingest("{}\n", {.format = EventFormat::kTsv}, "x")), HasSubstr("header"));
  const std::string event = "{\"userId\":\"a\",\"eventTimeMs\":1,\"itemId\":1,\"action\":\"c\"}\n";
  for (const char* before : {"", " ", "\t ", "\n\n", "\xEF\xBB\xBF", "\xEF\xBB\xBF \t", "\r\n "}) {
    const Outcome outcome = Ingest(before + event + " " + event);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.counts.appended, 2) << before;
    EXPECT_EQ(Ingest(before + event, {}, "x.jsonl").counts.appended, 1) << before;
  }
  for (const char* before : {"", "\n", "\xEF\xBB\xBF"}) {
    EXPECT_EQ(Ingest(std::string(before) + kHeader + "a\t1\t1\tclick\n").counts.appended, 1) << before;
  }
  // A first line that is too long still says what it is.
  IngestOptions options{.max_line_bytes = 80, .skip_bad = true};
  EXPECT_EQ(Ingest("{" + std::string(100, ' ') + "\n" + event, options).counts.appended, 1);
}

TEST(IngestTest, AnEmptyStreamIsNoEvents) {
  const Outcome outcome = Ingest("");
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.counts.read, 0);
}

TEST(IngestTest, AFailingStoreEndsTheRunAndNamesTheLines) {
  std::string text = kHeader;
  for (int i = 0; i < 5; ++i) absl::StrAppend(&text, "a\t", i, "\t1\tclick\n");
  std::istringstream stream(text);
  IngestCounts counts;
  int calls = 0;
  const absl::Status status = IngestStream(
      stream, "e.tsv", {.batch_size = 2},
      [&](absl::Span<const v1::Event> events) -> absl::StatusOr<AppendResult> {
        if (++calls == 2) return absl::UnavailableError("disk full");
        return AppendResult{static_cast<int64_t>(events.size()), 0};
      },
      counts);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "e.tsv:4: the events of lines 4 to 5 were not stored: disk full");
  EXPECT_EQ(counts.read, 4);
  EXPECT_EQ(counts.appended, 2);
  EXPECT_EQ(calls, 2);
}

TEST(IngestTest, ReadsFilesAndNamesMissingOnes) {
  const auto append = [](absl::Span<const v1::Event> events) -> absl::StatusOr<AppendResult> {
    return AppendResult{static_cast<int64_t>(events.size()), 0};
  };
  const std::string path = ::testing::TempDir() + "ingest_test.tsv";
  std::ofstream(path) << kHeader << "a\t1\t1\tclick\n";
  IngestCounts counts;
  EXPECT_TRUE(IngestFile(path, {}, append, counts).ok());
  EXPECT_EQ(counts.appended, 1);
  std::remove(path.c_str());
  const absl::Status missing = IngestFile(path, {}, append, counts);
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr(path));
  EXPECT_EQ(IngestFile(::testing::TempDir(), {}, append, counts).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace dinghy
