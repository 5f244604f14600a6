// Calls functions of a library on memory that a file holds, and writes that memory back: how kernels are tried under an
// emulator, where there is no Python. tests/aarch64/emulated.py writes the file.
//     harness LIBRARY JOB RESULT
// JOB holds int64 words: bytes of memory, how many words of it are addresses, how many calls; where those addresses are,
// which count from the memory's begin; for each call where the function's name is, how many arguments it has, and for
// each of these its kind and its value; then the memory.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

enum Kind : int64_t { NUMBER, ADDRESS, ROOM };  // ROOM: as many bytes as the call before has returned
constexpr int MOST = 16;                        // arguments; what a function does not take, it does not read
using I = int64_t;
using Function = I (*)(I, I, I, I, I, I, I, I, I, I, I, I, I, I, I, I);

struct Call {
  I name, count, arguments[MOST][2];
};

static void check(bool fine, const char* what) {
  if (fine) return;
  std::fprintf(stderr, "%s: %s\n", what, dlerror());
  std::exit(1);
}

static void read(void* to, I bytes, FILE* from) {
  check(bytes == 0 || std::fread(to, bytes, 1, from) == 1, "the job is too short");
}

static char* aligned(I bytes) { return (char*)std::aligned_alloc(64, (bytes / 64 + 1) * 64); }

int main(int, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  check(library != nullptr, arguments[1]);
  FILE* job = std::fopen(arguments[2], "rb");
  I head[3];
  read(head, sizeof head, job);
  std::vector<I> addresses(head[1]);
  read(addresses.data(), head[1] * sizeof(I), job);
  std::vector<Call> calls(head[2]);
  for (Call& call : calls) {
    read(&call.name, 2 * sizeof(I), job);
    read(call.arguments, call.count * sizeof call.arguments[0], job);
  }
  char* memory = aligned(head[0]);
  read(memory, head[0], job);
  for (I at : addresses) *(I*)(memory + at) += (I)memory;
  I result = 0;
  for (const Call& call : calls) {
    I given[MOST] = {};
    for (I i = 0; i < call.count; ++i) {
      const I kind = call.arguments[i][0], value = call.arguments[i][1];
      given[i] = kind == ROOM ? (I)aligned(result) : kind == ADDRESS ? (I)memory + value : value;
    }
    const Function f = (Function)dlsym(library, memory + call.name);
    check(f != nullptr, memory + call.name);
    const I* g = given;
    result = f(g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7], g[8], g[9], g[10], g[11], g[12], g[13], g[14], g[15]);
  }
  FILE* out = std::fopen(arguments[3], "wb");
  std::fwrite(memory, head[0], 1, out);
  return std::fclose(out);
}
