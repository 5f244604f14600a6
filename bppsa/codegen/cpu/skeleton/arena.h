// The caller's workspace, carved up.
namespace {

INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of the workspace are whole cache lines, so that threads share none.
constexpr int64_t LINE = 64 / sizeof(real);
INLINE int64_t padded(int64_t width) { return ceil_div(width, LINE) * LINE; }

// Carves the caller's workspace; with no base it only counts bytes.
class Arena {
 public:
  explicit Arena(void* base) : base_((char*)base), used_(0) {}
  template <class T>
  T* take(int64_t count) {
    char* at = base_ + used_;
    used_ += ceil_div(count * (int64_t)sizeof(T), 64) * 64;
    return (T*)at;
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_;
};

}  // namespace
