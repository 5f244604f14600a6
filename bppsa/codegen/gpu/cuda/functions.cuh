// What printed CUDA kernels call. `real` is float or double. A NaN stays one in all of them.
#pragma once

struct alignas(16) Quad {
    real x, y, z, w;
};

#ifndef BPPSA_SHIM
#define SHARED_IMAGE(name, numbers) __shared__ __align__(16) real name[numbers]
typedef real* Image;
__device__ __forceinline__ real load_shared(const real* image, int at) { return image[at]; }
__device__ __forceinline__ Quad load_quad(const real* image, int at) { return *reinterpret_cast<const Quad*>(image + at); }
__device__ __forceinline__ void store_shared(real* image, int at, real value) { image[at] = value; }
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Never made one op with a sum.
__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }
#endif

// For |x| where the rational and exponential forms would lose digits, and elsewhere, as exp2 and one reciprocal.
__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1.0f + power_of_two(-1.4426950408889634f * x)); }
__device__ __forceinline__ double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
__device__ __forceinline__ float hyperbolic_tangent(float x) {
    const float z = x * x;
    const float near = fmaf(x * z, fmaf(z, fmaf(z, fmaf(z, 0.0218694885f, -0.0539682540f), 0.1333333333f), -0.3333333333f), x);
    const float far = fmaf(-2.0f, reciprocal(1.0f + power_of_two(2.8853900817779268f * x)), 1.0f);
    return fabsf(x) < 0.3f ? near : far;
}
__device__ __forceinline__ double hyperbolic_tangent(double x) { return tanh(x); }

__device__ __forceinline__ real maximum(real a, real b) { return (a > b || a != a) ? a : b; }
__device__ __forceinline__ real minimum(real a, real b) { return (a < b || a != a) ? a : b; }

// floor(log2 |x|), as far as its negative is a normal number's; 0 where x is subnormal or not finite.
__device__ __forceinline__ float exponent(float x) {
    const int biased = (__float_as_int(x) >> 23) & 255;
    return biased == 0 || biased == 255 ? 0.0f : float(biased - 127 < 126 ? biased - 127 : 126);
}
__device__ __forceinline__ double exponent(double x) {
    const int biased = int(__double_as_longlong(x) >> 52) & 2047;
    return biased == 0 || biased == 2047 ? 0.0 : double(biased - 1023 < 1022 ? biased - 1023 : 1022);
}
__device__ __forceinline__ float times_power_of_two(float x, float n) { return x * __int_as_float((int(n) + 127) << 23); }
__device__ __forceinline__ double times_power_of_two(double x, double n) {
    return x * __longlong_as_double((long long)(int(n) + 1023) << 52);
}

// A part's share of the dot product of `held`, DEPTH weights, with numbers of the image: in four chains, which do not
// wait for each other. In quads part p has numbers 4p to 4p + 3 of each 4 * PARTS, so that parts read other banks.
template <int DEPTH, int PARTS>
__device__ __forceinline__ real dot_of_quads(const real* held, const Image image, int at, int part) {
    real sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int q = 0; q < DEPTH / 4; ++q) {
        const Quad other = load_quad(image, at + 4 * (q * PARTS + part));
        sum[0] = held[4 * q] * other.x + sum[0];
        sum[1] = held[4 * q + 1] * other.y + sum[1];
        sum[2] = held[4 * q + 2] * other.z + sum[2];
        sum[3] = held[4 * q + 3] * other.w + sum[3];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
// The same from a place that is no multiple of four.
template <int DEPTH, int PARTS>
__device__ __forceinline__ real dot_of_unaligned(const real* held, const Image image, int at, int part) {
    real sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < DEPTH; ++k)
        sum[k % 4] = held[k] * load_shared(image, at + 4 * (k / 4 * PARTS + part) + k % 4) + sum[k % 4];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
// The same one by one, of `terms` numbers in all: what is beyond the last one is not multiplied.
template <int DEPTH, int PARTS>
__device__ __forceinline__ real dot_of_singles(const real* held, const Image image, int at, int part, int terms) {
    real sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int q = 0; q < DEPTH; ++q) {
        const int k = q * PARTS + part;
        if (PARTS == 1 || k < terms) sum[q % 4] = held[q] * load_shared(image, at + k) + sum[q % 4];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
// Over the threads of a warp that differ in the bits from LOW to below HIGH.
template <int LOW, int HIGH>
__device__ __forceinline__ real sum_across(real value) {
#pragma unroll
    for (int bit = LOW; bit < HIGH; bit *= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
    return value;
}
template <int LOW, int HIGH>
__device__ __forceinline__ real largest_across(real value) {
#pragma unroll
    for (int bit = LOW; bit < HIGH; bit *= 2) value = maximum(value, __shfl_xor_sync(0xffffffffu, value, bit));
    return value;
}
