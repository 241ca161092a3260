// Vector code outside oneDNN: Highway with run-time dispatch (AVX-512, AVX2, plain).
//
// Elementwise functions give the same bits for an element wherever it stands in the array. Reductions run in
// one fixed order that depends on the length alone. Arrays need no alignment; nothing past their end is read
// or written. Error bounds are stated per function, against a correctly rounded result. Thread-safe.
#ifndef DINGHY_MODEL_OPS_VECTOR_MATH_H_
#define DINGHY_MODEL_OPS_VECTOR_MATH_H_

#include <cstdint>
#include <string>

namespace dinghy::ops {

// In place over n floats. Finite in, finite out, at any magnitude; NaN stays NaN.
void Relu(float* x, int64_t n);
void Sigmoid(float* x, int64_t n);  // absolute error below 2e-7
void Tanh(float* x, int64_t n);     // absolute error below 4e-7
void Silu(float* x, int64_t n);     // relative error below 1e-6
void LeakyRelu(float slope, float* x, int64_t n);
// x Phi(x) and its approximation by tanh, as GELU_TANH in bundle.proto: error below 5e-7, or below 2e-7 of
// the result where that is more.
void GeluErf(float* x, int64_t n);
void GeluTanh(float* x, int64_t n);
// x + 1 where x > 0, else exp(x); relative error below 3e-7, 0 below -87.
void EluPlusOne(float* x, int64_t n);
// x + 1 where x > 0, else exp(x - shift), where x <= shift must hold: as above, and 0 for x - shift below
// -87.
void ShiftedEluPlusOne(float shift, float* x, int64_t n);

// In place over x [rows, n], packed, with parameters [n] by column.
void PreluRows(float* x, int64_t rows, int64_t n, const float* alpha);
// p x + alpha (1 - p) x with p = sigmoid(x * norm_scale + norm_shift).
void DiceRows(float* x, int64_t rows, int64_t n, const float* alpha, const float* norm_scale,
              const float* norm_shift);
// x = x * scale + shift.
void ScaleShiftRows(float* x, int64_t rows, int64_t n, const float* scale, const float* shift);

// y += x; y *= x; y *= scale; all over n floats.
void AddTo(const float* x, float* y, int64_t n);
void MultiplyBy(const float* x, float* y, int64_t n);
void Scale(float scale, float* y, int64_t n);

// out = x * scale + y, over n floats; out may be x or y.
void ScaleAdd(const float* x, float scale, const float* y, float* out, int64_t n);

// out[i, j] = base[i, j] + d[j] * p[i, j] with base, p, out [rows, n] packed: DIN's pair weight for one
// candidate.
void AddScaledColumns(const float* base, const float* p, const float* d, float* out, int64_t rows, int64_t n);
// out[i, j] = base[i, j] + d[i] * p[i, j]: the same with the weight stored [k, n].
void AddScaledRows(const float* base, const float* p, const float* d, float* out, int64_t rows, int64_t n);

// Over x[0, n): x = softmax(x), with the largest subtracted first. n >= 1.
void Softmax(float* x, int64_t n);

// Each row of x [rows, n]: y = (x - mean) / sqrt(variance + epsilon) * weight + bias, biased variance. y may
// be x.
void LayerNormRows(const float* x, int64_t rows, int64_t n, const float* weight, const float* bias,
                   float epsilon, float* y);

float Dot(const float* a, const float* b, int64_t n);

// The largest of x[0, n). n >= 1.
float Largest(const float* x, int64_t n);

// out[j] = sum over i of weight[i] * x[i * stride + j], i rising; out [n] is overwritten. rows may be 0.
void WeightedSumRows(const float* x, int64_t stride, const float* weight, int64_t rows, int64_t n,
                     float* out);

// The Highway target in use, as "AVX3", "AVX2" or the baseline "SCALAR".
std::string VectorTarget();

}  // namespace dinghy::ops

#endif  // DINGHY_MODEL_OPS_VECTOR_MATH_H_
