// Lines up a table for the terminal.
//
//   TextTable table({"output", "AUC"}, 1);
//   table.AddRow({"click", "0.731"});
//   std::cout << table.ToString();
#ifndef DINGHY_SERVER_REPLAY_TEXT_TABLE_H_
#define DINGHY_SERVER_REPLAY_TEXT_TABLE_H_

#include <cstddef>
#include <string>
#include <vector>

namespace dinghy {

class TextTable {
 public:
  // The first `text_columns` are aligned left, the others, which hold numbers, right.
  TextTable(std::vector<std::string> header, size_t text_columns)
      : rows_({std::move(header)}), text_columns_(text_columns) {}

  // `row` has as many cells as the header.
  void AddRow(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  // The header and the rows, columns two spaces apart, each line ended; no trailing spaces.
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  const size_t text_columns_;
};

}  // namespace dinghy

#endif  // DINGHY_SERVER_REPLAY_TEXT_TABLE_H_
