// A program: calls one after the other, with arguments that are numbers, or places in memories that each run has anew.
namespace {

struct Call {
  void (*entry)(const int64_t*);
  int64_t first, count;  // of its arguments
};

struct Argument {
  int64_t base, value;
};

constexpr int64_t MOST_ARGUMENTS = 32;

}  // namespace

// bases: addresses of the memories; that of numbers is 0.
extern "C" void bppsa_run(const Call* calls, int64_t count, const Argument* arguments, const int64_t* bases) {
  int64_t values[MOST_ARGUMENTS];
  for (const Call* call = calls; call < calls + count; ++call) {
    const Argument* from = arguments + call->first;
    for (int64_t i = 0; i < call->count; ++i) values[i] = bases[from[i].base] + from[i].value;
    call->entry(values);
  }
}
