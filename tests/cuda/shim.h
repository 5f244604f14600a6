// Runs the text of a CUDA kernel on a CPU, the threads of a block in turns: each until it waits for the others.
//
// So a run is the same every time. Of each word of shared memory it is known who wrote and who read it last, and when its
// threads had last met: a read of what another thread has written since, or a write over what another one has read or
// written since, is told, whatever the order of turns made of it.
#pragma once
#define BPPSA_SHIM
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
using std::atan, std::cos, std::erf, std::exp, std::fabs, std::floor, std::fmod, std::log, std::sin, std::sqrt, std::tanh;

struct Place {
    int x, y, z;
};
static Place threadIdx, blockIdx;

namespace shim {
enum Meeting { NONE, WARP, BLOCK };
struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Meeting waits_for = NONE;
    bool is_done = false;
};
static std::vector<Thread> threads;
static ucontext_t scheduler;
static int current;
static long block_epoch, faults;
static std::vector<long> warp_epochs;  // rises when a warp meets; what the whole block does raises all
static std::vector<double> slots;      // of a shuffle, one a thread
static void (*body)();

inline void wait(Meeting meeting) {
    const int self = current;
    threads[self].waits_for = meeting;
    swapcontext(&threads[self].context, &scheduler);
    threadIdx.x = self;
}
static void enter() {
    threadIdx.x = current;
    body();
    threads[current].is_done = true;
    swapcontext(&threads[current].context, &scheduler);
}
// Whether all of these threads wait for the same thing; then they go on.
inline bool release(int from, int to, Meeting meeting) {
    for (int i = from; i < to; ++i)
        if (threads[i].is_done || threads[i].waits_for != meeting) return false;
    for (int i = from; i < to; ++i) threads[i].waits_for = NONE;
    return true;
}
// One block of `count` threads; in turns from the last on where `backwards`.
inline bool run(int count, bool backwards) {
    threads = std::vector<Thread>(count);
    warp_epochs.assign(count / 32, 0);
    slots.assign(count, 0.0);
    block_epoch = 0;
    for (auto& thread : threads) {
        const int size = 256 << 10;
        thread.stack.reset(new char[size]);
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.get();
        thread.context.uc_stack.ss_size = size;
        thread.context.uc_link = &scheduler;
        makecontext(&thread.context, enter, 0);
    }
    for (;;) {
        bool moved = false, done = true;
        for (int k = 0; k < count; ++k) {
            const int i = backwards ? count - 1 - k : k;
            if (threads[i].is_done || threads[i].waits_for != NONE) continue;
            current = i;
            swapcontext(&scheduler, &threads[i].context);
            moved = true;
        }
        for (int w = 0; w < count / 32; ++w)
            if (release(32 * w, 32 * w + 32, WARP)) ++warp_epochs[w], moved = true;
        if (release(0, count, BLOCK)) {
            ++block_epoch, moved = true;
            for (auto& epoch : warp_epochs) ++epoch;
        }
        for (auto& thread : threads) done = done && thread.is_done;
        if (done) return true;
        if (!moved) return false;  // some wait for what others never come to
    }
}

struct Access {
    int thread = -1;
    long block = -1, warp = -1;
    static Access now() { return {current, block_epoch, warp_epochs[current / 32]}; }
    // Whether a thread other than the current one did it, and the two have not met since.
    bool is_unmet() const {
        if (thread < 0 || thread == current || block != block_epoch) return false;
        return thread / 32 != current / 32 || warp == warp_epochs[current / 32];
    }
};
template <class Real>
struct Word {
    Real value;
    Access written;
    std::vector<Access> reads;
};
template <class Real>
struct Words {
    std::vector<Word<Real>> words;
    explicit Words(int count) : words(count, Word<Real>{Real(NAN), {}, {}}) {}
    Real load(int at) {
        auto& word = words.at(at);
        faults += word.written.is_unmet();
        word.reads.push_back(Access::now());
        return word.value;
    }
    void store(int at, Real value) {
        auto& word = words.at(at);
        // Idle threads repeat what another one does.
        const bool same = std::memcmp(&word.value, &value, sizeof(Real)) == 0;
        faults += word.written.is_unmet() && !same;
        for (auto& read : word.reads) faults += read.is_unmet() && !same;
        if (!word.reads.empty() && word.reads.front().block != block_epoch) word.reads.clear();
        word.value = value;
        word.written = Access::now();
    }
};
}  // namespace shim

#define SHARED_IMAGE(name, numbers) shim::Words<real>& name = *shared
typedef shim::Words<real>& Image;
static shim::Words<real>* shared;
inline real load_shared(Image image, int at) { return image.load(at); }
struct Quad;
inline Quad load_quad(Image image, int at);
inline void store_shared(Image image, int at, real value) { image.store(at, value); }
inline float power_of_two(float x) { return exp2f(x); }
inline float reciprocal(float x) { return 1.0f / x; }
inline real product(real a, real b) { return a * b; }
template <class To, class From>
inline To bits(From x) {
    To y;
    std::memcpy(&y, &x, sizeof(To));
    return y;
}
inline int __float_as_int(float x) { return bits<int>(x); }
inline float __int_as_float(int x) { return bits<float>(x); }
inline long long __double_as_longlong(double x) { return bits<long long>(x); }
inline double __longlong_as_double(long long x) { return bits<double>(x); }
inline void __syncwarp() { shim::wait(shim::WARP); }
inline void __syncthreads() { shim::wait(shim::BLOCK); }
template <class Real>
inline Real __shfl_xor_sync(unsigned, Real value, int bit) {
    const int self = shim::current;
    shim::slots[self] = value;
    shim::wait(shim::WARP);
    const Real other = Real(shim::slots[self ^ bit]);
    shim::wait(shim::WARP);
    return other;
}
