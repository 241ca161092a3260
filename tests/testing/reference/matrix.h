// Rows of doubles, for the slow references. Bounds are checked. Thread-compatible.
#ifndef DINGHY_TESTS_TESTING_REFERENCE_MATRIX_H_
#define DINGHY_TESTS_TESTING_REFERENCE_MATRIX_H_

#include <cstddef>
#include <vector>

namespace dinghy::reference {

using Row = std::vector<double>;
using Matrix = std::vector<Row>;  // rows of equal width; a matrix without rows has no width

inline Row Concat(const std::vector<Row>& parts) {
  Row out;
  for (const Row& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

}  // namespace dinghy::reference

#endif  // DINGHY_TESTS_TESTING_REFERENCE_MATRIX_H_
